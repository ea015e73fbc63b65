"""The coverage report: which ops and values stay whole, why, and their share of FLOPs and bytes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import small_transformer, traced
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.conflicts.coverage import CoverageRow, UnsplitReason, coverage, value_bytes
from toast_lab.ir import read
from toast_lab.ir.model import Model
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.space import build_space

SECRET = """module {
  func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.custom_call @secret(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("model.py":7:1)
    %1 = stablehlo.custom_call @secret(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("model.py":7:1)
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
}
"""  # noqa: E501


def s(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def of_program(program: Program) -> Analysis:
    return analyse(Model(program.name, program))


def from_text(text: str) -> Analysis:
    return of_program(read.parse(text).program)


def rows(analysis: Analysis, reason: UnsplitReason) -> dict[str, CoverageRow]:
    return {row.kind: row for row in coverage(analysis).rows if row.reason is reason}


def test_ops_without_a_rule_are_counted_with_their_line_and_bytes() -> None:
    report = coverage(from_text(SECRET))
    row = rows(from_text(SECRET), UnsplitReason.NO_RULE)["custom_call"]
    assert (row.op_count, row.lines, row.why.partition(". ")[0]) == (
        2,
        (("model.py:7", 2),),
        "no sharding rule for custom_call @secret",
    )
    x, hidden, w, out = 512, 512, 256, 128
    assert row.bytes == x + hidden + hidden
    assert row.bytes_share == pytest.approx((x + 2 * hidden) / (x + 2 * hidden + w + out))
    assert (report.n_ops, report.n_whole_ops, report.whole_bytes) == (3, 2, 1536)
    assert report.flops_share == 1.0, "the product itself can be split"
    assert not report.complete
    # Only the value between the two calls has no dim that any action could shard.
    kept = rows(from_text(SECRET), UnsplitReason.KEPT_WHOLE)["custom_call"]
    assert (kept.op_count, kept.bytes) == (1, hidden)
    assert report.kept_bytes == hidden


def test_an_op_whose_rule_splits_nothing_blocks_what_it_holds() -> None:
    analysis = traced(lambda x: jnp.fft.fft(jnp.tanh(x)), s(256, dtype="complex64"))
    row = rows(analysis, UnsplitReason.ALL_WHOLE)["fft"]
    assert row.bytes == 2 * 256 * 8
    assert rows(analysis, UnsplitReason.NO_RULE) == {}
    # With a batch dim the op can be split, and only the transformed dim stays whole.
    batched = traced(lambda x: jnp.fft.fft(jnp.tanh(x)), s(16, 256, dtype="complex64"))
    assert rows(batched, UnsplitReason.ALL_WHOLE) == {}
    row = rows(batched, UnsplitReason.SOME_WHOLE)["fft"]
    assert row.colours == ("x_dim1",)
    assert not row.whole
    assert coverage(batched).n_whole_ops == 0
    assert coverage(batched).complete


def test_flops_of_an_op_held_whole_are_blocked() -> None:
    analysis = from_text(SECRET)
    program = analysis.program
    flops = program.flops.copy()
    first = program.n_arguments
    flops[first : first + 2] = program.flops.sum() / 2  # as for custom calls of known cost
    object.__setattr__(program, "flops", flops)
    report = coverage(analysis)
    assert report.flops_share == 0.5
    assert report.whole_rows[0].flops_share == 0.5
    trips = np.ones(program.n_ops)
    trips[first] = 5
    object.__setattr__(program, "trips", trips)
    assert coverage(of_program(program)).flops_share == pytest.approx(2 / 8), "trips count"


def test_the_inner_part_of_a_merged_dim_is_told() -> None:
    analysis = traced(
        lambda x, w: jnp.einsum("bhk,hkd->bd", jnp.tanh(x.reshape(8, 4, 6)), w),
        s(8, 24),
        s(4, 6, 5),
    )
    row = rows(analysis, UnsplitReason.MINOR_FACTOR)["reshape"]
    assert row.colours == (analysis.dim_text(analysis.program.def_names(1)[1]),), (
        "k, not h and not b"
    )
    assert row.bytes == 2 * 8 * 24 * 4
    assert coverage(analysis).complete


def test_constants_and_scalars_block_nothing() -> None:
    def f(x: jax.Array) -> jax.Array:
        # Only made of constants, and not held whole by any rule
        mask = jnp.fft.fft(jnp.arange(64, dtype=jnp.complex64)).real
        return x * mask + jnp.float32(2.0)

    report = coverage(traced(f, s(64)))
    assert report.whole_rows == ()
    assert report.n_ops == 2
    assert report.bytes == 3 * 256
    assert report.flops_share is None
    assert "every op can be split" in report.headline()


def test_a_program_of_real_size_is_covered() -> None:
    report = coverage(
        small_transformer(layers=4, d_model=2048, hidden=16384, heads=8, key_size=256, vocab=256128)
    )
    assert report.complete
    assert (report.n_whole_ops, report.whole_bytes, report.flops_share) == (0, 0.0, 1.0)
    assert {(row.kind, row.colours, row.op_count) for row in report.rows} == {
        ("slice", ("key",), 32),
        ("concatenate", ("key",), 16),
    }
    assert str(report).startswith(
        "Coverage: every op can be split (48 not along every dim) and every value can be kept "
        "sharded."
    )


def test_rows_are_sorted_by_what_they_block() -> None:
    def f(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        return (
            jnp.fft.fft(x),
            jnp.sort(y),
            jnp.cumsum(y[:8]),
            jnp.sort(jnp.tanh(jnp.outer(y, y)), axis=1),
        )

    report = coverage(traced(f, s(64, dtype="complex64"), s(32)))
    assert [row.whole for row in report.rows] == sorted(
        (row.whole for row in report.rows), reverse=True
    )
    held = [row.bytes for row in report.whole_rows]
    assert len(held) >= 3
    assert held == sorted(held, reverse=True)
    assert report.whole_bytes < sum(held), (
        "values kept whole lie around the same ops and count once"
    )


def test_rounds_that_are_assumed_are_said() -> None:
    def f(x: jax.Array, w: jax.Array, n: jax.Array) -> jax.Array:
        def outer(i: Any, h: jax.Array) -> jax.Array:
            return jnp.tanh(jax.lax.fori_loop(0, i, lambda j, g: g @ w, h))

        y = jax.lax.fori_loop(0, n, outer, x)
        return jax.lax.fori_loop(0, 3, lambda i, h: h @ w, y)

    analysis = traced(f, s(8, 16), s(16, 16), s(dtype="int32"))
    (row,) = (r for r in coverage(analysis).rows if r.reason is UnsplitReason.UNKNOWN_TRIPS)
    assert (row.kind, row.op_count, row.whole) == ("loop", 2, False)
    once = 2 * 8 * 16 * 16
    assert row.flops == once, "the inner loop's product counts once, with the outer loop"
    assert row.flops_share == 0.25  # the last loop is known to run three times
    assert not coverage(analysis).complete
    assert "some counts are assumed" in str(coverage(analysis))


def test_a_conditional_is_one_row() -> None:
    def f(c: jax.Array, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.cond(c, lambda: (x @ w, x), lambda: (jnp.sin(x), jnp.cos(x)))

    analysis = traced(f, s(dtype="bool"), s(8, 16), s(16, 16))
    (row,) = coverage(analysis).rows
    assert (row.kind, row.reason, row.op_count, row.whole) == (
        "conditional",
        UnsplitReason.UNKNOWN_BRANCH,
        1,
        False,
    )
    assert row.flops == 2 * 8 * 16 * 16 / 2


def test_what_a_loop_stacks_is_one_row_a_loop() -> None:
    def f(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h), x, ws)

    analysis = traced(f, s(5, 16, 16), s(8, 16))
    (row,) = (r for r in coverage(analysis).rows if r.reason is UnsplitReason.STACKED)
    assert (row.kind, row.op_count) == ("loop", 2)  # its input and its output
    assert not any(r.kind.startswith("while") for r in coverage(analysis).rows)


def test_value_bytes_are_those_of_the_program() -> None:
    program = small_transformer().program
    assert value_bytes(program).tolist() == [program.nbytes(v) for v in range(program.n_values)]


def test_str_tables_what_is_held() -> None:
    text = str(coverage(from_text(SECRET)))
    assert (
        "2 of 3 ops cannot be split, with 0 of the FLOPs; they need 80.0% of the bytes whole"
        in text
    )
    assert (
        "custom_call      2      0  80.0%  all    model.py:7  no sharding rule for "
        "custom_call @secret"
    ) in text


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda: jnp.float32(1), ()),
        (lambda x: x, (s(),)),
        (lambda: jnp.ones((3, 4)), ()),
        (lambda x: x + 1, (s(0, 3),)),
    ],
)
def test_programs_with_nothing_to_split(fn: Any, args: tuple[Any, ...]) -> None:
    analysis = traced(fn, *args)
    assert coverage(analysis).whole_rows == ()
    assert coverage(analysis).complete
    assert build_space(analysis, make_mesh("2x2")).n_moves <= 1
    assert len(analysis.groups) == len(analysis.colours) == len(set(analysis.colour_name))

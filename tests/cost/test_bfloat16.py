"""A TPU keeps and sends values in bfloat16 if only default-precision products read them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.cost.test_fusion import PLAIN, SIZE, SQUARE, Fused, S, fixed, machine
from tests.helpers import plan, traced
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.pipeline import replicated

HALF = S((64, 64), jnp.bfloat16)


def kept(found: Fused, kind: str, n: int = 0) -> float:
    """Return the bytes of a result as kept, as a share of its full size."""
    (value,) = found.program.results(found.ops(kind)[n])
    return float(found.facts.value.bytes[value] / found.program.nbytes(value))


def sent(found: Fused, kind: str, n: int = 0) -> list[float]:
    op = found.ops(kind)[n]
    return found.facts.use.sent[found.program.use_ptr[op] : found.program.use_ptr[op + 1]].tolist()


def product(x: Any, w: Any, precision: Any = None) -> Any:
    return jax.lax.dot(x, w, precision=precision)


def convolution(x: Any, w: Any, precision: Any = None) -> Any:
    return jax.lax.conv_general_dilated(
        x[None], w[None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), precision=precision
    )


# -- values in memory ------------------------------------------------------------------------------

READ_BY_PRODUCTS = {
    "one product": lambda y, w: product(y, w),
    "two products": lambda y, w: (product(y, w), product(w, y)),
    "a convolution": lambda y, w: convolution(y, w),
    "a product with itself": lambda y, w: product(y, y),
    "through a transpose": lambda y, w: product(jnp.transpose(y), w),
    "through a reshape": lambda y, w: product(y.reshape(128, 32), w[:32]),
    "through a concatenate": lambda y, w: product(jnp.concatenate([y, w]), w),
    "through a slice": lambda y, w: product(y[:32], w),
    "through a pad": lambda y, w: product(jnp.pad(y, ((0, 8), (0, 0))), w),
    "through all of them": lambda y, w: product(
        jnp.concatenate([y.reshape(32, 128).T[:32], w[:, :32]]), w[:32]
    ),
}


@pytest.mark.parametrize("case", READ_BY_PRODUCTS)
def test_a_value_that_only_products_read_is_kept_at_half_size(case):
    fused = Fused("tpu", lambda x, w: READ_BY_PRODUCTS[case](fixed(x), w), SQUARE, SQUARE)
    assert fused.written("sort")
    assert kept(fused, "sort") == 0.5


@pytest.mark.parametrize("compiler", ["cpu", "gpu"])
@pytest.mark.parametrize("case", READ_BY_PRODUCTS)
def test_other_compilers_keep_and_send_what_there_is(case, compiler):
    fused = Fused(compiler, lambda x, w: READ_BY_PRODUCTS[case](fixed(x), w), SQUARE, SQUARE)
    assert fused.facts.value.bytes.tolist() == [
        fused.program.nbytes(v) for v in range(fused.program.n_values)
    ]
    assert set(fused.facts.use.sent.tolist()) == {1.0}


READ_AS_THEY_ARE = {
    "an elementwise op as well": lambda y, w: (product(y, w), jnp.sin(y)),
    "an elementwise op on the way": lambda y, w: product(jnp.sin(y), w),
    "an elementwise op behind a transpose": lambda y, w: (product(y, w), jnp.sin(y.T)),
    "an elementwise op behind a reshape": lambda y, w: (product(y, w), jnp.sin(y.reshape(-1))),
    "a reduction": lambda y, w: (product(y, w), jnp.sum(y)),
    "a result": lambda y, w: (product(y, w), y),
    "a result behind a reshape": lambda y, w: (product(y, w), y.reshape(-1)),
    "a result behind a transpose": lambda y, w: (product(y, w), y.T),
    "nothing but the result": lambda y, w: y,
    "a precise product": lambda y, w: product(y, w, "highest"),
    "a more precise product": lambda y, w: product(y, w, "high"),
    "a precise product as well": lambda y, w: (product(y, w), product(w, y, "highest")),
    "a precise convolution": lambda y, w: convolution(y, w, "highest"),
    "a loop": lambda y, w: jax.lax.fori_loop(0, 3, lambda _, c: product(c, w), y),
}


@pytest.mark.parametrize("case", READ_AS_THEY_ARE)
def test_a_value_that_others_read_is_kept_as_it_is(case):
    fused = Fused("tpu", lambda x, w: READ_AS_THEY_ARE[case](fixed(x), w), SQUARE, SQUARE)
    assert fused.written("sort")
    assert kept(fused, "sort") == 1.0


def test_arguments_are_kept_as_they_are():
    fused = Fused("tpu", product, SQUARE, SQUARE)
    assert fused.facts.value.bytes[:2].tolist() == [SIZE, SIZE]
    assert sent(fused, "dot_general") == [0.5, 0.5]


def test_a_product_between_products_is_kept_at_half_size():
    fused = Fused("tpu", lambda x, w: product(product(x, w), w), SQUARE, SQUARE)
    assert [kept(fused, "dot_general", n) for n in range(2)] == [0.5, 1.0]
    # x, w; the value between, written and read; w, the result
    assert fused.moved_bytes() == (2 + 0.5 + 0.5 + 2) * SIZE


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32])
def test_other_types_are_kept_and_sent_as_they_are(dtype):
    fused = Fused("tpu", lambda x, w: product(fixed(x), w), *[S((64, 64), dtype)] * 2)
    assert fused.facts.value.bytes.tolist() == [
        fused.program.nbytes(v) for v in range(fused.program.n_values)
    ]
    assert set(fused.facts.use.sent.tolist()) == {1.0}


def test_what_is_kept_narrow_takes_half_the_memory():
    """At the peak, the second product, both arguments, its operand and its result are in memory."""
    peaks = {}
    for compiler in ("gpu", "tpu"):
        problem = Problem(
            traced(lambda x, w: product(product(x, w), w), SQUARE, SQUARE),
            {"a": 2},
            machine(compiler),
        )
        peaks[compiler] = price(problem, replicated(problem)).peak_bytes
    assert peaks == {"gpu": 4 * SIZE, "tpu": 3.5 * SIZE}


# -- passes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [product, convolution])
@pytest.mark.parametrize(
    ("compiler", "shape", "precision", "passes"),
    [
        ("tpu", SQUARE, None, 1),
        ("tpu", SQUARE, "high", 3),
        ("tpu", SQUARE, "highest", 6),
        ("tpu", HALF, "highest", 1),
        ("gpu", SQUARE, "highest", 1),
        ("cpu", SQUARE, "high", 1),
    ],
)
def test_precise_products_take_several_passes(make, compiler, shape, precision, passes):
    on = machine(compiler, flops={"f32": 1e3}, memory_bytes_per_s=1e18)
    problem = Problem(traced(lambda x, w: make(x, w, precision), shape, shape), {"a": 2}, on)
    cost = price(problem, replicated(problem))
    (row,) = (o for o in cost.ops if o.flops > 0)
    assert row.flops == 2 * 64**3
    assert row.time_s == pytest.approx(passes * row.flops / 1e3)
    assert cost.time_s == pytest.approx(row.time_s)


@pytest.mark.parametrize(("precision", "factor"), [(None, 0.5), ("high", 1.0), ("highest", 1.0)])
def test_operands_of_precise_products_are_sent_as_they_are(precision, factor):
    fused = Fused("tpu", lambda x, w: product(x, w, precision), SQUARE, SQUARE)
    assert sent(fused, "dot_general") == [factor, factor]


# -- collectives -----------------------------------------------------------------------------------


def gathered(
    compiler: str, fn: Any, *, dim_names: Any = None, actions: Any = None
) -> tuple[Problem, Cost]:
    """Price a function of x and w, with w cut along its rows and gathered where it is used."""
    on = dataclasses.replace(PLAIN, compiler=compiler)
    analysis = traced(fn, SQUARE, SQUARE, dim_names=dim_names or {"x": ("batch", "d")})
    problem = Problem(analysis, {"a": 4}, on)
    return problem, price(problem, plan(problem, *(actions or (("batch", "a"), ("d", "a")))))


@pytest.mark.parametrize(
    ("precision", "compiler", "factor"),
    [
        (None, "tpu", 0.5),
        (None, "gpu", 1.0),
        (None, "cpu", 1.0),
        ("high", "tpu", 1.0),
        ("highest", "tpu", 1.0),
    ],
)
def test_what_products_need_is_gathered_at_half_size(precision, compiler, factor):
    _, cost = gathered(compiler, lambda x, w: product(x, w, precision))
    (row,) = cost.collectives
    assert row.kind == "all_gather"
    assert row.local_bytes == factor * SIZE
    # In a ring, three quarters come from the other devices
    assert row.time_s == pytest.approx(factor * SIZE * 3 / 4 / 1e2)
    # Arguments in quarters, the copy, a quarter of the result.
    assert cost.peak_bytes == (2 / 4 + factor + 1 / 4) * SIZE
    # The product reads the copy.
    (compute,) = cost.ops
    assert compute.moved_bytes == (2 / 4 + factor) * SIZE


@pytest.mark.parametrize("compiler", ["gpu", "tpu"])
def test_what_other_ops_need_is_gathered_as_it_is(compiler):
    _, cost = gathered(compiler, lambda x, w: (product(x, x), fixed(w)), actions=(("w.1", "a"),))
    (row,) = cost.collectives  # for a sort along a cut dim
    assert (row.kind, row.value, row.local_bytes) == ("all_gather", "w", SIZE)


def test_what_is_kept_and_sent_narrow_is_halved_once():
    """sort(w) is kept in bfloat16, cut, and gathered in bfloat16.

    The copy has half its size, not a quarter.
    """
    _, cost = gathered("tpu", lambda x, w: product(x, fixed(w)))
    (row,) = cost.collectives
    assert row.local_bytes == SIZE / 2
    sort, dot = cost.ops
    assert (sort.kind, dot.kind) == ("sort", "dot_general")
    assert sort.moved_bytes == (1 / 4 + 1 / 8) * SIZE
    assert dot.moved_bytes == (1 / 4 + 1 / 2 + 1 / 4) * SIZE


@pytest.mark.parametrize("compiler", ["gpu", "tpu"])
def test_transposes_before_products_send_half_as_well(compiler):
    fused = Fused(compiler, lambda x, w: product(x, w.T), SQUARE, SQUARE)
    assert sent(fused, "transpose") == [0.5 if compiler == "tpu" else 1.0]


def test_transposes_that_others_read_too_send_what_there_is():
    def fn(x, w):
        t = w.T
        return product(x, t), jnp.sin(t)

    assert sent(Fused("tpu", fn, SQUARE, SQUARE), "transpose") == [1.0]


def test_partial_sums_are_sent_as_they_are():
    """The results of products are summed in f32; only operands are narrowed."""
    _, cost = gathered("tpu", lambda x, w: product(x, w), actions=(("d", "a"),))
    (row,) = cost.collectives
    assert (row.kind, row.local_bytes) == ("all_reduce", SIZE)

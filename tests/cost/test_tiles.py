"""Local sizes of matrix products are rounded up to the matrix unit's tiles."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import traced
from toast_lab.cost import matrix_tiles
from toast_lab.cost.problem import Problem, price
from toast_lab.machines.catalogue import machine
from toast_lab.plan_verbs import Plan


def leaf(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


def test_roles_of_dims() -> None:
    analysis = traced(
        lambda q, k: jnp.einsum("bshk,btk->bhst", q, k), leaf(2, 3, 5, 7), leaf(2, 11, 7)
    )
    program = analysis.program
    (op,) = [o for o in program.ops() if program.kind[o] == "dot_general"]
    products = matrix_tiles.products(program)
    assert {products.rows[op], products.columns[op]} == {15.0, 11.0}
    assert products.depth[op] == 7.0
    assert products.batch[op] == 2.0
    sizes = [program.dims(v) for v in program.operands(op)]
    roles = [
        [(int(packed) >> (matrix_tiles.ROLE_BITS * d)) & 3 for d in range(len(dims))]
        for packed, dims in zip((products.left[op], products.right[op]), sizes, strict=True)
    ]
    wanted = {
        2: matrix_tiles.BATCH,
        7: matrix_tiles.CONTRACTED,
        3: matrix_tiles.FREE,
        5: matrix_tiles.FREE,
        11: matrix_tiles.FREE,
    }
    assert roles == [[wanted[size] for size in dims] for dims in sizes]
    others = [o for o in range(program.n_ops) if o != op]
    assert (products.rows[others] == 1).all()
    assert (products.left[others] == 0).all()


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "tile", "share"),
    [
        (1024, 1024, 1024, 128, 1.0),
        (1024, 32, 1024, 128, 1.0),  # the 32 stream through, the 1024 stay
        (32, 32, 1024, 128, 0.25),
        (1024, 1024, 64, 128, 0.5),
        (1, 1024, 1024, 128, 0.125),  # one of eight rows
        (192, 192, 128, 128, 0.75),
        (1, 1, 1, 0, 1.0),
        (0, 128, 128, 128, 1.0),  # no work takes no time
    ],
)
def test_what_is_busy(rows: float, columns: float, depth: float, tile: float, share: float) -> None:
    assert matrix_tiles.busy(rows, columns, depth, tile) == pytest.approx(share)


@pytest.mark.parametrize(
    ("actions", "share"),
    [([], 1.0), ([("m", "a")], 1.0), ([("m", "a"), ("n", "b")], 0.25), ([("k", "a")], 0.25)],
)
def test_cutting_below_a_tile_buys_no_time(actions: list[tuple[str, str]], share: float) -> None:
    """Shards of 32 waste tiles if they cut both free dims, or the contracted dim.

    They waste none along one free dim, since the other operand can stay in the matrix unit.
    """
    analysis = traced(
        lambda x, w: jnp.tanh(x @ w),
        leaf(128, 128),
        leaf(128, 128),
        dim_names={"x": ("m", "k"), "w": ("k", "n")},
    )
    fast = dataclasses.replace(machine("tpu-v5e"), memory_bytes_per_s=1e30, op_overhead_s=0.0)
    problem = Problem(analysis, {"a": 4, "b": 4}, fast)
    cost = price(problem, Plan.from_actions(problem, actions))
    (product,) = [op for op in cost.ops if op.kind == "dot_general"]
    assert product.time_s == pytest.approx(product.flops / 197e12 / share)
    any_size = Problem(analysis, {"a": 4, "b": 4}, dataclasses.replace(fast, tile=0.0))
    (product,) = [
        op
        for op in price(any_size, Plan.from_actions(any_size, actions)).ops
        if op.kind == "dot_general"
    ]
    assert product.time_s == pytest.approx(product.flops / 197e12)


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ((1024, 1024, 1024, 1), 128 / 132),  # one wave of 128 tiles
        ((1056, 1024, 1024, 1), 132 / 264),  # a few tiles more than one wave
        ((512, 512, 512, 1), 32 / 132),
        ((512, 512, 512, 8), 256 / 264),
        ((512, 512, 16384, 1), 256 / 264),  # 8 sums of 2048
        ((16, 1024, 1024, 1), 16 / 132),  # tiles of 16 by 64
        ((1, 16, 1024, 1), 1 / 132 / 16),
        ((0, 16, 1024, 1), 1.0),  # no work takes no time
    ],
)
def test_results_are_dealt_out_in_waves(
    sizes: tuple[float, float, float, float], share: float
) -> None:
    rows, columns, depth, batch = sizes
    busy_share = matrix_tiles.waves_busy(rows, columns, depth, batch, 132.0)
    assert busy_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("actions", "local"),
    [
        ([], (8, 1024, 512, 256)),
        ([("g", "a")], (2, 1024, 512, 256)),
        ([("m", "a")], (8, 256, 512, 256)),
        ([("m", "a"), ("n", "b")], (8, 256, 128, 256)),
        ([("k", "a")], (8, 1024, 512, 64)),
    ],
)
def test_a_gpu_works_in_waves_on_local_sizes(
    actions: list[tuple[str, str]], local: tuple[int, int, int, int]
) -> None:
    analysis = traced(
        lambda x, w: jnp.einsum("gmk,gkn->gmn", x, w),
        leaf(8, 1024, 256),
        leaf(8, 256, 512),
        dim_names={"x": ("g", "m", "k"), "w": ("g", "k", "n")},
    )
    gpu = machine("h100")
    problem = Problem(analysis, {"a": 4, "b": 4}, gpu)
    cost = price(problem, Plan.from_actions(problem, actions))
    (product,) = [op for op in cost.ops if op.kind == "dot_general"]
    batch, rows, columns, depth = map(float, local)
    flops, written = 2 * batch * rows * columns * depth, 2 * batch * rows * columns
    assert product.flops == flops
    share = matrix_tiles.waves_busy(rows, columns, depth, batch, 132.0)
    wanted = flops / (989e12 * 0.94 * share) + written / 3.35e12
    read_s = product.moved_bytes / (0.9 * 3.35e12)
    assert product.time_s == pytest.approx(max(wanted, read_s) + 5e-6)


@pytest.mark.parametrize(
    ("rows", "length", "judged_s"),
    [(4096, 128, 12.8e-6), (4096, 1024, 301.3e-6), (1024, 4096, 338.4e-6)],
)
def test_fourier_transforms_on_a_tpu_are_products(rows: int, length: int, judged_s: float) -> None:
    """Compares with libtpu's estimated cycles for v5e, from which the rule was derived."""
    shape = jax.ShapeDtypeStruct((rows, length), jnp.complex64)
    problem = Problem(traced(jnp.fft.fft, shape), {"a": 2}, "tpu-v5e")
    cost = price(problem, Plan.from_actions(problem, []))
    assert cost.compute_s == pytest.approx(judged_s, rel=0.4)
    # On CPUs and GPUs memory is the bound.
    other = Problem(problem.analysis, {"a": 2}, "h100")
    moved_s = 2 * 8 * rows * length / other.machine.memory_bytes_per_s
    moved_s += other.machine.op_overhead_s
    cost = price(other, Plan.from_actions(other, []))
    assert cost.compute_s == pytest.approx(moved_s, rel=0.5)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "judged_us"),
    [(32, 2048, 2048, 29.9), (32, 4096, 8192, 223.0), (256, 2048, 2048, 36.4)],
)
def test_a_matrix_cast_on_the_way_in_is_read_as_wide_as_it_is_kept(
    rows: int, depth: int, columns: int, judged_us: float
) -> None:
    """Compares with libtpu's estimated cycles for v5e, from which the rule was derived."""
    kept = jax.ShapeDtypeStruct((depth, columns), jnp.float32)
    analysis = traced(lambda x, w: x @ w.astype(jnp.bfloat16), leaf(rows, depth), kept)
    problem = Problem(analysis, {"a": 1}, "tpu-v5e")
    cost = price(problem, Plan.from_actions(problem, []))
    assert cost.compute_s == pytest.approx(1e-6 * judged_us, rel=0.1)


@pytest.mark.parametrize("name", ["tpu-v5e", "h100", "cpu"])
@pytest.mark.parametrize(
    ("left", "right", "contracted"),
    [((), (64, 64), 0), ((64, 64), (), 0), ((), (), 0), ((64,), (64,), 1), ((64,), (32,), 0)],
)
def test_products_of_few_dims_have_a_price(
    name: str, left: tuple[int, ...], right: tuple[int, ...], contracted: int
) -> None:
    """Operands may have no dims, as in a scaling that is written as a product."""
    analysis = traced(lambda x, y: jnp.tensordot(x, y, axes=contracted), leaf(*left), leaf(*right))
    problem = Problem(analysis, {"d": 2, "m": 2}, name)
    assert 0.0 <= price(problem, Plan.from_actions(problem, [])).time_s < 1e-3


@pytest.mark.parametrize(
    ("dtype", "rows", "over_ideal"),
    # libtpu 0.0.42.1 for v5e: 1.03 with an operand of 112 MiB, then 1.76 and 1.14
    [("float32", 3584, 1.0), ("float32", 4096, 1.76), ("bfloat16", 8192, 1.14)],
)
def test_what_is_too_large_for_vector_memory_is_brought_again(dtype, rows, over_ideal) -> None:
    shapes = [jax.ShapeDtypeStruct(dims, dtype) for dims in ((rows, 8192), (8192, 8192))]
    analysis = traced(lambda x, w: x @ w, *shapes)
    problem = Problem(analysis, {"a": 2}, "tpu-v5e")
    cost = price(problem, Plan.from_actions(problem, []))
    ideal_s = 2 * rows * 8192**2 / 197e12
    assert cost.time_s / ideal_s == pytest.approx(over_ideal, rel=0.05)

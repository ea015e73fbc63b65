"""A TPU's memory: tiles, values computed together, and values that are never written."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.cost.test_fusion import Fused
from tests.helpers import plan, traced
from toast_lab.cost.peak import ARGUMENT, WORK
from toast_lab.cost.problem import Problem, price

S = jax.ShapeDtypeStruct
F32, BF16 = jnp.float32, jnp.bfloat16
SQUARE = S((256, 256), F32)
COMPILERS = ("cpu", "gpu", "tpu")


# -- tiles -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ((1024, 128), 1),
        ((3, 1024, 128), 1),
        ((), 1),
        ((5,), 1),
        ((16384, 3), 4 / 3),  # four rows of 16,384
        ((16384, 1), 1),
        ((16384, 5), 8 / 5),
        ((197, 197), 256 / 197 * 200 / 197),
        ((64, 16, 197, 197), 256 / 197),  # 197 lanes, but rows of 64 or 16
        ((64, 197, 1024), 1),
        ((2, 2), 64),
    ],
)
def test_what_does_not_fill_tiles_is_larger_in_memory(sizes: tuple[int, ...], times: float) -> None:
    assert held_bytes(S(sizes, F32), "tpu-v5e") == pytest.approx(4 * math.prod(sizes) * times)


@pytest.mark.parametrize(("machine", "times"), [("tpu-v5e", 4 / 3), ("h100", 1), ("cpu", 1)])
def test_only_tpus_have_tiles(machine: str, times: float) -> None:
    assert held_bytes(S((1 << 20, 3), BF16), machine) == pytest.approx(2 * (3 << 20) * times)


def held_bytes(x: jax.ShapeDtypeStruct, machine: str) -> float:
    """Return the bytes of an argument from which nothing large is computed."""
    problem = Problem(traced(lambda x: x.sum(), x), {"a": 2}, machine)
    cost = price(problem, plan(problem))
    (held,) = [part.bytes for part in cost.at_peak if part.kind == ARGUMENT]
    return held


@pytest.mark.parametrize(
    ("cut", "numbers"),
    [
        ((), 24 * 384),  # 20 x 320
        ((("R", "a"),), 16 * 384),  # 10 x 320
        ((("C", "a"),), 24 * 256),  # 20 x 160
    ],
)
def test_it_is_a_devices_part_that_fills_tiles_or_does_not(cut: Any, numbers: int) -> None:
    program = traced(lambda x: x.sum(), S((20, 320), F32), dim_names={"x": ("R", "C")})
    problem = Problem(program, {"a": 2}, "tpu-v5e")
    cost = price(problem, plan(problem, *cut))
    (held,) = [part.bytes for part in cost.at_peak if part.kind == ARGUMENT]
    assert held == pytest.approx(4 * numbers)


# -- loops that read the same value ----------------------------------------------------------------
def rows_of(x: jax.Array, places: jax.Array) -> jax.Array:
    """Gather rows, for which ``x`` has to be written."""
    return jnp.take_along_axis(x, places, axis=0)


def apart(x: jax.Array, places: jax.Array, *, between: Any) -> Any:
    """Return two functions of one value, the second of which is needed late."""
    early = rows_of(jnp.sin(x), places)
    return early, rows_of(jnp.cos(x) * between(early, places), places)


PLACES = S((8, 256), jnp.int32)


@pytest.mark.parametrize(
    ("compiler", "between", "first"),
    [
        ("tpu", lambda early, places: 2.0, "sine"),
        # Its other operand is computed later, but could be computed before
        ("tpu", lambda early, places: 1.0 * places.sum(), "sine"),
        ("tpu", lambda early, places: early.sum(), "multiply"),
        ("gpu", lambda early, places: 2.0, "multiply"),
        ("cpu", lambda early, places: 2.0, "multiply"),
    ],
)
def test_loops_that_read_the_same_run_together(
    compiler: str, between: Callable[..., Any], first: str
) -> None:
    fused = Fused(compiler, functools.partial(apart, between=between), SQUARE, PLACES)
    assert fused.runs_at("cosine") == first


def test_what_comes_of_any_of_them_cannot_be_there_before() -> None:
    def fn(x: jax.Array, places: jax.Array) -> Any:
        early, second = rows_of(jnp.sin(x), places), rows_of(jnp.tanh(x), places)
        return early, second, rows_of(jnp.cos(x) * second.sum(), places)

    fused = Fused("tpu", fn, SQUARE, PLACES)
    assert [fused.runs_at(kind) for kind in ("tanh", "cosine")] == ["sine", "multiply"]


@pytest.mark.parametrize(("rows", "first"), [(255, "sine"), (128, "cosine")])
def test_so_do_loops_that_read_most_of_the_same(rows: int, first: str) -> None:
    def fn(x: jax.Array, places: jax.Array) -> Any:
        early = rows_of(jnp.sin(x[:rows]), places)
        return early, rows_of(jnp.cos(x[:rows]), places)

    assert Fused("tpu", fn, SQUARE, PLACES).runs_at("cosine") == first


def test_what_is_made_early_is_in_memory_from_then_on() -> None:
    def fn(x: jax.Array, places: jax.Array, *, late: bool) -> Any:
        x = jax.lax.sort(x)
        early = rows_of(jnp.sin(x), places)
        # Of the same size as the sorted value, but another value
        wide = rows_of(jnp.tanh(jax.lax.sort(x.T)), places)
        return early, wide, rows_of(jnp.cos(x) * (early.sum() if late else 2.0), places)

    shapes = S((4096, 4096), F32), S((8, 4096), jnp.int32)
    problems = [
        Problem(traced(functools.partial(fn, late=late), *shapes), {"a": 2}, "tpu-v5e")
        for late in (False, True)
    ]
    together, one_by_one = (price(problem, plan(problem)) for problem in problems)
    # The sorted value is read once, not once more for the cosine
    size = 4 * 4096**2
    moved = [sum(row.moved_bytes for row in cost.ops) for cost in (together, one_by_one)]
    assert moved[1] - moved[0] == pytest.approx(size, rel=0.05)


# -- products and the ops around them --------------------------------------------------------------
@pytest.mark.parametrize(("compiler", "unpadded"), [("tpu", True), ("gpu", False), ("cpu", False)])
def test_what_several_products_pad_is_written_without_it(compiler: str, unpadded: bool) -> None:
    def fn(x: jax.Array, w: jax.Array, *, times: int) -> Any:
        padded = jnp.pad(jnp.sin(x), ((0, 1), (0, 0)))
        return [padded @ (w + number) for number in range(times)]

    shapes = S((255, 256), F32), SQUARE
    several = Fused(compiler, functools.partial(fn, times=2), *shapes)
    assert several.written("sine") == unpadded
    assert several.written("pad") == (compiler != "tpu")
    once = Fused(compiler, functools.partial(fn, times=1), *shapes)
    assert not once.written("sine")


def gated(dy: jax.Array, w: jax.Array, gate: jax.Array, up: jax.Array) -> Any:
    """The backward pass of a gated layer, where two values each feed two products."""
    d = dy @ w
    values = d * gate, d * up
    return [(x @ w, jnp.einsum("bf,bd->fd", x, dy)) for x in values]


@pytest.mark.parametrize(
    ("dtype", "product", "values"),
    [
        # Products read 32-bit values in bfloat16: the two are no larger than the product
        (F32, False, True),
        (BF16, True, False),
    ],
)
def test_of_a_product_and_what_follows_the_smaller_is_written(
    dtype: Any, product: bool, values: bool
) -> None:
    fused = Fused("tpu", gated, *[S((256, 256), dtype)] * 4)
    assert fused.written("dot_general") == product
    assert [fused.written("multiply", n) for n in (0, 1)] == [values, values]


def test_what_another_loop_needs_is_made_there() -> None:
    def fn(dy: jax.Array, w: jax.Array) -> Any:
        d = dy @ w
        one = jnp.maximum(d, 0.0)
        late = jnp.where(d > 0.0, jax.lax.sort(w), 0.0)  # needs only the sign, but later
        return one @ w, jnp.einsum("bf,bd->fd", one, dy), late

    fused = Fused("tpu", fn, SQUARE, SQUARE)
    assert fused.written("dot_general")


def test_a_weight_is_updated_where_it_lies_also_behind_a_summed_gradient() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    wide = S((8192, 8192), F32)
    names = {"x": ("B", "C")}
    problem = Problem(
        traced(step, wide, S((4096, 8192), F32), dim_names=names), {"a": 2}, "tpu-v5e"
    )
    kept = price(problem, plan(problem))
    summed = price(problem, plan(problem, ("B", "a")))
    for cost in (kept, summed):
        assert not [part for part in cost.at_peak if part.kind == WORK]
    assert summed.compute_s < kept.compute_s


# -- vector memory ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "near"), [(256, True), (65536, False)])
def test_what_is_read_again_after_a_long_product_is_in_memory(rows: int, near: bool) -> None:
    def fn(x: jax.Array, wide: jax.Array, w: jax.Array) -> Any:
        early = jax.lax.sort(x)
        product = jax.lax.sort(wide @ w)
        return rows_of(early, jnp.zeros((8, 1024), jnp.int32)), product

    shapes = S((1024, 1024), F32), S((rows, 8192), F32), S((8192, 1024), F32)
    problem = Problem(traced(fn, *shapes), {"a": 2}, "tpu-v5e")
    memory = problem.prices.inputs.memory
    program = problem.analysis.program
    kinds = [program.kind[op] for op in program.value_op[memory.buffers.value]]
    assert bool(memory.buffers.near[kinds.index("sort")]) == near


def test_without_vector_memory_nothing_is_near() -> None:
    fused = Fused("tpu", lambda x: jnp.sin(jax.lax.sort(x)), SQUARE)
    bare = dataclasses.replace(fused.problem.machine, vector_memory_bytes=0)
    problem = Problem(fused.problem.analysis, {"a": 2}, bare)
    assert price(problem, plan(problem)).peak_bytes == pytest.approx(2 * 4 * 256**2)

"""A GPU's memory: reused buffers, gradients that wait, and values that are never written."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import traced
from toast_lab.cost.peak import KEPT_FOR_RESULTS
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.machines.catalogue import machine
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import data_parallel

SIDE = 1024
SQUARE = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
SQUARE_BYTES = 4 * SIDE * SIDE
ROW = jax.ShapeDtypeStruct((SIDE,), jnp.float32)
NARROW = jax.ShapeDtypeStruct((SIDE, 8), jnp.float32)
THIN = 8 / SIDE  #: size of a narrow value, in squares
PLACES = jax.ShapeDtypeStruct((SIDE,), jnp.int32)


def priced(fn: Callable[..., Any], *shapes: Any, on: str = "h100", **options: Any) -> Cost:
    """Price a function that runs unsharded."""
    problem = Problem(traced(fn, *shapes, **options), {"a": 2}, on)
    return price(problem, Plan.from_actions(problem, []))


def squares(cost: Cost) -> float:
    return cost.peak_bytes / SQUARE_BYTES


# -- places ----------------------------------------------------------------------------------------
# Results are small, since a value in between could lie in the place of a large one.
def through_tanh(x: jax.Array, w: jax.Array, narrow: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) @ narrow


@pytest.mark.parametrize(("on", "places"), [("h100", 2), ("cpu", 1)])
def test_an_elementwise_result_takes_no_operands_place_on_a_gpu(on: str, places: int) -> None:
    # Two arguments, and the operand of tanh, with or without its result
    assert squares(priced(through_tanh, SQUARE, SQUARE, NARROW, on=on)) == 2 + places + 2 * THIN


def test_what_a_loop_hands_on_is_computed_in_its_place() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda _, y: jnp.sin(y), x)

    assert squares(priced(fn, SQUARE)) == pytest.approx(2, abs=0.01)


def test_a_donated_argument_makes_room() -> None:
    shapes = SQUARE, SQUARE, NARROW
    kept, donated = (priced(through_tanh, *shapes, **way) for way in ({}, {"donate_argnums": 0}))
    assert squares(kept) - squares(donated) == 1


def test_a_result_has_its_place_from_the_start() -> None:
    def fn(x: jax.Array, w: jax.Array, narrow: jax.Array, *, more: bool) -> Any:
        wide = jnp.tanh(jnp.concatenate([x, w] * 2)) @ narrow
        return (wide, x + 1.0) if more else wide

    # x + 1 is computed when nothing else is alive
    both, one = (
        priced(functools.partial(fn, more=more), SQUARE, SQUARE, NARROW) for more in (True, False)
    )
    assert squares(both) - squares(one) == pytest.approx(1)
    kept = [part for part in both.at_peak if part.kind == KEPT_FOR_RESULTS]
    assert [(part.bytes, part.op > both.peak_op) for part in kept] == [(SQUARE_BYTES, True)]


def test_what_is_not_larger_lies_where_a_result_will() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w

    # At tanh, its operand lies in the result's place
    assert squares(priced(fn, SQUARE, SQUARE)) == 4


# -- values that are never written -----------------------------------------------------------------
def test_rows_that_are_looked_up_for_one_op_are_looked_up_there() -> None:
    def fn(table: jax.Array, places: jax.Array, narrow: jax.Array, *, times: int) -> jax.Array:
        rows = table[places]
        once = jnp.concatenate([rows, table]) @ narrow
        return once + (rows @ narrow).sum() if times == 2 else once

    once, twice = (
        squares(priced(functools.partial(fn, times=n), SQUARE, PLACES, NARROW)) for n in (1, 2)
    )
    assert twice - once == pytest.approx(1, abs=2 * THIN)


def test_what_is_cast_for_products_is_read_as_it_was_without_bfloat16() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)

    wide, narrow = (squares(priced(fn, SQUARE, NARROW, on=on)) for on in ("p100", "a100"))
    assert wide == pytest.approx(1, abs=4 * THIN)
    assert narrow == pytest.approx(1.5, abs=4 * THIN)


# -- gradients that wait ---------------------------------------------------------------------------
ROWS, WIDTH, DEPTH = 2**16, 128, 6
STEP = [
    jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((ROWS, WIDTH), *[(WIDTH, WIDTH)] * DEPTH)
]


def gradients(x: jax.Array, *weights: jax.Array) -> Any:
    def loss(weights: Any) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.sin(y @ w)
        return jnp.sum(y)

    return jax.grad(loss)(weights)


def shared(problem: Problem) -> Cost:
    return price(problem, Plan.from_actions(problem, data_parallel(problem)))


def test_gradients_that_are_summed_are_made_when_the_backward_pass_is_over() -> None:
    """Until then their operands are kept: the input and the gradient of every layer."""
    analysis = traced(gradients, *STEP, dim_names={"x": ("batch", "width")})
    problem = Problem(analysis, {"a": 4}, "h100")
    share_bytes = ROWS * WIDTH * 4 / 4
    kinds = analysis.program.kind
    waiting = [op for op in analysis.program.ops() if kinds[op] == "dot_general"][-1]
    alive = shared(problem).timeline_bytes[waiting - 1] / share_bytes
    assert 2 * DEPTH - 1 < alive < 2 * DEPTH + 3
    # Where nothing is summed, nothing waits
    alone = price(problem, Plan.from_actions(problem, [])).timeline_bytes[waiting - 1]
    assert alone / (4 * share_bytes) < 5


def test_nothing_waits_where_memory_is_short() -> None:
    analysis = traced(gradients, *STEP, dim_names={"x": ("batch", "width")})
    h100 = machine("h100")
    waiting = shared(Problem(analysis, {"a": 4}, h100)).peak_bytes
    short = dataclasses.replace(h100, memory_bytes=int(waiting))
    in_turn = shared(Problem(analysis, {"a": 4}, short)).peak_bytes
    assert in_turn < 0.95 * waiting


def test_a_search_sees_what_waits_too() -> None:
    """The prices of a search have the same peak."""
    analysis = traced(gradients, *STEP, dim_names={"x": ("batch", "width")})
    problem = Problem(analysis, {"a": 4}, "h100")
    plan = Plan.from_actions(problem, data_parallel(problem))
    quick = problem.pricer()
    totals = quick.totals(plan.op_factor, plan.value_dim)
    assert totals.peak_bytes == price(problem, plan).peak_bytes
    assert np.max(totals.lives.live) == totals.peak_bytes

"""What a GPU has in memory: who gives place to whom, what waits, and what is never written."""

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
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.machines.catalogue import machine
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import data_parallel

SIDE = 1024
SQUARE = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
SQUARE_BYTES = 4 * SIDE * SIDE
ROW = jax.ShapeDtypeStruct((SIDE,), jnp.float32)
PLACES = jax.ShapeDtypeStruct((SIDE,), jnp.int32)


def priced(fn: Callable[..., Any], *shapes: Any, on: str = "h100", **options: Any) -> Cost:
    """Of one device that runs all of it."""
    problem = Problem(traced(fn, *shapes, **options), {"a": 2}, on)
    return price(problem, Plan.from_actions(problem, []))


def squares(cost: Cost) -> float:
    return cost.peak_bytes / SQUARE_BYTES


# -- places ----------------------------------------------------------------------------------------
def through_tanh(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) @ w


@pytest.mark.parametrize(("on", "places"), [("h100", 2), ("cpu", 1)])
def test_an_elementwise_result_takes_no_operands_place_on_a_gpu(on: str, places: int) -> None:
    # Two arguments, the place of the result, and what tanh reads, with or without what it writes
    assert squares(priced(through_tanh, SQUARE, SQUARE, on=on)) == 3 + places


def test_a_result_takes_the_place_of_a_donated_argument() -> None:
    kept = priced(through_tanh, SQUARE, SQUARE)
    donated = priced(through_tanh, SQUARE, SQUARE, donate_argnums=0)
    assert squares(kept) - squares(donated) == 1


def test_a_result_has_its_place_from_the_start() -> None:
    def first(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = jnp.tanh(jnp.concatenate([x @ w] * 4, axis=1))
        return wide.sum(), x + 1.0

    def alone(x: jax.Array, w: jax.Array) -> jax.Array:
        return first(x, w)[0]

    # x + 1 is computed when nothing else is alive any more
    both, one = (squares(priced(fn, SQUARE, SQUARE)) for fn in (first, alone))
    assert both - one == pytest.approx(1, abs=0.01)


# -- what is never written -------------------------------------------------------------------------
def test_a_bias_and_a_relu_belong_to_the_product() -> None:
    def fn(x: jax.Array, w: jax.Array, b: jax.Array, activation: Any) -> jax.Array:
        return activation(x @ w + b) @ w

    relu, tanh = (
        priced(functools.partial(fn, activation=way), SQUARE, SQUARE, ROW)
        for way in (jax.nn.relu, jnp.tanh)
    )
    assert squares(tanh) - squares(relu) == pytest.approx(1)
    traffic_s = 2 * SQUARE_BYTES / machine("h100").product_bytes_per_s
    assert tanh.compute_s - relu.compute_s > traffic_s


def test_a_result_that_is_needed_as_it_is_keeps_its_relu_apart() -> None:
    def fn(x: jax.Array, w: jax.Array, *, again: bool) -> jax.Array:
        product = x @ w
        return jax.nn.relu(product) @ (w + product if again else w + x)

    twice, once = (
        squares(priced(functools.partial(fn, again=way), SQUARE, SQUARE)) for way in (True, False)
    )
    assert twice - once == pytest.approx(1)


def test_rows_that_are_looked_up_for_one_op_are_looked_up_there() -> None:
    def fn(table: jax.Array, places: jax.Array, *, times: int) -> jax.Array:
        rows = table[places]
        joined = jnp.concatenate([rows, table], axis=1)
        return joined @ joined.T + (rows @ rows.T if times == 2 else 0.0)

    once, twice = (
        squares(priced(functools.partial(fn, times=n), SQUARE, PLACES)) for n in (1, 2)
    )
    assert twice - once >= 1


def test_what_a_scatter_would_be_added_to_is_scattered_into() -> None:
    def fn(x: jax.Array, w: jax.Array, places: jax.Array, *, add: bool) -> jax.Array:
        scattered = jnp.zeros_like(x).at[places].add(w)
        return (x + scattered if add else x * scattered) @ w

    added, multiplied = (
        squares(priced(functools.partial(fn, add=way), SQUARE, SQUARE, PLACES))
        for way in (True, False)
    )
    assert multiplied - added == pytest.approx(1)


def test_what_is_cast_for_products_is_read_as_it_was_without_bfloat16() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)

    assert squares(priced(fn, SQUARE, SQUARE, on="p100")) == 4  # the product is wide, too
    assert squares(priced(fn, SQUARE, SQUARE, on="a100")) == 4.5


# -- what waits ------------------------------------------------------------------------------------
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
    """Until then all is kept that they are made of: of every layer its input and its gradient."""
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
    """Folded, and when only a few ops are priced again."""
    analysis = traced(gradients, *STEP, dim_names={"x": ("batch", "width")})
    problem = Problem(analysis, {"a": 4}, "h100")
    plan = Plan.from_actions(problem, data_parallel(problem))
    quick = problem.pricer()
    totals = quick.totals(plan.op_factor, plan.value_dim)
    assert totals.peak_bytes == price(problem, plan).peak_bytes
    assert np.max(totals.lives.live) == totals.peak_bytes

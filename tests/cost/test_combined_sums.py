"""On TPUs, sums over devices that do not depend on one another pay the links' latency once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from tests.helpers import traced
from toast_lab.cost.combined_sums import sums_together
from toast_lab.sharding.step_kinds import ALL_REDUCE
from toast_lab.sharding.steps import tables

LAYERS = 8


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jax.nn.relu(x @ weight)
    return jnp.mean(x * x)


def gradients(side: int, n_layers: int = LAYERS) -> tl.Model:
    weights = [jax.ShapeDtypeStruct((side, side), jnp.float32)] * n_layers
    x = jax.ShapeDtypeStruct((4096, side), jnp.float32)
    return tl.from_jax(jax.grad(loss), weights, x)


def sums_s(model: tl.Model, machine: str, *, paper_mode: bool = False) -> float:
    """Return the seconds of all all_reduces, with the rows of ``x`` cut in 16."""
    problem = tl.Problem(tl.analyse(model), "d=16", machine, paper_mode=paper_mode)
    plan = tl.Plan.from_actions(problem, [("x.0", "d")])
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    rows = [row for row in range(totals.n_steps) if totals.steps.kind[row] == ALL_REDUCE]
    assert rows
    return float(sum(totals.each.time_s[row] for row in rows))


def test_small_gradients_are_one_sum() -> None:
    """libtpu 0.0.42.1 combines the sums of eight gradients into one all_reduce."""
    one_s, all_s = (sums_s(gradients(128, n), "tpu-v5e") for n in (1, LAYERS))
    assert all_s < 2.0 * one_s
    # A GPU's compiler is told to keep them apart, so that each keeps its name
    one_s, all_s = (sums_s(gradients(128, n), "h100") for n in (1, LAYERS))
    assert all_s == pytest.approx(LAYERS * one_s, rel=0.2)


def test_large_gradients_are_not() -> None:
    side = 8192
    one_s, all_s = (sums_s(gradients(side, n), "tpu-v5e") for n in (1, LAYERS))
    assert all_s == pytest.approx(LAYERS * one_s, rel=0.01)


def test_the_paper_counts_each_by_itself() -> None:
    one_s, all_s = (sums_s(gradients(128, n), "tpu-v5e", paper_mode=True) for n in (1, LAYERS))
    assert all_s == pytest.approx(LAYERS * one_s, rel=0.2)


def together(function: Any) -> list[float]:
    """Return, for each reduction, how many sums are combined with its own."""
    program = traced(function, jax.ShapeDtypeStruct((4096, 128), jnp.float32)).program
    counts = sums_together(program, tables(program))
    return [counts[op] for op in program.ops() if program.kind[op] == "reduce"]


def test_sums_that_need_one_another_are_made_one_after_the_other() -> None:
    def normed(x: jax.Array) -> jax.Array:
        for _ in range(LAYERS):
            x = x - jnp.mean(x, axis=0)
            x = x * jnp.tanh(x)
        return x

    assert together(normed) == [1.0] * LAYERS


def test_mean_and_mean_of_squares_are_made_at_once() -> None:
    def moments(x: jax.Array) -> jax.Array:
        mean, square = jnp.mean(x, axis=0), jnp.mean(x * x, axis=0)
        return (x - mean) * jax.lax.rsqrt(square - mean * mean)

    assert together(moments) == [2.0, 2.0]


def test_sums_over_other_dims_are_none_of_theirs() -> None:
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sum(x, axis=0), jnp.sum(x, axis=1)

    assert together(both_ways) == [1.0, 1.0]

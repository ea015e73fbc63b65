"""Gathers whose source is ready early: a TPU's step waits only for a part of them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.machines.catalogue import MACHINES
from toast_lab.sharding.plan import make_plan
from toast_lab.sharding.step_kinds import ALL_GATHER, COMPUTE

MACHINE = MACHINES["tpu-v5e"]
IN_TURN = dataclasses.replace(MACHINE, gathered_ahead=0.0)
WIDTH = 4096


def two_products(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.tanh(x @ first) @ second


def gathered(rows: int, machine: tl.Machine) -> tuple[list[float], list[float]]:
    """Return the seconds of the gathers of both weights, and those of both products.

    The rows of ``x`` and of both weights are cut over all devices; the weights are gathered
    whole.
    """
    matrix = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.bfloat16)
    analysis = tl.analyse(tl.from_jax(two_products, x, matrix, matrix))
    problem = tl.Problem(analysis, {"d": 16}, machine)
    sharding = tl.Plan.from_actions(problem, [("x.0", "d")]).sharding.copy()
    for argument in (1, 2):
        sharding.value_dim[analysis.program.results(argument)[0], 0] = 0
    plan = make_plan(analysis, problem.mesh, sharding, key=sharding.key())
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    kinds = totals.steps.kind[: totals.n_steps]
    times = totals.each.time_s[: totals.n_steps]
    products = [
        row
        for row in range(totals.n_steps)
        if kinds[row] == COMPUTE and analysis.program.kind[totals.steps.op[row]] == "dot_general"
    ]
    assert totals.time_s == pytest.approx(times.sum())
    return times[kinds == ALL_GATHER].tolist(), times[products].tolist()


def test_a_weight_comes_while_earlier_products_run() -> None:
    (first, second), products = gathered(65536, MACHINE)
    in_turn, products_in_turn = gathered(65536, IN_TURN)
    assert products == products_in_turn
    # Nothing runs before the first product
    assert first == in_turn[0]
    assert in_turn[1] < products[1]
    assert second == pytest.approx(0.1 * in_turn[1])


def test_no_more_of_it_is_hidden_than_its_product_takes() -> None:
    (_, second), products = gathered(1024, MACHINE)
    in_turn, _ = gathered(1024, IN_TURN)
    assert products[1] < 0.9 * in_turn[1]
    assert second == pytest.approx(in_turn[1] - products[1])


def test_what_was_just_computed_is_waited_for() -> None:
    """The hidden values are gathered right after they are computed, so nothing hides the gather."""

    def gathered_hidden(machine: tl.Machine) -> list[float]:
        matrix = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)
        x = jax.ShapeDtypeStruct((65536, WIDTH), jnp.bfloat16)
        analysis = tl.analyse(tl.from_jax(two_products, x, matrix, matrix))
        problem = tl.Problem(analysis, {"d": 16}, machine)
        sharding = tl.Plan.from_actions(problem, [("x.0", "d")]).sharding.copy()
        program = analysis.program
        last = max(op for op in program.ops() if program.kind[op] == "dot_general")
        sharding.op_factor[last] = -1
        plan = make_plan(analysis, problem.mesh, sharding, key=sharding.key())
        totals = problem.prices.totals(plan.op_factor, plan.value_dim)
        kinds = totals.steps.kind[: totals.n_steps]
        return totals.each.time_s[: totals.n_steps][kinds == ALL_GATHER].tolist()

    assert gathered_hidden(MACHINE) == gathered_hidden(IN_TURN)
    assert len(gathered_hidden(MACHINE)) == 1


def test_machines_whose_compiler_waits_for_every_gather() -> None:
    ahead = {name for name, machine in MACHINES.items() if machine.gathered_ahead}
    assert ahead == {"tpu-v5e", "tpu-v5p", "tpu-v6e"}

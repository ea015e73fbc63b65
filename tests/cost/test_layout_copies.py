"""Copies around an update that is computed in the order of a transposed gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from toast_lab.cost.layout_copies import extra_reads
from toast_lab.ir.program import Program

ROWS, WIDTH = 512, 1024


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def descent(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - 0.1 * jax.grad(loss)(w, x)


def momentum(w: jax.Array, m: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    m = 0.9 * m + jax.grad(loss)(w, x)
    return w - 0.1 * m, m


def in_order(w: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient as its product gives it."""
    return w - 0.1 * jnp.einsum("bi,bj->ij", x, jnp.tanh(x @ w))


def gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.grad(loss)(w, x)


def traced(step: object, *arguments: int) -> Program:
    structs = [
        jax.ShapeDtypeStruct((ROWS if size == ROWS else WIDTH, WIDTH), "float32")
        for size in arguments
    ]
    return tl.analyse(tl.from_jax(step, *structs)).program


@pytest.mark.parametrize(
    ("step", "arguments", "copied"),
    [
        (descent, (WIDTH, ROWS), ["w"]),
        (momentum, (WIDTH, WIDTH, ROWS), ["w", "m"]),
        (in_order, (WIDTH, ROWS), []),
        # Nothing is updated: the result alone is written in the order that is wanted
        (gradient, (WIDTH, ROWS), []),
    ],
)
def test_updates_by_a_transposed_product_are_copied(
    step: object, arguments: tuple[int, ...], copied: list[str]
) -> None:
    program = traced(step, *arguments)
    extra = extra_reads(program, np.arange(program.n_values))
    uses = np.flatnonzero(extra)
    assert {program.value_name[program.use_value[use]] for use in uses} == set(copied)
    assert set(extra[uses].tolist()) <= {4.0}


@pytest.mark.parametrize(("machine", "passes"), [("tpu-v5e", 4), ("h100", 0)])
def test_tpus_pay_for_the_copies_and_others_do_not(machine: str, passes: int) -> None:
    program = traced(descent, WIDTH, ROWS)
    whole = [jax.ShapeDtypeStruct(program.dims(value), "float32") for value in (0, 1)]
    steps = (jax.grad(loss), descent)
    moved = []
    for step in steps:
        problem = tl.Problem(tl.analyse(tl.from_jax(step, *whole)), {"d": 4}, machine)
        plan = tl.Plan.from_actions(problem, [])
        totals = problem.prices.totals(plan.op_factor, plan.value_dim)
        moved.append(totals.each.bytes[: totals.n_steps].sum())
    # The update itself reads the weight; it is written in place of the gradient
    assert (moved[1] - moved[0]) / (4 * WIDTH * WIDTH) == pytest.approx(1 + passes, abs=1)

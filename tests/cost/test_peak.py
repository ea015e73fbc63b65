"""What is said to be in memory at the peak is the peak."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.certification.programs import programs
from toast_lab import frontends
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost import peak
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.sharding.state import State, legal_actions

MESH = {"d": 2, "m": 2}


def plans(problem: Problem, n: int) -> list[ShardingPlan]:
    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        state, taken = State(problem.space), []
        for _ in range(int(rng.integers(0, 5))):
            actions = legal_actions(state)
            if actions:
                taken.append(actions[int(rng.integers(len(actions)))])
                state.apply(taken[-1])
        found.append(Plan.from_state(state, taken))
    return found


@functools.cache
def analysed(name: str) -> Analysis:
    (case,) = [c for c in programs() if c.name == name]
    loaded = case.model()
    return analyse(loaded)


@pytest.mark.parametrize("machine", ["tpu-v5e", "a100", "cpu"])
@pytest.mark.parametrize(
    "name",
    [
        "transformer_train",
        "transformer_scan_remat",
        "gns_train",
        "itx_prefill",
        "unet_forward",
        "kv_cache",
    ],
)
def test_what_is_held_adds_up_to_the_peak(name: str, machine: str) -> None:
    problem = Problem(analysed(name), MESH, machine)
    kinds = set()
    for plan in plans(problem, 10):
        cost = price(problem, plan)
        held = cost.at_peak
        assert sum(h.bytes for h in held) == pytest.approx(cost.peak_bytes)
        assert [h.bytes for h in held] == sorted((h.bytes for h in held), reverse=True)
        assert all(h.where == problem.analysis.program.where(h.op) for h in held)
        kinds |= {h.kind for h in held}
    assert {peak.ARGUMENT, peak.TENSOR} <= kinds


@pytest.mark.parametrize("machine", ["tpu-v5e", "cpu"])
@pytest.mark.parametrize("name", ["transformer_train", "scan_gradient", "conv_net_step"])
def test_what_is_held_adds_up_at_every_op(name: str, machine: str) -> None:
    """Also where a result takes the place of an operand, inside loops and at the end."""
    problem = Problem(analysed(name), MESH, machine)
    program, memory = problem.analysis.program, problem.prices.inputs.memory
    for plan in plans(problem, 4):
        totals = problem.pricer().totals(plan.op_factor, plan.value_dim)
        for op in range(program.n_ops + 1):
            held = peak.held_at(program, memory, totals.prices, totals.lives, op)
            assert sum(h.bytes for h in held) == pytest.approx(totals.lives.live[op]), op


def held_bytes(function: Callable[..., Any], *shapes: jax.ShapeDtypeStruct, machine: str) -> float:
    """Predicted peak of an unsharded function."""
    model = frontends.from_jax(function, *shapes)
    problem = Problem(analyse(model), {"d": 1}, machine)
    return price(problem, plan_of_actions(problem.space, [])).peak_bytes


def test_on_a_gpu_what_is_reordered_is_not_written_over_what_is_read() -> None:
    shape = jax.ShapeDtypeStruct((256, 128), jnp.float32)

    def chain(x: jax.Array, *, transposed: bool) -> jax.Array:
        product = x @ jnp.ones((128, 512))
        operand = jnp.exp(product.T if transposed else product)
        return jnp.sum(operand @ jnp.ones((operand.shape[1], 64)))

    value_bytes = 256 * 512 * 4
    for machine, more in (("h100", value_bytes), ("tpu-v5e", 0)):
        straight, transposed = (
            held_bytes(functools.partial(chain, transposed=way), shape, machine=machine)
            for way in (False, True)
        )
        assert transposed - straight == pytest.approx(more, abs=value_bytes / 2), machine


def test_a_gpu_without_bfloat16_holds_operands_and_results_of_products_in_f32() -> None:
    shapes = [jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)] * 2
    value_bytes = 256 * 256 * 2

    def products(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w

    def sums(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.cumsum(x + w, axis=0) + x

    wide, narrow = (held_bytes(products, *shapes, machine=name) for name in ("p100", "a100"))
    assert wide >= narrow + value_bytes
    wide, narrow = (held_bytes(sums, *shapes, machine=name) for name in ("p100", "a100"))
    assert wide == narrow

"""The values reported in memory at the peak add up to the peak."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluation.certification.programs import programs
from toast_lab import frontends
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost import peak
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.sharding.state import State, legal_actions

MESH = {"d": 2, "m": 2}


def plans(problem: Problem, n: int) -> list[ShardingPlan]:
    rng, drawn_plans = np.random.default_rng(0), []
    for _ in range(n):
        state, taken = State(problem.space), []
        for _ in range(int(rng.integers(0, 5))):
            actions = legal_actions(state)
            if actions:
                taken.append(actions[int(rng.integers(len(actions)))])
                state.apply(taken[-1])
        drawn_plans.append(Plan.from_state(state, taken))
    return drawn_plans


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
    assert peak.ARGUMENT in kinds
    assert kinds & {peak.TENSOR, peak.KEPT_FOR_RESULTS}


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100", "cpu"])
@pytest.mark.parametrize("name", ["transformer_train", "scan_gradient", "conv_net_step"])
def test_what_is_held_adds_up_at_every_op(name: str, machine: str) -> None:
    """Includes results that take an operand's place, ops inside loops, and the end."""
    problem = Problem(analysed(name), MESH, machine)
    program, memory = problem.analysis.program, problem.prices.inputs.memory
    for plan in plans(problem, 4):
        totals = problem.pricer().totals(plan.op_factor, plan.value_dim)
        for op in range(program.n_ops + 1):
            held = peak.held_at(program, memory, totals.prices, totals.lives, op)
            assert sum(h.bytes for h in held) == pytest.approx(totals.lives.live[op]), op


def held_bytes(function: Callable[..., Any], *shapes: jax.ShapeDtypeStruct, machine: str) -> float:
    """Return the predicted peak of an unsharded function."""
    model = frontends.from_jax(function, *shapes)
    problem = Problem(analyse(model), {"d": 1}, machine)
    return price(problem, plan_of_actions(problem.space, [])).peak_bytes


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


def test_small_values_that_are_needed_soon_stay_in_vector_memory() -> None:
    """On a TPU v5e, a chain of products has only arguments and the result in memory."""
    shapes = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 2
    value_bytes = 1024 * 1024 * 4

    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        # Every product but the last is read twice, so that it has to be written.
        for _ in range(4):
            product = x @ w
            x = jnp.tanh(product) @ product
        return x

    outside = held_bytes(chain, *shapes, machine="tpu-v3")
    assert held_bytes(chain, *shapes, machine="tpu-v5e") == 3 * value_bytes < outside


@pytest.mark.parametrize(("products", "is_near"), [(4, True), (12, False)])
def test_what_is_needed_later_is_in_memory_meanwhile(products: int, is_near: bool) -> None:
    shapes = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 2
    value_bytes = 1024 * 1024 * 4

    def kept(x: jax.Array, w: jax.Array) -> jax.Array:
        early = jnp.sort(x, axis=0)
        later = early
        for _ in range(products):
            later = later @ w
        return jnp.sum(jnp.sort(later, axis=0) + jnp.sort(early, axis=1))

    held = held_bytes(kept, *shapes, machine="tpu-v5e")
    assert held == pytest.approx((2 if is_near else 3) * value_bytes, rel=0.01)


def test_vector_memory_takes_no_more_than_it_has_room_for() -> None:
    count, shape = 12, jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    value_bytes = 4096 * 1024 * 4
    room_bytes = 0.875 * 2**27

    def many(x: jax.Array) -> jax.Array:
        sorted_by_column = [jnp.sort(x * (1.0 + number), axis=0) for number in range(count)]
        total = sum(jnp.sort(value, axis=1) for value in sorted_by_column)
        assert isinstance(total, jax.Array)
        return total

    near, far = (held_bytes(many, shape, machine=name) for name in ("tpu-v5e", "tpu-v3"))
    assert far > count * value_bytes > room_bytes
    assert far - near == pytest.approx(room_bytes)


def test_what_vector_memory_holds_is_taken_off_what_is_held() -> None:
    problem = Problem(analysed("transformer_train"), MESH, "tpu-v5e")
    cost = price(problem, plan_of_actions(problem.space, []))
    *others, last = cost.at_peak
    assert last.kind == peak.IN_VECTOR_MEMORY
    assert last.bytes < 0 < min(part.bytes for part in others)


def test_a_gradient_is_held_while_it_is_summed_over_devices() -> None:
    """An update in the product's kernel needs no room; after a sum it is a kernel of its own."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8192, 8192), (8192, 8192)))

    def step(x: jax.Array, g: jax.Array, w: jax.Array) -> jax.Array:
        return w - x.T @ g

    analysis = analyse(frontends.from_jax(step, x, x, w, donate_argnums=2))
    problem = Problem(analysis, {"d": 4}, "tpu-v5e")
    weight_bytes = 8192 * 8192 * 4
    alone, summed = (
        price(problem, Plan.from_actions(problem, actions)).peak_bytes
        for actions in ([], [("x.0", "d")])
    )
    assert alone == 3 * weight_bytes
    assert summed == (2 / 4 + 1 + 1) * weight_bytes


def test_a_part_of_a_broadcast_is_all_that_there_is_of_it() -> None:
    """A cut broadcast is never written whole."""
    rows, size = 65536, 1024

    def spread(row: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.broadcast_to(row, (rows, size)) + x, axis=1)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((size,), (rows, size))]
    problem = Problem(analyse(frontends.from_jax(spread, *shapes)), {"d": 8}, "tpu-v5e")
    plan = Plan.from_actions(problem, [("x.0", "d")])
    broadcast = problem.analysis.program.kind.index("broadcast_in_dim")
    (value,) = problem.analysis.program.results(broadcast)
    sharding = plan.sharding.copy()
    # Computed whole, and cut afterwards
    sharding.op_factor[broadcast] = -1
    sharding.value_dim[value, 0] = 0
    totals = problem.prices.totals(sharding.op_factor, sharding.value_dim)
    assert totals.prices.passing_bytes[broadcast] == 0.0
    assert totals.peak_bytes == price(problem, plan).peak_bytes

"""Steps of a stencil are not one pass over memory: a kernel ends where offsets are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import traced
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem, price
from toast_lab.pipeline import replicated
from toast_lab.plan_verbs import Plan

FIELD = jax.ShapeDtypeStruct((2048, 2048), "float32")


def rolled(count: int, *, unroll: bool | int) -> Analysis:
    """Steps of a wave on a torus, and the mean of each."""

    def step(carry, _):
        u, v = carry
        neighbours = sum(jnp.roll(u, shift, dim) for shift in (1, -1) for dim in (0, 1))
        v = v + 0.1 * (neighbours - 4 * u)
        return (u + 0.1 * v, v), u.mean()

    def steps(u, v):
        return lax.scan(step, (u, v), None, length=count, unroll=unroll)

    return traced(steps, FIELD, FIELD)


def padded(count: int) -> Analysis:
    """Rounds of Jacobi's method in a loop."""

    def round_(_, u, b):
        p = jnp.pad(u, 1)
        return 0.25 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - b)

    def solve(u, b):
        return lax.fori_loop(0, count, lambda i, u: round_(i, u, b), u)

    return traced(solve, FIELD, FIELD)


def diffused(count: int) -> Analysis:
    """Unrolled steps of diffusion in three dims."""

    def step(u):
        p = jnp.pad(u, 1)
        sides = p[2:, 1:-1, 1:-1] + p[:-2, 1:-1, 1:-1] + p[1:-1, 2:, 1:-1]
        sides += p[1:-1, :-2, 1:-1] + p[1:-1, 1:-1, 2:] + p[1:-1, 1:-1, :-2]
        return u + 0.1 * (sides - 6 * u)

    def steps(u):
        for _ in range(count):
            u = step(u)
        return u

    return traced(steps, jax.ShapeDtypeStruct((256, 256, 256), "float32"))


def time_ms(analysis: Analysis, machine: str, *actions: str) -> float:
    problem = Problem(analysis, {"data": 8}, machine)
    plan = Plan.from_actions(problem, actions) if actions else replicated(problem)
    return 1e3 * price(problem, plan).time_s


# In milliseconds, by the clocks of libtpu 0.0.42.1 and of XLA for GPUs (jax 0.10.2)
@pytest.mark.parametrize(
    ("make", "machine", "actions", "compiled_ms"),
    [
        (lambda: rolled(4, unroll=True), "tpu-v5e", (), 1.275),
        (lambda: rolled(16, unroll=True), "tpu-v5e", (), 5.106),
        (lambda: rolled(50, unroll=1), "tpu-v5e", (), 14.75),
        (lambda: rolled(4, unroll=True), "tpu-v5e", ("u_rows->data",), 1.008),
        (lambda: rolled(50, unroll=1), "tpu-v5e", ("u_rows->data",), 12.54),
        (lambda: padded(50), "tpu-v5e", (), 7.565),
        (lambda: padded(50), "tpu-v5e", ("u_rows->data",), 16.03),
        (lambda: rolled(4, unroll=True), "h100", (), 0.0934),
        (lambda: rolled(16, unroll=True), "h100", (), 0.387),
        (lambda: rolled(16, unroll=True), "h100", ("u_rows->data",), 1.924),
        (lambda: diffused(4), "h100", (), 0.182),
    ],
)
def test_steps_take_as_long_as_compiled(
    make: Callable[[], Analysis], machine: str, actions: tuple[str, ...], compiled_ms: float
) -> None:
    assert time_ms(make(), machine, *actions) == pytest.approx(compiled_ms, rel=0.17)


@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v3", "h100", "a100"])
def test_twice_the_steps_take_twice_as_long(machine: str) -> None:
    few, many = (time_ms(rolled(count, unroll=True), machine) for count in (4, 8))
    assert many == pytest.approx(2 * few, rel=0.1)
    few, many = (time_ms(diffused(count), machine) for count in (2, 4))
    assert many == pytest.approx(2 * few, rel=0.1)


def test_the_order_of_plans_is_that_of_the_compiler() -> None:
    """Cutting the rows helps where values are rolled in memory, and harms Jacobi's method."""
    unrolled = rolled(4, unroll=True)
    assert time_ms(unrolled, "tpu-v5e", "u_rows->data") < time_ms(unrolled, "tpu-v5e")
    assert time_ms(padded(50), "tpu-v5e", "u_rows->data") > time_ms(padded(50), "tpu-v5e")


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100"])
def test_parts_that_do_not_overlap_stay_fused(machine: str) -> None:
    """The halves of a rotary embedding read a value once."""

    def rotated(x, sine, cosine):
        x = jnp.tanh(x * 2 + 1) * 3 - x
        left, right = jnp.split(x, 2, axis=-1)
        return x * cosine + jnp.concatenate([-right, left], axis=-1) * sine

    problem = Problem(traced(rotated, FIELD, FIELD, FIELD), {"data": 8}, machine)
    program = problem.analysis.program
    written = problem.prices.inputs.facts.value.written
    assert not any(
        written[value]
        for op in program.ops()
        if program.kind[op] in ("slice", "concatenate")
        for value in program.results(op)
    )


def heated(count: int) -> Analysis:
    """Rounds of diffusion, each field with a source that the other one makes."""

    def round_(fields, _):
        u, v = fields
        reaction = u * v * v

        def spread(field):
            return sum(jnp.roll(field, shift, dim) for shift in (1, -1) for dim in (0, 1))

        u, v = u + 0.1 * (spread(u) - 4 * u) - reaction, v + 0.1 * (spread(v) - 4 * v) + reaction
        return (u, v), None

    return traced(lambda u, v: lax.scan(round_, (u, v), None, length=count)[0], FIELD, FIELD)


def in_rounds(step: Callable[..., Any], count: int = 10) -> Analysis:
    """Rounds of a step on a field and another one."""
    return traced(
        lambda a, b: lax.scan(lambda fields, _: (step(*fields), None), (a, b), None, length=count)[
            0
        ],
        FIELD,
        FIELD,
    )


# In milliseconds, by the clock of XLA for GPUs (jax 0.10.2)
@pytest.mark.parametrize(
    ("make", "compiled_ms"),
    [
        (lambda: rolled(50, unroll=1), 2.028),
        (lambda: padded(50), 1.626),
        (lambda: heated(20), 1.027),
        (lambda: in_rounds(lambda a, b: (b, a + b)), 0.471),  # change places: two copies
        (lambda: in_rounds(lambda a, b: (b * 2, a * 2)), 0.416),  # one of both is copied
        (lambda: in_rounds(lambda a, b: (a @ b, b)), 0.672),  # a product reads rows and columns
        (lambda: in_rounds(lambda a, b: (jnp.tanh(a @ b), b)), 0.672),  # written behind it
        (lambda: in_rounds(lambda a, b: (a * 2 - a.sum(0), b)), 0.238),
    ],
)
def test_loops_of_gpus_copy_what_they_cannot_write_in_its_place(
    make: Callable[[], Analysis], compiled_ms: float
) -> None:
    assert time_ms(make(), "h100") == pytest.approx(compiled_ms, rel=0.17)


def test_one_round_is_no_loop() -> None:
    assert time_ms(heated(1), "h100") < time_ms(heated(2), "h100") / 3


def sorted_neighbours(count: int) -> Analysis:
    """Rounds of a median of five numbers of 8 bits, by minima and maxima that sort them."""

    def step(u):
        p = jnp.pad(u, 1)
        five = [p[1:-1, 1:-1], p[2:, 1:-1], p[:-2, 1:-1], p[1:-1, 2:], p[1:-1, :-2]]
        for i, j in ((0, 1), (3, 4), (2, 4), (2, 3), (0, 3), (0, 2), (1, 4), (1, 3), (1, 2)):
            low, high = jnp.minimum(five[i], five[j]), jnp.maximum(five[i], five[j])
            five[i], five[j] = low, high
        return five[2]

    def steps(u):
        for _ in range(count):
            u = step(u)
        return u

    return traced(steps, jax.ShapeDtypeStruct((4096, 4096), "int8"))


def test_values_that_meet_again_are_computed_once_in_one_kernel() -> None:
    """Three kernels, 0.037 ms by the clock of XLA for GPUs (jax 0.10.2)."""
    assert time_ms(sorted_neighbours(3), "h100") == pytest.approx(0.037, rel=0.1)


CELLS = jax.ShapeDtypeStruct((4096, 4096), "int8")


def lived(count: int) -> Analysis:
    """Steps of the game of life, by rolls along both dims, some of them by nothing."""

    def steps(cells):
        for _ in range(count):
            shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
            alive = sum(jnp.roll(cells, shift, (0, 1)) for shift in shifts)
            cells = ((alive == 3) | ((cells == 1) & (alive == 2))).astype(jnp.int8)
        return cells

    return traced(steps, CELLS)


def flipped(count: int) -> Analysis:
    """Rounds of spins on a torus."""

    def round_(spins, _):
        four = sum(jnp.roll(spins, shift, dim) for dim in (0, 1) for shift in (1, -1))
        return jnp.where(spins * four < 0, -spins, spins), None

    return traced(lambda spins: lax.scan(round_, spins, None, length=count)[0], CELLS)


def edged(count: int) -> Analysis:
    """Steps of nonlinear diffusion; only slices to the left and right need the padded columns."""

    def step(u):
        p = jnp.pad(u, 1, mode="edge")
        c = p[1:-1, 1:-1]
        sides = (p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:])
        return u + 0.15 * sum((side - c) * jnp.exp(-((4 * (side - c)) ** 2)) for side in sides)

    def steps(u):
        for _ in range(count):
            u = step(u)
        return u

    return traced(steps, FIELD)


# In milliseconds, by the clock of XLA for GPUs (jax 0.10.2)
@pytest.mark.parametrize(
    ("make", "actions", "compiled_ms"),
    [
        (lambda: lived(4), (), 0.501),
        (lambda: lived(4), ("cells_rows->data",), 0.395),
        (lambda: flipped(20), (), 1.165),
        (lambda: flipped(20), ("spins_rows->data",), 1.867),
        (lambda: edged(3), (), 0.037),
    ],
)
def test_kernels_of_a_gpu_wait_for_rows_that_are_joined_out_of_step(
    make: Callable[[], Analysis], actions: tuple[str, ...], compiled_ms: float
) -> None:
    assert time_ms(make(), "h100", *actions) == pytest.approx(compiled_ms, rel=0.1)


def test_rolling_by_nothing_moves_nothing() -> None:
    program = traced(lambda u: jnp.roll(u, (0, 1), (0, 1)), FIELD).program
    joins = [program.detail[op] for op in program.ops() if program.kind[op] == "concatenate"]
    assert joins == ["1"]
    assert all(0 not in program.dims(value) for value in range(program.n_values))

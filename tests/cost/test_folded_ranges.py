"""The peak of a search's states is exact, and repeated layers do not make it slower to find."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import small_transformer
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.search.mcts.refine import make_fine, rows_of
from toast_lab.sharding.state import State, legal_rows

GNS = {"nodes": 16, "edges": 32, "latent": 16, "hidden": 16, "features": 8}
DEEP = {
    "transformer": lambda: small_transformer(layers=8, mode="train"),
    "rematerialised": lambda: tl.analyse(
        tl.load("t2b", layers=6, batch=8, sequence=128, vocab=256, remat=True)
    ),
    "graph network": lambda: tl.analyse(tl.load("gns", steps=6, **GNS)),
    "unrolled steps": lambda: tl.analyse(tl.from_jax(_recurrent, *_recurrent_shapes())),
    "steps in branches": lambda: tl.analyse(tl.from_jax(_branching, *_recurrent_shapes())),
}


def _recurrent_shapes() -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (64, 64), (8, 64))]


def _recurrent(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """A recurrent network: all steps read the same weights and share their gathered copies."""

    def loss(w: jax.Array, u: jax.Array) -> jax.Array:
        h = jnp.zeros((8, 64))
        for _ in range(12):
            h = jnp.tanh(h @ w + x @ u)
        return jnp.sum(h**2)

    return jax.grad(loss, argnums=(0, 1))(w, u)


def _branching(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Branches and loops that gather copies of their own."""
    for _ in range(8):
        x = jax.lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(x @ w), lambda x: x @ u, x)
        x = jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x @ w) + x, x) @ w
    return x


@functools.cache
def problem_of(name: str, machine: str) -> Problem:
    analysis: Analysis = DEEP[name]()
    return Problem(analysis, {"a": 2, "b": 4}, machine)


def states(problem: Problem, count: int) -> list[State]:
    rng, reached = np.random.default_rng(0), []
    for _ in range(count):
        state = State(problem.space)
        for _ in range(int(rng.integers(0, 9))):
            if len(rows := legal_rows(state)):
                state.apply_row(*map(int, rows[rng.integers(len(rows))]))
        reached.append(state)
    return reached


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", ["tpu-v5e", "a100"])
@pytest.mark.parametrize("name", DEEP)
def test_the_peak_is_that_of_the_whole_program(name: str, machine: str) -> None:
    problem = problem_of(name, machine)
    ranges = problem.folded.ranges
    assert ranges.n_places < 0.8 * problem.analysis.program.n_ops, "layers in the middle are asked"
    copied_states = 0
    for state in states(problem, 60):
        whole_totals = problem.pricer().totals(state.op_factor, state.value_dim)
        assert problem.pricer().quick(state).peak_bytes == pytest.approx(
            whole_totals.peak_bytes, rel=1e-12
        )
        copied_states += int((whole_totals.prices.copied > 0).sum())
    assert copied_states, "no state has copies"


@pytest.mark.parametrize("name", DEEP)
def test_the_peak_of_a_refined_plan_is_that_of_the_whole_program(name: str) -> None:
    problem = problem_of(name, "tpu-v5e")
    fine, rng = make_fine(problem), np.random.default_rng(0)
    for state in states(problem, 20):
        ops, values = rows_of(fine, state)
        # Some rows unsharded, which no action would do
        ops[rng.random(len(ops)) < 0.2] = -1
        values[rng.random(len(values)) < 0.2] = -1
        arrays = fine.alike.whole(problem.analysis.program, ops, values)
        totals = problem.pricer().totals(*arrays)
        peak_bytes = fine.repricer.price(ops, values, None)[1]
        assert peak_bytes == pytest.approx(totals.peak_bytes, rel=1e-12)


def test_more_layers_add_no_places_and_next_to_no_ranges() -> None:
    few, many = (
        Problem(small_transformer(layers=n, mode="train"), {"a": 2, "b": 2}).folded.ranges
        for n in (6, 24)
    )
    assert many.n_places == few.n_places
    assert len(many.buffers.value) < 1.1 * len(few.buffers.value)
    assert len(many.copy_use) < 1.1 * len(few.copy_use)
    assert len(many.work_op) == len(few.work_op)
    assert many.buffer_times.sum() > few.buffer_times.sum()

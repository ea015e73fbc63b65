"""A search's quick prices equal those of the whole program, op by op.

The search prices the folded program, and of that only the ops that changed.
"""

from __future__ import annotations

import concurrent.futures
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.certification.programs import programs
from tests.helpers import analysed, small_transformer, traced
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Pricer, Problem, Quick
from toast_lab.sharding.moves import by_axis
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State, apply_move, legal_rows
from toast_lab.sharding.step_kinds import ALL_GATHER

CASES = {case.name: case for case in programs()}
MESHES = ({"a": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2})
# Which of the states reached before to continue from, which action to take, and whether to price
# the state at once.
STEPS = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 999), st.booleans()), min_size=1, max_size=10
)


@functools.cache
def analysis_of(name: str) -> Analysis:
    model = CASES[name].model()
    return analyse(model)


@functools.lru_cache(maxsize=16)
def problem_of(name: str, mesh: int) -> Problem:
    # A machine with latencies and overheads, so that the number of steps matters, and with little
    # memory, so that peaks matter.
    return Problem(analysis_of(name), MESHES[mesh], "tpu-v5e")


def check(pricer: Pricer, state: State) -> None:
    """Compare a state's quick price with that of the whole program, in total and op by op."""
    quick = pricer.quick(state)
    whole_totals = pricer.totals(state.op_factor, state.value_dim)
    assert quick.time_s == pytest.approx(whole_totals.time_s, rel=1e-9)
    assert quick.peak_bytes == pytest.approx(whole_totals.peak_bytes, rel=1e-9)
    by_op = np.zeros(len(whole_totals.lives.live) - 2)
    np.add.at(
        by_op,
        whole_totals.steps.op[: whole_totals.n_steps],
        whole_totals.each.time_s[: whole_totals.n_steps],
    )
    snapshot = state.priced[1]  # type: ignore[index]
    np.testing.assert_allclose(
        snapshot.prices.op_time_s[pricer.problem.folded.memory.like_op], by_op, rtol=1e-9
    )


def branch(problem: Problem, steps: list[tuple[int, int, bool]]) -> list[State]:
    """Return states that each continue from any state reached before.

    This is also how a search undoes actions.
    """
    pricer, states = problem.pricer(), [State(problem.space)]
    for start, choice, priced in steps:
        state = states[start % len(states)].copy()
        for turn in range(2):  # two actions on one state, priced in between
            rows = legal_rows(state)
            if len(rows):
                move, axis = rows[(choice + turn) % len(rows)]
                state.apply_row(int(move), int(axis))
            if priced:
                check(pricer, state)
        states.append(state)
    for state in states:  # pricing later states has changed none
        check(pricer, state)
    return states


@settings(max_examples=150)
@given(st.sampled_from(sorted(CASES)), st.integers(0, len(MESHES) - 1), STEPS)
def test_folded_and_incremental_prices_equal_the_whole_programs(name, mesh, steps):
    branch(problem_of(name, mesh), steps)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(CASES))
def test_folded_and_incremental_prices_of_every_program(name):
    rng = np.random.default_rng(0)
    for mesh in range(len(MESHES)):
        for _ in range(8):
            branch(
                problem_of(name, mesh),
                [tuple(map(int, (*rng.integers(0, 999, 2), 1))) for _ in range(8)],
            )


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(CASES)),
    st.integers(0, len(MESHES) - 1),
    st.lists(st.integers(0, 999), max_size=8),
)
def test_alike_ops_and_values_stay_alike(name, mesh, choices):
    """A state kept by classes of equal rows is right for every op and value of the program.

    It equals the state after applying the actions to each op and value separately.
    """
    problem = problem_of(name, mesh)
    space, state = problem.space, State(problem.space)
    op_factor, value_dim = state.op_factor, state.value_dim
    ops, values, n_axes = space.op_effects, space.value_effects, len(problem.mesh.axes)
    moves = space.moves._replace(
        op_span=by_axis(ops, n_axes)[0],
        op=ops.target,
        move_factor=ops.cut,
        value_span=by_axis(values, n_axes)[0],
        value=values.target,
        move_dim=values.cut,
        move_dim_size=values.size,
    )
    for choice in choices:
        rows = legal_rows(state)
        if not len(rows):
            break
        move, axis = map(int, rows[choice % len(rows)])
        state.apply_row(move, axis)
        apply_move(moves, op_factor, value_dim, np.zeros(1, np.uint64), move, axis, False)
        assert np.array_equal(state.op_factor, op_factor)
        assert np.array_equal(state.value_dim, value_dim)


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_repeated_layers_are_priced_once(mode):
    few, many = (Problem(small_transformer(layers=n, mode=mode), {"a": 2, "b": 2}) for n in (3, 6))
    assert many.analysis.program.n_ops > 1.5 * few.analysis.program.n_ops
    assert len(many.folded.times) == len(few.folded.times)
    assert many.folded.times.sum() == many.analysis.program.n_ops


def test_only_what_an_action_changed_is_priced_again():
    problem = Problem(analysed("mlp"), {"a": 2})
    pricer, state = problem.pricer(), State(problem.space)
    n_ops = len(problem.folded.times) - problem.folded.tables.n_arguments
    assert pricer.quick(state).score == 1.0
    repricer, before = pricer.repricer, state.priced[1]
    assert repricer.price(state.ops, state.values, None)[2] == n_ops
    assert repricer.price(state.ops, state.values, before)[2] == 0
    last = problem.analysis.group_index("W")  # only the columns of the last dot
    state.apply_row(int(np.flatnonzero(problem.space.group == last)[0]), 0)
    time_s, peak_bytes, priced, _ = repricer.price(state.ops, state.values, before)
    assert 0 < priced < n_ops
    assert (time_s, peak_bytes) == repricer.price(state.ops, state.values, None)[:2]


def test_what_a_branch_gathered_is_gathered_again_after_it():
    def fn(c, x, w):
        y = jax.lax.cond(c, lambda: x @ w, lambda: x)
        return y @ w

    shape = jax.ShapeDtypeStruct((64, 64), "float32")
    analysis = traced(
        fn, jax.ShapeDtypeStruct((), bool), shape, shape, dim_names={"x": ("batch", "d")}
    )
    problem = Problem(analysis, {"a": 4})
    state = State(problem.space)
    for action in (("batch", "a"), ("d", "a")):
        state.apply(parse_action(analysis, problem.mesh, action))
    pricer = problem.pricer()
    whole_totals = pricer.totals(state.op_factor, state.value_dim)
    assert (whole_totals.steps.kind[: whole_totals.n_steps] == ALL_GATHER).sum() == 2
    check(pricer, state)


def test_one_pricer_serves_several_threads():
    problem = Problem(small_transformer(layers=2, mode="train"), {"a": 2, "b": 4})
    rng, pricer, states = np.random.default_rng(0), problem.pricer(), []
    for _ in range(200):
        state = State(problem.space)
        for _ in range(rng.integers(1, 7)):
            if len(rows := legal_rows(state)):
                state.apply_row(*map(int, rows[rng.integers(len(rows))]))
        states.append(state)
    expected = [problem.pricer().quick(s.copy()) for s in states]

    def price(state: State) -> Quick:
        return [pricer.quick(state.copy()) for _ in range(20)][-1]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(price, states)) == expected


def test_snapshots_of_another_pricer_are_not_used():
    analysis = analysed("attention")
    cheap, dear = Problem(analysis, {"a": 4}, "tpu-v5e"), Problem(analysis, {"a": 4}, "cpu")
    state = State(cheap.space)
    first = cheap.pricer().quick(state).time_s
    assert dear.pricer().quick(state).time_s > first

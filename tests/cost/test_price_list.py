"""Listed prices, known better than by rule: where they apply, and that searches use them too."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import small_transformer
from toast_lab.cost.price_codes import step_codes
from toast_lab.cost.price_list import COMPILED, MEASURED, PriceEntry, PriceList
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import MACHINES
from toast_lab.sharding.state import State, legal_rows
from toast_lab.sharding.step_kinds import SLICE


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(small_transformer(layers=3), {"a": 2, "b": 4}, "tpu-v5e")


def random_state(problem: Problem, seed: int) -> State:
    rng, state = np.random.default_rng(seed), State(problem.space)
    for _ in range(4):
        rows = legal_rows(state)
        if len(rows):
            move, axis = rows[int(rng.integers(len(rows)))]
            state.apply_row(int(move), int(axis))
    return state


def entries_of(problem: Problem, state: State, factor: float) -> list[PriceEntry]:
    """Return an entry for every other step of a state, at ``factor`` times the rule's time."""
    totals = problem.prices.totals(state.op_factor, state.value_dim)
    codes = np.zeros(totals.n_steps, np.int64)
    step_codes(problem.prices.inputs, totals.steps, totals.n_steps, codes)
    return [
        PriceEntry(
            int(totals.steps.op[row]), int(codes[row]), factor * totals.each.time_s[row], COMPILED
        )
        for row in range(0, totals.n_steps, 2)
        if totals.each.time_s[row] > 0.0
    ]


@pytest.mark.parametrize("seed", range(4))
def test_searches_and_whole_programs_look_up_the_same_entries(problem, seed):
    state = random_state(problem, seed)
    listed = problem.with_prices(PriceList(tuple(entries_of(problem, state, 3.0)), 0.7, 1.3))
    pricer = listed.pricer()
    for other in (state, *(random_state(problem, 10 + seed + turn) for turn in range(3))):
        other = other.copy()
        other.priced = None
        quick = pricer.quick(other)
        whole_totals = pricer.totals(other.op_factor, other.value_dim)
        assert quick.time_s == pytest.approx(whole_totals.time_s, rel=1e-9)
        assert quick.peak_bytes == pytest.approx(whole_totals.peak_bytes, rel=1e-9)


def test_an_entry_holds_for_its_layout_and_its_class_alone(problem):
    state = random_state(problem, 1)
    before = problem.prices.totals(state.op_factor, state.value_dim)
    longest = int(np.argmax(before.each.time_s[: before.n_steps]))
    op = int(before.steps.op[longest])
    codes = np.zeros(before.n_steps, np.int64)
    step_codes(problem.prices.inputs, before.steps, before.n_steps, codes)
    listed = problem.with_prices(PriceList((PriceEntry(op, int(codes[longest]), 1.0, MEASURED),)))
    after = listed.prices.totals(state.op_factor, state.value_dim)
    own = problem.prices.op_class == problem.prices.op_class[op]
    same = own[before.steps.op[: before.n_steps]] & (codes == codes[longest])
    assert 0 < same.sum() < before.n_steps
    np.testing.assert_array_equal(after.each.time_s[: after.n_steps][same], 1.0)
    np.testing.assert_array_equal(
        after.each.time_s[: after.n_steps][~same], before.each.time_s[: before.n_steps][~same]
    )
    # A plan that cuts this op otherwise, here the unsharded one, keeps the rule's price.
    whole_totals = listed.prices.totals(*State(problem.space).sharding)
    assert whole_totals.time_s == problem.baseline[0]


def test_every_price_says_what_it_comes_from():
    # Off, since the part of a gather that runs ahead depends on computing times.
    machine = dataclasses.replace(MACHINES["tpu-v5e"], gathered_ahead=0.0)
    problem = Problem(small_transformer(layers=3), {"a": 2, "b": 4}, machine)
    plan = tl.Plan.from_state(random_state(problem, 2), ())
    assert {row.source for row in tl.price(problem, plan).ops} == {"rule"}
    assert tl.price(problem, plan).priced_by == "rule"
    state = random_state(problem, 2)
    listed = problem.with_prices(PriceList(tuple(entries_of(problem, state, 2.0)), 1.0, 0.5))
    cost = tl.price(listed, plan)
    assert {row.source for row in cost.ops} == {"rule", "compiled"}
    assert {row.source for row in cost.collectives} <= {"fitted", "compiled"}
    compiled_s = sum(
        row.time_s for row in (*cost.ops, *cost.collectives) if row.source == "compiled"
    )
    assert f"{compiled_s / cost.time_s:.0%} compiled" in cost.priced_by.split(", ")
    by_rule = tl.price(problem, plan)
    for row, old in zip(cost.ops, by_rule.ops, strict=True):
        assert row.time_s == pytest.approx(old.time_s * (2.0 if row.source == "compiled" else 1.0))
    for row, old in zip(cost.collectives, by_rule.collectives, strict=True):
        assert row.time_s == pytest.approx(old.time_s * (2.0 if row.source == "compiled" else 0.5))


def test_without_a_list_nothing_changes(problem):
    state = random_state(problem, 3)
    again = problem.with_prices(PriceList(tuple(entries_of(problem, state, 9.0))))
    without = again.with_prices(PriceList())
    ours = problem.prices.totals(state.op_factor, state.value_dim)
    theirs = without.prices.totals(state.op_factor, state.value_dim)
    rows = slice(ours.n_steps)
    np.testing.assert_array_equal(ours.each.time_s[rows], theirs.each.time_s[rows])
    assert without.baseline == problem.baseline == again.baseline
    assert again.space is problem.space


def test_a_list_is_kept_as_json(problem):
    entries = entries_of(problem, random_state(problem, 2), 2.0)
    one = PriceList(tuple(entries), 0.5, 2.0)
    assert PriceList.from_json(one.to_json()) == one
    assert str(one) == f"{len(entries)} prices: {len(entries)} compiled"


def test_bad_lists_are_refused_with_all_offenders(problem):
    wrong = (PriceEntry(3, 1, -1.0, COMPILED), PriceEntry(4, 1, 1.0, "guessed"))
    with pytest.raises(InvalidProblem, match=r"op 3: -1.0 s.*op 4: 1.0 s from 'guessed'"):
        PriceList(wrong)
    with pytest.raises(InvalidProblem, match="scales"):
        PriceList((), 0.0)
    with pytest.raises(InvalidProblem, match="not a price list"):
        PriceList.from_json({"format": 1})
    with pytest.raises(InvalidProblem, match="format 7"):
        PriceList.from_json({"format": 7})
    foreign = PriceList((PriceEntry(10**6, 1, 1.0, COMPILED),))
    with pytest.raises(InvalidProblem, match="another program"):
        problem.with_prices(foreign).pricer().totals(*State(problem.space).sharding)


def test_codes_tell_steps_of_one_op_apart(problem):
    """Steps of one op with equal codes take equal times, whatever the plan."""
    seconds: dict[tuple[int, int], float] = {}
    for seed in range(12):
        state = random_state(problem, seed)
        totals = problem.prices.totals(state.op_factor, state.value_dim)
        codes = np.zeros(totals.n_steps, np.int64)
        step_codes(problem.prices.inputs, totals.steps, totals.n_steps, codes)
        for row in range(totals.n_steps):
            if totals.steps.kind[row] != SLICE:
                key = int(totals.steps.op[row]), int(codes[row])
                known = seconds.setdefault(key, totals.each.time_s[row])
                assert known == pytest.approx(totals.each.time_s[row], rel=1e-12)

"""Plans given by hand as lists of actions.

The cost and the collectives of each action, and exchanging the sides of conflicts.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers import analysed, plan, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.explain.plan_by_hand import (
    collective_changes,
    plans_after_actions,
    replay,
    side_on,
    side_options,
    with_side,
)
from toast_lab.plan_verbs import Plan

MESH = {"d": 2, "m": 4}


@pytest.fixture(scope="module")
def attention():
    return Problem(analysed("attention"), MESH, "tpu-v3")


@pytest.fixture(scope="module")
def train():
    return Problem(small_transformer(layers=2, mode="train"), MESH, "tpu-v3")


def texts(problem, actions):
    return tuple(problem.space.text(a) for a in actions)


@pytest.mark.parametrize("name", ["attention", "train"])
def test_each_row_is_the_plan_of_the_actions_up_to_it(name, request):
    problem = request.getfixturevalue(name)
    r = problem.analysis.compatibility_sets[0].resolution
    actions = texts(problem, with_side(problem, with_side(problem, (), r, "m", 1), r, "d", 0))
    rows = plans_after_actions(problem, actions)
    assert [row.action for row in rows] == ["", *actions]
    for n, row in enumerate(rows):
        cost = price(problem, plan(problem, *actions[:n]))
        assert row.time_s == pytest.approx(cost.time_s, rel=1e-12)
        assert row.compute_s == pytest.approx(cost.compute_s, rel=1e-12)
        assert row.comm_s == pytest.approx(cost.comm_s, rel=1e-12, abs=1e-15)
        assert (row.peak_bytes, row.fits) == (cost.peak_bytes, cost.fits)
        assert row.sent == Counter((c.kind, c.axes, c.op) for c in cost.collectives)
    assert not rows[0].sent
    assert rows[-1].sent


def test_rows_of_a_memo_are_taken_from_it(attention):
    memo = {}
    first = plans_after_actions(attention, ("S@0->d", "H2->m"), memo)
    assert set(memo) == {(), ("S@0->d",), ("S@0->d", "H2->m")}
    second = plans_after_actions(attention, ("S@0->d", "S@1->m"), memo)
    assert second[1] is first[1]
    assert len(memo) == 4


def test_a_change_counts_what_came_and_what_went():
    before = Counter({("all_gather", ("d",), 3): 2, ("all_reduce", ("d",), 5): 1})
    after = Counter(
        {("all_gather", ("d",), 3): 1, ("all_gather", ("d",), 4): 4, ("all_reduce", ("d",), 5): 1}
    )
    assert collective_changes(before, after) == {("all_gather", ("d",)): (4, 1)}
    assert collective_changes(after, after) == {}


def test_a_flipped_side_keeps_its_place_and_the_other_actions(attention):
    r = attention.analysis.compatibility_sets[0].resolution
    actions = ("S@0->d", "H2->m")
    assert [side_on(attention, actions, r, a) for a in ("d", "m")] == [0, None]
    flipped = with_side(attention, actions, r, "d", 1)
    assert texts(attention, flipped) == ("S@1->d", "H2->m")
    assert side_on(attention, flipped, r, "d") == 1
    assert texts(attention, with_side(attention, flipped, r, "d", None)) == ("H2->m",)
    assert texts(attention, with_side(attention, actions, r, "m", 1)) == (
        "S@0->d",
        "H2->m",
        "S@1->m",
    )


def test_options_cost_what_the_plans_cost(train):
    r = train.analysis.compatibility_sets[0].resolution
    actions = texts(train, with_side(train, (), r, "m", 0))
    options = side_options(train, actions, r, "d")
    assert {option.side for option in options} == {0, 1}
    for option in options:
        assert not option.why_not
        swapped_plan = Plan.from_actions(train, with_side(train, actions, r, "d", option.side))
        cost = price(train, swapped_plan)
        assert option.time_s == pytest.approx(cost.time_s, rel=1e-9)
        assert option.peak_bytes == pytest.approx(cost.peak_bytes)
        assert option.fits == cost.fits


def test_a_side_that_does_not_divide_says_so_with_the_sizes():
    problem = Problem(analysed("attention"), {"d": 3, "m": 4}, "tpu-v3")
    r = problem.analysis.compatibility_sets[0].resolution
    with pytest.raises(InvalidPlan, match=r'S has size .*, not divisible by mesh axis "d" = 3'):
        with_side(problem, (), r, "d", 1)
    options = side_options(problem, (), r, "d")
    assert all("not divisible" in o.why_not for o in options)


def test_replaying_tells_what_changes_nothing_any_more(attention):
    state, kept, left_out = replay(attention, ["S@0->d", "S@0->d", "H2->m"])
    assert texts(attention, kept) == ("S@0->d", "H2->m")
    assert len(left_out) == 1
    assert left_out[0].startswith("action S@0->d changes nothing")
    assert state.plan_key == plan(attention, "S@0->d", "H2->m").key

"""The best plan keeps its actions; what refinement and integer programs changed is told apart."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import analysed
from toast_lab.errors import InvalidProblem
from toast_lab.search.action_path import DESCENT, INTEGER_PROGRAMS, method_of
from toast_lab.search.contract import SearchResult
from toast_lab.sharding.plan import is_action, make_plan

BUDGET = tl.Budget(seconds=None, evaluations=4000)
#: a short search over actions, so that refinement comes soon
SOON: dict[str, Any] = {"trajectories": 128, "patience": 1, "refine": 5, "solve": False}


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    sizes = {"layers": 1, "batch": 16, "vocab": 1024, "sequence": 256}
    return tl.Problem(analysed("transformer", **sizes), {"data": 4, "model": 2}, "tpu-v5e")


@pytest.fixture(scope="module")
def best(problem: tl.Problem) -> SearchResult[tl.Plan]:
    """The best plan, which integer programs and descent have changed after its actions."""
    result = tl.search(problem, budget=BUDGET, actions_within=0.0, **SOON)
    assert result.refinements is not None
    return result


@pytest.fixture(scope="module")
def preferred(problem: tl.Problem) -> SearchResult[tl.Plan]:
    """The same search, with a plan of actions at any price."""
    return tl.search(problem, budget=BUDGET, actions_within=10.0, **SOON)


def same(plan: tl.Plan, other: tl.Plan) -> bool:
    return plan.sharding.same_as(other.sharding)


def test_actions_are_kept_and_lead_to_the_plan_before_it_was_refined(
    problem: tl.Problem, best: SearchResult[tl.Plan]
) -> None:
    assert best.actions
    assert best.plan.actions == tuple(map(problem.space.text, best.actions))
    base = tl.Plan.from_actions(problem, best.plan.actions)
    changed = best.refinements
    assert changed is not None
    assert changed.is_kept
    assert changed.n_ops == (base.op_factor != best.plan.op_factor).any(axis=1).sum()
    assert changed.n_values == (base.value_dim != best.plan.value_dim).any(axis=1).sum()
    before, after = tl.price(problem, base), tl.price(problem, best.plan)
    assert (changed.before.score, changed.after.score) == (
        pytest.approx(before.score, rel=1e-12),
        pytest.approx(after.score, rel=1e-12),
    )
    assert changed.gain_s == pytest.approx(before.time_s - after.time_s)
    assert changed.gain_bytes == pytest.approx(before.peak_bytes - after.peak_bytes)
    assert 0 < changed.gain < 1
    assert before.score < 1
    assert changed.method in (DESCENT, INTEGER_PROGRAMS)
    assert f"after them, {changed}." in best.message


def test_colours_say_what_was_changed(problem: tl.Problem, best: SearchResult[tl.Plan]) -> None:
    changed = best.refinements
    assert changed is not None
    base = tl.Plan.from_actions(problem, best.plan.actions)
    entries = sum(
        int(((ours != theirs) & (ours >= 0)).sum())
        for one, other in ((base, best.plan), (best.plan, base))
        for ours, theirs in (
            (one.op_factor, other.op_factor),
            (one.value_dim, other.value_dim),
        )
    )
    assert sum(colour.added + colour.removed for colour in changed.colours) == entries
    assert {colour.axis for colour in changed.colours} <= {"data", "model"}
    assert {c.colour for c in changed.colours} <= set(problem.analysis.group_name)


def test_the_path_has_the_price_after_each_action_and_the_refinement_last(
    problem: tl.Problem, best: SearchResult[tl.Plan]
) -> None:
    first, *steps, last = best.path
    assert (first.action, first.score) == ("", pytest.approx(1.0))
    assert tuple(step.action for step in steps) == best.plan.actions
    for number, step in enumerate(steps, 1):
        cost = tl.price(problem, tl.Plan.from_actions(problem, best.plan.actions[:number]))
        assert (step.time_s, step.peak_bytes, step.score) == pytest.approx(
            (cost.time_s, cost.peak_bytes, cost.score), rel=1e-9
        )
    assert (last.action,) == best.plan.refinements
    assert last.score == pytest.approx(best.cost.score, rel=1e-12)


def test_a_plan_of_actions_is_preferred_and_the_best_one_stays_at_hand(
    problem: tl.Problem, best: SearchResult[tl.Plan], preferred: SearchResult[tl.Plan]
) -> None:
    result = preferred
    assert result.plan.actions
    assert not result.plan.refinements
    assert same(tl.Plan.from_actions(problem, result.plan.actions), result.plan)
    assert result.cost.score == tl.price(problem, result.plan).score > best.cost.score
    seen = [
        simulation.score
        for simulation in result.trace.simulations
        if simulation.fits and all(map(is_action, simulation.actions))
    ]
    assert result.cost.score == pytest.approx(min(seen), rel=1e-9)
    assert same(result.refined.plan, best.plan)
    assert result.refined.cost.score == best.cost.score
    assert result.refined.plan.actions == result.plan.actions
    assert isinstance(result.refined.plan, tl.Plan)
    assert result.refinements is not None
    assert not result.refinements.is_kept
    assert result.refined.refinements is not None
    assert result.refined.refinements.is_kept
    assert "alone, which is preferred within 10 of the lowest C(s)" in result.message
    assert [step.action for step in result.path] == ["", *result.plan.actions]


def test_it_is_not_preferred_if_it_is_worse_by_more(
    problem: tl.Problem, best: SearchResult[tl.Plan], preferred: SearchResult[tl.Plan]
) -> None:
    lost = preferred.cost.score / best.cost.score - 1
    for share, is_preferred in ((lost * 0.99, False), (lost * 1.01, True)):
        result = tl.search(problem, budget=BUDGET, actions_within=share, **SOON)
        assert (result.unlimited is not None) == is_preferred


def test_bounds_speak_of_the_best_plan(preferred: SearchResult[tl.Plan]) -> None:
    result = preferred.certified(20.0)
    assert result.bound is not None
    assert result.gap is not None
    assert result.refined.gap is not None
    assert result.bound <= result.refined.cost.score * (1 + 1e-12)
    assert result.gap == pytest.approx(result.cost.score / result.bound - 1)
    assert result.refined.gap == pytest.approx(result.refined.cost.score / result.bound - 1)
    assert result.gap > result.refined.gap


def test_a_resumed_search_goes_on_from_the_best_plan(problem: tl.Problem) -> None:
    first = tl.Budget(seconds=None, evaluations=2000)
    found = [
        tl.search(problem, budget=first, actions_within=within, **SOON) for within in (0.0, 10.0)
    ]
    traces = [result.trace for result in found]
    assert traces[0].best_actions == traces[1].best_actions
    assert traces[0].best_sharding is not None
    assert traces[1].best_sharding is not None
    assert traces[0].best_sharding.same_as(traces[1].best_sharding)
    more = [tl.search(problem, budget=first, resume=t, actions_within=0.0, **SOON) for t in found]
    assert more[0].cost.score == more[1].cost.score
    assert more[0].plan.history == more[1].plan.history
    assert more[0].actions


def test_saved_and_sent_plans_keep_both(
    problem: tl.Problem, best: SearchResult[tl.Plan], tmp_path
) -> None:
    assert best.plan.actions
    assert best.plan.refinements
    best.plan.save(tmp_path / "plan.json")
    for plan in (
        tl.Plan.load(tmp_path / "plan.json", problem),
        pickle.loads(pickle.dumps(best.plan)),
        make_plan(problem.analysis, problem.mesh, best.plan.sharding, best.plan.history),
    ):
        assert (plan.actions, plan.refinements) == (best.plan.actions, best.plan.refinements)
        assert np.array_equal(plan.op_factor, best.plan.op_factor)


def test_pinned_actions_come_first_and_are_not_taken_again(problem: tl.Problem) -> None:
    pinned = problem.pin("batch->data")
    result = tl.search(pinned, budget=BUDGET, actions_within=10.0, **SOON)
    assert result.plan.actions[0] == "batch->data"
    assert "batch->data" not in map(problem.space.text, result.actions)
    assert result.refined.plan.actions == result.plan.actions


def test_a_plan_that_actions_give_as_well_is_told_by_them() -> None:
    """The integer program finds it first, and later trajectories cannot improve it."""
    mlp = tl.Problem(analysed("mlp"), {"data": 4, "model": 4}, "tpu-v5e")
    for within in (0.0, 0.02):
        result = tl.search(mlp, budget=tl.Budget(None, 2000), actions_within=within)
        assert result.actions
        assert result.refinements is None
        assert result.unlimited is None
        assert same(tl.Plan.from_actions(mlp, result.plan.actions), result.plan)


def test_methods_without_refinement_are_as_before(problem: tl.Problem) -> None:
    result = tl.search(problem, "beam", budget=tl.Budget(None, 300))
    assert result.actions
    assert result.refinements is None
    assert result.refined is result
    by_hand = tl.search(problem, "manual", actions=["batch->data"])
    assert by_hand.plan.actions == ("batch->data",)
    assert by_hand.refinements is None


def test_what_is_no_share_is_refused(problem: tl.Problem) -> None:
    for wrong in (-0.1, "much", float("nan")):
        with pytest.raises(InvalidProblem, match="actions_within"):
            tl.search(problem, budget=tl.Budget(None, 10), actions_within=wrong)


def test_the_method_is_read_from_the_history() -> None:
    assert method_of(("batch->m", "refined in 12 places")) == DESCENT
    assert method_of(("roles: by an integer program from this start, descent",)) == INTEGER_PROGRAMS
    assert method_of(("colours: all axes free, optimal",)) == INTEGER_PROGRAMS
    assert method_of(("refined in 2 places, by integer programs",)) == INTEGER_PROGRAMS


def test_a_result_without_its_problem_says_nothing(best: SearchResult[tl.Plan]) -> None:
    bare = dataclasses.replace(best, problem=None)
    assert bare.refinements is None
    assert bare.path == ()

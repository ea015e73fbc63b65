"""Simpler plans that are nearly as good."""

from __future__ import annotations

import dataclasses

import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget, SearchResult
from toast_lab.search.simplify import SMALLEST_GAIN
from toast_lab.sharding import validity
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.plan_rules import PlanSize, plan_size

MESH = {"data": 2, "model": 2}


def size_of(plan: ShardingPlan) -> PlanSize:
    return plan_size(plan.program, plan.sharding)


@pytest.fixture(scope="module")
def result() -> SearchResult[Plan]:
    """The result of a search that refines its plans."""
    problem = Problem(analysed("transformer", layers=2), "4x2")
    return search(problem, seed=1, budget=Budget(None, 20_000))


def test_the_simple_plan_keeps_to_its_bound(result: SearchResult[Plan]) -> None:
    problem = result.problem
    assert problem is not None
    sizes = []
    for within in (0.0, 0.02, 0.2, 0.5):
        plan = result.simple(within)
        assert isinstance(plan, Plan)
        cost = price(problem, plan)
        assert cost.score <= result.cost.score * (1 + within) * (1 + 1e-12)
        assert cost.fits
        sizes.append(size_of(plan).total)
    assert sizes == sorted(sizes, reverse=True), "what may be worse is no larger"
    assert sizes[0] <= size_of(result.plan).total
    assert sizes[-1] < size_of(result.plan).total


def test_every_plan_can_be_carried_out_and_is_priced_as_it_says(
    result: SearchResult[Plan],
) -> None:
    problem = result.problem
    assert problem is not None
    for row in result.front.rows:
        assert validity.offenders(problem.analysis.program, problem.mesh, row.plan.sharding) == []
        cost = price(problem, row.plan)
        assert cost.time_s == pytest.approx(row.quick.time_s, rel=1e-9)
        assert cost.peak_bytes == pytest.approx(row.quick.peak_bytes, rel=1e-9)
        assert size_of(row.plan) == row.size


def test_each_further_place_of_the_front_buys_something(result: SearchResult[Plan]) -> None:
    kept = result.front.kept
    assert len(kept) >= 2
    assert [row.size.total for row in kept] == sorted(row.size.total for row in kept)
    for index, row in enumerate(kept):
        for other in kept[:index]:
            if other.quick.peak_bytes <= row.quick.peak_bytes:
                further = row.size.total - other.size.total
                needed = other.quick.score * (1 - SMALLEST_GAIN * further)
                assert row.quick.score < needed
    text = str(result.front)
    assert text.splitlines()[0].split()[:2] == ["rules", "places"]
    assert len(text.splitlines()) == len(kept) + 1


def test_pins_are_kept() -> None:
    problem = Problem(analysed("mlp"), MESH).pin(("B", "data"))
    search_result = search(problem, budget=Budget(None, 300))
    assert problem.pins is not None
    for row in search_result.front.rows:
        assert problem.pins.broken(*row.plan.sharding) == []


def test_where_nothing_fits_plans_that_do_not_fit_are_compared() -> None:
    problem = Problem(analysed("mlp"), MESH, memory_limit_bytes=16.0)
    search_result = search(problem, budget=Budget(None, 300))
    assert not search_result.cost.fits
    assert price(problem, search_result.simple()).score <= search_result.cost.score * 1.02


def test_a_method_without_actions_has_simpler_plans_too() -> None:
    problem = Problem(analysed("mlp"), MESH)
    search_result = search(problem, method="alpa", budget=Budget(None, 500))
    assert size_of(search_result.simple(0.5)).total <= size_of(search_result.plan).total


def test_what_cannot_be_asked_for(result: SearchResult[Plan]) -> None:
    with pytest.raises(InvalidProblem, match="within"):
        result.simple(-0.1)
    with pytest.raises(InvalidProblem, match="lacks the problem"):
        dataclasses.replace(result, problem=None).simple()


def test_the_result_was_refined(result: SearchResult[Plan]) -> None:
    """Without refinement, the tests above would only compare plans of actions."""
    assert result.refinements is not None
    assert result.refined.plan.refinements


def test_a_result_prints_its_plan(result: SearchResult[Plan]) -> None:
    lines = str(result).splitlines()
    assert lines[0] == result.in_brief()
    assert f" ms, {result.cost.relative_time:.3g} of unsharded, " in lines[0]
    assert "argument rule" in lines[1]

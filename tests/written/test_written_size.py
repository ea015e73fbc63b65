"""A size bounds what a person writes, as a memory limit bounds memory."""

from __future__ import annotations

import functools

import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem
from toast_lab.ir.sites import Sites
from toast_lab.pipeline import Result, search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget
from toast_lab.search.usual_plans import usual_plans
from toast_lab.written.drafts import Draft, Drafts
from toast_lab.written.front import front_of
from toast_lab.written.written_front import FLOOR, WrittenFront, floor, written_of

MESH = {"data": 2, "model": 2}


@functools.cache
def mlp() -> Problem:
    return Problem(analysed("mlp", batch=256, inputs=1024, hidden=4096, outputs=1024), MESH)


def searched(**options: object) -> Result:
    result = search(mlp(), budget=Budget(None, 400), **options)
    assert isinstance(result, Result)
    return result


def test_the_plan_of_a_search_with_a_size_is_that_of_its_written_plan() -> None:
    free = searched()
    smallest = min(row.size.total for row in free.written_front if row.size.total)
    limited = searched(size=smallest)
    written = limited.written()
    assert written.size.total <= smallest
    assert limited.plan.sharding.same_as(written.plan.sharding)
    assert limited.cost.time_s == price(mlp(), limited.plan).time_s == written.cost.time_s
    assert limited.refined.plan.sharding.same_as(free.refined.plan.sharding)
    assert limited.refined.size == smallest
    assert f"at most {smallest} rules and constraints" in limited.message
    assert limited.path[-1].action == f"written in {written.size}"
    again = free.written(size=smallest)
    assert again.cost.score == written.cost.score
    assert free.plan.written(size=smallest, problem=mlp()).size.total <= smallest


def test_more_may_be_written_only_for_a_lower_price() -> None:
    scores = [searched().written(size=size).cost.score for size in (1, 3, 6)]
    assert scores == sorted(scores, reverse=True)


def limited_drafts(limit_bytes: float | None = None) -> tuple[Drafts, Plan]:
    problem = Problem(analysed("transformer"), {"a": 4, "b": 4}, memory_limit_bytes=limit_bytes)
    plan = Plan.from_actions(problem, usual_plans(problem)["fully sharded + tensor parallel"])
    return Drafts(problem, Sites((), {})), plan


def test_where_nothing_so_small_fits_memory_the_smallest_that_does_is_given_as_well() -> None:
    drafts, plan = limited_drafts(150 * 2.0**20)
    rows = front_of(drafts, [plan], size=1)
    *small, fitting = rows
    assert all(row.size.total <= 1 and not row.cost.fits for row in small)
    assert fitting.cost.fits
    assert fitting.size.total > 1
    written = [written_of(drafts, row.draft, drafts.propagated(row.draft)) for row in rows]
    message = rf"fits into memory with 1 rules .* {fitting.size.total} together"
    with pytest.raises(InvalidProblem, match=message):
        WrittenFront(tuple(written), written[-1].cost).of_size(1)


@pytest.mark.parametrize("size", [0, -1, 2.5, "3", True])
def test_what_is_no_size_is_refused(size: object) -> None:
    with pytest.raises(InvalidProblem, match="size must be"):
        searched(size=size)
    with pytest.raises(InvalidProblem, match="size must be"):
        searched().written(size=size)  # type: ignore[arg-type]


def test_every_draft_of_a_limited_search_keeps_to_the_size_where_it_can() -> None:
    drafts, plan = limited_drafts()
    assert drafts.size(Draft(drafts.role_layouts(plan), frozenset())).total > 3
    rows = front_of(drafts, [plan], size=3)
    assert rows
    assert all(row.size.total <= 3 for row in rows)


def test_the_floor_is_the_argument_shardings_of_the_usual_plans_alone() -> None:
    usual = usual_plans(mlp())
    plans = {name: Plan.from_actions(mlp(), usual[name]) for name in FLOOR if name in usual}
    lowest = floor(mlp(), {**plans, "twice": plans["data parallel"]})
    assert "twice" not in lowest
    assert {"data parallel", "data + tensor parallel"} <= set(lowest)
    for name, written in lowest.items():
        assert written.constraints == ()
        kept = written.plan.argument_specs()
        assert kept == plans[name].argument_specs()
        written.plan.check()
        assert written.cost.time_s == price(mlp(), written.plan).time_s


def test_written_plans_keep_to_pins() -> None:
    pinned = mlp().pin(("B", "data"))
    result = search(pinned, budget=Budget(None, 300))
    assert pinned.pins is not None
    assert len(result.written_front) > 0
    for row in result.written_front:
        assert pinned.pins.broken(*row.plan.sharding) == []

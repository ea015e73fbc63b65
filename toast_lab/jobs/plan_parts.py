"""Plans as they cross from one process to another: without the program that both have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from toast_lab.cost.problem import Problem
from toast_lab.search.contract import SearchResult
from toast_lab.search.trace import Trace
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.sharding.sharding import Sharding


class PlanParts(NamedTuple):
    """The data from which another process can rebuild a plan."""

    sharding: Sharding
    actions: tuple[str, ...]  #: the history of the plan
    key: int
    judged: Mapping[str, Any] | None = None

    def plan(self, problem: Problem) -> ShardingPlan:
        """The plan, as a plan of the problem that was searched."""
        plan = make_plan(problem.analysis, problem.mesh, self.sharding, self.actions, key=self.key)
        return plan if self.judged is None else dataclasses.replace(plan, judged=self.judged)


def parts_of(plan: ShardingPlan) -> PlanParts:
    """A plan without its program."""
    return PlanParts(plan.sharding, plan.history, plan.key, plan.judged)


def result_parts(result: SearchResult[Any], *, with_trace: bool) -> SearchResult[Any]:
    """A result whose plans are ``PlanParts``, without its problem.

    Without its trace, it still has what it takes to resume the search.
    """
    trace = result.trace
    if not with_trace:
        trace = Trace()
        trace.about, trace.told = result.trace.about, result.trace.told
    return dataclasses.replace(
        result,
        plan=parts_of(result.plan),
        unlimited=result.unlimited and (parts_of(result.unlimited[0]), result.unlimited[1]),
        problem=None,
        trace=trace,
    )


def whole_result(parts: SearchResult[Any], problem: Problem) -> SearchResult[Any]:
    """The result that the search gave, with plans of ``problem``."""
    return dataclasses.replace(
        parts,
        plan=parts.plan.plan(problem),
        unlimited=parts.unlimited and (parts.unlimited[0].plan(problem), parts.unlimited[1]),
        problem=problem,
    )

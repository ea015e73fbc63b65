"""Small things that a session holds: messages, prices of an action, plans."""

from __future__ import annotations

from typing import Any, NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import InvalidPlan
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.compare_table import Entry

MANUAL = "manual"  #: name of the plan that is made by hand


class Message(NamedTuple):
    """Something the user should know."""

    level: str  #: "info", "good" or "error"
    text: str
    at: float


class ActionPrice(NamedTuple):
    """What one more action would make of the manual plan; estimated."""

    axis: str
    bits: int
    side: str  #: text of the resolution, empty where there is nothing to resolve
    time_s: float
    peak_bytes: float
    fits: bool


class PlanItem(NamedTuple):
    """A plan, the problem that it solves, its price, and what its execution gave."""

    name: str
    origin: str
    plan: ShardingPlan
    problem: Problem
    cost: Cost
    run: Any = None

    def entry(self) -> Entry:
        """The plan as the comparison takes it."""
        return Entry(self.name, self.plan.actions, self.cost, self.run)


def batch_group(analysis: Analysis) -> int:
    """The colour group of the batch dimension: one that is called so, else dim 0 of the inputs.

    Raises InvalidPlan if nothing looks like one.
    """
    for word in ("batch", "b", "n"):
        for g in analysis.groups:
            if g.name.casefold() == word and g.shardable:
                return g.index
    program = analysis.program
    for a in range(program.n_arguments):
        names = program.def_names(a)
        if len(names) > 1:
            found = analysis.groups[int(analysis.group[analysis.colour[names[0]]])]
            if found.shardable and found.n_names > 1:
                return found.index
    raise InvalidPlan("no dimension looks like a batch; type an action list instead, for instance batch->data")

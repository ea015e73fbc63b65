"""Small records that a session holds: messages, prices of an action, plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Cost, Problem
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.compare_table import PlanEntry

MANUAL = "manual"  #: name of the plan that is made by hand


#: the price of no plan, for tables that are still empty
NO_COST: Any = SimpleNamespace(time_s=1.0, ops=(), collectives=(), at_peak=())

Level = Literal["info", "good", "error"]


class Message(NamedTuple):
    """A message to the user."""

    level: Level
    text: str
    at: float


class ActionPrice(NamedTuple):
    """The estimated price of the manual plan with one more action."""

    axis: str
    bits: int
    side: str  #: text of the resolution, empty where there is nothing to resolve
    time_s: float
    peak_bytes: float
    fits: bool


class PlanItem(NamedTuple):
    """A plan, the problem that it solves, its price, and what running and compiling it gave."""

    name: str
    origin: str
    plan: ShardingPlan
    problem: Problem
    cost: Cost
    run: Any = None  #: toast_lab.compare.result.ComparisonRow of its last successful execution
    compiled: Any = None  #: toast_lab.runtime.compiled.Compiled
    note: str = ""  #: what went wrong when it was executed or compiled last

    def entry(self, number: int = 0, shown: bool = True, size: int | None = None) -> PlanEntry:
        """The plan as the comparison takes it.

        Args:
            number: in the table, which decides how the plan is drawn.
            shown: whether it is in the pictures.
            size: rules and constraints, if it was written.
        """
        return PlanEntry(
            name=self.name,
            actions=self.plan.history,
            cost=self.cost,
            run=self.run,
            compiled=self.compiled,
            shown=shown,
            number=number,
            machine=self.problem.machine.name,
            size=size,
        )

    def named_as_in(self, analysis: Analysis) -> PlanItem:
        """The same with the names that colours have in another analysis of its program."""
        plan, problem = self.plan.named_as_in(analysis), self.problem.named_as_in(analysis)
        return self._replace(plan=plan, problem=problem)

    @property
    def of_actions(self) -> bool:
        """Is it made of actions alone, without changes after them?"""
        return not self.plan.refinements

    @property
    def compiler_result(self) -> Any:
        """A compiler's result for the plan, or None.

        The plan was compiled ahead of time, or else for an execution.
        """
        return self.run if self.compiled is None or self.compiled.refused else self.compiled

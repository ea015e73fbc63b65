"""What a page knows of a race while it runs and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toast_lab.app.worker import Raced, RaceEnd, RacePoint
from toast_lab.cost.problem import Problem
from toast_lab.search.race import Row, rows
from toast_lab.search.search_child import Outcome, Point

if TYPE_CHECKING:
    from toast_lab.app.items import PlanItem


class RaceState:
    """The methods that race, their improvements so far, and how those ended that did.

    Attributes:
        points: by method, the improvements in order.
        outcomes: by method, of those that are through.
        running: the method whose turn it is.
        found: the whole race, once it is over.
        changes: counts up with everything that arrives.
    """

    def __init__(
        self, problem: Problem | None = None, methods: tuple[str, ...] = (), seed: int = 0
    ) -> None:
        self.problem, self.methods, self.seed = problem, methods, seed
        self.points: dict[str, list[Point]] = {m: [] for m in methods}
        self.outcomes: dict[str, Outcome] = {}
        self.running = ""
        self.found: Raced | None = None
        self.changes = 0

    def take(self, event: RacePoint | RaceEnd | str) -> None:
        """Take in what the job reported."""
        self.changes += 1
        if isinstance(event, str):
            self.running = event.removesuffix(" starts")
        elif isinstance(event, RacePoint):
            self.points[event.method].append(event.point)
        else:
            self.outcomes[event.outcome.method] = event.outcome

    def fresh(self) -> RaceState:
        """The same race before anything was reported."""
        return RaceState(self.problem, self.methods, self.seed)

    def copy(self) -> RaceState:
        """An independent copy."""
        new = self.fresh()
        new.points = {m: list(p) for m, p in self.points.items()}
        new.outcomes, new.found, new.changes = dict(self.outcomes), self.found, self.changes
        new.running = self.running
        return new

    @property
    def rows(self) -> list[Row]:
        """The table so far, one row for each method."""
        return rows(
            self.outcomes.get(m)
            or Outcome(
                m,
                self.status(m),
                "",
                tuple(p),
                None,
                p[-1].elapsed_s if p else 0.0,
                None,
                None,
                (),
                None,
            )
            for m, p in self.points.items()
        )

    def status(self, method: str) -> str:
        """How far a method is, in a word."""
        if method in self.outcomes:
            return self.outcomes[method].status.lower()
        if method == self.running:
            return "runs" if self.points[method] else "prepares"
        return "waits"

    def verdict(self) -> str:
        """Who won."""
        best = None if self.found is None else self.found.race.best
        return "no method found a plan." if best is None else f"{best.method} found the best plan."

    def items(self) -> list[PlanItem]:
        """The best plan of each method, for the comparison."""
        if self.found is None or self.problem is None:
            return []
        # Tables and pictures, which a race in the background does not need
        from toast_lab.app.items import PlanItem

        plans: dict[str, Any] = self.found.race.plans
        return [
            PlanItem(
                f"{m} (race, seed {self.seed})", "race", plan, self.problem, self.found.costs[m]
            )
            for m, plan in plans.items()
        ]

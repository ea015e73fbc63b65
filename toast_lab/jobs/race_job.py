"""A race in a job's thread, and the state that a page keeps of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.jobs.job import Watch
from toast_lab.search.contract import Budget
from toast_lab.search.race import Race, RaceRow, not_started, race, rows
from toast_lab.search.search_child import ImprovementPoint, MethodOutcome
from toast_lab.text import LEAST_SHARE

POLL_EVERY_S = 0.02
_WAITS, _PREPARES, _RUNS = "waits", "prepares", "runs"
#: statuses of methods that have not ended
UNFINISHED = (_WAITS, _PREPARES, _RUNS)


class RaceStart(NamedTuple):
    """The turn of a method has come."""

    method: str


class RacePoint(NamedTuple):
    """An improvement of one method of a race."""

    method: str
    point: ImprovementPoint


class RaceEnd(NamedTuple):
    """The outcome of one method of a race, once it has ended."""

    outcome: MethodOutcome


class FinishedRace(NamedTuple):
    """The result of a race, with the price of each method's best plan."""

    race: Race
    costs: dict[str, Cost]  #: by method


def race_methods(
    problem: Problem,
    methods: tuple[str, ...],
    seed: int,
    budget: Budget,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    watch: Watch,
) -> FinishedRace:
    """Race methods one after the other, each in a child process of its own.

    A paused race waits before the next method.
    """

    def stopped() -> bool:
        return watch.cancel() or watch.order().kind == "stop"

    outcomes: list[MethodOutcome] = []
    for method in methods:
        while watch.order().kind == "pause" and not stopped():
            time.sleep(POLL_EVERY_S)
        if stopped():
            outcomes.append(not_started(method))
        else:
            watch.on_event(RaceStart(method))
            outcomes += race(
                problem,
                [method],
                budget,
                seed,
                options={method: (options or {}).get(method, {})},
                on_progress=lambda method, point: watch.on_event(RacePoint(method, point)),
                cancel=stopped,
            ).outcomes
        watch.on_event(RaceEnd(outcomes[-1]))
    finished_race: Race[Any] = Race(problem, seed, tuple(outcomes))
    return FinishedRace(
        finished_race,
        {method: price(problem, plan) for method, plan in finished_race.plans.items()},
    )


def best_row(rows: Iterable[RaceRow]) -> RaceRow | None:
    """The row of the best plan so far; None without a plan.

    Plans that fit come first, then lower scores, then plans found earlier.
    """
    return min(
        (row for row in rows if row.score is not None),
        key=lambda row: (not row.fits, row.score or 0.0, row.own_best_s or 0.0),
        default=None,
    )


class RaceState:
    """The state of a race: its methods, their improvements so far and their outcomes.

    Attributes:
        points: by method, the improvements in order.
        outcomes: by method, for those that have ended.
        running: the method that is running.
        raced: the whole race, once it is over.
        changes: number of events that have arrived.
    """

    def __init__(
        self, problem: Problem | None = None, methods: tuple[str, ...] = (), seed: int = 0
    ) -> None:
        self.problem, self.methods, self.seed = problem, methods, seed
        self.points: dict[str, list[ImprovementPoint]] = {method: [] for method in methods}
        self.outcomes: dict[str, MethodOutcome] = {}
        self.running = ""
        self.result: FinishedRace | None = None
        self.changes = 0

    def take(self, event: RaceStart | RacePoint | RaceEnd) -> None:
        """Store an event that the job reported."""
        self.changes += 1
        if isinstance(event, RaceStart):
            self.running = event.method
        elif isinstance(event, RacePoint):
            self.points[event.method].append(event.point)
        else:
            self.outcomes[event.outcome.method] = event.outcome

    def fresh(self) -> RaceState:
        """The same race, with no events yet."""
        return RaceState(self.problem, self.methods, self.seed)

    def copy(self) -> RaceState:
        """An independent copy."""
        twin = copy.copy(self)
        twin.points = {method: list(points) for method, points in self.points.items()}
        twin.outcomes = dict(self.outcomes)
        return twin

    @property
    def rows(self) -> list[RaceRow]:
        """The table so far, one row for each method."""
        return rows(self.outcomes.get(method) or self._so_far(method) for method in self.points)

    def _so_far(self, method: str) -> MethodOutcome:
        points = self.points[method]
        elapsed_s = points[-1].elapsed_s if points else 0.0
        return MethodOutcome(method, self.status(method), "", tuple(points), elapsed_s=elapsed_s)

    def status(self, method: str) -> str:
        """The state of a method, in one word."""
        if method in self.outcomes:
            return self.outcomes[method].status.lower()
        if method == self.running:
            return _RUNS if self.points[method] else _PREPARES
        return _WAITS

    def verdict(self) -> str:
        """The winner and its margin, as a sentence without a capital."""
        best = None if self.result is None else self.result.race.best
        if best is None:
            return "no method found a plan."
        winner_text = f"{best.method} found the best plan"
        scores = {
            row.method: row.score
            for row in self.rows
            if row.score is not None and row.fits == best.fits
        }
        scores.pop(best.method, None)
        if best.score is None or not scores:
            return f"{winner_text}."
        runner_up = min(scores, key=scores.__getitem__)
        share = 1.0 - best.score / scores[runner_up] if scores[runner_up] else 0.0
        if share < LEAST_SHARE:
            return f"{winner_text}; {runner_up} found one as good."
        return f"{winner_text}, its C(s) {share:.1%} below that of {runner_up}."

"""``race``: several methods on one problem with one budget, and which plan each found when.

Each method runs in its own child process. By default they run one after the other, since timings
of methods that share cores say little. Start reading at ``race``. Reference: TOAST sections 5.2 and
5.3.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

from toast_lab import checks, text
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.prepare import FIRST_SEARCH_NEEDS, prepare
from toast_lab.search import search_child
from toast_lab.search.contract import Budget
from toast_lab.search.gap.certify import LowerBound, lower_bound
from toast_lab.search.methods import METHODS, no_method
from toast_lab.search.search_child import ImprovementPoint, MethodOutcome
from toast_lab.sharding.plan import PlanT, ShardingPlan

CLOSE_SCORE_RATIO = 1.01  # times the best score: "within 1%"
CURVE_COLUMNS = ("method", "elapsed_s", "score", "time_s", "peak_bytes", "fits", "simulation")


class RaceRow(NamedTuple):
    """One method's row of the table. Prices are None if it found no plan."""

    method: str
    score: float | None  #: C(s), relative time plus memory penalty
    time_s: float | None  #: estimated step time
    peak_bytes: float | None  #: peak memory of one device
    fits: bool | None
    status: str  #: name of a ``Status``, or FAILED; ``message`` has the reason for a failure
    evaluations: int | None  #: distinct shardings priced
    elapsed_s: float
    own_best_s: float | None  #: time from the start of the search to its last improvement
    close_s: float | None  #: time to a plan within 1% of the best of any method; None: never
    #: score / bound - 1, with the bound of ``certified`` if there is one, else with the largest
    #: that any method proved; None: no bound
    gap: float | None
    actions: tuple[str, ...]
    message: str


@dataclasses.dataclass(frozen=True, eq=False)
class Race(Generic[PlanT]):
    """Outcome of a race; ``str`` gives the table.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> race = tl.race(problem, ["mcts", "exhaustive"], budget=tl.Budget(None, 200))
        >>> [outcome.method for outcome in race.outcomes]
        ['mcts', 'exhaustive']
        >>> race.best.fits, "mcts" in str(race)
        (True, True)
    """

    problem: Problem
    seed: int
    outcomes: tuple[MethodOutcome, ...]  #: in the order of the methods given
    #: the bound that ``certified`` proved, to which gaps then refer
    certificate: LowerBound | None = None

    @property
    def rows(self) -> tuple[RaceRow, ...]:
        """One row for each method, in the order given."""
        return tuple(rows(self.outcomes, self.certificate))

    def certified(
        self, seconds: float = 60.0, cancel: Callable[[], bool] | None = None
    ) -> Race[PlanT]:
        """This race with gaps to a bound that holds for the plans of every method of the space.

        Args:
            seconds: time limit of the proof.
            cancel: polled; True ends the proof and keeps the bound proven so far.
        """
        cost = None if self.plan is None else price(self.problem, self.plan)
        proven = lower_bound(self.problem, seconds, cost=cost, cancel=cancel)
        return dataclasses.replace(self, certificate=proven)

    @property
    def best(self) -> RaceRow | None:
        """The row of the method with the best plan; None if no method found one.

        A plan that fits comes first, then the lower score, then the plan that was found earlier.
        """
        priced = [row for row in self.rows if row.score is not None]
        return min(
            priced,
            key=lambda row: (not row.fits, row.score or 0.0, row.own_best_s or 0.0),
            default=None,
        )

    @property
    def plan(self) -> PlanT | None:
        """The best plan."""
        best = self.best
        return None if best is None else self.plans.get(best.method)

    @property
    def plans(self) -> dict[str, PlanT]:
        """Each method's best plan."""
        return {
            outcome.method: outcome.plan for outcome in self.outcomes if outcome.plan is not None
        }

    @property
    def curves(self) -> list[dict[str, Any]]:
        """The anytime curves: a row of CURVE_COLUMNS for each improvement of each method."""
        return [
            {
                "method": outcome.method,
                **{column: getattr(point, column) for column in CURVE_COLUMNS[1:]},
            }
            for outcome in self.outcomes
            for point in outcome.points
        ]

    def __repr__(self) -> str:
        return f"<Race of {len(self.outcomes)} methods on {self.problem.describe()}>"

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        columns = (
            "method",
            ">score",
            ">ms",
            ">GiB",
            "fits",
            "status",
            ">priced",
            ">s",
            ">own best s",
            ">within 1% s",
            ">gap",
        )
        lines = [
            (
                row.method,
                _number(row.score, "{:.4f}"),
                _number(row.time_s, "{:.3f}", 1e3),
                _number(row.peak_bytes, "{:.2f}", 2.0**-30),
                {True: "yes", False: "no", None: "-"}[row.fits],
                row.status,
                _number(row.evaluations, "{:d}"),
                _number(row.elapsed_s, "{:.2f}"),
                _number(row.own_best_s, "{:.2f}"),
                _number(row.close_s, "{:.2f}"),
                _number(row.gap, "{:.2%}"),
            )
            for row in self.rows
        ]
        notes = [
            f"{row.method}: {row.message}"
            for row in self.rows
            if row.status in (search_child.CRASHED, search_child.FAILED)
        ]
        if self.certificate is not None:
            notes.append(f"Proven: {self.certificate}.")
        return "\n".join(
            [f"{self.problem.describe()}, seed {self.seed}", text.table(columns, lines), *notes]
        )


def race(
    problem: Problem,
    methods: Sequence[str],
    budget: Budget | None = None,
    seed: int = 0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    on_progress: Callable[[str, ImprovementPoint], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    parallel: int = 1,
) -> Race[ShardingPlan]:
    """Run a race; arguments and errors are those of ``pipeline.race``.

    ``pipeline.race`` gives the same result with plans for users.
    """
    check(methods, options)
    budget = Budget.checked(budget)
    parallel, seed = checks.whole("parallel", parallel, 1, 1024), checks.seed(seed)
    prepare(
        *FIRST_SEARCH_NEEDS, *methods, cancel=cancel
    )  # done here once, rather than in every child
    stop = threading.Event()

    def run_method(method: str) -> MethodOutcome:
        if stop.is_set():
            return not_started(method)
        return search_child.search_in_child(
            problem,
            method,
            seed=seed,
            budget=budget,
            options=(options or {}).get(method),
            cancel=stop.is_set,
            on_point=None if on_progress is None else lambda point: on_progress(method, point),
        )

    with concurrent.futures.ThreadPoolExecutor(parallel, "race") as pool:
        futures = [pool.submit(run_method, method) for method in methods]
        waiting = set(futures)
        while waiting:
            try:
                _, waiting = concurrent.futures.wait(waiting, 0.1)
                if cancel is not None and cancel():
                    stop.set()
            except KeyboardInterrupt:
                if stop.is_set():
                    raise
                stop.set()
        return Race(problem, seed, tuple(future.result() for future in futures))


def check(methods: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Check the methods of a race.

    Raises InvalidProblem if no method is given, or listing every method that is unknown, is given
    twice, or has options but does not take part.
    """
    offenders = [no_method(method) for method in methods if method not in METHODS]
    offenders += [
        f"{method} is given {list(methods).count(method)} times"
        for method in dict.fromkeys(methods)
        if methods.count(method) > 1
    ]
    offenders += [
        f"options are given for {method}, which does not take part"
        for method in options or {}
        if method not in methods
    ]
    if not methods:
        offenders.append(f"no method is given; methods: {', '.join(METHODS)}")
    if offenders:
        raise InvalidProblem(
            "race:\n" + join_offenders(offenders) if len(offenders) > 1 else f"race: {offenders[0]}"
        )


def not_started(method: str) -> MethodOutcome:
    """The outcome of a method that was cancelled before its turn."""
    return MethodOutcome(
        method=method,
        status=search_child.CANCELLED,
        message="It was cancelled before its turn.",
        evaluations=0,
    )


def rows(outcomes: Iterable[MethodOutcome], certificate: LowerBound | None = None) -> list[RaceRow]:
    """The table of a race: each method's plan, compared with the best plan and the bounds of all.

    A ``certificate`` replaces the bounds that methods prove for their own plans.
    """
    outcomes = list(outcomes)
    final_ranks = [
        (not outcome.last.fits, outcome.last.score)
        for outcome in outcomes
        if outcome.last is not None
    ]
    bound = max((outcome.bound for outcome in outcomes if outcome.bound is not None), default=None)
    table = [_row(outcome, min(final_ranks, default=None), bound) for outcome in outcomes]
    if certificate is None:
        return table
    return [
        row._replace(gap=None if row.score is None else certificate.gap(row.score, bool(row.fits)))
        for row in table
    ]


def _row(outcome: MethodOutcome, best: tuple[bool, float] | None, bound: float | None) -> RaceRow:
    row = RaceRow(
        method=outcome.method,
        score=None,
        time_s=None,
        peak_bytes=None,
        fits=None,
        status=outcome.status,
        evaluations=outcome.evaluations,
        elapsed_s=outcome.elapsed_s,
        own_best_s=None,
        close_s=None,
        gap=None,
        actions=(),
        message=outcome.message,
    )
    last = outcome.last
    if last is None or best is None:
        return row
    return row._replace(
        score=last.score,
        time_s=last.time_s,
        peak_bytes=last.peak_bytes,
        fits=last.fits,
        own_best_s=last.elapsed_s,
        close_s=seconds_to(outcome.points, best),
        gap=None if not bound else last.score / bound - 1.0,
        actions=outcome.actions,
    )


def seconds_to(points: Iterable[ImprovementPoint], best: tuple[bool, float]) -> float | None:
    """The time until a curve is within ``CLOSE_SCORE_RATIO`` times the best score; None: never.

    ``best`` is (does not fit, score). A plan that does not fit is never close to one that does.
    """
    does_not_fit, score = best
    return next(
        (
            point.elapsed_s
            for point in points
            if point.score <= score * CLOSE_SCORE_RATIO and (point.fits or does_not_fit)
        ),
        None,
    )


def _number(value: float | None, number_format: str, scale: float | int = 1) -> str:
    return "-" if value is None else number_format.format(value * scale)

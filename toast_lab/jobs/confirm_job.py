"""A confirmed search in a child, and what a page knows of it while it runs and after it.

The child tells of every improvement of the price, of every plan that goes to the judge and of every
verdict; ``ConfirmState`` takes these in.  Whatever ends the child, the verdicts so far are there.
Start reading at ``run_confirmed``.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.confirm.confirmed_result import ConfirmedResult
from toast_lab.confirm.loop import Judging
from toast_lab.confirm.verdict import JudgeEvent, Verdict
from toast_lab.cost.price_list import PriceList
from toast_lab.cost.problem import Cost, Problem, Quick
from toast_lab.ir.model import Model
from toast_lab.jobs.orders import Received
from toast_lab.pipeline import judged_search
from toast_lab.prepare import load_present
from toast_lab.search.contract import Budget
from toast_lab.search.methods import brought, ensure
from toast_lab.search.simplify import FrontRow, PlanFront, simplified
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.sharding.plan_rules import PlanSize
from toast_lab.sharding.sharding import Sharding

#: Done once for all children that are forked to search (``fork_server``).
before_fork = load_present

RUN_CONFIRMED = "toast_lab.jobs.confirm_job:run_confirmed"
EVERY_S = 0.1  #: between two reports of a search's best price
SIMPLE = 0.02  #: how much worse, as a share, the plan may be that is shown first
STOPPED_S = 4.0  #: that looking for simpler plans may take once the search was stopped


@dataclasses.dataclass(frozen=True)
class ConfirmRequest:
    """A confirmed search that a child is to do.

    Attributes:
        problem: its pins, machine and limit are kept.
        model: that plans shard, with its text.
        judge: the topology.
        compiles: plans that are judged at most.
        time_limit_s: for each plan.
        method: name of the searches.
        seed: of the first search.
        budget: of each search.
        options: of the method.
        brought: methods that this process has beside ours, see ``methods.brought``.
    """

    problem: Problem
    model: Model
    judge: str
    compiles: int = 8
    time_limit_s: float = 600.0
    method: str = "mcts"
    seed: int = 0
    budget: Budget = dataclasses.field(default_factory=Budget)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    brought: Mapping[str, str] = dataclasses.field(default_factory=brought)


class PlanParts(NamedTuple):
    """What another process needs to make a plan again."""

    sharding: Sharding
    actions: tuple[str, ...]
    key: int
    judged: Mapping[str, Any] | None = None

    def plan(self, problem: Problem) -> ShardingPlan:
        """The plan, as one of the problem that was searched."""
        plan = make_plan(problem.analysis, problem.mesh, self.sharding, self.actions, key=self.key)
        return plan if self.judged is None else dataclasses.replace(plan, judged=self.judged)


def parts_of(plan: ShardingPlan) -> PlanParts:
    """A plan without its program."""
    return PlanParts(plan.sharding, plan.actions, plan.key, plan.judged)


class PricePoint(NamedTuple):
    """The best plan by the price has changed."""

    at_s: float  #: since the job began to search
    round: int
    best_s: float
    best_bytes: float
    simulations: int  #: of this round


class JudgeStep(NamedTuple):
    """A step of the loop."""

    at_s: float
    stage: str  #: as ``JudgeEvent.stage``
    round: int
    compiles: int
    most_compiles: int
    priced_s: float | None = None  #: of the plan that is judged


class JudgedPlan(NamedTuple):
    """A plan with its verdict."""

    at_s: float
    round: int
    priced_s: float
    priced_bytes: float
    time_s: float | None
    peak_bytes: float | None
    ratio: float | None
    fits: bool
    stands: bool
    rank: tuple[bool, bool, float]
    remark: str
    name: str  #: as ``Verdict.name``
    elsewhere: str
    compile_s: float
    cached: bool
    parts: PlanParts


class FrontPlan(NamedTuple):
    """A row of the front of size against time."""

    size: PlanSize
    quick: Quick
    parts: PlanParts


class ConfirmEnd(NamedTuple):
    """Outcome of a confirmed search."""

    standing: str  #: name of the ``Standing``
    sentence: str
    confirmed: bool
    message: str  #: of the last search
    judge: str
    best: int | None  #: number of the best verdict
    plan: PlanParts
    cost: Cost
    prices: PriceList | None  #: that were learned
    front: tuple[FrontPlan, ...]  #: the smallest first, the best by the clock among them
    simple: int  #: the row of the front that is shown first
    evidence: tuple[Any, ...]  #: a ``Compiled`` or ``Run`` for each verdict, or None


def run_confirmed(request: ConfirmRequest) -> ConfirmEnd:
    """Search until the judge confirms a plan, as the parent's orders say.

    Raises:
        InvalidProblem: a wrong option, or a judge that is not there.
    """
    for name, reference in request.brought.items():
        ensure(name, reference)
    isolate.report("preparing")
    problem, order = request.problem, Received()
    _ = problem.baseline
    teller = _Teller(isolate.report)

    def stopped() -> bool:
        return order().kind == "stop"

    judging = Judging(
        request.judge,
        compiles=request.compiles,
        time_limit_s=request.time_limit_s,
        on_event=teller.judged,
    )
    arguments = {
        "method": request.method,
        "budget": request.budget,
        "on_progress": teller.searched,
        **request.options,
    }
    result = judged_search(
        problem, judging, arguments, seed=request.seed, cancel=stopped, model=request.model
    )
    isolate.report("looking for simpler plans")
    return _end(result, stopped)


def _end(result: ConfirmedResult[Any], stopped: Callable[[], bool]) -> ConfirmEnd:
    problem, began = result.problem, time.monotonic()
    assert problem is not None
    hurry_from: list[float] = []

    def enough() -> bool:
        if stopped() and not hurry_from:
            hurry_from.append(time.monotonic())
        return bool(hurry_from) and time.monotonic() - max(hurry_from[0], began) > STOPPED_S

    rows = simplified(problem, result.plan, result.trace, enough)
    rows += _judged_rows(result, rows)
    simple_row, best_key = result.simple_row(rows, SIMPLE), result.plan.sharding.key()
    # The best by the clock may not be on the front, which goes by the price
    best_row = next(row for row in rows if row.plan.sharding.key() == best_key)
    wanted = {id(row): row for row in (*PlanFront(tuple(rows)).kept, simple_row, best_row)}
    front = sorted(wanted.values(), key=lambda row: (row.size.total, row.quick.score))
    simple = next(i for i, row in enumerate(front) if row is simple_row)
    best = result.best
    numbers = [i for i, verdict in enumerate(result.verdicts) if verdict is best]
    return ConfirmEnd(
        standing=result.standing.name,
        sentence=result.standing.value,
        confirmed=result.confirmed,
        message=result.message,
        judge=result.judge,
        best=numbers[0] if numbers else None,
        plan=parts_of(result.plan),
        cost=result.cost,
        prices=problem.price_list or None,
        front=tuple(
            FrontPlan(row.size, row.quick, parts_of(result.with_judgement(row.plan)))
            for row in front
        ),
        simple=simple,
        evidence=tuple(verdict.judgement.evidence for verdict in result.verdicts),
    )


def _judged_rows(
    result: ConfirmedResult[Any], rows: Sequence[FrontRow[Any]]
) -> list[FrontRow[Any]]:
    """Judged plans that stand and are not among ``rows``."""
    problem = result.problem
    assert problem is not None
    pricer, keys = problem.pricer(), {row.plan.sharding.key() for row in rows}
    further = []
    for verdict in result.verdicts:
        plan = verdict.plan
        if verdict.stands and plan.sharding.key() not in keys:
            totals = pricer.totals(plan.op_factor, plan.value_dim)
            quick = pricer.judged(totals.time_s, totals.peak_bytes)
            further.append(FrontRow(plan, quick, plan.size))
    return further


class _Teller:
    """Sends what happens, with the seconds since the first search began."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self._began: float | None = None
        self._round, self._best_s, self._sent_at = 0, float("inf"), 0.0
        self._simulations = 0

    def _at_s(self) -> float:
        if self._began is None:
            self._began = time.monotonic()
        return time.monotonic() - self._began

    def searched(self, simulations: Sequence[Any]) -> None:
        """Progress of a search."""
        at_s = self._at_s()
        self._simulations += len(simulations)
        last = simulations[-1]
        better = last.best_time_s != self._best_s
        if better or at_s - self._sent_at >= 10 * EVERY_S:
            if at_s - self._sent_at < EVERY_S and self._best_s != float("inf"):
                return
            self._best_s, self._sent_at = last.best_time_s, at_s
            self.send(
                PricePoint(
                    at_s=at_s,
                    round=self._round,
                    best_s=last.best_time_s,
                    best_bytes=last.best_peak_bytes,
                    simulations=self._simulations,
                )
            )

    def judged(self, event: JudgeEvent) -> None:
        """A step of the loop."""
        at_s = self._at_s()
        if event.stage == "searching":
            self._round, self._best_s, self._simulations = event.round, float("inf"), 0
        if event.stage == "searched" and event.priced_s is not None:
            # The end of the search, which the throttle may have swallowed
            self.send(
                PricePoint(
                    at_s=at_s,
                    round=event.round,
                    best_s=event.priced_s,
                    best_bytes=float("nan"),
                    simulations=self._simulations,
                )
            )
        if event.verdict is not None:
            self.send(_judged_plan(at_s, event.verdict))
        self.send(
            JudgeStep(
                at_s=at_s,
                stage=event.stage,
                round=event.round,
                compiles=event.compiles,
                most_compiles=event.most_compiles,
                priced_s=event.priced_s,
            )
        )


def _judged_plan(at_s: float, verdict: Verdict[Any]) -> JudgedPlan:
    judgement = verdict.judgement
    return JudgedPlan(
        at_s=at_s,
        round=verdict.round,
        priced_s=verdict.priced_s,
        priced_bytes=verdict.priced_bytes,
        time_s=verdict.time_s,
        peak_bytes=judgement.peak_bytes,
        ratio=verdict.ratio,
        fits=judgement.fits,
        stands=verdict.stands,
        rank=verdict.rank,
        remark=verdict.remark,
        name=verdict.name,
        elsewhere=judgement.elsewhere,
        compile_s=judgement.compile_s,
        cached=judgement.cached,
        parts=parts_of(verdict.plan),
    )


class ConfirmState:
    """What has been heard of a confirmed search.

    Attributes:
        problem: that is searched.
        judge: the topology.
        most_compiles: plans that are judged at most.
        points: of the priced curve, in order.
        verdicts: in the order in which they were given.
        step: the last one of the loop.
        activity: what the child does that is no step of the loop.
        end: the outcome, once there is one.
        learned: the problem with the prices that were learned, once it is over.
        changes: counts up with everything that arrives.
    """

    def __init__(
        self, problem: Problem | None = None, judge: str = "", most_compiles: int = 0
    ) -> None:
        self.problem, self.judge, self.most_compiles = problem, judge, most_compiles
        self.learned = problem
        self.points: list[PricePoint] = []
        self.verdicts: list[JudgedPlan] = []
        self.step: JudgeStep | None = None
        self.activity = ""
        self.step_since = time.monotonic()
        self.end: ConfirmEnd | None = None
        self.changes = 0

    def take(self, event: Any) -> None:
        """Take in what the job reported."""
        self.changes += 1
        if isinstance(event, PricePoint):
            self.points.append(event)
        elif isinstance(event, JudgedPlan):
            self.verdicts.append(event)
        elif isinstance(event, JudgeStep):
            self.step, self.activity, self.step_since = event, "", time.monotonic()
        elif isinstance(event, str):
            self.activity = event

    def finish(self, end: ConfirmEnd) -> None:
        """The search is over."""
        self.end = end
        self.changes += 1
        if self.problem is not None and end.prices is not None:
            self.learned = self.problem.with_prices(end.prices)

    def fresh(self) -> ConfirmState:
        """The same search before anything was reported."""
        return ConfirmState(self.problem, self.judge, self.most_compiles)

    def copy(self) -> ConfirmState:
        """An independent copy."""
        twin = copy.copy(self)
        twin.points, twin.verdicts = list(self.points), list(self.verdicts)
        return twin

    @property
    def best(self) -> int | None:
        """Number of the best verdict so far; None: no judged plan stands."""
        standing = [i for i, verdict in enumerate(self.verdicts) if verdict.stands]
        return min(standing, key=lambda i: self.verdicts[i].rank, default=None)

    @property
    def confirmed(self) -> bool:
        """Is the best plan confirmed by now?"""
        return self.end is not None and self.end.confirmed

    def verdict_of(self, key: int) -> int | None:
        """Number of the verdict of a sharding by its key; None: it was not judged."""
        return next(
            (i for i, verdict in enumerate(self.verdicts) if verdict.parts.sharding.key() == key),
            None,
        )

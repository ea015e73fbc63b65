"""A confirmed search in a child process, and the state that a page keeps of it.

The child reports every improvement of the price, every plan that goes to the judge and every
verdict; ``ConfirmState`` collects them. Whatever ends the child, the verdicts so far are kept.
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
from toast_lab.cost.problem import Cost, Problem
from toast_lab.ir.model import Model
from toast_lab.jobs.orders import CurrentOrder
from toast_lab.jobs.plan_parts import PlanParts, parts_of
from toast_lab.pipeline import judged_search
from toast_lab.prepare import load_present
from toast_lab.search.contract import Budget
from toast_lab.search.methods import added_methods, register_if_unknown
from toast_lab.written.screen import written_text
from toast_lab.written.written_plan import WrittenSize

#: Run once in the fork server, for all search children forked from it (``fork_server``).
before_fork = load_present

RUN_CONFIRMED = "toast_lab.jobs.confirm_job:run_confirmed"
REPORT_EVERY_S = 0.1  #: least time between two reports of a search's best price
WRITTEN_MARGIN = 0.05  #: the plan that is shown first may be worse than the best by this share


@dataclasses.dataclass(frozen=True)
class ConfirmRequest:
    """A request for a child process to run a confirmed search.

    Attributes:
        problem: its pins, machine and limit are kept.
        model: the model that plans shard, with its text.
        judge: the topology that the judge compiles for.
        compiles: most plans to judge, beside the floor.
        time_limit_s: for judging each plan.
        seconds: for the whole; None: no limit.
        method: name of the search method.
        seed: of the first search.
        budget: of each search.
        options: of the method.
        added_methods: methods that the parent registered beside the built-in ones; see
            ``methods.added_methods``.
    """

    problem: Problem
    model: Model
    judge: str
    compiles: int = 8
    time_limit_s: float = 600.0
    seconds: float | None = None
    method: str = "mcts"
    seed: int = 0
    budget: Budget = dataclasses.field(default_factory=Budget)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    added_methods: Mapping[str, str] = dataclasses.field(default_factory=added_methods)


class PricePoint(NamedTuple):
    """A point of the priced curve: the best plan by price, at one moment."""

    at_s: float  #: seconds since the first search began
    round: int
    best_s: float
    best_bytes: float
    simulations: int  #: of this round


class JudgeStep(NamedTuple):
    """A step of the loop of searching, judging and learning."""

    at_s: float  #: seconds since the first search began
    stage: str  #: as ``JudgeEvent.stage``
    round: int
    compiles: int
    most_compiles: int
    priced_s: float | None = None  #: of the plan that is judged or was searched


class JudgedPlan(NamedTuple):
    """A plan with its verdict."""

    at_s: float  #: seconds since the first search began
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
    name: str  #: as ``Verdict.title``
    elsewhere: str
    compile_s: float
    cached: bool
    parts: PlanParts
    is_written: bool = False  #: it was judged as written


class FrontPlan(NamedTuple):
    """A row of the front of written plans, of size against time."""

    size: WrittenSize
    cost: Cost
    clock_s: float | None  #: by the judge's clock; None: it is only priced
    name: str  #: as ``Verdict.name``
    parts: PlanParts  #: of the plan that propagation makes of it
    text: str  #: what is written, on one screen


class ConfirmEnd(NamedTuple):
    """Outcome of a confirmed search."""

    standing: str  #: name of the ``Standing``
    sentence: str
    confirmed: bool
    message: str  #: of the last search
    judge: str
    best: int | None  #: index of the best verdict
    plan: PlanParts
    cost: Cost
    prices: PriceList | None  #: the prices that were learned
    quicker_written: str  #: a sentence if a plan as it is written is the best; else empty
    front: tuple[FrontPlan, ...]  #: the smallest first; may be empty
    first: int | None  #: index of the row of the front that is shown first
    evidence: tuple[Any, ...]  #: a ``Compiled`` or ``Run`` for each verdict, or None


def run_confirmed(request: ConfirmRequest) -> ConfirmEnd:
    """Search until the judge confirms a plan, obeying the parent's orders.

    Raises:
        InvalidProblem: a wrong option, or an unknown judge.
    """
    for name, reference in request.added_methods.items():
        register_if_unknown(name, reference)
    isolate.report("preparing")
    problem, order = request.problem, CurrentOrder()
    _ = problem.baseline
    reporter = _Reporter(isolate.report)

    def stopped() -> bool:
        return order().kind == "stop"

    judging = Judging(
        request.judge,
        compiles=request.compiles,
        time_limit_s=request.time_limit_s,
        seconds=request.seconds,
        on_event=reporter.judged,
    )
    search_arguments = {
        "method": request.method,
        "budget": request.budget,
        "on_progress": reporter.searched,
        **request.options,
    }
    result = judged_search(
        problem, judging, search_arguments, seed=request.seed, cancel=stopped, model=request.model
    )
    return _end(result)


def _end(result: ConfirmedResult[Any]) -> ConfirmEnd:
    problem, best, front = result.problem, result.best, result.written_front
    assert problem is not None
    rows = tuple(
        FrontPlan(
            size=written.size,
            cost=written.cost,
            clock_s=front.clock_s(index),
            name="" if verdict is None else verdict.name,
            parts=parts_of(result.with_judgement(written.plan)),
            text=written_text(written),
        )
        for index, (written, verdict) in enumerate(zip(front.rows, front.verdicts, strict=True))
    )
    first = None
    if rows:
        shown = result.written(WRITTEN_MARGIN)
        first = next(index for index, written in enumerate(front.rows) if written is shown)
    best_indices = [i for i, verdict in enumerate(result.verdicts) if verdict is best]
    return ConfirmEnd(
        standing=result.standing.name,
        sentence="\n".join(
            filter(None, (result.standing.value, result.refusals, result.not_written))
        ),
        confirmed=result.confirmed,
        message=result.message,
        judge=result.judge,
        best=best_indices[0] if best_indices else None,
        plan=parts_of(result.plan),
        cost=result.cost,
        prices=problem.price_list or None,
        quicker_written=result.quicker_written,
        front=rows,
        first=first,
        evidence=tuple(verdict.judgement.evidence for verdict in result.verdicts),
    )


class _Reporter:
    """Reports progress, with the seconds since the first search began."""

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
        """Report a search's best price when it improves, or after ``10 * REPORT_EVERY_S`` seconds.

        After the first report of a search, reports are at least ``REPORT_EVERY_S`` seconds apart.
        """
        at_s = self._at_s()
        self._simulations += len(simulations)
        last = simulations[-1]
        better = last.best_time_s != self._best_s
        if better or at_s - self._sent_at >= 10 * REPORT_EVERY_S:
            if at_s - self._sent_at < REPORT_EVERY_S and self._best_s != float("inf"):
                return
            self._best_s, self._sent_at = last.best_time_s, at_s
            prices = last.best_time_s, last.best_peak_bytes
            self.send(PricePoint(at_s, self._round, *prices, self._simulations))

    def judged(self, event: JudgeEvent) -> None:
        """Report a step of the loop."""
        at_s = self._at_s()
        if event.stage == "searching":
            self._round, self._best_s, self._simulations = event.round, float("inf"), 0
        if event.stage == "searched" and event.priced_s is not None:
            # The search's final price, which the throttle may have swallowed
            prices = event.priced_s, float("nan")
            self.send(PricePoint(at_s, event.round, *prices, self._simulations))
        if event.verdict is not None:
            self.send(_judged_plan(at_s, event.verdict))
        compiles = event.compiles, event.most_compiles
        self.send(JudgeStep(at_s, event.stage, event.round, *compiles, event.priced_s))


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
        name=verdict.title,
        elsewhere=judgement.elsewhere,
        compile_s=judgement.compile_s,
        cached=judgement.cached,
        parts=parts_of(verdict.plan),
        is_written=verdict.written is not None,
    )


class ConfirmState:
    """The state of a confirmed search, collected from its job's events.

    Attributes:
        problem: the problem that is searched.
        judge: the topology that the judge compiles for.
        most_compiles: most plans to judge.
        points: of the priced curve, in order.
        verdicts: in the order in which they were given.
        step: the latest step of the loop.
        activity: the child's activity outside the loop's steps; empty during a step.
        step_since: ``time.monotonic()`` at which the latest step arrived.
        end: the outcome, once there is one.
        learned: the problem; once the search is over, with the prices that it learned.
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

    def take(self, event: Any) -> None:
        """Store an event that the job reported."""
        if isinstance(event, JudgeStep):
            self.most_compiles = event.most_compiles
        if isinstance(event, PricePoint):
            self.points.append(event)
        elif isinstance(event, JudgedPlan):
            self.verdicts.append(event)
        elif isinstance(event, JudgeStep):
            self.step, self.activity, self.step_since = event, "", time.monotonic()
        elif isinstance(event, str):
            self.activity = event

    def finish(self, end: ConfirmEnd) -> None:
        """Store the outcome once the search is over."""
        self.end = end
        if self.problem is not None and end.prices is not None:
            self.learned = self.problem.with_prices(end.prices)

    def fresh(self) -> ConfirmState:
        """The same search, with no events yet."""
        return ConfirmState(self.problem, self.judge, self.most_compiles)

    def copy(self) -> ConfirmState:
        """An independent copy."""
        twin = copy.copy(self)
        twin.points, twin.verdicts = list(self.points), list(self.verdicts)
        return twin

    @property
    def best(self) -> int | None:
        """Index of the best verdict so far; None if no judged plan stands."""
        standing = [i for i, verdict in enumerate(self.verdicts) if verdict.stands]
        return min(standing, key=lambda i: self.verdicts[i].rank, default=None)

    @property
    def confirmed(self) -> bool:
        """Is the search over and its best plan confirmed?"""
        return self.end is not None and self.end.confirmed

    def verdict_of(self, key: int) -> int | None:
        """Index of the best verdict on the sharding with ``key``; None if it was not judged."""
        indices = [
            i for i, verdict in enumerate(self.verdicts) if verdict.parts.sharding.key() == key
        ]
        return min(indices, key=lambda i: self.verdicts[i].rank, default=None)

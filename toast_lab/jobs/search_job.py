"""A search in a child: it obeys orders, tells what it does, and leaves its trace behind.

Requests and results are pickled.  Progress goes through ``isolate.report``, at most some twenty
messages a second while nobody steps.  Start reading at ``run_search``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import InvalidProblem, NotSaved
from toast_lab.files import PathLike
from toast_lab.jobs.mirror import Sender
from toast_lab.jobs.orders import RUN, Order, Received
from toast_lab.prepare import load_present
from toast_lab.search import contract, resumable
from toast_lab.search.contract import Budget, SearchResult, Status
from toast_lab.search.methods import brought, ensure
from toast_lab.search.search_child import PlanSender
from toast_lab.search.trace import Simulations, Trace
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action

#: Done once for all children that are forked to search (``fork_server``).
before_fork = load_present

POLL_EVERY_S = 0.02
#: of what a search on all cores tries between two reports, a page shows a sample
SHOWN_AT_ONCE = 20
RECALLED = 3000  #: of the search that goes on, so many simulations stand in the curves
RUN_SEARCH = "toast_lab.jobs.search_job:run_search"


@dataclasses.dataclass(frozen=True)
class SearchRequest:
    """A search that a child is to do.

    Attributes:
        problem: its pins, machine and limit are kept.
        method: name of the search.
        seed: of the search; None: 0, or that of ``resume``.
        budget: seconds, without the time spent paused, and distinct shardings.
        options: of the method.
        resume: trace to go on from, of this method and seed.
        saved: file of a trace to go on from, which brings its own method, seed and options; what it
            did is told again first.
        keep: file that the trace is written to.
        with_trace: give the trace with what was found.
        brought: methods that this process has beside ours, see ``methods.brought``.
    """

    problem: Problem
    method: str
    seed: int | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resume: Trace | PathLike | None = None
    saved: str | None = None
    keep: str | None = None
    with_trace: bool = False
    brought: Mapping[str, str] = dataclasses.field(default_factory=brought)


class Batch(NamedTuple):
    """Simulations since the last report.

    Kept are those better than all before, the last one, and a sample of the others.
    """

    simulations: tuple[Any, ...]
    done: int  #: simulations so far, those that are left out included
    stands: bool = False  #: the search stands still behind these


class SearchEnd(NamedTuple):
    """Outcome of a search."""

    method: str
    seed: int
    sharding: Sharding
    key: int
    actions: tuple[str, ...]
    cost: Cost
    status: str
    message: str
    evaluations: int
    elapsed_s: float
    gap: float | None
    bound: float | None
    taken: tuple[Action, ...]  #: the actions without those that the problem has pinned
    trace: Trace | None  #: what is needed to go on later, where it was asked for

    def plan(self, problem: Problem) -> ShardingPlan:
        """The best plan, as one of the problem that was searched."""
        return make_plan(problem.analysis, problem.mesh, self.sharding, self.actions, key=self.key)

    def search_result(self, problem: Problem) -> SearchResult:
        """What ``search`` would have given; the trace has to be there."""
        assert self.trace is not None
        return SearchResult(
            plan=self.plan(problem),
            cost=self.cost,
            status=Status[self.status],
            trace=self.trace,
            method=self.method,
            seed=self.seed,
            evaluations=self.evaluations,
            elapsed_s=self.elapsed_s,
            actions=self.taken,
            message=self.message,
            bound=self.bound,
            problem=problem,
        )


class Control:
    """The child's side of pause, step and stop.

    A search tells of several simulations at a time; ``hand_on`` keeps back those that nobody has
    asked for yet, so that a step shows one, whatever the search has done since.
    """

    def __init__(self, send: Callable[[Any], None], order: Callable[[], Order]) -> None:
        self.send, self._order = send, order
        self.sender = Sender(send)
        self.plans = PlanSender(send)
        self.paused_s = 0.0
        self.done = 0
        self._obeyed = RUN
        self._waiting: list[Any] = []
        self._round: int | None = None  #: the one that is being stepped through

    def order(self) -> Order:
        """The order in force."""
        order = self._order()
        if order != self._obeyed:
            self._obeyed, self._round = order, None
        return order

    @property
    def stopped(self) -> bool:
        """Was the end asked for?"""
        return self.order().kind == "stop"

    def recall(self, trace: Trace) -> None:
        """Send what an earlier search did, thinned to what a page can show, before it goes on."""
        self.done = trace.row.n
        self.sender.trace(trace)
        if trace.row.n:
            sample = trace.simulations.sample(max(1, trace.row.n // RECALLED))
            self.send(Batch(tuple(sample), trace.row.n))

    def hand_on(self, simulations: Iterable[Any]) -> None:
        """Send simulations as the orders allow.

        Gives once all are sent and the search may go on.
        """
        if isinstance(simulations, Simulations):
            self.plans.hand_on(simulations)
            running = self.order().kind not in ("pause", "round")
            self.sender.hand_on(simulations, now=not running)
            # Decoding all of them would be a burden on the search
            if running and not self._waiting:
                self.done += len(simulations)
                sample = simulations.sample(max(1, len(simulations) // SHOWN_AT_ONCE))
                self.send(Batch(tuple(sample), self.done))
                return
        for simulation in simulations:
            self._stand_still(simulation)
            self._waiting.append(simulation)
            self.done += 1
        self._flush()
        self._stand_still(None)

    def _stand_still(self, coming: Any) -> None:
        """Wait until ``coming`` may be shown.

        If nothing is there to be shown, wait until the search may go on.
        """
        if self._allowed(coming):
            return
        self._flush()
        self.send(Batch((), self.done, stands=True))
        began = time.monotonic()
        while not self._allowed(coming):
            time.sleep(POLL_EVERY_S)
        self.paused_s += time.monotonic() - began

    def _allowed(self, coming: Any) -> bool:
        order = self.order()
        if order.kind == "pause":
            return self.done < order.at
        if order.kind == "round" and coming is not None:
            if self._round is None:
                # The unsharded start, of round 0, belongs to the first one
                self._round = max(coming.round, 1)
            return bool(coming.round <= self._round)
        return True

    def _flush(self) -> None:
        """Send what is waiting, thinned to what a page can show."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        every = max(1, len(waiting) // SHOWN_AT_ONCE)
        last = len(waiting) - 1
        shown = tuple(
            simulation
            for i, simulation in enumerate(waiting)
            if simulation.improved or i % every == 0 or i == last
        )
        self.send(Batch(shown, self.done))


def run_search(request: SearchRequest) -> SearchEnd:
    """Search for a plan, as the parent's orders say.

    Raises:
        InvalidProblem: a wrong option, or the trace to go on from is of another problem.
    """
    for name, reference in request.brought.items():
        ensure(name, reference)
    isolate.report("preparing")
    problem = request.problem
    _ = problem.baseline
    control = Control(isolate.report, Received())
    method: str | None = request.method
    seed, options, resume = request.seed, dict(request.options), request.resume
    if request.saved is not None:
        resume = resumable.reopened(problem, read_trace(request.saved))
        method, seed, options = None, None, {}
        control.recall(resume)
    isolate.report("searching")
    result = contract.search(
        problem,
        method,
        seed=seed,
        budget=request.budget,
        on_progress=control.hand_on,
        cancel=lambda: control.stopped,
        resume=resume,
        **options,
    )
    control.sender.trace(result.trace, last=True)
    if request.keep is not None:
        # What was found counts more than going on later
        with contextlib.suppress(NotSaved):
            result.trace.save(request.keep)
    plan = result.plan
    return SearchEnd(
        method=result.method,
        seed=result.seed,
        sharding=plan.sharding,
        key=plan.key,
        actions=plan.actions,
        cost=result.cost,
        status=result.status.name,
        message=result.message,
        evaluations=result.evaluations,
        elapsed_s=result.elapsed_s,
        gap=result.gap,
        bound=result.bound,
        taken=result.actions,
        trace=result.trace if request.with_trace else None,
    )


def read_trace(path: str) -> Trace:
    """The trace in a file that somebody gave.

    Raises:
        InvalidProblem: it is no trace, is damaged or unpacks to too much; the message does not name
            the path, since the file has come from elsewhere.
    """
    try:
        return Trace.load(path)
    except InvalidProblem as error:
        text = str(error).removeprefix(f"{path}: ")
        raise InvalidProblem(f"{text}\nChoose a file that a search has saved.") from None

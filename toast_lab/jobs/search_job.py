"""A search in a child process: it obeys orders and reports its progress.

Requests and results are pickled. Progress goes through ``isolate.report``, at most about twenty
messages a second unless the user steps. Start reading at ``run_search``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.cost.problem import Problem
from toast_lab.files import PathLike
from toast_lab.jobs.mirror import Sender
from toast_lab.jobs.orders import RUN, CurrentOrder, Order
from toast_lab.jobs.plan_parts import result_parts
from toast_lab.prepare import load_present
from toast_lab.search import contract
from toast_lab.search.contract import Budget, SearchResult
from toast_lab.search.methods import added_methods, register_if_unknown
from toast_lab.search.saved_search import SavedSearch
from toast_lab.search.search_child import PlanSender
from toast_lab.search.trace import Simulations

#: Run once in the fork server, for all search children forked from it (``fork_server``).
before_fork = load_present

POLL_EVERY_S = 0.02
#: a search on all cores does many simulations between two reports; a page shows about this many
SIMULATIONS_PER_REPORT = 20
RUN_SEARCH = "toast_lab.jobs.search_job:run_search"


@dataclasses.dataclass(frozen=True)
class SearchRequest:
    """A request for a child process to run a search.

    Attributes:
        problem: its pins, machine and limit are kept.
        method: name of the search method; None: that of ``resume``.
        seed: of the search; None means 0, or that of ``resume``.
        budget: seconds, without the time spent paused, and distinct shardings.
        options: of the method.
        resume: search to resume, or its file; its method, seed and options hold where these are
            None or empty.
        with_trace: whether the result contains the trace.
        added_methods: methods that the parent registered beside the built-in ones; see
            ``methods.added_methods``.
    """

    problem: Problem
    method: str | None
    seed: int | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resume: SavedSearch | PathLike | None = None
    with_trace: bool = False
    added_methods: Mapping[str, str] = dataclasses.field(default_factory=added_methods)


class Batch(NamedTuple):
    """Simulations since the last report.

    Contains those better than all before them, the last one, and a sample of the others.
    """

    simulations: tuple[Any, ...]
    done: int  #: simulations so far, including those that are left out
    is_paused: bool = False  #: the search is paused after these


class Control:
    """The child's side of pause, step and stop.

    A search reports several simulations at a time; ``report`` holds back those that the orders do
    not allow yet, so that a step shows one simulation however many the search has done.
    """

    def __init__(self, send: Callable[[Any], None], order: Callable[[], Order]) -> None:
        self.send, self._order = send, order
        self.sender = Sender(send)
        self.plans = PlanSender(send)
        self.paused_s = 0.0
        self.done = 0
        self._obeyed = RUN
        self._waiting: list[Any] = []
        self._round: int | None = None  #: the round that is being stepped through

    def order(self) -> Order:
        """The order in force."""
        order = self._order()
        if order != self._obeyed:
            self._obeyed, self._round = order, None
        return order

    @property
    def stopped(self) -> bool:
        """Was the search asked to end?"""
        return self.order().kind == "stop"

    def report(self, simulations: Iterable[Any]) -> None:
        """Send simulations as the orders allow.

        Returns once all are sent and the search may continue.
        """
        if isinstance(simulations, Simulations):
            self.plans.report(simulations)
            running = self.order().kind not in ("pause", "round")
            self.sender.report(simulations, now=not running)
            # Decoding all of them would slow the search down
            if running and not self._waiting:
                self.done += len(simulations)
                sample = simulations.sample(max(1, len(simulations) // SIMULATIONS_PER_REPORT))
                self.send(Batch(tuple(sample), self.done))
                return
        for simulation in simulations:
            self._wait_until_allowed(simulation)
            self._waiting.append(simulation)
            self.done += 1
        self._flush()
        self._wait_until_allowed(None)

    def _wait_until_allowed(self, coming: Any) -> None:
        """Wait until simulation ``coming`` may be shown, or, if None, the search may continue."""
        if self._allowed(coming):
            return
        self._flush()
        self.send(Batch((), self.done, is_paused=True))
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
                # The unsharded start, which is round 0, counts as part of round 1
                self._round = max(coming.round, 1)
            return bool(coming.round <= self._round)
        return True

    def _flush(self) -> None:
        """Send the waiting simulations, thinned for display."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        every = max(1, len(waiting) // SIMULATIONS_PER_REPORT)
        last = len(waiting) - 1
        sample = tuple(
            simulation
            for i, simulation in enumerate(waiting)
            if simulation.improved or i % every == 0 or i == last
        )
        self.send(Batch(sample, self.done))


def run_search(request: SearchRequest) -> SearchResult[Any]:
    """Search for a plan, obeying the parent's orders; gives the result without its program.

    Raises:
        InvalidProblem: a wrong option, or the search to resume cannot be replayed.
    """
    for name, reference in request.added_methods.items():
        register_if_unknown(name, reference)
    isolate.report("preparing")
    problem = request.problem
    _ = problem.baseline
    control = Control(isolate.report, CurrentOrder())
    isolate.report("searching")
    result = contract.search(
        problem,
        request.method,
        seed=request.seed,
        budget=request.budget,
        on_progress=control.report,
        cancel=lambda: control.stopped,
        resume=request.resume,
        **request.options,
    )
    control.sender.send_trace(result.trace, last=True)
    return result_parts(result, with_trace=request.with_trace)

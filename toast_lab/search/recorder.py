"""The recorder that a method searches with: it prices, keeps the best plan and writes the trace.

``Recorder`` joins four parts, each in a file of its own: the clock and the budget (``limits``),
prices (``ledger``), the best plan so far (``incumbent``) and the trace. Start reading at
``Recorder``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.search import ledger
from toast_lab.search.incumbent import Incumbent
from toast_lab.search.ledger import Ledger
from toast_lab.search.limits import Budget, Limits, SearchClock
from toast_lab.search.saved_search import SavedSearch
from toast_lab.search.search_replay import SearchReplay
from toast_lab.search.trace import Simulation, Simulations, Trace
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State

REPORT_EVERY_S = 0.05

Progress = Callable[[Sequence[Simulation]], None]


class ProgressReport:
    """Reports new simulations to a listener, several times a second, with the clock stopped."""

    def __init__(self, trace: Trace, clock: SearchClock, listener: Progress | None) -> None:
        self.trace, self.clock, self.listener = trace, clock, listener
        self._n_reported, self._reported_at = trace.row.n, -math.inf

    def report(self, *, last: bool = False) -> None:
        """Report the simulations since the last report, if it is time or this is the last one."""
        if self.listener is None or self.trace.row.n == self._n_reported:
            return
        now = time.monotonic()
        if last or now - self._reported_at >= REPORT_EVERY_S:
            simulations = Simulations(self.trace, self._n_reported, self.trace.row.n)
            self._n_reported, self._reported_at = self.trace.row.n, now
            # The listener may pause the search, or draw a chart.
            with self.clock.paused():
                self.listener(simulations)


class Recorder:
    """One search run, as its method sees it.

    Attributes:
        problem: the problem that is searched.
        trace: everything the search did so far.
        replay: the replay of an earlier search until it is over; None: nothing is replayed.
        clock: seconds of searching.
        ledger: prices of distinct shardings.
        limits: budget and cancellation.
        incumbent: the best plan so far.
        round: the round number written with each simulation.
        bound: the bound given to ``prove``; None: nothing was proved.
    """

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        on_progress: Progress | None = None,
        cancel: Callable[[], bool] | None = None,
        saved: SavedSearch | None = None,
    ) -> None:
        self.problem = problem
        self.trace = Trace()
        self.replay = None if saved is None else SearchReplay(saved, self.trace)
        self.clock = SearchClock()
        self.ledger = Ledger(problem)
        self.limits = Limits(budget, self.clock, self.ledger, cancel)
        self.incumbent = Incumbent(problem, self.trace)
        self.round = 0
        self.bound: float | None = None
        self._progress = ProgressReport(self.trace, self.clock, on_progress)

    # -- questions of a method -----------------------------------------------------------------
    @property
    def best(self) -> Quick | None:
        """The price of the best plan so far."""
        return self.incumbent.quick

    @property
    def best_rank(self) -> tuple[float, ...]:
        """The rank of the best plan so far."""
        return self.incumbent.rank

    @property
    def evaluations(self) -> int:
        """Distinct states priced so far."""
        return self.ledger.evaluations

    @property
    def elapsed_s(self) -> float:
        """Seconds of searching so far, for the trace; a method that asks for time is ``told``."""
        return self.clock.elapsed_s if self.replay is None else self.replay.elapsed_s

    def check(self) -> None:
        """Raise Stop if the search must end now; a replay ends only if it is cancelled."""
        if self.replays():
            self.limits.check_cancelled()
        else:
            self.limits.check()

    def replays(self) -> bool:
        """Is an earlier search still being replayed? If not any more, the budget begins now."""
        if self.replay is None:
            return False
        if not self.replay.is_over(self.evaluations):
            return True
        self.limits.start(self.replay.saved.facts["elapsed_s"])
        self.replay = None
        return False

    def told(self, ask: Callable[[], Any], is_valid: Callable[[Any], bool] | None = None) -> Any:
        """The answer of ``ask``, which depends on more than the seed; a replay gives the old one.

        Args:
            ask: gives a number, a text, None, or a list of such. It must not call ``told``.
            is_valid: is this an answer that ``ask`` can give? By default a number is.
        """
        if self.replays():
            assert self.replay is not None
            answer = self.replay.next_told()
            if not (is_valid or _is_number)(answer):
                raise self.replay.astray(f"an answer that cannot be one, {answer!r:.60}")
        else:
            answer = ask()
        self.trace.told.append(answer)
        return answer

    def time_s(self) -> float:
        """Seconds of searching so far, as a method is told."""
        return float(self.told(lambda: round(self.clock.elapsed_s, 4)))

    def until_s(self, share: float = 1.0) -> float:
        """The time, as of ``time_s``, at which a share of the seconds left is over."""
        return float(
            self.told(lambda: round(self.clock.elapsed_s + share * self.limits.left()[0], 4))
        )

    def evaluations_left(self) -> float:
        """Evaluations that the budget still has; infinite without such a limit."""
        return float(self.told(lambda: self.limits.left()[1]))

    def most_evaluations(self) -> int | None:
        """The limit on evaluations of the budget; None: there is none."""
        most = self.told(
            lambda: self.limits.budget.evaluations,
            lambda answer: answer is None or _is_number(answer),
        )
        return None if most is None else int(most)

    def price(self, state: State) -> Quick:
        """The price of a state; looked up if it was priced before."""
        return self.ledger.price(state)

    def rank(self, quick: Quick, length: int) -> tuple[float, float, float]:
        """See ``ledger.rank``."""
        return ledger.rank(quick, length)

    # -- reports of a method -------------------------------------------------------------------
    def start(self) -> None:
        """Begin with the unsharded program, sharded only where it is pinned."""
        self.add_node(-1, "", 0, 0)
        self.record(State(self.problem.space), (), (0,))

    def prove(self, bound: float) -> None:
        """State that no plan of the space that this method searches has a C(s) below ``bound``.

        If the best plan known at the end fits, the bound need only hold for plans that fit
        (``SearchResult.bound``).
        """
        self.bound = bound

    def add_node(self, parent: int, action: str, depth: int, key: int) -> int:
        """Write a node of the search tree into the trace and give its number."""
        return self.trace.add_node(parent, action, depth, key)

    def record(self, state: State, actions: Sequence[Action], nodes: Sequence[int] = ()) -> Quick:
        """Price the end of a trajectory, keep it if it is the best, and report it."""
        quick = self.price(state)
        if self._write(quick, [*map(self.problem.space.text, actions)], nodes):
            self.take_best(quick, self.trace.row.n - 1, state, actions)
        self.report()
        return quick

    def record_plan(
        self,
        op_factor: np.ndarray,
        value_dim: np.ndarray,
        labels: Sequence[str],
        nodes: Sequence[int] = (),
        quick: Quick | None = None,
    ) -> Quick:
        """``record`` for a plan that no sequence of actions gives.

        Args:
            op_factor: [O, A], the name along which each axis splits each op, -1: none.
            value_dim: [V, A], the dim of each value that each axis splits, -1: none.
            labels: how the plan came about, for people.
            nodes: trace nodes passed, root first.
            quick: the price of the plan, if the method has worked it out already (and counted it in
                ``ledger.priced_by_method``).
        """
        op_factor = np.ascontiguousarray(op_factor, np.int32)
        value_dim = np.ascontiguousarray(value_dim, np.int8)
        if quick is None:
            quick = self.ledger.price_arrays(op_factor, value_dim)
        if self._write(quick, labels, nodes):
            self.incumbent.keep_arrays(
                quick,
                self.trace.row.n - 1,
                sharding=Sharding(op_factor, value_dim),
                labels=labels,
            )
        self.report()
        return quick

    def take_best(self, quick: Quick, row: int, state: State, actions: Sequence[Action]) -> None:
        """Make simulation ``row``, which the method wrote into the trace itself, the best."""
        self.incumbent.keep_state(quick, row, state=state, actions=actions)

    def choose(self, state: State, actions: Sequence[Action]) -> None:
        """Make ``state`` the outcome, whatever its price."""
        self.take_best(self.price(state), self.incumbent.row, state, actions)

    def report(self, *, last: bool = False) -> None:
        """Report new simulations to the listener, at most once in ``REPORT_EVERY_S`` seconds."""
        self._progress.report(last=last)

    def _write(self, quick: Quick, texts: Sequence[str], nodes: Sequence[int]) -> bool:
        """Add a simulation to the trace; True if it is the best so far."""
        is_best = self.incumbent.is_worse_than(self.rank(quick, len(texts)))
        self.trace.add_simulation(
            [*map(self.trace.word, texts)],
            nodes,
            round=self.round,
            elapsed_s=self.elapsed_s,
            **quick._asdict(),
            best=self.trace.row.n if is_best else self.incumbent.row,
        )
        return is_best


def _is_number(answer: object) -> bool:
    return isinstance(answer, int | float) and not math.isnan(answer)

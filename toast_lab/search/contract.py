"""The one contract of every search: ``search(problem, method, seed, budget, on_progress, cancel)``.

A search takes legal actions from the unsharded state, prices states with the shared evaluator and keeps the
best.  It honours its budget, reports every evaluation, can be cancelled at any time and leaves what it found.
The same seed gives the same result when the budget counts evaluations (a time budget depends on the machine).

Start reading at ``search``.  Reference: TOAST section 4.1.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toast_lab.cost.problem import Cost, Pricer, Problem, Quick
from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State

METHODS = {
    "mcts": "toast_lab.search.mcts:run",
    "exhaustive": "toast_lab.search.exhaustive:run",
    "manual": "toast_lab.search.manual:run",
}


class Status(enum.Enum):
    """How a search ended; the value is a sentence for people."""

    CONVERGED = "A round of new trajectories brought no improvement, so the search stopped early."
    COMPLETE = "Every distinct sharding within the depth limit was priced: the plan is the optimum."
    BUDGET = "The budget was used up; the plan is the best found so far."
    CANCELLED = "The search was cancelled; the plan is the best found so far."
    NO_ACTIONS = "No action changes anything on this mesh (no dimension divides), so the program stays unsharded."
    DONE = "The given actions were applied."


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a search; whichever is reached first ends it.  None: no such limit."""

    seconds: float | None = 30.0
    evaluations: int | None = None

    def __post_init__(self) -> None:
        for key in ("seconds", "evaluations"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise InvalidProblem(f"budget: {key} must be above 0, got {value}")
        if self.seconds is None and self.evaluations is None:
            raise InvalidProblem("budget: give seconds or evaluations, or the search never ends")


class Simulation(NamedTuple):
    """One trajectory: the actions taken from the unsharded program, and the price where it stopped."""

    index: int  # type: ignore[assignment]  #: counts from 1
    round: int
    elapsed_s: float
    actions: tuple[str, ...]
    nodes: tuple[int, ...]  #: trace nodes passed, root first
    score: float  #: C(s)
    time_s: float
    peak_bytes: float
    fits: bool
    best_score: float
    best_time_s: float
    best_peak_bytes: float
    improved: bool


@dataclasses.dataclass
class Node:
    """One state in the trace: reached first by ``action`` from ``parent``; states reached twice are one node."""

    id: int
    parent: int  #: -1 for the root
    action: str
    depth: int
    key: int  #: 64-bit state key
    visits: int = 0
    value: float = 0.0  #: mean reward of the trajectories through it
    best_score: float = float("inf")
    score: float | None = None  #: price of the state itself, if it was evaluated


@dataclasses.dataclass
class Trace:
    """What a search did: every simulation in order, and the states it knows."""

    simulations: list[Simulation] = dataclasses.field(default_factory=list)
    nodes: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """Outcome of a search."""

    plan: ShardingPlan
    cost: Cost
    status: Status
    trace: Trace
    method: str
    seed: int
    evaluations: int  #: distinct states priced
    elapsed_s: float
    actions: tuple[Action, ...]
    message: str  #: the status in a sentence, with the numbers

    def __str__(self) -> str:
        return f"{self.method}: {self.cost.time_s * 1e3:.3f} ms, {self.cost.peak_bytes / 2**30:.2f} GiB. {self.message}"


class Stop(Exception):
    """Raised inside a search when its budget is used up or it was cancelled."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.value)
        self.status = status


class Recorder:
    """Prices states for one search run: counts, times, remembers the best, reports, and stops it in time."""

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        on_progress: Callable[[Simulation], None] | None,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.problem, self.budget, self.on_progress, self.cancel = problem, budget, on_progress, cancel
        self.trace = Trace()
        self.pricer: Pricer = problem.pricer()
        self.prices: dict[int, Quick] = {}  # by state key: a sharding is priced once however it was reached
        self.started = time.monotonic()
        self.best: Quick | None = None
        self.best_rank: tuple[float, ...] = ()
        self.best_state: State | None = None
        self.best_actions: tuple[Action, ...] = ()
        self.round = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.started

    @property
    def evaluations(self) -> int:
        """Distinct states priced so far."""
        return len(self.prices)

    def check(self) -> None:
        """Raise Stop if the search must end now."""
        if self.cancel is not None and self.cancel():
            raise Stop(Status.CANCELLED)
        b = self.budget
        if (b.seconds is not None and self.elapsed_s >= b.seconds) or (
            b.evaluations is not None and self.evaluations >= b.evaluations
        ):
            raise Stop(Status.BUDGET)

    def price(self, state: State) -> Quick:
        """Price a state, at once if it was priced before."""
        found = self.prices.get(state.key)
        if found is None:
            found = self.prices[state.key] = self.pricer.quick(state)
        return found

    def choose(self, state: State, actions: Sequence[Action]) -> None:
        """Make ``state`` the outcome, whatever its price."""
        self.best, self.best_state, self.best_actions = self.price(state), state.copy(), tuple(actions)

    def record(self, state: State, actions: Sequence[Action], nodes: Sequence[int] = ()) -> Quick:
        """Price the end of a trajectory and report it."""
        quick = self.price(state)
        # A plan that fits is preferred to any that does not; among equals the shorter one is kept.
        rank = (0.0 if quick.fits else 1.0, quick.score, len(actions))
        improved = self.best is None or rank < self.best_rank
        if improved:
            self.best, self.best_rank, self.best_state, self.best_actions = (
                quick,
                rank,
                state.copy(),
                tuple(actions),
            )
        best = self.best
        assert best is not None
        simulation = Simulation(
            len(self.trace.simulations) + 1, self.round, self.elapsed_s,
            tuple(self.problem.space.text(a) for a in actions), tuple(nodes), quick.score,
            quick.time_s, quick.peak_bytes,
            quick.fits, best.score, best.time_s, best.peak_bytes, improved,
        )  # fmt: skip
        self.trace.simulations.append(simulation)
        if self.on_progress is not None:
            self.on_progress(simulation)
        return quick


def search(
    problem: Problem,
    method: str = "mcts",
    seed: int = 0,
    budget: Budget | None = None,
    on_progress: Callable[[Simulation], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    **options: Any,
) -> SearchResult:
    """Search for the best plan of ``problem``.

    Args:
        problem: program, mesh and machine.
        method: "mcts", "exhaustive" or "manual".
        seed: of the search's own random numbers.
        budget: seconds and/or evaluations (30 s by default).
        on_progress: called with every Simulation.
        cancel: polled before every simulation; True ends the search, keeping what it found.
        options: of the method, see its module.

    Raises:
        InvalidProblem: unknown method or option.
    """
    if method not in METHODS:
        raise InvalidProblem(
            f"no search is called {method!r}{did_you_mean(method, METHODS)}; methods: {', '.join(METHODS)}"
        )
    module, _, function = METHODS[method].partition(":")
    run = getattr(importlib.import_module(module), function)
    unknown = [k for k in options if k not in run.__kwdefaults__]
    if unknown:
        raise InvalidProblem(
            f"{method} has no option {', '.join(unknown)}; it has {', '.join(run.__kwdefaults__) or 'none'}"
        )
    recorder = Recorder(problem, budget or Budget(), on_progress, cancel)
    recorder.trace.nodes.append(Node(0, -1, "", 0, 0))
    try:
        recorder.record(State(problem.space), (), (0,))  # the unsharded program is always a candidate
        status = run(recorder, seed, **options)
    except Stop as stop:
        status = stop.status
    assert recorder.best_state is not None
    plan = ShardingPlan.from_state(recorder.best_state, recorder.best_actions)
    cost = recorder.pricer.full(plan)
    return SearchResult(
        plan, cost, status, recorder.trace, method, seed, recorder.evaluations, recorder.elapsed_s,
        recorder.best_actions,
        _message(recorder, status, cost),
    )  # fmt: skip


def _message(recorder: Recorder, status: Status, cost: Cost) -> str:
    text = f"{status.value} {recorder.evaluations} distinct shardings priced in {recorder.elapsed_s:.2f} s."
    if not cost.fits:
        need, limit = cost.peak_bytes / 2**30, cost.memory_limit_bytes / 2**30
        text += (
            f" Nothing found fits: the best needs {need:.2f} GiB a device, {need - limit:.2f} GiB over the limit of "
            f"{limit:.2f} GiB. Use a larger mesh, a smaller batch or a machine with more memory."
        )
    return text

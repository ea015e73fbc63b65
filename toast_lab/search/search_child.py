"""One search in a child process: a method that crashes or hangs costs its own row and nothing else.

``search_in_child`` gives a ``MethodOutcome`` whatever happens: every improvement is reported as it
is found, so that what a dead process had found is not lost.  Before the clock starts, the child
loads the pricing kernels and lets the method run for a moment on a copy of the problem, so that
loading compiled code counts for no method.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

import numpy as np

from toast_lab import isolate
from toast_lab.cost.problem import Problem
from toast_lab.errors import RunFailed, ToastError
from toast_lab.prepare import FIRST, load_present, prepare
from toast_lab.search import contract
from toast_lab.search.contract import Budget, Status
from toast_lab.search.methods import METHODS, ensure, reference
from toast_lab.search.plan_arrays import with_pinned
from toast_lab.search.trace import Simulation, Simulations
from toast_lab.sharding.plan import PlanT, ShardingPlan, make_plan, plan_of_actions
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.state import State

#: Done once for all children that are forked to search (``fork_server``).
before_fork = load_present

CRASHED, CANCELLED = Status.CRASHED.name, Status.CANCELLED.name
FAILED = "FAILED"  # the method refused its input; no search has such a status
GRACE_S = 10.0  # that a search which was told to stop has before it is killed
START_S = 400.0  # for starting Python, reading the problem and compiling kernels for the first time
WARM = Budget(seconds=0.5)


class ImprovementPoint(NamedTuple):
    """The best plan so far from ``elapsed_s`` on."""

    elapsed_s: float  #: since the search began
    score: float  #: C(s)
    time_s: float
    peak_bytes: float
    fits: bool
    simulation: int  #: trajectories before it, itself included
    actions: tuple[str, ...]


def improvement(simulation: Simulation) -> ImprovementPoint:
    """A simulation that improved on the best plan, as a point of the anytime curve."""
    return ImprovementPoint(
        elapsed_s=simulation.elapsed_s,
        score=simulation.score,
        time_s=simulation.time_s,
        peak_bytes=simulation.peak_bytes,
        fits=simulation.fits,
        simulation=simulation.index,
        actions=simulation.actions,
    )


class BestPlan(NamedTuple):
    """A best plan that no sequence of actions gives."""

    simulation: int  #: that it came with, counted from 1
    sharding: Sharding
    actions: tuple[str, ...]  #: its labels
    key: int

    def plan(self, problem: Problem) -> ShardingPlan:
        """As a plan of the problem that it was found for."""
        actions = with_pinned(problem, self.actions)
        return make_plan(problem.analysis, problem.mesh, self.sharding, actions, key=self.key)


class PlanSender:
    """In a child: sends best plans that actions do not give, so that they outlive it."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self._sent: Sharding | None = None

    def hand_on(self, simulations: Sequence[Simulation]) -> None:
        """Send the best plan of the trace of ``simulations``, if it is new and has to be sent."""
        if not isinstance(simulations, Simulations):
            return
        trace = simulations.trace
        sharding = trace.best_sharding
        if sharding is None or sharding is self._sent:
            return
        self._sent = sharding
        self.send(
            BestPlan(
                simulation=int(trace.row["best"][-1]) + 1,
                sharding=sharding,
                actions=trace.best_actions,
                key=trace.about["key"],
            )
        )


def last_plan(
    problem: Problem, points: Sequence[ImprovementPoint], sent_plan: BestPlan | None
) -> ShardingPlan | None:
    """The best plan reported by a process that died: from its actions, or as it was sent."""
    if sent_plan is not None and (not points or sent_plan.simulation >= points[-1].simulation):
        return sent_plan.plan(problem)
    for point in reversed(points):
        try:
            return plan_of_actions(problem.space, point.actions)
        except ToastError:  # its labels are not actions, and its arrays did not come through
            if sent_plan is not None:
                return sent_plan.plan(problem)
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class MethodOutcome(Generic[PlanT]):
    """What is known of one search, however it ended.  Without any point its prices are None."""

    method: str
    status: str  #: name of a ``Status``, or FAILED: the method refused its input
    message: str
    points: tuple[ImprovementPoint, ...] = ()
    evaluations: int | None = None  #: distinct states priced; None if the process died
    elapsed_s: float = 0.0
    #: reading the problem and loading kernels, before the clock started
    prepare_s: float | None = None
    bound: float | None = None  #: proven: no plan of the method's space scores less
    actions: tuple[str, ...] = ()
    plan: PlanT | None = None

    @property
    def last(self) -> ImprovementPoint | None:
        """The best plan found."""
        return self.points[-1] if self.points else None


def search_in_child(
    problem: Problem,
    method: str,
    *,
    seed: int = 0,
    budget: Budget | None = None,
    options: Mapping[str, Any] | None = None,
    on_point: Callable[[ImprovementPoint], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> MethodOutcome[ShardingPlan]:
    """Run one method on ``problem`` in a process of its own.

    The process is killed after twice the budget's seconds and 7 minutes, or after an hour where the
    budget has no seconds.

    Args:
        problem: what to shard; it is pickled.
        method: a name in ``METHODS``.
        seed: of the search.
        budget: as for ``search``.
        options: of the method; they are pickled.
        on_point: called with every improvement.
        cancel: polled ten times a second.  True ends the search gently: it has 10 s to hand over
            what it found.

    Raises:
        KeyboardInterrupt: and nothing else; crashes, hangs and refused input are outcomes.
    """
    budget = budget or Budget()
    time_limit_s = 3600.0 if budget.seconds is None else 2 * budget.seconds + START_S
    points: list[ImprovementPoint] = []
    sent_plans: list[BestPlan] = []

    def on_event(event: ImprovementPoint | BestPlan) -> None:
        if isinstance(event, BestPlan):
            sent_plans[:] = [event]
            return
        points.append(event)
        if on_point is not None:
            on_point(event)

    started = time.monotonic()
    try:
        outcome = isolate.run_in_child(
            "toast_lab.search.search_child:run_one",
            pickle.dumps(problem),
            method,
            reference(METHODS[method]),
            seed=seed,
            budget=budget,
            options=dict(options or {}),
            time_limit_s=time_limit_s,
            on_event=on_event,
            cancel=cancel,
            patience_s=GRACE_S,
            activity=f"{method} on {problem.describe()}",
        )
    except ToastError as error:
        if isinstance(error, isolate.Cancelled):
            status, message = CANCELLED, "It was told to stop, did not within 10 s, and was killed."
        else:
            status, message = (CRASHED if isinstance(error, RunFailed) else FAILED), str(error)
        return MethodOutcome(
            method=method,
            status=status,
            message=message,
            points=tuple(points),
            elapsed_s=time.monotonic() - started,
            actions=points[-1].actions if points else (),
            plan=last_plan(problem, points, sent_plans[0] if sent_plans else None),
        )
    sharding, key = outcome.pop("plan")
    plan = make_plan(problem.analysis, problem.mesh, sharding, outcome["actions"], key=key)
    return MethodOutcome(method=method, points=tuple(points), plan=plan, **outcome)


def run_one(
    pickled: bytes,
    method: str,
    target: str,
    seed: int,
    budget: Budget,
    options: dict[str, Any],
) -> dict[str, Any]:
    """What runs in the child: warm up, search, report every improvement."""
    started = time.monotonic()
    ensure(method, target)
    cancel = isolate.end_is_asked
    prepare(*FIRST, method, cancel=cancel)
    contract.search(pickle.loads(pickled), method, seed=seed, budget=WARM, cancel=cancel, **options)
    problem = pickle.loads(pickled)
    problem.pricer().quick(State(problem.space))
    prepare_s = time.monotonic() - started

    best: tuple[float, ...] = ()
    sender = PlanSender(isolate.report)

    def on_progress(news: Sequence[Simulation]) -> None:
        nonlocal best
        last = news[-1]
        if best == (best := (last.best_score, last.best_time_s, last.best_peak_bytes)):
            return  # decoding thousands of simulations a second would be a burden on the search
        sender.hand_on(news)
        for simulation in news:
            if simulation.improved:
                isolate.report(improvement(simulation))

    result = contract.search(
        problem, method, seed=seed, budget=budget, on_progress=on_progress, cancel=cancel, **options
    )
    return {
        "status": result.status.name,
        "message": result.message,
        "evaluations": result.evaluations,
        "elapsed_s": result.elapsed_s,
        "prepare_s": prepare_s,
        "bound": result.bound if result.bound is not None and np.isfinite(result.bound) else None,
        "actions": result.plan.actions,
        "plan": (result.plan.sharding, result.plan.key),
    }

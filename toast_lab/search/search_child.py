"""One search in a child process: a method that crashes or hangs costs its own row and nothing else.

``search_in_child`` gives a ``MethodOutcome`` whatever happens: every improvement is reported when
it is found, so that the plans of a process that dies are not lost. Before the clock starts, the
child loads the pricing kernels and runs the method for a moment on a copy of the problem, so that
the time to load compiled code counts against no method.
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
from toast_lab.prepare import FIRST_SEARCH_NEEDS, load_present, prepare
from toast_lab.search import contract
from toast_lab.search.contract import Budget, Status
from toast_lab.search.incumbent import with_pinned
from toast_lab.search.methods import METHODS, reference, register_if_unknown
from toast_lab.search.trace import Simulation, Simulations
from toast_lab.sharding.plan import PlanT, ShardingPlan, make_plan, plan_of_actions
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.state import State

#: Runs once for all children that are forked to search (``fork_server``).
before_fork = load_present

CRASHED, CANCELLED = Status.CRASHED.name, Status.CANCELLED.name
FAILED = "FAILED"  # the method refused its input; no search has such a status
GRACE_S = 10.0  # time that a cancelled search has to end by itself before it is killed
START_S = 400.0  # for starting Python, reading the problem and compiling kernels for the first time
WARM_UP_BUDGET = Budget(seconds=0.5)  # of the warm-up run


class ImprovementPoint(NamedTuple):
    """A point of the anytime curve: the best plan from ``elapsed_s`` on."""

    elapsed_s: float  #: since the search began
    score: float  #: C(s)
    time_s: float
    peak_bytes: float
    fits: bool
    simulation: int  #: number of trajectories up to this one, itself included
    actions: tuple[str, ...]


def improvement(simulation: Simulation) -> ImprovementPoint:
    """A simulation that found a better plan, as a point of the anytime curve."""
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

    simulation: int  #: the simulation that found it, counted from 1
    sharding: Sharding
    actions: tuple[str, ...]  #: the history of the plan
    key: int

    def plan(self, problem: Problem) -> ShardingPlan:
        """The plan; ``problem`` is the one that was searched."""
        actions = with_pinned(problem, self.actions)
        return make_plan(problem.analysis, problem.mesh, self.sharding, actions, key=self.key)


class PlanSender:
    """In a child: sends best plans that no actions give, so that they outlive the process."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self._sent: Sharding | None = None

    def report(self, simulations: Sequence[Simulation]) -> None:
        """Send the best plan in the trace of ``simulations``, if new and not made by actions."""
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
    """The best plan reported by a process that died, made from its actions or as it was sent."""
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
    """The outcome of one search, however it ended; ``points`` is empty if it priced nothing."""

    method: str
    status: str  #: name of a ``Status``, or FAILED: the method refused its input
    message: str
    points: tuple[ImprovementPoint, ...] = ()
    evaluations: int | None = None  #: distinct states priced; None if the process died
    elapsed_s: float = 0.0
    #: time to read the problem and load kernels, before the clock started
    prepare_s: float | None = None
    bound: float | None = None  #: a proven lower bound of C(s) of the plans of the method's space
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

    The process is killed after twice the budget's seconds plus ``START_S`` (400 s), or after an
    hour if the budget has no limit in seconds.

    Args:
        problem: the problem to search; it is pickled.
        method: a name in ``METHODS``.
        seed: seed of the search.
        budget: as for ``search``.
        options: options of the method; they are pickled.
        on_point: called with every improvement.
        cancel: polled ten times a second. True ends the search gently: it has 10 s to hand over
            its best plan.

    Raises:
        KeyboardInterrupt: the only exception; crashes, hangs and refused input are outcomes.
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
            status = CANCELLED
            message = "It was asked to stop, did not within 10 s, and was killed."
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
    """The work of the child: warm up, search, and report every improvement.

    Args:
        pickled: the problem.
        method: a name in ``METHODS``.
        target: reference of the method, by which ``ensure`` registers it.
        seed: seed of the search.
        budget: as for ``search``.
        options: options of the method.

    Returns:
        The fields of ``MethodOutcome`` but ``method`` and ``points``; ``plan`` is a pair of its
        sharding and its key.
    """
    started = time.monotonic()
    register_if_unknown(method, target)
    cancel = isolate.end_is_asked
    prepare(*FIRST_SEARCH_NEEDS, method, cancel=cancel)
    contract.search(
        pickle.loads(pickled), method, seed=seed, budget=WARM_UP_BUDGET, cancel=cancel, **options
    )
    problem = pickle.loads(pickled)
    problem.pricer().quick(State(problem.space))
    prepare_s = time.monotonic() - started

    best: tuple[float, ...] = ()
    sender = PlanSender(isolate.report)

    def on_progress(simulations: Sequence[Simulation]) -> None:
        nonlocal best
        latest = simulations[-1]
        if best == (best := (latest.best_score, latest.best_time_s, latest.best_peak_bytes)):
            return  # decoding thousands of simulations a second would slow down the search
        sender.report(simulations)
        for simulation in simulations:
            if simulation.improved:
                isolate.report(improvement(simulation))

    # Methods are compared by the best plan that each finds, whether or not actions give it.
    result = contract.search(
        problem,
        method,
        seed=seed,
        budget=budget,
        on_progress=on_progress,
        cancel=cancel,
        **{"actions_within": 0.0, **options},
    )
    return {
        "status": result.status.name,
        "message": result.message,
        "evaluations": result.evaluations,
        "elapsed_s": result.elapsed_s,
        "prepare_s": prepare_s,
        "bound": result.bound if result.bound is not None and np.isfinite(result.bound) else None,
        "actions": result.plan.history,
        "plan": (result.plan.sharding, result.plan.key),
    }

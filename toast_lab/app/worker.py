"""What runs in child processes: load a model, search, race.

What is done with a plan is in ``after_plan``.

Every function takes and gives plain data or frozen results, since both are pickled.  Progress goes
through ``isolate.report``, at most some twenty messages a second while nobody steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.app.mirror import Sender
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.errors import NotSaved
from toast_lab.ir.model import Model, Recipe
from toast_lab.search.search_child import PlanSender
from toast_lab.search.trace import Simulations
from toast_lab.sharding.sharding import Sharding

POLL_EVERY_S = 0.02
#: of what a search on all cores tries between two reports, a page shows a sample
SHOWN_AT_ONCE = 20


class Loaded(NamedTuple):
    """A model and its analysis, which finds its model again where it arrives."""

    model: Model
    analysis: Analysis

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, tuple(self)


def _loaded(model: Model, analysis: Analysis) -> Loaded:
    analysis = analysis.of_model(model)
    return Loaded(analysis.model, analysis)


class Batch(NamedTuple):
    """Simulations since the last report.

    Kept are those better than all before, the last one, and a sample of the others.
    """

    simulations: tuple[Any, ...]
    done: int  #: simulations so far, those that are left out included


class Found(NamedTuple):
    """Outcome of a search."""

    sharding: Sharding
    key: int
    actions: tuple[str, ...]
    cost: Any
    status: str
    message: str
    evaluations: int
    elapsed_s: float
    gap: float | None
    bound: float | None = None
    #: the actions as ``Action``s, without those that the problem has pinned
    taken: tuple[Any, ...] = ()
    trace: Any = None  #: what is needed to go on later, where it was asked for


def load_model(which: str, sizes: dict[str, Any]) -> Loaded:
    """Load and analyse a model.

    Whatever wants its function later makes it again in a process of its own: the page's is not to
    trace anything.
    """
    from toast_lab import frontends
    from toast_lab.frontends import stages

    isolate.report("preparing")
    with stages.listening(isolate.report):
        model = frontends.load(which, **sizes)
    model = dataclasses.replace(model, function=Recipe(which, dict(sizes)))
    isolate.report("analysing")
    return Loaded(model, analyse(model))


class Control:
    """The child's side of pause, step and stop.

    A search tells of several simulations at a time; ``hand_on`` keeps back those that nobody has
    asked for yet, so that a step shows one, whatever the search has done since.
    """

    def __init__(self, path: str, send: Callable[[Any], None]) -> None:
        self.path, self.send = path, send
        self.sender = Sender(send)
        self.plans = PlanSender(send)
        self.words: list[str] = ["run"]
        self.read_at = 0.0
        self.done = 0
        self._waiting: list[Any] = []
        self._round: int | None = None  #: the one that is being stepped through

    def read(self, *, force: bool = False) -> list[str]:
        """The current order, read again if the last reading is old."""
        now = time.monotonic()
        if force or now - self.read_at >= POLL_EVERY_S:
            self.read_at, before = now, self.words
            try:
                with open(self.path, encoding="utf-8") as handle:
                    self.words = handle.read().split() or ["run"]
            except OSError:
                self.words = ["stop"]  # whoever watched is gone
            if self.words != before:
                self._round = None
        return self.words

    @property
    def stopped(self) -> bool:
        """Was the end asked for?"""
        return self.read()[0] == "stop"

    def hand_on(self, simulations: Iterable[Any]) -> None:
        """Send simulations as the orders allow.

        Gives once all are sent and the search may go on.
        """
        if isinstance(simulations, Simulations):
            self.plans.hand_on(simulations)
        if isinstance(simulations, Simulations):
            running = self.read(force=self.words[0] != "run")[0] not in ("pause", "round")
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
        if self._allowed(coming, force=self.words[0] in ("pause", "round")):
            return
        self._flush()
        while not self._allowed(coming, force=True):
            time.sleep(POLL_EVERY_S)

    def _allowed(self, coming: Any, *, force: bool) -> bool:
        order, *rest = self.read(force=force)
        if order == "pause":
            return self.done < int(rest[0])
        if order == "round" and coming is not None:
            if self._round is None:
                # The unsharded start, of round 0, belongs to the first one
                self._round = max(coming.round, 1)
            return bool(coming.round <= self._round)
        return True

    def _flush(self) -> None:
        """Send what is waiting, thinned to what a page can show."""
        found, self._waiting = self._waiting, []
        if not found:
            return
        every = max(1, len(found) // SHOWN_AT_ONCE)
        last = len(found) - 1
        self.send(
            Batch(
                tuple(s for i, s in enumerate(found) if s.improved or i % every == 0 or i == last),
                self.done,
            )
        )


def search_problem(
    problem: Any,
    method: str,
    seed: int | None,
    seconds: float | None,
    evaluations: int | None,
    options: dict[str, Any],
    control: str,
    resume: Any = None,
    with_trace: bool = False,
    keep: str | None = None,
    begin: Callable[[Control], None] = lambda orders: None,
    brought: Mapping[str, str] = types.MappingProxyType({}),
) -> Found:
    """Search for a plan, under the control of a file.

    Args:
        problem: its pins, machine and limit are kept.
        method: name of the search.
        seed: of the search.
        seconds: budget; time spent paused does not count.
        evaluations: budget of distinct shardings.
        options: of the method.
        control: file that orders are read from.
        resume: trace to go on from.
        with_trace: give the trace with what was found.
        keep: file that the trace is written to.
        begin: called before the search starts.
        brought: methods that the parent process has beside ours, see ``methods.brought``.
    """
    from toast_lab.search import contract
    from toast_lab.search.methods import ensure

    for name, reference in brought.items():
        ensure(name, reference)
    isolate.report("preparing")
    _ = problem.baseline
    orders = Control(control, isolate.report)
    begin(orders)
    budget = contract.Budget(seconds, evaluations)
    isolate.report("searching")
    result = contract.search(
        problem,
        method,
        seed,
        budget,
        orders.hand_on,
        lambda: orders.stopped,
        resume=resume,
        **options,
    )
    orders.sender.trace(result.trace, last=True)
    if keep is not None:
        with contextlib.suppress(NotSaved):  # then it cannot be resumed; what was found counts more
            result.trace.save(keep)
    plan = result.plan
    return Found(
        plan.sharding,
        plan.key,
        plan.actions,
        result.cost,
        result.status.name,
        result.message,
        result.evaluations,
        result.elapsed_s,
        result.gap,
        result.bound,
        result.actions,
        result.trace if with_trace else None,
    )


# -- called in a thread: these make their own child, whose progress and end are theirs to handle ---


def load_own(which: str, sizes: dict[str, Any], *, on_event: Any, cancel: Any) -> Loaded:
    """Load and analyse the user's ``package.module:make``."""
    from toast_lab import frontends

    model = frontends.load(which, on_event=on_event, cancel=cancel, **sizes)
    analysis = isolate.run_in_child(
        "toast_lab.conflicts.analysis:analyse",
        model,
        on_event=on_event,
        cancel=cancel,
        what=f"analysing {which}",
    )
    return _loaded(model, analysis)


def read_file(
    name: str, content: bytes, time_limit_s: float, *, on_event: Any, cancel: Any
) -> Loaded:
    """Read and analyse StableHLO or a jax.export artefact, each in a child."""
    from toast_lab import frontends

    on_event("reading")
    model = frontends.from_stablehlo(
        content,
        name=name.rpartition(".")[0] or name,
        what=name,
        time_limit_s=time_limit_s,
        cancel=cancel,
    )
    on_event("analysing")
    analysis = isolate.run_in_child(
        "toast_lab.conflicts.analysis:analyse",
        model,
        time_limit_s=time_limit_s,
        on_event=on_event,
        cancel=cancel,
        what=f"analysing {name}",
    )
    return _loaded(model, analysis)


class RacePoint(NamedTuple):
    """An improvement of one method of a race."""

    method: str
    point: Any  #: toast_lab.search.search_child.Point


class RaceEnd(NamedTuple):
    """A method of a race is through."""

    outcome: Any  #: toast_lab.search.search_child.Outcome


class Raced(NamedTuple):
    """What a race gave: the price of each method's best plan, by its name."""

    race: Any
    costs: dict[str, Any]


def race_methods(
    problem: Any,
    methods: tuple[str, ...],
    seed: int,
    seconds: float | None,
    *,
    control: str,
    on_event: Any,
    cancel: Any,
    evaluations: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Raced:
    """Race methods, each in a child of its own, one after the other.

    A race that is held stands still before the next method.
    """
    from toast_lab.cost.problem import price
    from toast_lab.search.contract import Budget
    from toast_lab.search.race import Race, not_started, race

    def order() -> str:
        try:
            with open(control, encoding="utf-8") as handle:
                return (handle.read().split() or ["run"])[0]
        except OSError:
            return "stop"

    def stopped() -> bool:
        return cancel() or order() == "stop"

    outcomes: list[Any] = []
    for method in methods:
        while order() == "pause" and not stopped():
            time.sleep(POLL_EVERY_S)
        if stopped():
            outcomes.append(not_started(method))
        else:
            on_event(f"{method} starts")
            outcomes += race(
                problem,
                [method],
                Budget(seconds, evaluations),
                seed,
                cancel=stopped,
                options={m: o for m, o in (options or {}).items() if m == method},
                on_progress=lambda method, point: on_event(RacePoint(method, point)),
            ).outcomes
        on_event(RaceEnd(outcomes[-1]))
    finished: Race[Any] = Race(problem, seed, tuple(outcomes))
    return Raced(
        finished, {method: price(problem, plan) for method, plan in finished.plans.items()}
    )

"""What runs in child processes: load a model, search, execute a plan.

Every function takes and gives plain data or frozen results, since both are pickled.  Progress goes through
``isolate.report``, at most twenty messages a second.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.conflicts.analysis import Analysis, analyse_program
from toast_lab.frontends import Model

REPORT_EVERY_S = 0.06
POLL_EVERY_S = 0.02


class Loaded(NamedTuple):
    """A model and its analysis."""

    model: Model
    analysis: Analysis


class Batch(NamedTuple):
    """Simulations since the last report."""

    simulations: tuple[Any, ...]


class Found(NamedTuple):
    """Outcome of a search; ``op_axis`` and ``value_axis`` are the plan's arrays."""

    op_axis: Any
    value_axis: Any
    key: int
    actions: tuple[str, ...]
    cost: Any
    status: str
    message: str
    evaluations: int
    elapsed_s: float


def load_model(which: str, sizes: dict[str, Any]) -> Loaded:
    """Load and analyse a model."""
    from toast_lab import frontends

    isolate.report("tracing")
    model = frontends.load(which, **sizes)
    isolate.report("analysing")
    return Loaded(model, analyse(model))


def analyse(model: Model) -> Analysis:
    """Analyse a model."""
    return analyse_program(model.program, model.dim_names, trees=model.trees)


class Control:
    """The child's side of pause, step and stop."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.words: list[str] = ["run"]
        self.read_at = 0.0
        self.paused_s = 0.0

    def read(self, *, force: bool = False) -> list[str]:
        """The current order, read again if the last reading is old."""
        now = time.monotonic()
        if force or now - self.read_at >= POLL_EVERY_S:
            self.read_at = now
            try:
                with open(self.path, encoding="utf-8") as handle:
                    self.words = handle.read().split() or ["run"]
            except OSError:
                self.words = ["stop"]  # whoever watched is gone
        return self.words

    @property
    def stopped(self) -> bool:
        """Was the end asked for?"""
        return self.read()[0] == "stop"

    def wait(self, done: int, flush: Any) -> None:
        """Stand still while paused; ``done`` simulations are behind."""
        words = self.read(force=self.words[0] == "pause")
        if words[0] != "pause" or done < int(words[1]):
            return
        flush()
        began = time.monotonic()
        while words[0] == "pause" and done >= int(words[1]):
            time.sleep(POLL_EVERY_S)
            words = self.read(force=True)
        self.paused_s += time.monotonic() - began


def search(
    analysis: Analysis,
    mesh: str,
    machine: str,
    method: str,
    seed: int,
    seconds: float | None,
    evaluations: int | None,
    options: dict[str, Any],
    control: str,
    limit_bytes: float | None = None,
) -> Found:
    """Search for a plan, under the control of a file."""
    from toast_lab.cost.problem import Problem
    from toast_lab.search import contract

    isolate.report("preparing")
    problem = Problem(analysis, mesh, machine, memory_limit_bytes=limit_bytes)
    _ = problem.baseline
    orders = Control(control)
    waiting: list[Any] = []
    sent_at = started = time.monotonic()
    done = 0

    def flush() -> None:
        nonlocal sent_at
        sent_at = time.monotonic()
        if waiting:
            isolate.report(Batch(tuple(waiting)))
            waiting.clear()

    def on_progress(simulations: Any) -> None:
        nonlocal done
        for simulation in simulations:  # one by one, so that a step shows one
            done += 1
            waiting.append(simulation)
            if time.monotonic() - sent_at >= REPORT_EVERY_S:
                flush()
            orders.wait(done, flush)

    def cancel() -> bool:
        if seconds is not None and time.monotonic() - started - orders.paused_s >= seconds:
            raise contract.Stop(contract.Status.BUDGET)  # time spent paused is the user's, not the search's
        return orders.stopped

    # Time spent paused must not count: the seconds are kept here and the search gets a far away limit.
    budget = contract.Budget(seconds=1e7, evaluations=evaluations)
    isolate.report("searching")
    result = contract.search(problem, method, seed, budget, on_progress, cancel, **options)
    flush()
    plan = result.plan
    return Found(
        plan.op_axis,
        plan.value_axis,
        plan.key,
        plan.actions,
        result.cost,
        result.status.name,
        result.message,
        result.evaluations,
        result.elapsed_s,
    )


# -- called in a thread: these make their own child, whose progress and end are theirs to handle ------


def load_own(which: str, sizes: dict[str, Any], *, on_event: Any, cancel: Any) -> Loaded:
    """Load and analyse the user's ``package.module:make``."""
    from toast_lab import frontends

    model = frontends.load(which, on_event=on_event, cancel=cancel, **sizes)
    analysis = isolate.run_in_child(
        "toast_lab.app.worker:analyse", model, on_event=on_event, cancel=cancel, what=f"analysing {which}"
    )
    return Loaded(dataclasses.replace(model, program=analysis.program), analysis)


def execute(
    model: Model, plan: Any, devices: str, repeats: int, time_limit_s: float, *, on_event: Any, cancel: Any
) -> Any:
    """Execute a plan."""
    from toast_lab.runtime.run import run

    return run(
        model, plan, devices=devices, repeats=repeats, on_event=on_event, cancel=cancel, time_limit_s=time_limit_s
    )

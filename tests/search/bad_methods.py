"""Search methods that misbehave, as a user's module might; child processes import them by name."""

from __future__ import annotations

import dataclasses
import os
import time

from toast_lab.cost.problem import Quick
from toast_lab.search.limits import Status
from toast_lab.search.methods import METHODS, Method
from toast_lab.search.options import option
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.state import State, legal_actions


def _improve(recorder: Recorder) -> State:
    """Record one action that improves on the unsharded program, and return its state."""
    start = State(recorder.problem.space)
    for action in legal_actions(start):
        state = start.copy()
        state.apply(action)
        if recorder.record(state, [action]).score < 0.99:
            return state
    raise AssertionError("no action alone makes this program faster")


def _die(recorder: Recorder) -> Status:
    """End the process, unless the method is only being warmed up."""
    recorder.report(last=True)
    if recorder.limits.budget.evaluations is None:
        return Status.DONE
    os._exit(3)


@dataclasses.dataclass(frozen=True)
class Dies(Method):
    """Records an improvement, then ends its process."""

    name = "dies"

    def run(self, recorder: Recorder, seed: int) -> Status:
        _improve(recorder)
        return _die(recorder)


@dataclasses.dataclass(frozen=True)
class Refines(Method):
    """Records a best plan that no sequence of actions reaches, then ends its process."""

    name = "refines"

    def run(self, recorder: Recorder, seed: int) -> Status:
        state = _improve(recorder)
        values = state.value_dim.copy()
        values[0] = -1
        price = Quick(0.0, 1e-9, 1.0, True)
        recorder.record_plan(state.op_factor, values, ["refined by hand"], quick=price)
        return _die(recorder)


@dataclasses.dataclass(frozen=True)
class Slow(Method):
    """Runs until its budget is used up or it is cancelled."""

    name = "slow"

    def run(self, recorder: Recorder, seed: int) -> Status:
        while True:
            recorder.check()
            time.sleep(0.01)


@dataclasses.dataclass(frozen=True)
class Picky(Method):
    """Raises an error, as a bug would."""

    name = "picky"
    wanted: int = option(0, "nothing")

    def run(self, recorder: Recorder, seed: int) -> Status:
        raise ZeroDivisionError("a defect")


BAD: dict[str, type[Method]] = {cls.name: cls for cls in (Dies, Refines, Slow, Picky)}


def bring(monkeypatch, *names: str) -> None:
    """Register some of these methods in METHODS for one test."""
    for name in names:
        monkeypatch.setitem(METHODS, name, BAD[name])

"""Searches that misbehave, as other modules may bring them; children import them by name."""

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
    """Record something better than nothing; gives the state."""
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
    """Records something better than nothing, then ends its process."""

    name = "dies"

    def run(self, recorder: Recorder, seed: int) -> Status:
        _improve(recorder)
        return _die(recorder)


@dataclasses.dataclass(frozen=True)
class Refines(Method):
    """Records a plan that no actions give and that is the best, then ends its process."""

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
    """Goes on until its budget or a cancel ends it."""

    name = "slow"

    def run(self, recorder: Recorder, seed: int) -> Status:
        while True:
            recorder.check()
            time.sleep(0.01)


@dataclasses.dataclass(frozen=True)
class Picky(Method):
    """Raises what a defect would."""

    name = "picky"
    wanted: int = option(0, "nothing")

    def run(self, recorder: Recorder, seed: int) -> Status:
        raise ZeroDivisionError("a defect")


BAD: dict[str, type[Method]] = {cls.name: cls for cls in (Dies, Refines, Slow, Picky)}


def bring(monkeypatch, *names: str) -> None:
    """Let METHODS have some of these for one test."""
    for name in names:
        monkeypatch.setitem(METHODS, name, BAD[name])

"""Searches that misbehave, as other modules may bring them; children import them by name."""

from __future__ import annotations

import os
import time

from toast_lab.cost.problem import Quick
from toast_lab.search.contract import Recorder, Status
from toast_lab.sharding.state import State, legal_actions


def dies(recorder: Recorder, seed: int) -> Status:
    """Records something better than nothing, then ends its process, unless it is only being warmed up."""
    start = State(recorder.problem.space)
    for action in legal_actions(start):
        state = start.copy()
        state.apply(action)
        if recorder.record(state, [action]).score < 0.99:
            break
    recorder.report(last=True)
    if recorder.budget.evaluations is None:  # the warm-up
        return Status.DONE
    os._exit(3)


def refines_and_dies(recorder: Recorder, seed: int) -> Status:
    """Records a plan that no actions give and that is better than any before, then ends its process."""
    start = State(recorder.problem.space)
    for action in legal_actions(start):
        state = start.copy()
        state.apply(action)
        if recorder.record(state, [action]).score < 0.99:
            break
    values = state.value_axis.copy()
    values[0] = -1
    recorder.record_plan(state.op_axis, values, ["refined by hand"], quick=Quick(0.0, 1e-9, 1.0, True))
    recorder.report(last=True)
    if recorder.budget.evaluations is None:  # the warm-up
        return Status.DONE
    os._exit(3)


def slow(recorder: Recorder, seed: int) -> Status:
    """Goes on until its budget or a cancel ends it."""
    while True:
        recorder.check()
        time.sleep(0.01)


def picky(recorder: Recorder, seed: int, *, wanted: int = 0) -> Status:
    """Raises what a defect would."""
    raise ZeroDivisionError("a defect")

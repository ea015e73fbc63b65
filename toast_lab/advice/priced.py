"""What all choices of an advice have in common: a time, a peak, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State
from toast_lab.text import bytes_text
from toast_lab.written.screen import time_text


class Priced(Protocol):
    """Something with a price."""

    @property
    def time_s(self) -> float:
        """Of a step."""

    @property
    def peak_bytes(self) -> float:
        """Of a device."""

    @property
    def fits(self) -> bool:
        """Is that within the memory limit?"""


def rank(priced: Priced) -> tuple[bool, float]:
    """Sort key, the quickest that fits first; of those that do not fit the smallest."""
    return not priced.fits, priced.time_s if priced.fits else priced.peak_bytes


def priced_text(name: str, priced: Priced) -> str:
    """The price of a choice: ``"as written: 1.2 ms, 3 GiB, fits"``."""
    fits = "fits" if priced.fits else "does not fit"
    return f"{name}: {time_text(priced.time_s)}, {bytes_text(priced.peak_bytes)}, {fits}"


def state_after(problem: Problem, actions: Sequence[str]) -> tuple[State, list[Action]] | None:
    """The state that actions lead to, and the actions; None: the problem does not have them all."""
    state, taken = State(problem.space), list[Action]()
    try:
        for text in actions:
            taken.append(parse_action(problem.analysis, problem.mesh, text))
            state.apply(taken[-1])
    except ToastError:
        return None
    return state, taken

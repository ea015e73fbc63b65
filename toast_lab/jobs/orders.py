"""Orders to a search in a child process: run, pause, step and stop.

The owner of a job gives an ``Order``; the child reads the latest one through ``CurrentOrder``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from toast_lab import isolate


class Order(NamedTuple):
    """An order to a search, in force until the next one.

    ``pause``: pause once ``at`` simulations are shown; a step is one more than are shown.
    ``round``: show the round of the simulation after the first ``at`` to its end, then pause.
    """

    kind: Literal["run", "pause", "round", "stop"]
    at: int = 0


RUN, STOP = Order("run"), Order("stop")


class CurrentOrder:
    """In a child process: the order in force."""

    def __init__(self) -> None:
        self._last = RUN

    def __call__(self) -> Order:
        """The last order received; ``STOP`` once the parent asked for the end or is gone."""
        for order in isolate.new_commands():
            self._last = order
        return STOP if isolate.end_is_asked() else self._last

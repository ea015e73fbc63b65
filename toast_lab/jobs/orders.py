"""What a search in a child is to do now: go on, stand still, go one step, end.

The owner of a job gives an ``Order``; the child takes in those that have come with ``Received``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from toast_lab import isolate


class Order(NamedTuple):
    """What a search is to do until the next order.

    ``pause``: stand still once ``at`` simulations are shown; a step is one more than are shown.
    ``round``: show the round of what comes after ``at`` simulations to its end, then stand still.
    """

    kind: Literal["run", "pause", "round", "stop"]
    at: int = 0


RUN, STOP = Order("run"), Order("stop")


class Received:
    """In a child: the order in force."""

    def __init__(self) -> None:
        self._last = RUN

    def __call__(self) -> Order:
        """The last order that came; to stop, once the parent asked to end or is gone."""
        for order in isolate.new_commands():
            self._last = order
        return STOP if isolate.end_is_asked() else self._last

"""How often pages look at what jobs and threads have done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from panel.io.callbacks import PeriodicCallback

from toast_lab.app import unsent

#: Curves begin at five pictures a second, and each picture costs the search a little.
TICK_MS = 180
#: A curve of simulations is drawn anew once it is this share longer, or after ``SLOWEST_S``.
GROWTH, SLOWEST_S = 0.03, 0.5
#: At least, between two changes of the words and the slider beside a running search.
WORDS_EVERY_S = 0.5
#: While nothing runs: two dozen pages that tick for nothing cost a sixth of a core.
IDLE_MS = 250


def ticker(call: Callable[[], Any]) -> PeriodicCallback:
    """Begin to call ``call`` every ``TICK_MS`` for as long as the page is open.

    What Panel has left unsent is sent before.  The call runs in the background: else Panel says
    before and after each call that the page is busy, and keeping that account takes ten times as
    long as a call that has nothing to do.
    """

    def tick() -> None:
        unsent.send()
        call()

    periodic = PeriodicCallback(callback=tick, period=TICK_MS, background=True)
    periodic.start()
    return periodic


class Beat:
    """When the picture of a running search is to be drawn anew.

    After half a minute a curve that is drawn five times a second moves by half a percent of its
    width each time, and the browser's share of the cores is what the search loses.
    """

    def __init__(self) -> None:
        self._drawn_at = -math.inf

    def due(self, elapsed_s: float, now_s: float | None = None) -> bool:
        """Is a picture due of a search that has run ``elapsed_s``?  A yes begins the next beat.

        Args:
            elapsed_s: since the search began.
            now_s: a steady clock; by default that of the machine.
        """
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._drawn_at < min(SLOWEST_S, GROWTH * elapsed_s):
            return False
        self._drawn_at = now_s
        return True

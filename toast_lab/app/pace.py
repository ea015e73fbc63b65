"""How often pages check the progress of jobs and threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from panel.io.callbacks import PeriodicCallback

from toast_lab.app import unsent

#: Curves start with five redraws a second, and each redraw costs the search a little.
TICK_MS = 180
#: A curve of simulations is redrawn once it is longer by this share, or after ``SLOWEST_S``.
GROWTH, SLOWEST_S = 0.03, 0.5
#: Least time between two updates of the text and the slider beside a running search.
WORDS_EVERY_S = 0.5
#: While nothing runs: two dozen pages that tick for nothing cost a sixth of a core.
IDLE_MS = 250


def ticker(call: Callable[[], Any]) -> PeriodicCallback:
    """Begin to call ``call`` every ``TICK_MS`` for as long as the page is open.

    Messages that Panel has left unsent are sent before each call. The call runs in the background:
    otherwise Panel marks the page as busy and as idle around each call, which takes ten times as
    long as a call that has nothing to do.
    """

    def tick() -> None:
        unsent.send()
        call()

    periodic = PeriodicCallback(callback=tick, period=TICK_MS, background=True)
    periodic.start()
    return periodic


class Beat:
    """Decides when the picture of a running search is redrawn.

    After half a minute, a curve that is redrawn five times a second moves by half a percent of its
    width each time, and the browser takes its share of the cores from the search.
    """

    def __init__(self) -> None:
        self._drawn_at = -math.inf

    def due(self, elapsed_s: float, now_s: float | None = None) -> bool:
        """Is a redraw due for a search that has run ``elapsed_s``? If so, the next beat begins.

        Args:
            elapsed_s: since the search began.
            now_s: time of a steady clock; by default the machine's.
        """
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._drawn_at < min(SLOWEST_S, GROWTH * elapsed_s):
            return False
        self._drawn_at = now_s
        return True

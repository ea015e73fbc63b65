"""How often pages look at what jobs and threads have done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from panel.io.callbacks import PeriodicCallback

#: Curves have to come five times a second or more, and each time costs the search a little.
TICK_MS = 180
#: While nothing runs: two dozen pages that tick for nothing cost a sixth of a core.
IDLE_MS = 250


def ticker(call: Callable[[], Any]) -> PeriodicCallback:
    """Begin to call ``call`` every ``TICK_MS`` for as long as the page is open.

    It runs in the background: else Panel says before and after each call that the page is busy, and
    keeping that account takes ten times as long as a call that has nothing to do.
    """
    periodic = PeriodicCallback(callback=call, period=TICK_MS, background=True)
    periodic.start()
    return periodic

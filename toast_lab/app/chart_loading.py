"""Load HoloViews while nobody waits for it.

It takes half a second of a core or more, so the first page does without it. Once that page is on
screen, charts are loaded in the background, so that the first visit to a page with charts does not
wait either.
"""

from __future__ import annotations

import importlib
import threading

#: after the first page is on screen, so that its remaining requests come first
DELAY_S = 2.0
_begun = threading.Event()


def load_ahead() -> None:
    """Begin to load charts in a thread; calls after the first do nothing."""
    if not _begun.is_set():
        _begun.set()
        timer = threading.Timer(DELAY_S, importlib.import_module, ["toast_lab.views.search_chart"])
        timer.daemon = True
        timer.start()

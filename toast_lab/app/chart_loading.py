"""HoloViews, loaded while nobody waits for it.

It takes half a second of a core and more, so the first page does without.  Once that is on screen,
charts are loaded beside it, so that the first visit to a page that has some need not wait either.
"""

from __future__ import annotations

import importlib
import threading

#: from the first page on screen, so that what it still asks for comes first
DELAY_S = 2.0
_begun = threading.Event()


def load_ahead() -> None:
    """Begin to load charts in a thread; calls after the first do nothing."""
    if not _begun.is_set():
        _begun.set()
        timer = threading.Timer(DELAY_S, importlib.import_module, ["toast_lab.views.search_chart"])
        timer.daemon = True
        timer.start()

"""The stages of loading, for progress displays: tracing, lowering, reading.

A listener is installed explicitly, since a child that traces may have a protocol of its own with
its parent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_LISTENERS: list[Callable[[str], None]] = []


def tell(stage: str) -> None:
    """Tell the listeners that a stage begins."""
    for listener in _LISTENERS:
        listener(stage)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with every stage that begins within the block, in any thread."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)

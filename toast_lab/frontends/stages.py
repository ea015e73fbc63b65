"""Where loading stands, for whoever shows it: tracing, lowering, reading.

A listener is asked for explicitly, since a child that traces may have a protocol of its own with
its parent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_LISTENERS: list[Callable[[str], None]] = []


def tell(stage: str) -> None:
    """Say that a stage begins."""
    for listener in _LISTENERS:
        listener(stage)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with every stage that begins within the block.

    Stages count in any thread of this process.
    """
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)

"""Work in a thread that a page waits for without standing still."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple


class PendingWork(NamedTuple):
    """What a thread works out, and what it is of."""

    subject: Any
    future: Future[Any]


class Pending:
    """One piece of work at a time; a newer one takes its place."""

    def __init__(self) -> None:
        self._work: PendingWork | None = None

    def start(self, subject: Any, future: Future[Any]) -> None:
        """Wait for ``future``, which is about ``subject``."""
        self._work = PendingWork(subject, future)

    def drop(self) -> None:
        """Wait no longer."""
        self._work = None

    def done(self) -> PendingWork | None:
        """What has been worked out, once; None while a thread is at it or nothing was asked."""
        work = self._work
        if work is None or not work.future.done():
            return None
        self._work = None
        return work

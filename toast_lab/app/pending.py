"""Work in a thread that a page waits for without standing still."""

from __future__ import annotations

from collections.abc import Callable
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
        self._next: tuple[Any, Callable[[], Future[Any]]] | None = None

    def start(self, subject: Any, future: Future[Any]) -> None:
        """Wait for ``future``, which is about ``subject``."""
        self._work, self._next = PendingWork(subject, future), None

    def start_next(self, subject: Any, submit: Callable[[], Future[Any]]) -> None:
        """Wait for what ``submit`` starts at the next question whether it is done.

        A thread that began at once would take half of the time of what the page shows first.
        """
        self._work, self._next = None, (subject, submit)

    def drop(self) -> None:
        """Wait no longer."""
        self._work = self._next = None

    def done(self) -> PendingWork | None:
        """What has been worked out, once; None while a thread is at it or nothing was asked."""
        if self._next is not None:
            subject, submit = self._next
            self.start(subject, submit())
        work = self._work
        if work is None or not work.future.done():
            return None
        self._work = None
        return work

"""Work in a thread, for which a page waits without blocking."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple


class PendingWork(NamedTuple):
    """The result that a thread computes, and the subject that it is about."""

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
        """Wait for the work that ``submit`` starts, at the next call of ``done``.

        A thread that began at once would take half of the processor time from what the page shows
        first.
        """
        self._work, self._next = None, (subject, submit)

    def drop(self) -> None:
        """Wait no longer."""
        self._work = self._next = None

    def done(self) -> PendingWork | None:
        """The finished work, given once; None while a thread is at work or nothing was started."""
        if self._next is not None:
            subject, submit = self._next
            self.start(subject, submit())
        work = self._work
        if work is None or not work.future.done():
            return None
        self._work = None
        return work

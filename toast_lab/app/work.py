"""The one job that a page runs at a time.

Work that can take long runs as a job. ``tick`` takes in its reports, in the caller's thread, and
hands them to the part of the session that started it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import param

from toast_lab.app.items import Level
from toast_lab.app.notices import Notices
from toast_lab.app.state_part import StatePart
from toast_lab.errors import ToastError
from toast_lab.jobs.job import JOBS, Event, Job, JobState, Registry


class Handler(NamedTuple):
    """Callbacks by which a part of the session handles a kind of job."""

    done: Callable[[Job], None]  #: the job has its result
    report: Callable[[Event], None] = lambda event: None
    lost: Callable[[Job], None] = lambda job: None  #: the job failed or was cancelled


class Work(StatePart):
    """The job of a page, running or over."""

    job: Any = param.Parameter(default=None, doc="the job that runs, or the last one")
    changes: Any = param.Integer(
        default=0, doc="counts up whenever something about the job changed"
    )
    context: Any = param.Parameter(
        default=None, doc="data that the part that started the job needs at its end"
    )
    seen: Any = param.Integer(default=0, doc="how many of the job's reports have been taken in")
    settled: Any = param.Boolean(default=True, doc="whether the job's end has been taken in")

    def __init__(self, notices: Notices, registry: Registry | None = None) -> None:
        super().__init__()
        self.notices = notices
        self.registry = JOBS if registry is None else registry  # an empty registry is false
        self._handlers: dict[str, Handler] = {}

    def handle(self, kind: str, handler: Handler) -> None:
        """Register the handler for jobs of a kind."""
        self._handlers[kind] = handler

    @property
    def busy(self) -> bool:
        """Does a job of this page run?"""
        return self.job is not None and (self.job.running or not self.settled)

    def runs(self, *kinds: str) -> bool:
        """Does a job of one of these kinds run? Without kinds: does any?"""
        job = self.job
        return job is not None and job.running and (not kinds or job.kind in kinds)

    def awaits(self, kind: str) -> bool:
        """Does a job of this kind run, or is its result not yet taken in?"""
        return self.busy and self.job.kind == kind

    @property
    def paused(self) -> bool:
        """Is the job paused?"""
        return self.job is not None and self.job.state is JobState.PAUSED

    def check_idle(self) -> None:
        """Raises ToastError if a job of this page runs."""
        if self.busy:
            raise ToastError(f"{self.job.title} is still running; wait for it or cancel it first")

    def start(
        self, kind: str, title: str, target: Any, *args: Any, context: Any = None, **kwargs: Any
    ) -> Job:
        """Start a job, see ``Registry.start``.

        Args:
            kind: a kind that has a handler.
            title: text for users.
            target: what the job does.
            args: of the target.
            context: kept as ``context``.
            kwargs: for ``Registry.start`` and the target.

        Raises:
            ToastError: a job of this page runs, or too many jobs of all pages do.
        """
        self.check_idle()
        job = self.registry.start(kind, title, target, *args, **kwargs)
        self.watch(job, context)
        return job

    def watch(self, job: Job, context: Any = None) -> None:
        """Follow a job from its beginning."""
        self.seen, self.settled, self.context = 0, False, context
        self.job = job
        self.changed()

    def changed(self) -> None:
        """Let pages know that something about the job changed."""
        self.changes += 1

    def drop(self, kind: str) -> None:
        """Kill a job of this kind, if one runs, and forget it: nobody waits for its result."""
        if self.awaits(kind):
            self.job.cancel()
            self.param.update(job=None, settled=True)
            self.changed()

    def cancel(self) -> None:
        """Kill the running job."""
        if self.runs():
            self.job.cancel()
            self.changed()

    def tick(self) -> None:
        """Take in the reports of the job since the last call, and its end."""
        job = self.job
        if job is None or self.settled:
            return
        # Read this first: everything logged before the end is in the log by then
        ended = job.finished.is_set()
        events = job.since(self.seen)
        self.seen += len(events)
        handler = self._handlers[job.kind]
        for event in events:
            handler.report(event)
        if ended:
            self._settle(job, handler)
        if events or ended:
            self.changed()

    def _settle(self, job: Job, handler: Handler) -> None:
        self.settled = True
        with self.notices.guarded():
            if job.state is JobState.DONE:
                handler.done(job)
                return
            level: Level = "info" if job.state is JobState.CANCELLED else "error"
            self.notices.say(job.message, level)
            handler.lost(job)

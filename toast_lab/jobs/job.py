"""Jobs: work in child processes that pages watch, pause, step, stop and cancel.

A job outlives the page that started it. Its event log only grows, so a page resumes reading where
it left off, and a second page opened later sees the same events. A worker that crashes, hangs or
runs out of memory ends its job with a message; the registry and all pages carry on.
"""

from __future__ import annotations

import enum
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.errors import ToastError
from toast_lab.jobs.mirror import Mirror
from toast_lab.jobs.orders import RUN, STOP, Order

MAX_RUNNING = 4
MAX_KEPT = 64
PATIENCE_S = 10.0  #: grace period between telling a search to stop and killing it


class JobState(enum.Enum):
    """The state of a job."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(NamedTuple):
    """One entry of a job's event log."""

    number: int
    at_s: float  #: seconds since the job began
    data: Any


class Watch(NamedTuple):
    """The link between a job and a function that starts its own child processes."""

    on_event: Callable[[Any], None]  #: called with each event to report
    cancel: Callable[[], bool]  #: polled; True means end at once
    order: Callable[[], Order]  #: the order in force


class Job:
    """One piece of work in a child process, created by ``Registry.start``."""

    def __init__(self, kind: str, title: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.kind = kind
        self.title = title
        self.state = JobState.RUNNING
        self.events: list[Event] = []
        self.result: Any = None
        self.message = ""
        self.error: Exception | None = None  #: why it failed
        self.about: Any = None  #: context for a page that looks the job up by its id
        self.mirror = Mirror()  #: copy of a search's trace
        self.started = time.monotonic()
        self.ended: float | None = None
        self._paused_s = 0.0  #: total time of the pauses that are over
        self._paused_at: float | None = None
        self.finished = threading.Event()
        self._cancel = threading.Event()
        self._lock = threading.Lock()
        self._order = RUN
        self._worker: isolate.ChildWorker | None = None

    # -- reading -----------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        """Is the child still alive, whether working or paused?"""
        return not self.finished.is_set()

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start to the end, or to now if the job is running."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def worked_s(self) -> float:
        """``elapsed_s`` minus the time spent paused."""
        paused_at = self._paused_at
        last_s = 0.0 if paused_at is None else (self.ended or time.monotonic()) - paused_at
        return self.elapsed_s - self._paused_s - last_s

    def since(self, index: int) -> list[Event]:
        """Events from number ``index`` onwards."""
        with self._lock:
            return self.events[index:]

    # -- control -----------------------------------------------------------------------------------
    def cancel(self) -> None:
        """Kill the child; it is gone within a second."""
        self._cancel.set()

    def pause(self, at: int = 0) -> None:
        """Pause after simulation ``at``, or at once if more are done already."""
        self._hold(Order("pause", at))

    def step(self, done: int) -> None:
        """Do one simulation more than ``done``, then pause."""
        self.pause(done + 1)

    def step_round(self, done: int) -> None:
        """Show the rest of the round in progress after ``done`` simulations, then pause."""
        self._hold(Order("round", done))

    def resume(self) -> None:
        """Continue after a pause."""
        if self.running:
            self._count_pause()
            self.state = JobState.RUNNING
            self._give(RUN)

    def stop(self) -> None:
        """Ask a search to end and return its best plan so far.

        A search that does not answer within ``PATIENCE_S`` is killed.
        """
        self._count_pause()
        if self.running:
            self.state = JobState.RUNNING
        self._give(STOP)

    @property
    def stopping(self) -> bool:
        """Was the search asked to end with its best plan so far?"""
        return self._order is STOP

    def _count_pause(self) -> None:
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
            self._paused_at = None

    def _hold(self, order: Order) -> None:
        if self.running:
            if self._paused_at is None:
                self._paused_at = time.monotonic()
            self.state = JobState.PAUSED
            self._give(order)

    def _give(self, order: Order) -> None:
        with self._lock:
            self._order = order
            self._send_order()

    def _send_order(self) -> None:
        if self._worker is None:
            return
        if self._order is STOP:
            self._worker.ask_to_end(PATIENCE_S)
        else:
            self._worker.command(self._order)

    # -- in the job's thread -----------------------------------------------------------------------
    def _work(self, target: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        time_limit_s = kwargs.pop("time_limit_s")
        watch = Watch(self._append, self._cancel.is_set, lambda: self._order)
        if not isinstance(target, str):
            return target(*args, watch=watch, **kwargs)
        initial_order = self._order
        # If the child got the order only once it runs, it would be some simulations ahead
        commands = () if initial_order in (RUN, STOP) else (initial_order,)
        with isolate.ChildWorker(
            target,
            *args,
            activity=self.title,
            commands=commands,
            **kwargs,
        ) as worker:
            with self._lock:
                self._worker = worker
                if self._order is not initial_order or initial_order is STOP:
                    self._send_order()
            return worker.result(time_limit_s, on_event=watch.on_event, cancel=watch.cancel)

    def _run(self, target: str | Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Do the work and record how it ended; raises nothing."""
        try:
            self.result = self._work(target, *args, **kwargs)
            self._end(JobState.DONE, f"{self.title}: done in {self.elapsed_s:.1f} s")
        except isolate.Cancelled:
            self._end(JobState.CANCELLED, f"{self.title}: cancelled after {self.elapsed_s:.1f} s")
        except ToastError as error:
            self.error = error
            self._end(JobState.FAILED, str(error))
        except Exception as error:  # a worker must never take the page down
            self.error = error
            self._end(JobState.FAILED, f"{self.title}: {type(error).__name__}: {error}")

    def _end(self, state: JobState, message: str) -> None:
        self.state, self.message = state, message
        self.ended = time.monotonic()
        self.finished.set()

    def _append(self, data: Any) -> None:
        if self.mirror.take(data):
            return
        with self._lock:
            self.events.append(Event(len(self.events), time.monotonic() - self.started, data))


class Registry:
    """All jobs of this server process, the newest last."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    def find(self, job_id: str) -> Job | None:
        """The job with an id, which cannot be guessed; None if it is unknown."""
        return self._jobs.get(job_id)

    def start(
        self,
        kind: str,
        title: str,
        target: str | Callable[..., Any],
        *args: Any,
        time_limit_s: float = 600.0,
        on_end: Callable[[Job], None] | None = None,
        about: Any = None,
        order: Order = RUN,
        **kwargs: Any,
    ) -> Job:
        """Run ``package.module:function`` in a child process, as a job that users see.

        A callable that starts its own child processes is accepted too; it runs in a thread.

        Args:
            kind: "load", "search", "race", "run", "compile", "audit" or "export".
            title: the job's name for users.
            target: function of the installed package; or a callable that takes a ``Watch`` as
                ``watch`` and passes it on to the children that it starts.
            args: positional arguments of ``target``; pickled.
            time_limit_s: the child is killed after this time; ignored if ``target`` is a callable.
            on_end: called in the job's thread when the job has ended, for whatever reason.
            about: kept as ``Job.about``.
            order: the order in force when a search begins.
            kwargs: keyword arguments of ``target``; pickled.

        Raises:
            ToastError: ``MAX_RUNNING`` jobs are running already.
        """
        with self._lock:
            running = self.running()
            if len(running) >= MAX_RUNNING:
                raise ToastError(
                    f"{len(running)} jobs are running already; cancel one or wait for one: "
                    f"{', '.join(job.title for job in running)}"
                )
            job = Job(kind, title)
            job.about = about
            if order != RUN:
                job._hold(order)
            self._jobs[job.id] = job
            self._forget_old()

        def work() -> None:
            job._run(target, *args, time_limit_s=time_limit_s, **kwargs)
            if on_end is not None:
                on_end(job)

        threading.Thread(target=work, name=f"job {title}", daemon=True).start()
        return job

    def _forget_old(self) -> None:
        ended = [job for job in self._jobs.values() if not job.running]
        for ended_job in ended[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[ended_job.id]

    def running(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in list(self._jobs.values()) if job.running]

    def cancel_all(self) -> None:
        """Cancel all jobs, when the server shuts down."""
        for job in list(self._jobs.values()):
            job.cancel()


JOBS = Registry()  # one per server process: all page sessions share the imported modules

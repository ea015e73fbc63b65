"""Jobs: work in child processes that pages watch, pause, step, stop and cancel.

A job outlives the page that started it.  Its event log only grows, so a page reads on from where it
was, and a second page that asks later sees the same.  A worker that crashes, hangs or runs out of
memory ends its job with a message; the registry and every page go on.

The control of a running search is one small file that the child reads between simulations: ``run``,
``pause N`` (stand still once N simulations are shown; a step is N + 1), ``round N`` (show the round
of what comes after N simulations to its end, then stand still) or ``stop``.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.app.mirror import Mirror
from toast_lab.errors import ToastError

MAX_RUNNING = 4
MAX_KEPT = 64
MAX_TRACES = 16  #: left by searches, to be resumed


class JobState(enum.Enum):
    """Where a job stands."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(NamedTuple):
    """One line of a job's log."""

    number: int
    at_s: float  #: seconds since the job began
    data: Any


class Job:
    """One piece of work in a child process.  Made by ``Registry.start``."""

    def __init__(self, kind: str, title: str, folder: Path) -> None:
        self.id = secrets.token_urlsafe(12)
        self.kind = kind
        self.title = title
        self.state = JobState.RUNNING
        self.events: list[Event] = []
        self.result: Any = None
        self.message = ""
        self.error: Exception | None = None  #: why it failed
        self.about: Any = None  #: what a page needs that finds the job by its id
        self.mirror = Mirror()  #: of a search's trace
        self.trace_path: Path | None = None  #: where a search leaves its trace
        self.started = time.monotonic()
        self.ended: float | None = None
        self.finished = threading.Event()
        self._cancel = threading.Event()
        self._lock = threading.Lock()
        self._folder = folder
        self._write("run")

    # -- reading -----------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        """Is the child still at work, paused or not?"""
        return not self.finished.is_set()

    @property
    def elapsed_s(self) -> float:
        """Seconds from start to end, or to now."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def control_path(self) -> str:
        """The control file."""
        return str(self._folder / "control")

    def since(self, index: int) -> list[Event]:
        """Events from number ``index`` on."""
        with self._lock:
            return self.events[index:]

    @property
    def left_trace(self) -> bool:
        """Is there a trace that the search can be resumed from?"""
        return not self.running and self.trace_path is not None and self.trace_path.exists()

    # -- control -----------------------------------------------------------------------------------
    def cancel(self) -> None:
        """Kill the child; it is gone within a second."""
        self._cancel.set()

    def pause(self, at: int = 0) -> None:
        """Stand still after simulation ``at``, or at once if more are done already."""
        if self.running:
            self.state = JobState.PAUSED
            self._write(f"pause {at}")

    def step(self, done: int) -> None:
        """Do one simulation more than ``done`` and stand still."""
        self.pause(done + 1)

    def step_round(self, done: int) -> None:
        """Show the rest of the round that goes on after ``done`` simulations and stand still."""
        if self.running:
            self.state = JobState.PAUSED
            self._write(f"round {done}")

    def resume(self) -> None:
        """Go on."""
        if self.running:
            self.state = JobState.RUNNING
            self._write("run")

    def stop(self) -> None:
        """Ask for what was found so far.

        A child that does not answer is killed by ``Registry``.
        """
        self._write("stop")

    def _write(self, text: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the job ended and its folder is gone
            part = self._folder / "control.part"
            part.write_text(text)
            os.replace(part, self._folder / "control")

    def _append(self, data: Any) -> None:
        if self.mirror.take(data):
            return
        with self._lock:
            self.events.append(Event(len(self.events), time.monotonic() - self.started, data))


class Registry:
    """All jobs of this server process, newest last."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._kept: tempfile.TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def find(self, job_id: str) -> Job | None:
        """A job by its id, which cannot be guessed."""
        return self._jobs.get(job_id)

    def start(
        self,
        kind: str,
        title: str,
        target: str | Callable[..., Any],
        *args: Any,
        time_limit_s: float = 600.0,
        on_end: Callable[[Job], None] | None = None,
        controlled: bool = False,
        leaves_trace: bool = False,
        about: Any = None,
        **kwargs: Any,
    ) -> Job:
        """Run ``package.module:function`` in a child, as a job that people see.

        A function that makes its own child may be given as well; it runs in a thread.

        Args:
            kind: "load", "search", "race" or "run".
            title: what people read.
            target: function of the installed package; or a callable that takes ``on_event`` and
                ``cancel`` and gives them to the child that it starts.
            args: pickled.
            time_limit_s: the child is killed after that.
            on_end: called in the job's thread when it ended, however it ended.
            controlled: give the function the path of the control file as ``control``.
            leaves_trace: give the function a path as ``keep``, which becomes ``Job.trace_path``.
            about: kept as ``Job.about``.
            kwargs: pickled.

        Raises:
            ToastError: too much is running already.
        """
        with self._lock:
            running = [j for j in self._jobs.values() if j.running]
            if len(running) >= MAX_RUNNING:
                raise ToastError(
                    f"{len(running)} jobs are running already; cancel one or wait for one: "
                    f"{', '.join(j.title for j in running)}"
                )
            folder = Path(tempfile.mkdtemp(prefix="toast-lab-job-"))
            job = Job(kind, title, folder)
            job.about = about
            self._jobs[job.id] = job
            for old in [j for j in self._jobs.values() if not j.running][
                : max(0, len(self._jobs) - MAX_KEPT)
            ]:
                del self._jobs[old.id]
            if leaves_trace:
                job.trace_path = self.keep_file(job.id)
                kwargs["keep"] = str(job.trace_path)
        if controlled:
            kwargs["control"] = job.control_path

        def work() -> None:
            try:
                watch: dict[str, Any] = {"on_event": job._append, "cancel": job._cancel.is_set}
                if callable(target):
                    job.result = target(*args, **watch, **kwargs)
                else:
                    job.result = isolate.run_in_child(
                        target,
                        *args,
                        time_limit_s=time_limit_s,
                        env={"JAX_PLATFORMS": "cpu"},
                        what=title,
                        **watch,
                        **kwargs,
                    )
                job.state, job.message = (
                    JobState.DONE,
                    f"{title}: done in {time.monotonic() - job.started:.1f} s",
                )
            except isolate.Cancelled:
                job.state, job.message = (
                    JobState.CANCELLED,
                    f"{title}: cancelled after {time.monotonic() - job.started:.1f} s",
                )
            except ToastError as error:
                job.error = error
                job.state, job.message = JobState.FAILED, str(error)
            except Exception as error:  # a worker must never take the page down
                job.error = error
                job.state, job.message = (
                    JobState.FAILED,
                    f"{title}: {type(error).__name__}: {error}",
                )
            finally:
                job.ended = time.monotonic()
                shutil.rmtree(folder, ignore_errors=True)
                job.finished.set()
                if on_end is not None:
                    on_end(job)

        threading.Thread(target=work, name=f"job {title}", daemon=True).start()
        return job

    def keep_file(self, name: str) -> Path:
        """Path of a new file that lives as long as the server.

        It goes earlier once ``MAX_TRACES`` newer ones are there.
        """
        if self._kept is None:
            self._kept = tempfile.TemporaryDirectory(prefix="toast-lab-traces-")
        folder = Path(self._kept.name)
        old = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
        for path in old[: max(0, len(old) - MAX_TRACES + 1)]:
            path.unlink(missing_ok=True)
        return folder / f"{name}.npz"

    def stop(self, job: Job, patience_s: float = 5.0) -> None:
        """Ask a search to give what it found; kill it if it does not answer in time."""
        job.stop()

        def later() -> None:
            if not job.finished.wait(patience_s):
                job.cancel()

        threading.Thread(target=later, daemon=True).start()

    def running(self) -> list[Job]:
        """Those that have not ended."""
        return [job for job in list(self._jobs.values()) if job.running]

    def cancel_all(self) -> None:
        """Cancel everything, for the end of the server."""
        for job in list(self._jobs.values()):
            job.cancel()


JOBS = Registry()  # one a server process: imported modules are shared by all page sessions

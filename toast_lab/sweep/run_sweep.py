"""``run_sweep``: tasks on workers, rows in a file.

Workers are child processes of this one (``local.py``) or those of a ``dask.distributed`` scheduler
(``remote.py``).  A task whose worker died is tried again on another; one that goes on killing its
workers becomes a row with status CRASHED.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from toast_lab.errors import NotSaved
from toast_lab.files import PathLike
from toast_lab.isolate import Cancel
from toast_lab.search import search_child
from toast_lab.sweep.local import LocalPool
from toast_lab.sweep.remote import remote_pool
from toast_lab.sweep.rows import row_offence
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.sweep.task import Finished, SweepTask, TaskRow

FAREWELL_S = 30.0  # that running tasks have to hand over what they found


class Workers(NamedTuple):
    """Who does the tasks of a sweep, and how often."""

    #: address of a running scheduler, such as "tcp://host:8786"; None: processes of this machine
    scheduler: str | None = None
    #: processes on this machine; searches of more than one share the cores and take longer
    processes: int = 1
    #: how often a search whose process died is tried again, and a task whose worker died
    retries: int = 1
    #: also do tasks again whose row says CRASHED or FAILED
    retry_crashed: bool = False


ONE_WORKER = Workers()


class SweepProgress(NamedTuple):
    """How far a sweep is; sent when a task starts or ends."""

    done: int
    total: int
    row: TaskRow | None  #: the one that just came in
    running: tuple[str, ...]  #: what goes on now


class Sweep(NamedTuple):
    """What a sweep left behind."""

    rows: list[TaskRow]  #: of the tasks that have one, in the order of the tasks
    n_new: int  #: rows of this run; the others are from earlier ones
    missing: list[SweepTask]  #: cancelled before they were done
    #: rows that the store's file did not take, of those above
    not_kept: Sequence[TaskRow] = ()
    failure: str = ""  #: why it did not


class Pool(Protocol):
    """Who does tasks."""

    @property
    def slots(self) -> int:
        """How many tasks can be under way at once."""

    def submit(self, task: SweepTask) -> None:
        """Let a worker do a task."""

    def finished(self) -> list[Finished]:
        """Tasks that have ended since the last call, with their rows."""

    def stop(self) -> None:
        """Ask every search to end with what it has."""

    def close(self) -> None:
        """Leave what still runs."""


def run_sweep(
    tasks: Sequence[SweepTask],
    store: SweepStore,
    workers: Workers = ONE_WORKER,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
    cancel: Cancel | None = None,
) -> Sweep:
    """Do every task that has no row yet.

    A file that takes no more rows (a full disk) ends the sweep; what could not be kept is given
    with the others.

    Args:
        tasks: what to search.
        store: where rows are kept; nobody else can write to it meanwhile.
        workers: who does the tasks; one process of this machine by default.
        on_progress: called in this thread.
        cancel: polled ten times a second; True ends the sweep and keeps the rows that are there.

    Raises:
        InvalidProblem: ``distributed`` is not installed, or no scheduler answers at the address.
        RunFailed: the scheduler is gone, or no worker can be started; rows are kept.
        StoreError: another sweep writes to the same file.
    """
    unique = {task.digest: task for task in tasks}
    again = (search_child.CRASHED, search_child.FAILED) if workers.retry_crashed else ()
    with store.claimed():
        todo = [
            task
            for digest, task in unique.items()
            if digest not in store or store.rows[digest]["status"] in again
        ]
        done = len(unique) - len(todo)
        drive = _Drive(todo, done, store, on_progress=on_progress, cancel=cancel)
        if todo:
            with _pool(workers) as pool:
                drive.all(pool)
    return Sweep(
        rows=[store.rows[digest] for digest in unique if digest in store],
        n_new=drive.n_new,
        missing=[task for digest, task in unique.items() if digest not in store],
        not_kept=drive.not_kept,
        failure=drive.failure,
    )


def _pool(workers: Workers) -> contextlib.AbstractContextManager[Pool]:
    if workers.scheduler:
        return remote_pool(workers.scheduler, workers.retries)
    return LocalPool(workers.processes, workers.retries)


class _Drive:
    """Hands out tasks and keeps their rows."""

    def __init__(
        self,
        todo: Sequence[SweepTask],
        done: int,
        store: SweepStore,
        on_progress: Callable[[SweepProgress], None] | None,
        cancel: Cancel | None,
    ) -> None:
        self.todo = todo
        self.done = done
        self.store = store
        self.on_progress = on_progress
        self.cancel = cancel
        self.running: dict[SweepTask, None] = {}
        self.n_new = 0
        self.not_kept: list[TaskRow] = []
        self.failure = ""

    def all(self, pool: Pool) -> None:
        """Until every task has a row, or the sweep is cancelled."""
        waiting = collections.deque(self.todo)
        told_at = 0.0
        while waiting or self.running:
            if not told_at and (self.failure or (self.cancel is not None and self.cancel())):
                pool.stop()
                waiting.clear()
                told_at = time.monotonic()
            if told_at and time.monotonic() - told_at > FAREWELL_S:
                pool.close()
                return
            slots = pool.slots
            while waiting and len(self.running) < slots:
                task = waiting.popleft()
                pool.submit(task)
                self.running[task] = None
                self._tell(None)
            for task, row in pool.finished():
                del self.running[task]
                if row["status"] != search_child.CANCELLED:
                    self._keep(row)
            time.sleep(0.1)

    def _keep(self, row: TaskRow) -> None:
        try:
            self.store.add(row)
        except NotSaved as error:
            self.store.rows[row["digest"]] = row
            self.not_kept.append(row)
            self.failure = self.failure or str(error)
        self.n_new += 1
        self._tell(row)

    def _tell(self, row: TaskRow | None) -> None:
        if self.on_progress is not None:
            total = self.done + len(self.todo)
            self.on_progress(
                SweepProgress(self.done + self.n_new, total, row, tuple(map(str, self.running)))
            )


def open_store(folder: PathLike) -> SweepStore:
    """The rows of a sweep's folder."""
    return SweepStore(Path(folder) / "rows.jsonl", row_offence)

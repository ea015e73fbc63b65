"""``run_sweep``: run tasks on workers and keep their rows in a file.

Workers are child processes of this one (``local.py``) or those of a ``dask.distributed`` scheduler
(``remote.py``). A task whose worker died is tried again on another; a task that keeps killing its
workers becomes a row with status CRASHED.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from toast_lab.errors import NotSaved
from toast_lab.files import PathLike
from toast_lab.isolate import Cancel
from toast_lab.search import search_child
from toast_lab.sweep.local import LocalPool, SameProcess
from toast_lab.sweep.remote import RemotePool, remote_pool
from toast_lab.sweep.rows import row_offence
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.sweep.task import SweepTask, TaskRow

FAREWELL_S = 30.0  # time for running tasks to hand over their results


class Workers(NamedTuple):
    """The workers of a sweep, and how often they try a task."""

    #: address of a running scheduler, such as "tcp://host:8786"; None: processes on this machine
    scheduler: str | None = None
    #: processes on this machine; with several, searches share the cores and take longer; 0: tasks
    #: are done in this process
    processes: int = 1
    #: how often to retry a search whose process died, or a task whose worker died
    retries: int = 1
    #: also repeat tasks whose row says CRASHED or FAILED
    retry_crashed: bool = False


ONE_WORKER = Workers()


class SweepProgress(NamedTuple):
    """The progress of a sweep; sent when a task starts or ends."""

    done: int
    total: int
    row: TaskRow | None  #: of the task that ended; None when one starts
    running: tuple[str, ...]  #: the tasks under way, as text


class Sweep(NamedTuple):
    """The outcome of a sweep."""

    rows: list[TaskRow]  #: of the tasks that have one, in the order of the tasks
    n_new: int  #: number of rows from this run; the others are from earlier ones
    missing: list[SweepTask]  #: cancelled before they were done
    #: those of ``rows`` that could not be written to the store's file
    not_kept: Sequence[TaskRow] = ()
    failure: str = ""  #: why they could not be written; empty if all were


#: Workers that do tasks: they take some with ``submit``, and give those that have ended with
#: ``finished``.
Pool = LocalPool | SameProcess | RemotePool


def run_sweep(
    tasks: Sequence[SweepTask],
    store: SweepStore,
    workers: Workers | Pool = ONE_WORKER,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
    cancel: Cancel | None = None,
) -> Sweep:
    """Do every task that has no row yet.

    If a row cannot be written (a full disk), the sweep ends; rows that could not be kept are given
    with the others.

    Args:
        tasks: the searches.
        store: where rows are kept; no other process can write to it meanwhile.
        workers: for the tasks; one process on this machine by default. A pool that is open
            already stays open, for the tasks of further calls.
        on_progress: called in this thread.
        cancel: polled ten times a second; True ends the sweep and keeps the rows so far.

    Raises:
        InvalidProblem: ``distributed`` is not installed, or no scheduler answers at the address.
        RunFailed: the scheduler is gone, or no worker can be started; rows are kept.
        StoreError: another sweep writes to the same file.
    """
    unique = {task.digest: task for task in tasks}
    retry_crashed = isinstance(workers, Workers) and workers.retry_crashed
    repeated_statuses = (search_child.CRASHED, search_child.FAILED) if retry_crashed else ()
    with store.claimed():
        todo = [
            task
            for digest, task in unique.items()
            if digest not in store or store.rows[digest]["status"] in repeated_statuses
        ]
        done = len(unique) - len(todo)
        driver = _TaskDriver(todo, done, store, on_progress=on_progress, cancel=cancel)
        if todo:
            with (
                pool_of(workers)
                if isinstance(workers, Workers)
                else contextlib.nullcontext(workers) as pool
            ):
                driver.all(pool)
    return Sweep(
        rows=[store.rows[digest] for digest in unique if digest in store],
        n_new=driver.n_new,
        missing=[task for digest, task in unique.items() if digest not in store],
        not_kept=driver.not_kept,
        failure=driver.failure,
    )


def pool_of(workers: Workers) -> contextlib.AbstractContextManager[Pool]:
    """The pool of these workers, which ends with the block."""
    if workers.scheduler:
        return remote_pool(workers.scheduler, workers.retries)
    if not workers.processes:
        return contextlib.closing(SameProcess())
    return contextlib.closing(LocalPool(workers.processes, workers.retries))


@dataclasses.dataclass
class _TaskDriver:
    """Hands out tasks and keeps their rows."""

    todo: Sequence[SweepTask]
    done: int
    store: SweepStore
    on_progress: Callable[[SweepProgress], None] | None
    cancel: Cancel | None
    running: dict[SweepTask, None] = dataclasses.field(default_factory=dict)
    n_new: int = 0
    not_kept: list[TaskRow] = dataclasses.field(default_factory=list)
    failure: str = ""

    def all(self, pool: Pool) -> None:
        """Run until every task has a row, or the sweep is cancelled or fails."""
        waiting = collections.deque(self.todo)
        stopped_at = 0.0
        while waiting or self.running:
            if not stopped_at and (self.failure or (self.cancel is not None and self.cancel())):
                pool.stop()
                waiting.clear()
                stopped_at = time.monotonic()
            if stopped_at and time.monotonic() - stopped_at > FAREWELL_S:
                pool.close()
                return
            slots = pool.slots
            while waiting and len(self.running) < slots:
                task = waiting.popleft()
                pool.submit(task)
                self.running[task] = None
                self._tell(None)
            finished = pool.finished()
            for task, row in finished:
                del self.running[task]
                if row["status"] != search_child.CANCELLED:
                    self._keep(row)
            if not finished:
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

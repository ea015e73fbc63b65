"""Workers of this machine.

They are child processes that stay, keep the models that they loaded, and take one task at a time.

A worker that dies, at whatever moment, is noticed by its pipe and replaced.  The task that it was
doing is done again by another one, a few times at most; rows that it had sent are in the pipe and
are not lost.

Start reading at ``LocalPool``.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
from typing import Any

from toast_lab import isolate
from toast_lab.errors import RunFailed
from toast_lab.search import search_child
from toast_lab.search.methods import METHODS, reference
from toast_lab.sweep import sweep_worker
from toast_lab.sweep.task import Finished, SweepTask, TaskRow

SERVE = "toast_lab.sweep.local:serve"  #: what runs in a worker
RUN = "toast_lab.sweep.sweep_worker:run_task"  #: what a worker does with a task
#: Workers share the machine's cores, so that a library's own threads would be too many.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
FUTILE = 5  #: workers in a row that die before they can take a task: then no further one is started


class Ready:
    """A worker says that it can take a task."""


@dataclasses.dataclass
class _Place:
    """One of the pool's workers, or its successor."""

    process: isolate.ChildWorker
    ready: bool = False  #: it has said so
    task: SweepTask | None = None  #: what it is doing


class LocalPool:
    """Does tasks on ``workers`` child processes.  A context: leaving it ends them."""

    def __init__(self, workers: int, retries: int) -> None:
        self.retries = retries
        self._waiting: collections.deque[SweepTask] = collections.deque()
        self._deaths: collections.Counter[SweepTask] = collections.Counter()
        self._futile = 0
        self._stopped = False
        self._places: list[_Place] = []
        try:
            for _ in range(max(1, workers)):
                self._places.append(_Place(_start()))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def slots(self) -> int:
        """How many tasks can be under way at once."""
        return len(self._places)

    def submit(self, task: SweepTask) -> None:
        """Let a worker do a task, as soon as one is free."""
        self._waiting.append(task)
        self._hand_out()

    def finished(self) -> list[Finished]:
        """Tasks that have ended since the last call, with their rows.

        Raises:
            RunFailed: workers die before they can take a task.
        """
        rows: list[Finished] = []
        if self._stopped:
            rows += [(task, _cancelled(task)) for task in self._waiting]
            self._waiting.clear()
        for place in self._places:
            for _, message in place.process.arrived(0.0):
                if message[0] != "event":
                    ended = self._died(place, message)
                    if ended is not None:
                        rows.append(ended)
                    break  # what may follow is the end of the same process
                if isinstance(message[1], Ready):
                    place.ready, self._futile = True, 0
                elif place.task is not None:
                    rows.append((place.task, message[1]))
                    place.task = None
        self._hand_out()
        return rows

    def stop(self) -> None:
        """Ask every search to end with what it has."""
        self._stopped = True
        for place in self._places:
            place.process.ask_to_end()

    def close(self) -> None:
        """End the workers, whatever they do."""
        for place in self._places:
            place.process.stop()
        self._places = []

    def _hand_out(self) -> None:
        for place in self._places:
            if self._waiting and place.ready and place.task is None:
                task = place.task = self._waiting.popleft()
                place.process.command((RUN, task, reference(METHODS[task.method]), self.retries))

    def _died(self, place: _Place, message: isolate.Message) -> Finished | None:
        """Replace a worker.  Gives its task with a row if that is not to be tried again."""
        task, error = place.task, place.process.failure(message)
        place.process.stop()
        if not place.ready:
            self._futile += 1
            if self._futile >= FUTILE:
                raise RunFailed(
                    f"{FUTILE} workers in a row died before they could take a search: {error}"
                )
        place.process, place.ready, place.task = _start(), False, None
        if task is None:
            return None
        if self._stopped:
            return task, _cancelled(task)
        self._deaths[task] += 1
        if self._deaths[task] <= self.retries:
            self._waiting.appendleft(task)
            return None
        return task, sweep_worker.failed_row(
            task, RunFailed(f"{sweep_worker.DEATH}: {error}"), search_child.CRASHED
        )


def _cancelled(task: SweepTask) -> TaskRow:
    return sweep_worker.row_without_plan(task, search_child.CANCELLED, "")


def _start() -> isolate.ChildWorker:
    return isolate.ChildWorker(SERVE, env=ENVIRONMENT, activity="a worker of the sweep")


# -- in the worker ---------------------------------------------------------------------------------
def serve() -> None:
    """Do the tasks that the pool sends, one after the other, until it is gone."""
    isolate.report(Ready())
    while (command := isolate.next_command()) is not None:
        run, task, target, retries = command
        module, _, function = run.partition(":")
        try:
            row = getattr(importlib.import_module(module), function)(
                task, target, retries, isolate.end_is_asked
            )
        except Exception as error:
            row = sweep_worker.failed_row(task, error)
        isolate.report(row)

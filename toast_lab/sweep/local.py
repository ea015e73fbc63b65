"""Workers on this machine.

They are long-lived child processes that keep the models they loaded and take one task at a time.

Whenever a worker dies, its pipe reveals it, and the worker is replaced. Its task is done again by
another one, ``retries`` times at most; rows that it had already sent are in the pipe and are not
lost.

Start reading at ``LocalPool``.
"""

from __future__ import annotations

import collections
import dataclasses
import pkgutil

from toast_lab import isolate
from toast_lab.errors import RunFailed
from toast_lab.search import search_child
from toast_lab.search.methods import METHODS, reference
from toast_lab.sweep import sweep_worker
from toast_lab.sweep.task import Finished, SweepTask, TaskRow

SERVE_FUNCTION = "toast_lab.sweep.local:serve"  #: the function that runs in a worker
RUN_FUNCTION = (
    "toast_lab.sweep.sweep_worker:run_task"  #: the function that a worker applies to a task
)
#: Workers share the machine's cores, so further threads of libraries would be too many.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MAX_FUTILE_WORKERS = (
    5  #: workers in a row that die before they can take a task, after which the pool gives up
)


class Ready:
    """A worker's message that it can take a task."""


@dataclasses.dataclass
class _Place:
    """A place in the pool: a worker, or the successor that replaced it."""

    process: isolate.ChildWorker
    ready: bool = False  #: it has sent ``Ready``
    task: SweepTask | None = None  #: the task under way


class LocalPool:
    """Does tasks on ``workers`` child processes, which ``close`` ends."""

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

    @property
    def slots(self) -> int:
        """How many tasks can be under way at once."""
        return len(self._places)

    def submit(self, task: SweepTask) -> None:
        """Give a task to a worker, as soon as one is free."""
        self._waiting.append(task)
        self._hand_out()

    def finished(self) -> list[Finished]:
        """Tasks that have ended since the last call, with their rows.

        Raises:
            RunFailed: MAX_FUTILE_WORKERS workers in a row died before they could take a task.
        """
        rows: list[Finished] = []
        if self._stopped:
            rows += [(task, _cancelled(task)) for task in self._waiting]
            self._waiting.clear()
        for place in self._places:
            for _, message in place.process.arrived(0.0):
                if message[0] != "event":
                    given_up = self._died(place, message)
                    if given_up is not None:
                        rows.append(given_up)
                    break  # any further message is about the end of the same process
                if isinstance(message[1], Ready):
                    place.ready, self._futile = True, 0
                elif place.task is not None:
                    rows.append((place.task, message[1]))
                    place.task = None
        self._hand_out()
        return rows

    def stop(self) -> None:
        """Ask every search to end with the best plan it has."""
        self._stopped = True
        for place in self._places:
            place.process.ask_to_end()

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for place in self._places:
            place.process.stop()
        self._places = []

    def _hand_out(self) -> None:
        for place in self._places:
            if self._waiting and place.ready and place.task is None:
                task = place.task = self._waiting.popleft()
                run = task.run_function or RUN_FUNCTION
                place.process.command((run, task, reference(METHODS[task.method]), self.retries))

    def _died(self, place: _Place, message: isolate.Message) -> Finished | None:
        """Replace a dead worker. Gives its task with a row, unless the task is tried again."""
        task, error = place.task, place.process.failure(message)
        place.process.stop()
        if not place.ready:
            self._futile += 1
            if self._futile >= MAX_FUTILE_WORKERS:
                raise RunFailed(
                    f"{MAX_FUTILE_WORKERS} workers in a row died before they could take a search: "
                    f"{error}"
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


class SameProcess:
    """Does tasks in this process, one when asked for those that have finished.

    For short tasks on small models, for which starting processes takes longer than the work. A task
    that crashes takes this process with it.
    """

    slots = 1

    def __init__(self) -> None:
        self._waiting: collections.deque[SweepTask] = collections.deque()
        self._stopped = False

    def submit(self, task: SweepTask) -> None:
        """Take a task."""
        self._waiting.append(task)

    def finished(self) -> list[Finished]:
        """Do the next task, and give it with its row."""
        if not self._waiting:
            return []
        task = self._waiting.popleft()
        if self._stopped:
            return [(task, _cancelled(task))]
        target = reference(METHODS[task.method])
        run = task.run_function or RUN_FUNCTION
        return [(task, _run(run, task, target, 0, cancel=lambda: self._stopped))]

    def stop(self) -> None:
        """Do no further task."""
        self._stopped = True

    def close(self) -> None:
        """Forget the tasks that wait."""
        self._waiting.clear()


def _cancelled(task: SweepTask) -> TaskRow:
    return sweep_worker.row_without_plan(task, search_child.CANCELLED, "")


def _start() -> isolate.ChildWorker:
    return isolate.ChildWorker(SERVE_FUNCTION, env=ENVIRONMENT, activity="a worker of the sweep")


# -- in the worker ---------------------------------------------------------------------------------
def serve() -> None:
    """Do the tasks that the pool sends, one after the other, until the pool is gone."""
    isolate.report(Ready())
    while (command := isolate.next_command()) is not None:
        run, task, target, retries = command
        isolate.report(_run(run, task, target, retries, cancel=isolate.end_is_asked))


def _run(run: str, task: SweepTask, target: str, retries: int, cancel: isolate.Cancel) -> TaskRow:
    """Apply the function "module:function" to a task, and give its row or that of its failure."""
    try:
        row: TaskRow = pkgutil.resolve_name(run)(task, target, retries, cancel)
        return row
    except Exception as error:
        return sweep_worker.failed_row(task, error)

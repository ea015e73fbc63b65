"""Workers of a ``dask.distributed`` scheduler, on any machines.

Only as many tasks are submitted at once as there are worker threads, so that a worker that dies
loses only its current tasks and rows come in the order of the tasks. The scheduler gives a task
whose worker died to another one, and gives up after as many deaths as its own configuration allows
(``distributed.scheduler.allowed-failures``). No task is bound to one worker, since a worker that is
gone may never come back.

Start reading at ``RemotePool``.
"""

from __future__ import annotations

import contextlib
import logging
import pkgutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toast_lab.errors import InvalidProblem, RunFailed
from toast_lab.search import search_child
from toast_lab.search.methods import METHODS, reference
from toast_lab.sweep import sweep_worker
from toast_lab.sweep.task import Finished, SweepTask, TaskRow

CONNECT_S = 20.0
LOOK_S = 1.0  # between a worker's checks for a stop, each of which is a message to the scheduler
FETCH_S = 10.0  # time for one row; if its worker died, the scheduler has it made again
NO_WORKERS_S = 300.0  # time that a scheduler may lack workers, which may be queued on a cluster


def distributed() -> Any:
    """The module ``distributed``. Raises InvalidProblem with how to install it."""
    try:
        import distributed as found
    except ImportError:
        raise InvalidProblem(
            '--scheduler needs dask.distributed: pip install "toast-lab[bench]"'
        ) from None
    return found


@contextlib.contextmanager
def remote_pool(scheduler: str, retries: int) -> Iterator[RemotePool]:
    """Connect to the workers of a scheduler by its address.

    Raises:
        InvalidProblem: ``distributed`` is not installed, or no scheduler with workers answers.
    """
    dask = distributed()
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(dask.Client(scheduler, timeout=CONNECT_S))
            client.wait_for_workers(1, timeout=CONNECT_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise InvalidProblem(
                f"no scheduler with workers answered at {scheduler} within {CONNECT_S:g} s: "
                f'{error}. Start one with "dask scheduler" and "dask worker ADDRESS", or leave the '
                "address out."
            ) from None
        stop_event = dask.Event(f"toast-lab-stop-{uuid.uuid4().hex}", client=client)
        try:
            yield RemotePool(client, stop_event, retries)
        finally:
            # Otherwise it would report the connections that now close
            logging.getLogger("distributed").setLevel(logging.CRITICAL)


class RemotePool:
    """Does tasks on the workers that a client sees."""

    def __init__(self, client: Any, stop: Any, retries: int) -> None:
        self.client, self.retries = client, retries
        self._stop = stop
        self._running: dict[Any, SweepTask] = {}
        self._parcels: dict[str, Any] = {}
        self._seen_at = time.monotonic()

    @property
    def slots(self) -> int:
        """How many tasks can be under way at once."""
        return max(1, sum(self.client.nthreads().values()))

    def submit(self, task: SweepTask) -> None:
        """Give a task to any worker, so that it does not wait for one that died."""
        key = f"{task.digest}-{uuid.uuid4().hex[:8]}"
        future = self.client.submit(
            on_worker,
            task,
            reference(METHODS[task.method]),
            self.retries,
            stop_name=self._stop.name,
            parcel=self._parcel(task),
            key=key,
            pure=False,
        )
        self._running[future] = task

    def _parcel(self, task: SweepTask) -> Any:
        """The bytes of the task's parcel, which each worker gets once; None if it has none."""
        if not task.parcel:
            return None
        if task.parcel not in self._parcels:
            self._parcels[task.parcel] = self.client.scatter(Path(task.parcel).read_bytes())
        return self._parcels[task.parcel]

    def finished(self) -> list[Finished]:
        """Tasks that have ended since the last call, with their rows.

        Raises:
            RunFailed: the scheduler is gone, or has had no worker for minutes.
        """
        rows = []
        workers = self.client.nthreads()
        for future in [future for future in self._running if future.done()]:
            try:
                row = self._row(future, self._running[future])
            except TimeoutError:
                continue  # its worker died with the row, which is being made again
            rows.append((self._running.pop(future), row))
        self._look_for_workers(workers)
        return rows

    def stop(self) -> None:
        """Ask every search to end with the best plan it has."""
        self._stop.set()

    def close(self) -> None:
        """Cancel the tasks that still run."""
        self.client.cancel(list(self._running))

    def _look_for_workers(self, workers: Any) -> None:
        if not self._running or workers:
            self._seen_at = time.monotonic()
        elif time.monotonic() - self._seen_at > NO_WORKERS_S:
            raise RunFailed(
                f"the scheduler has had no worker for {NO_WORKERS_S:g} s. Rows are kept; start "
                "workers and run the same sweep again to continue."
            )

    def _row(self, future: Any, task: SweepTask) -> TaskRow:
        if future.status == "finished":
            row: TaskRow = future.result(timeout=FETCH_S)
            return row
        if future.status in ("cancelled", "lost"):
            raise RunFailed(
                "the scheduler is gone, or lost its tasks. Rows are kept; run the same sweep "
                "again to continue."
            )
        error = future.exception(timeout=FETCH_S)
        if isinstance(error, distributed().KilledWorker):
            return sweep_worker.failed_row(
                task, RunFailed(sweep_worker.DEATH), search_child.CRASHED
            )
        return sweep_worker.failed_row(task, error)


def on_worker(
    task: SweepTask, target: str, retries: int, stop_name: str, parcel: bytes | None = None
) -> TaskRow:
    """Run a task on a worker, which checks now and then whether the sweep was cancelled."""
    dask = distributed()
    stop_event = dask.Event(stop_name, client=dask.get_client())
    checked_at, stopped = 0.0, False

    def cancel() -> bool:
        nonlocal checked_at, stopped
        if not stopped and time.monotonic() - checked_at > LOOK_S:
            checked_at = time.monotonic()
            with contextlib.suppress(OSError, TimeoutError):
                stopped = bool(stop_event.is_set())
        return stopped

    if not task.run_function:
        return sweep_worker.run_task(task, target, retries, cancel)
    run = pkgutil.resolve_name(task.run_function)
    row: TaskRow = run(task, target, retries, cancel, data=parcel)
    return row

"""``run_sweep``: tasks on a ``dask.distributed`` cluster, rows in a file.

As many tasks are out as there are worker threads, so that a worker that dies takes along only what it was doing and
rows come in the order of the tasks.  A task whose worker died is tried again on another; one that goes on killing its
workers becomes a row with status CRASHED.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toast_lab.errors import InvalidProblem, RunFailed, ToastError
from toast_lab.search import child
from toast_lab.search.methods import METHODS
from toast_lab.sweep import worker
from toast_lab.sweep.rows import row_offence
from toast_lab.sweep.store import Store
from toast_lab.sweep.task import Task

CONNECT_S = 20.0
FAREWELL_S = 30.0  # that running tasks have to hand over what they found
LOOK_S = 1.0  # between a worker's looks whether it is to stop: each is a message to the scheduler


class Progress(NamedTuple):
    """How far a sweep is; sent when a task starts or ends."""

    done: int
    total: int
    row: dict[str, Any] | None  #: the one that just came in
    running: tuple[str, ...]  #: what goes on now


class Sweep(NamedTuple):
    """What a sweep left behind."""

    rows: list[dict[str, Any]]  #: of the tasks that have one, in the order of the tasks
    made: int  #: rows of this run; the others were there
    missing: list[Task]  #: cancelled before they were done


def run_sweep(
    tasks: Sequence[Task],
    store: Store,
    *,
    scheduler: str | None = None,
    workers: int = 1,
    retries: int = 1,
    retry_crashed: bool = False,
    warm: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Sweep:
    """Do every task that has no row yet.

    Args:
        tasks: what to search.
        store: where rows are kept.
        scheduler: address of a running scheduler, such as "tcp://host:8786"; None starts workers on this machine.
        workers: processes of the local cluster.  Searches of more than one share the cores, so their times are longer.
        retries: how often a search whose process died is tried again, and a task whose worker died.
        retry_crashed: also do tasks again whose row says CRASHED or FAILED.
        warm: run each method once on a small model first, so that kernels are compiled before a clock runs.
        on_progress: called in this thread.
        cancel: polled ten times a second; True ends the sweep and keeps the rows that are there.

    Raises:
        InvalidProblem: ``distributed`` is not installed, or no scheduler answers at the address.
        RunFailed: the scheduler is gone; rows are kept.
    """
    wanted = list({t.digest: t for t in tasks}.values())
    again = (child.CRASHED, child.FAILED) if retry_crashed else ()
    todo = [t for t in wanted if t.digest not in store or store.rows[t.digest]["status"] in again]
    made = 0
    if todo:
        with _cluster(scheduler, workers, retries) as (client, stop):
            if warm:
                _warm(client, todo, cancel)
            made = _drive(client, stop, todo, len(wanted) - len(todo), store, retries, on_progress, cancel)
    missing = [t for t in wanted if t.digest not in store]
    return Sweep([store.rows[t.digest] for t in wanted if t.digest in store], made, missing)


def distributed() -> Any:
    """The module, or InvalidProblem that says how to get it."""
    try:
        import distributed as found
    except ImportError:
        raise InvalidProblem('sweeps need dask.distributed: pip install "toast-lab[bench]"') from None
    return found


@contextlib.contextmanager
def _cluster(scheduler: str | None, workers: int, retries: int) -> Iterator[tuple[Any, Any]]:
    """(client, event that tells workers to stop)."""
    dd = distributed()
    import dask

    name = f"toast-lab-stop-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": retries}))
            cluster = stack.enter_context(
                dd.LocalCluster(
                    n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
                    silence_logs=logging.CRITICAL, host="127.0.0.1",
                )
            )  # fmt: skip
            client = stack.enter_context(dd.Client(cluster))
            # A terminal's Ctrl-C goes to the whole group of processes; what to do about it is decided here.
            client.register_plugin(_deaf_to_interrupts(dd)())
        else:
            try:
                client = stack.enter_context(dd.Client(scheduler, timeout=CONNECT_S))
                client.wait_for_workers(1, timeout=CONNECT_S)
            except (OSError, TimeoutError, ValueError) as error:
                raise InvalidProblem(
                    f"no scheduler with workers answers at {scheduler} within {CONNECT_S:g} s: {error}. Start one with "
                    '"dask scheduler" and "dask worker ADDRESS", or leave the address out.'
                ) from None
        event = dd.Event(name, client=client)
        try:
            yield client, event
        finally:
            logging.getLogger("distributed").setLevel(logging.CRITICAL)  # of connections that close now


def _deaf_to_interrupts(dd: Any) -> Any:
    class Deaf(dd.WorkerPlugin):  # type: ignore[misc, name-defined]
        def setup(self, worker: Any) -> None:
            import signal

            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    return Deaf


def _warm(client: Any, todo: Sequence[Task], cancel: Callable[[], bool] | None) -> None:
    """Compile every method's kernels on each worker's machine; what goes wrong here goes wrong again, with a row."""
    for method in dict.fromkeys(t.method for t in todo):
        task = Task.make("mlp", {}, "2x2", "tpu-v5e", method, seconds=5.0)
        hosts = {info["host"]: address for address, info in client.scheduler_info(-1)["workers"].items()}
        futures = [
            client.submit(worker.run_task, task, METHODS[method], 0, pure=False, workers=[address])
            for address in hosts.values()
        ]
        while not all(f.done() for f in futures):
            if cancel is not None and cancel():
                client.cancel(futures)
                return
            time.sleep(0.1)


def _drive(
    client: Any,
    stop: Any,
    todo: Sequence[Task],
    done: int,
    store: Store,
    retries: int,
    on_progress: Callable[[Progress], None] | None,
    cancel: Callable[[], bool] | None,
) -> int:
    waiting = collections.deque(todo)
    running: dict[Any, Task] = {}
    total, made, told_at = done + len(todo), 0, 0.0

    def tell(row: dict[str, Any] | None) -> None:
        if on_progress is not None:
            on_progress(Progress(done + made, total, row, tuple(str(t) for t in running.values())))

    while waiting or running:
        if not told_at and cancel is not None and cancel():
            stop.set()
            waiting.clear()
            told_at = time.monotonic()
        if told_at and time.monotonic() - told_at > FAREWELL_S:
            client.cancel(list(running))
            break
        slots = max(1, sum(client.nthreads().values()))
        while waiting and len(running) < slots:
            task = waiting.popleft()
            key = f"{task.digest}-{uuid.uuid4().hex[:8]}"
            target = METHODS[task.method]
            running[client.submit(_on_worker, task, target, retries, stop.name, key=key, pure=False)] = task
            tell(None)
        for future in [f for f in running if f.done()]:
            task = running.pop(future)
            row = _finished(future, task)
            if row["status"] == child.CANCELLED:
                continue
            store.add(row)
            made += 1
            tell(row)
        time.sleep(0.1)
    return made


def _on_worker(task: Task, target: str, retries: int, stop_name: str) -> dict[str, Any]:
    """``run_task`` on a worker, which looks now and then whether the sweep was cancelled."""
    dd = distributed()
    event = dd.Event(stop_name, client=dd.get_client())
    looked_at, stopped = 0.0, False

    def cancel() -> bool:
        nonlocal looked_at, stopped
        if not stopped and time.monotonic() - looked_at > LOOK_S:
            looked_at = time.monotonic()
            with contextlib.suppress(OSError, TimeoutError):
                stopped = bool(event.is_set())
        return stopped

    return worker.run_task(task, target, retries, cancel)


def _finished(future: Any, task: Task) -> dict[str, Any]:
    if future.status == "finished":
        found: dict[str, Any] = future.result()
        return found
    row = {**worker.task_row(task), "curve": []}
    if future.status in ("cancelled", "lost"):
        raise RunFailed("the scheduler is gone, or lost its tasks. Rows are kept; run the same again to go on.")
    error = future.exception()
    if isinstance(error, distributed().KilledWorker):
        text = (
            "the worker process died each time that this task ran on it, most likely because the machine ran out of "
            "memory or the model's own code ended the process"
        )
        return {**row, "status": child.CRASHED, "message": text}
    status = child.FAILED if isinstance(error, ToastError) else child.CRASHED
    return {**row, "status": status, "message": f"{type(error).__name__}: {error}"}


def default_workers() -> int:
    """Worker processes for a sweep whose times need not be exact."""
    return max(1, (os.cpu_count() or 2) - 1)


def open_store(folder: str | os.PathLike[str]) -> Store:
    """The rows of a sweep's folder."""
    return Store(Path(folder) / "rows.jsonl", row_offence)

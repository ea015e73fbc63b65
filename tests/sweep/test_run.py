"""Sweeps on workers lose nothing, do nothing twice, and record each death as a row."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import descendants, direct_children, started, workers
from tests.search.bad_methods import bring
from toast_lab.errors import InvalidProblem, RunFailed, StoreError
from toast_lab.sweep import local, remote, sweep_worker
from toast_lab.sweep.run_sweep import SweepProgress, Workers, open_store, run_sweep
from toast_lab.sweep.table import COLUMNS, table
from toast_lab.sweep.task import SweepTask, tasks_of

ROOT = Path(__file__).parents[2]
SWEEP = {
    "models": ["mlp"],
    "meshes": ["2x2"],
    "methods": ["mcts", "exhaustive"],
    "seeds": [0, 1],
    "evaluations": 30,
}


def task(method: str, **more: Any) -> SweepTask:
    return SweepTask.make(
        "mlp", {}, "2x2", "tpu-v5e", method, **{"seconds": 20.0, "evaluations": 30, **more}
    )


def test_rows_resume_and_table(tmp_path: Path) -> None:
    tasks = tasks_of(SWEEP)
    events: list[SweepProgress] = []
    first = run_sweep(tasks[:3], open_store(tmp_path), on_progress=events.append)
    assert (first.n_new, len(first.missing)) == (3, 0)
    assert [e.done for e in events if e.row] == [1, 2, 3]
    before = (tmp_path / "rows.jsonl").read_text()
    second = run_sweep(tasks, open_store(tmp_path))
    assert second.n_new == 1
    assert (tmp_path / "rows.jsonl").read_text().startswith(before)
    third = run_sweep(tasks, open_store(tmp_path))
    assert third.n_new == 0
    assert third.rows == second.rows
    flat = table(third.rows)
    assert [r["method"] for r in flat] == ["mcts", "mcts", "exhaustive", "exhaustive"]
    assert all(set(r) == set(COLUMNS) for r in flat)
    assert all(
        r["status"] == "BUDGET" and r["score"] <= 1.0 and r["evaluations_limit"] == 30 for r in flat
    )
    problem = sweep_worker.problem_of(tasks[0], sweep_worker.loaded(tasks[0]).analysis)
    from toast_lab.pipeline import search
    from toast_lab.search.contract import Budget

    alone = search(problem, "mcts", seed=0, budget=Budget(None, 30))
    assert flat[0]["score"] == pytest.approx(alone.cost.score, rel=1e-12)
    assert flat[0]["evaluations"] == alone.evaluations


def test_what_kills_its_worker_is_a_row_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One task dies in the child that runs its method; another ends the worker process itself, in
    # the sweep's own function.
    bring(monkeypatch, "dies")
    monkeypatch.setattr(local, "RUN_FUNCTION", "tests.sweep.own_workers:kills_its_worker")
    monkeypatch.setenv("DEATHS", str(tmp_path / "deaths"))
    tasks = [task("dies", evaluations=31), task("mcts", seed=666), task("mcts", seed=1)]
    store = open_store(tmp_path)
    done = run_sweep(tasks, store, Workers(retries=1))
    child_died, worker_died, fine = done.rows
    assert child_died["status"] == "CRASHED"
    assert child_died["attempts"] == 2
    assert "exit status 3" in child_died["message"]
    assert child_died["score"] < 1.0, "what it had found is kept"
    assert worker_died["status"] == "CRASHED"
    assert "worker process died" in worker_died["message"]
    assert (tmp_path / "deaths").read_text() == "xx", "it was tried again once"
    assert fine["status"] == "BUDGET"
    assert run_sweep(tasks, open_store(tmp_path)).n_new == 0
    monkeypatch.undo()
    bring(monkeypatch, "dies")
    again = run_sweep(tasks[1:], open_store(tmp_path), Workers(retry_crashed=True))
    assert again.n_new == 1
    assert again.rows[0]["status"] == "BUDGET"


def test_a_model_that_cannot_be_loaded_is_a_row(tmp_path: Path) -> None:
    rows = [
        sweep_worker.run_task(
            SweepTask.make(
                f"tests.sweep.own_models:{name}", {}, "2", "tpu-v5e", "mcts", evaluations=5
            )
        )
        for name in ("fine", "dies", "absent")
    ]
    assert [r["status"] for r in rows] == ["BUDGET", "FAILED", "FAILED"]
    assert "exit status 7" in rows[1]["message"]
    assert "absent" in rows[2]["message"]
    assert {r["score"] for r in table(rows)[1:]} == {None}


def test_a_worker_loads_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_worker._loaded.cache_clear()
    calls = []
    real = sweep_worker.load
    monkeypatch.setattr(
        sweep_worker, "load", lambda name, **sizes: (calls.append(name), real(name, **sizes))[1]
    )
    a, b = task("mcts"), task("exhaustive", seed=3)
    assert sweep_worker.loaded(a) is sweep_worker.loaded(b)
    assert calls == ["mlp"]


def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(remote, "CONNECT_S", 0.5)
    with pytest.raises(
        InvalidProblem,
        match=r"no scheduler with workers answered at tcp://127.0.0.1:1 .*dask scheduler",
    ):
        run_sweep([task("mcts")], open_store(tmp_path), Workers("tcp://127.0.0.1:1"))


def test_a_scheduler_given_by_its_address(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        done = run_sweep([task("mcts")], open_store(tmp_path), Workers(cluster.scheduler_address))
    assert [r["status"] for r in done.rows] == ["BUDGET"]


def test_cancelled_sweeps_keep_rows_and_leave_no_row_of_what_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, "slow")
    store = open_store(tmp_path)
    tasks = [task("mcts"), task("slow", seconds=300.0, evaluations=None), task("mcts", seed=9)]
    running: list[tuple[str, ...]] = []
    since: list[float] = []

    def cancel() -> bool:
        if running and running[-1] and running[-1][0].startswith("slow"):
            since.append(time.monotonic())
            return since[-1] - since[0] > 3
        return False

    started = time.monotonic()
    done = run_sweep(tasks, store, on_progress=lambda e: running.append(e.running), cancel=cancel)
    assert time.monotonic() - started < 60
    assert [r["method"] for r in done.rows] == ["mcts"]
    assert [(t.method, t.seed) for t in done.missing] == [("slow", 0), ("mcts", 9)]


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "toast_lab.cli",
        "sweep",
        "--models",
        "mlp",
        "--meshes",
        "2x2",
        "--methods",
        "mcts",
        "--seeds",
        "0-40",
        "--evaluations",
        "30",
        "--out",
        str(tmp_path),
        "--json",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    rows = tmp_path / "rows.jsonl"
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as child:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and (
            not rows.exists() or rows.read_bytes().count(b"\n") < 2
        ):
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGKILL)
    kept = rows.read_text()
    n = len(open_store(tmp_path).rows)
    assert 2 <= n < 41
    argv[argv.index("0-40")] = f"0-{n}"
    second = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert second.returncode == 0, second.stderr
    data = json.loads(second.stdout)
    assert (data["made"], data["missing"], len(data["rows"])) == (1, 0, n + 1)
    assert rows.read_text().startswith(kept)
    assert (tmp_path / "table.csv").read_text().count("\n") == n + 2


def test_a_defect_on_a_worker_is_a_row_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RUN_FUNCTION", "tests.sweep.own_workers:raises")
    done = run_sweep([task("mcts"), task("mcts", seed=1)], open_store(tmp_path))
    assert [(r["status"], r["message"]) for r in done.rows] == [
        ("CRASHED", "ZeroDivisionError: a defect")
    ] * 2


def test_workers_that_cannot_start_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SERVE_FUNCTION", "tests.sweep.own_workers:never_ready")
    with pytest.raises(
        RunFailed, match=r"5 workers in a row died before they could take a search: .*exit status 9"
    ):
        run_sweep([task("mcts")], open_store(tmp_path))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_worker_that_dies_with_its_first_search_is_replaced(tmp_path: Path) -> None:
    """The worker is killed as soon as a search runs on it, and so is its replacement."""
    killed = Killer(2, searching)
    with killed:
        done = run_sweep(
            [task("random", seed=s) for s in range(3)],
            open_store(tmp_path),
            Workers(retries=2),
            cancel=given_up(180),
        )
    assert len(killed.pids) == 2
    assert [r["status"] for r in done.rows] == ["BUDGET"] * 3
    assert done.missing == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_worker_of_a_scheduler_that_dies_does_not_hold_the_sweep(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    killed = Killer(1, searching_for_a_scheduler)
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        killed,
    ):
        done = run_sweep(
            [task("random", seconds=60.0, evaluations=None)],
            open_store(tmp_path),
            Workers(cluster.scheduler_address),
            cancel=given_up(120),
        )
    assert len(killed.pids) == 1
    assert [r["status"] for r in done.rows] == ["CONVERGED"]


def given_up(seconds: float) -> Callable[[], bool]:
    """A cancel that ends a sweep after some seconds, in case it hangs."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def searching(before: set[int]) -> list[int]:
    """The new worker on which a search runs: of several new processes, it is the oldest."""
    new = workers(os.getpid()) - before
    return [min(new, key=started)] if len(new) > 1 else []


def searching_for_a_scheduler(before: set[int]) -> list[int]:
    """Our new child processes that run a search in a child of their own."""
    return [pid for pid in direct_children(os.getpid()) if pid not in before and workers(pid)]


class Killer:
    """Kills ``count`` workers, each as soon as ``find`` says that a search runs on it.

    Earlier processes are left alone: one may be, say, the driver of a browser that tests in other
    files still use.
    """

    def __init__(self, count: int, find: Callable[[set[int]], list[int]]) -> None:
        self.count, self.pids = count, []
        self._find = find
        self._before = {pid for pid, _ in descendants(os.getpid())}
        self._through = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._through.set()
        self._thread.join()

    def _work(self) -> None:
        while len(self.pids) < self.count and not self._through.wait(0.05):
            for pid in self._find(self._before | set(self.pids))[:1]:
                os.kill(pid, signal.SIGKILL)
                self.pids.append(pid)


def test_a_worker_that_dies_after_a_cancel_is_not_given_its_task_again(tmp_path: Path) -> None:
    with contextlib.closing(local.LocalPool(1, retries=1)) as pool:
        first, second = task("mcts", seconds=300.0, evaluations=None), task("random")
        pool.submit(first)
        pool.submit(second)
        until(lambda: pool.finished() or pool._places[0].task is not None)
        pool.stop()
        pool._places[0].process.stop_process()
        ended: list[tuple[SweepTask, dict[str, Any]]] = []
        until(lambda: ended.extend(pool.finished()) or len(ended) == 2)
    assert {(t.method, row["status"]) for t, row in ended} == {
        ("mcts", "CANCELLED"),
        ("random", "CANCELLED"),
    }


def until(condition: Callable[[], Any], told: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition holds; ``told`` adds details to the message if it never does."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, told()
        time.sleep(0.02)


def test_two_sweeps_in_one_folder_do_not_do_the_same_work_twice(tmp_path: Path) -> None:
    """A second sweep is refused with a message that names the process using the folder.

    Once the first is dead, however it ended, a sweep may go on there.
    """
    argv = [
        "sweep",
        "--models",
        "mlp",
        "--meshes",
        "2x2",
        "--methods",
        "mcts",
        "--evaluations",
        "30",
        "--seeds",
        "0-60",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "said"
    with log.open("wb") as output:
        first = subprocess.Popen(
            [sys.executable, "-m", "toast_lab.cli", *argv, "--out", str(tmp_path)],
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        lock = tmp_path / "rows.jsonl.lock"
        until(lambda: lock.exists() and lock.read_text(), log.read_text)
        with pytest.raises(
            StoreError,
            match=rf"another sweep is adding rows here: process {first.pid} on \S+, since",
        ):
            run_sweep([task("mcts")], open_store(tmp_path))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert f"process {first.pid}" in lock.read_text(), "it had no time to take its name back"
    done = run_sweep([task("random")], open_store(tmp_path))
    assert [r["status"] for r in done.rows] == ["BUDGET"]


def test_a_full_disk_ends_a_sweep_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    run_sweep([task("random")], store)
    before = store.path.read_bytes()
    real = os.write

    def full(handle: int, data: bytes) -> int:
        """Write only a part of the rows, like a disk whose last block fills up."""
        if os.path.realpath(f"/proc/self/fd/{handle}") != str(store.path.resolve()):
            return real(handle, data)
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data[:-50])

    monkeypatch.setattr(os, "write", full)
    done = run_sweep([task("random", seed=s) for s in range(20)], store)
    monkeypatch.undo()
    assert "No space left on device" in done.failure
    assert 1 <= len(done.not_kept) < 19, "no further searches are begun"
    assert len(done.rows) == 1 + len(done.not_kept)
    assert store.path.read_bytes() == before, "no half of a row is left"

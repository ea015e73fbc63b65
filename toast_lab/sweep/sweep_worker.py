"""Do a task in a worker.

The worker loads and analyses the model (once), searches in a child process, and gives a row.

Since the search runs in a child, a method that crashes or hangs ends neither the worker nor the
models that it has loaded.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

from toast_lab.compare.provenance import host_cpu
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.frontends import load
from toast_lab.ir.model import Model
from toast_lab.isolate import Cancel
from toast_lab.prepare import load_present
from toast_lab.runtime.compile_child import versions
from toast_lab.search import search_child
from toast_lab.search.contract import Budget
from toast_lab.search.methods import METHODS, register_if_unknown
from toast_lab.sweep.task import SweepTask, TaskRow

#: Runs once, for all children that are forked to search (``fork_server``).
before_fork = load_present

DEATH = (
    "the worker process died each time that this task ran on it, most likely because the machine "
    "ran out of memory or the model's own code ended the process"
)
KEPT_MODELS = 4  # a large program with its analysis takes some 100 MB
#: Folders whose code decides which plan a search finds; the explorer and the commands do not.
DECIDING = ("ir", "nda", "conflicts", "sharding", "cost", "search", "models", "frontends")


class ReadyModel(NamedTuple):
    """A model ready to make problems of."""

    model: Model
    analysis: Analysis
    load_s: float
    analyse_s: float


@functools.lru_cache(maxsize=KEPT_MODELS)
def _loaded(model: str, sizes: str) -> ReadyModel:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # tracing needs no accelerator
    started = time.monotonic()
    size_values: dict[str, Any] = {
        name: tuple(size) if isinstance(size, list) else size
        for name, size in json.loads(sizes).items()
    }
    traced_model = load(model, **size_values)
    traced = time.monotonic()
    analysis = analyse(traced_model)
    return ReadyModel(traced_model, analysis, traced - started, time.monotonic() - traced)


def loaded(task: SweepTask) -> ReadyModel:
    """The task's model, analysed; the last few are kept."""
    return _loaded(task.model, json.dumps(dict(task.sizes)))


def problem_of(task: SweepTask, analysis: Analysis) -> Problem:
    """The task's problem."""
    limit = None if task.memory_limit_gib is None else task.memory_limit_gib * 2.0**30
    return Problem(analysis, task.mesh, task.machine, memory_limit_bytes=limit)


def run_task(
    task: SweepTask, target: str = "", retries: int = 1, cancel: Cancel | None = None
) -> TaskRow:
    """Do one task and give its row; failures of the task are in the row, and not raised.

    Args:
        task: the search.
        target: "package.module:Class" of a method that this process may not know.
        retries: how often a search whose process died is tried again.
        cancel: polled during the search.
    """
    if target:
        register_if_unknown(task.method, target)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    row = {**task_row(task), **where(), "date": today}
    try:
        ready = loaded(task)
        problem = problem_of(task, ready.analysis)
    except ToastError as error:
        return {**row, **failed_row(task, error)}
    options = {**expert_options(task.method, ready.model), **dict(task.options)}
    for attempt in range(1 + max(retries, 0)):
        outcome = search_child.search_in_child(
            problem,
            task.method,
            seed=task.seed,
            budget=Budget(task.seconds, task.evaluations),
            options=options,
            cancel=cancel,
        )
        row["attempts"] = attempt + 1
        if outcome.status != search_child.CRASHED or (cancel is not None and cancel()):
            break
    base_time_s, base_peak_bytes = problem.baseline
    last_point = outcome.last
    return {
        **row,
        "program": ready.model.program.digest(),
        "ops": ready.model.program.n_ops,
        "load_s": ready.load_s,
        "analyse_s": ready.analyse_s,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "unsharded_time_s": base_time_s,
        "unsharded_peak_bytes": base_peak_bytes,
        "status": outcome.status,
        "message": outcome.message,
        **{
            key: last_point and getattr(last_point, key)
            for key in ("score", "time_s", "peak_bytes", "fits")
        },
        "evaluations": outcome.evaluations,
        "elapsed_s": outcome.elapsed_s,
        "prepare_s": outcome.prepare_s,
        "own_best_s": last_point.elapsed_s if last_point else None,
        "bound": outcome.bound,
        "actions": list(outcome.actions),
        "curve": [[*point[:6]] for point in outcome.points],
    }


def failed_row(task: SweepTask, error: Exception, status: str = "") -> TaskRow:
    """The row of a task that raised; without a ``status``, the type of the error decides it."""
    if isinstance(error, ToastError):
        return row_without_plan(task, status or search_child.FAILED, str(error))
    message = f"{type(error).__name__}: {error}"
    return row_without_plan(task, status or search_child.CRASHED, message)


def row_without_plan(task: SweepTask, status: str, message: str) -> TaskRow:
    """The row of a task that gave no plan."""
    return {**task_row(task), "curve": [], "status": status, "message": message}


def task_row(task: SweepTask) -> TaskRow:
    """The fields of a row that describe its task.

    ``evaluations_limit`` keeps the limit, since ``evaluations`` becomes the number that were made.
    """
    data = task.to_json()
    limit = data.pop("evaluations")
    return {"digest": task.digest, **data, "evaluations_limit": limit}


def expert_options(method: str, model: Model) -> dict[str, Any]:
    """Options that the model itself brings: the expert plans for a method that tries them."""
    takes_plans = "plans" in METHODS[method].options()
    return {"plans": model.expert_plans} if takes_plans and model.expert_plans else {}


@functools.cache
def where() -> dict[str, Any]:
    """The machine and the code versions with which a row was made."""
    return {
        "cpu": host_cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "code": code_digest(),
        "versions": versions(("jax", "numba", "numpy", "scipy")),
    }


@functools.cache
def code_digest() -> str:
    """8 hex digits, a hash of the code in DECIDING, to see whether rows come from the same code."""
    home = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for stage in DECIDING:
        for path in sorted((home / stage).rglob("*.py")):
            digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]

"""The best plan of each method, compiled ahead of time for TPU v3 and v5e, beside its prediction.

A whole model takes the compiler minutes to hours, so fewer layers, steps or channels are compiled
(``Case.compiled``), and each method searches that smaller program again.  One row for each case,
slice and method, kept like a sweep's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from toast_lab import checks, isolate
from toast_lab.bench.cases import MESH, SLICES, Case, Choice
from toast_lab.cost.problem import price
from toast_lab.errors import NotSaved, ToastError
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.diff import diff_compiled
from toast_lab.search import search_child
from toast_lab.search.contract import Budget
from toast_lab.sweep import worker
from toast_lab.sweep.store import Store
from toast_lab.sweep.task import Task

COMPILE_LIMIT_S = 600.0
COLUMNS = (
    "case",
    "sizes",
    "mesh",
    "topology",
    "method",
    "outcome",
    "time_s",
    "compute_s",
    "comm_s",
    "peak_bytes",
    "fits",
    "collectives",
    "compiled_peak_bytes",
    "compiled_fits",
    "compiled_compute_s",
    "cycles",
    "compiled_collectives",
    "bytes_by_kind",
    "compile_s",
    "error",
)


class Job(NamedTuple):
    """One plan to search for and to compile."""

    case: Case
    topology: str
    task: Task

    @property
    def digest(self) -> str:
        """Names its row."""
        return hashlib.sha256(
            json.dumps([self.topology, self.task.to_json()]).encode()
        ).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.task.method} {self.case.name} for {self.topology}"


def jobs(choice: Choice) -> list[Job]:
    """Every job of a choice, model by model."""
    return list(_jobs(choice))


def _jobs(choice: Choice) -> Iterator[Job]:
    for case in choice.cases:
        for machine, topology in SLICES:
            for method in choice.methods:
                sizes = case.quick if choice.quick else case.compiled
                task = Task.make(
                    case.model,
                    sizes,
                    MESH,
                    machine,
                    method,
                    seed=choice.seed,
                    seconds=choice.compile_seconds,
                )
                yield Job(case, topology, task)


def run_jobs(
    todo: list[Job],
    store: Store,
    *,
    on_progress: Callable[[int, int, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Search and compile what has no row yet; an interrupted job leaves none.

    Gives the rows that the store's file did not take, after which nothing more is done, and why.

    Raises:
        InvalidProblem: libtpu is missing.
    """
    for i, job in enumerate(todo):
        if cancel is not None and cancel():
            break
        if job.digest in store:
            continue
        if on_progress is not None:
            on_progress(i, len(todo), str(job))
        row = _row(job, cancel)
        if row is None:
            continue
        try:
            store.add(row)
        except NotSaved as error:
            store.rows[job.digest] = row
            return [row], str(error)
    return [], ""


def _row(job: Job, cancel: Callable[[], bool] | None) -> dict[str, Any] | None:
    """The job's row, None if it was cancelled."""
    task = job.task
    found = worker.loaded(task)
    problem = worker.problem_of(task, found.analysis)
    outcome = search_child.search_in_child(
        problem,
        task.method,
        seed=task.seed,
        budget=Budget(task.seconds),
        cancel=cancel,
        options=worker.expert_options(task.method, found.model),
    )
    row: dict[str, Any] = {
        "digest": job.digest,
        "case": job.case.name,
        **task.to_json(),
        "topology": job.topology,
        "program": found.model.program.digest(),
        "status": outcome.status,
        **worker.where(),
    }
    if outcome.status == search_child.CANCELLED:
        return None
    if outcome.plan is None:
        return {**row, "error": outcome.message, "outcome": outcome.status}
    cost = price(problem, outcome.plan)
    row |= {
        "time_s": cost.time_s,
        "compute_s": cost.compute_s,
        "comm_s": cost.comm_s,
        "peak_bytes": cost.peak_bytes,
        "fits": cost.fits,
        "actions": list(outcome.actions),
        "collectives": _counts((c.kind, 1.0) for c in cost.collectives),
    }
    try:
        made = compile_plan(
            found.model, outcome.plan, job.topology, time_limit_s=COMPILE_LIMIT_S, cancel=cancel
        )
    except isolate.Cancelled:
        return None
    except ToastError as error:
        if "libtpu" in str(error) and "not installed" in str(error):
            raise
        return {**row, "error": str(error)[:500], "outcome": "no result"}
    both = diff_compiled(problem, outcome.plan, made).bytes_by_kind() if not made.refused else {}
    return {
        **row,
        "outcome": "ok" if made.fits else "OOM",
        "compiled_fits": made.fits,
        "compiled_peak_bytes": made.total_needed_bytes,
        "compiled_compute_s": made.compute_s,
        "cycles": made.cycles,
        "compiled_collectives": None if made.refused else made.counts_by_kind(),
        "bytes_by_kind": {kind: list(sides) for kind, sides in both.items()},
        "compile_s": made.compile_s,
        "compiler": dict(made.versions),
        "temporaries_only": made.needed_temporaries_only,
    }


_TEXTS = ("case", "model", "mesh", "machine", "method", "topology", "status", "outcome")
_NUMBERS = (
    "time_s",
    "compute_s",
    "comm_s",
    "peak_bytes",
    "compiled_peak_bytes",
    "compiled_compute_s",
    "compile_s",
)
_OBJECTS = ("collectives", "compiled_collectives", "bytes_by_kind")


def row_offence(row: Mapping[str, Any]) -> str:
    """What is wrong with a row of the compiled table, empty if nothing is; see ``Store``."""
    for key in _TEXTS:
        if not isinstance(row.get(key), str):
            return f"{key} must be a text, it is {row.get(key)!r:.60}"
    for key in _NUMBERS:
        if row.get(key) is not None and (wrong := checks.number_offence(row[key], 0.0)):
            return f"{key} {wrong}"
    for key in ("sizes", *_OBJECTS):
        if not isinstance(row.get(key), dict if key == "sizes" else dict | None):
            return f"{key} must be an object, it is {row.get(key)!r:.60}"
    return ""


def _counts(pairs: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, count in pairs:
        found[kind] = found.get(kind, 0.0) + count
    return dict(sorted(found.items()))


def table(todo: list[Job], store: Store) -> list[dict[str, Any]]:
    """The rows that are there, in the order of the jobs."""
    rows = [store.rows[job.digest] for job in todo if job.digest in store]
    return [
        {
            **row,
            "sizes": " ".join(f"{k}={v}" for k, v in row["sizes"].items()),
            **{
                k: json.dumps(row[k])
                for k in ("collectives", "compiled_collectives", "bytes_by_kind")
                if row.get(k)
            },
        }
        for row in rows
    ]

"""Compile the best plan of each method ahead of time for TPU v3 and v5e, to check predictions.

A whole model takes the compiler minutes to hours, so fewer layers, steps or channels are compiled
(``COMPILED_SIZES``), and each method searches that smaller program again. There is one row for each
case, slice and method, kept as the rows of a sweep are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evaluation.paper.paper_cases import MESH, Case, Choice
from evaluation.paper.sizes import COMPILED_SIZES, SLICES
from toast_lab import checks, isolate
from toast_lab.cost.problem import price
from toast_lab.errors import NotSaved, ToastError
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.diff import diff_compiled
from toast_lab.search import search_child
from toast_lab.search.contract import Budget
from toast_lab.sweep import sweep_worker
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.sweep.table import assignments_text
from toast_lab.sweep.task import SweepTask, TaskRow

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


class CompileTask(NamedTuple):
    """One plan to search for and to compile."""

    case: Case
    topology: str
    task: SweepTask

    @property
    def digest(self) -> str:
        """16 hex digits that identify its row."""
        content = json.dumps([self.topology, self.task.to_json()])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.task.method} {self.case.name} for {self.topology}"


def jobs(choice: Choice, seconds: float) -> list[CompileTask]:
    """Every job of a choice, grouped by model, each with a search of so many seconds."""
    return [
        CompileTask(
            case,
            topology,
            SweepTask.make(
                case.model,
                case.quick if choice.quick else COMPILED_SIZES[case.model],
                MESH,
                machine=machine,
                method=method,
                seed=choice.seed,
                seconds=seconds,
            ),
        )
        for case, (machine, topology), method in itertools.product(
            choice.cases, SLICES, choice.methods
        )
    ]


def run_jobs(
    todo: list[CompileTask],
    store: SweepStore,
    *,
    on_progress: Callable[[int, int, str], None] | None = None,
    cancel: isolate.Cancel | None = None,
) -> tuple[list[TaskRow], str]:
    """Do the jobs that have no row yet; an interrupted job leaves no row.

    A row that cannot be written ends the run. Gives such rows, and why they could not be written.

    Raises:
        InvalidProblem: libtpu is missing.
    """
    for index, job in enumerate(todo):
        if cancel is not None and cancel():
            break
        if job.digest in store:
            continue
        if on_progress is not None:
            on_progress(index, len(todo), str(job))
        row = _row(job, cancel)
        if row is None:
            continue
        try:
            store.add(row)
        except NotSaved as error:
            store.rows[job.digest] = row
            return [row], str(error)
    return [], ""


def _row(job: CompileTask, cancel: isolate.Cancel | None) -> TaskRow | None:
    """Do a job and give its row, or None if it was cancelled."""
    task = job.task
    ready = sweep_worker.loaded(task)
    problem = sweep_worker.problem_of(task, ready.analysis)
    outcome = search_child.search_in_child(
        problem,
        task.method,
        seed=task.seed,
        budget=Budget(task.seconds),
        cancel=cancel,
        options=sweep_worker.expert_options(task.method, ready.model),
    )
    row: TaskRow = {
        "digest": job.digest,
        "case": job.case.name,
        **task.to_json(),
        "topology": job.topology,
        "program": ready.model.program.digest(),
        "status": outcome.status,
        **sweep_worker.where(),
    }
    if outcome.status == search_child.CANCELLED:
        return None
    if outcome.plan is None:
        return {**row, "error": outcome.message, "outcome": outcome.status}
    cost = price(problem, outcome.plan)
    counts = Counter(collective.kind for collective in cost.collectives)
    row |= {
        "time_s": cost.time_s,
        "compute_s": cost.compute_s,
        "comm_s": cost.comm_s,
        "peak_bytes": cost.peak_bytes,
        "fits": cost.fits,
        "actions": list(outcome.actions),
        "collectives": {kind: float(count) for kind, count in sorted(counts.items())},
    }
    try:
        compiled = compile_plan(
            ready.model, outcome.plan, job.topology, time_limit_s=COMPILE_LIMIT_S, cancel=cancel
        )
    except isolate.Cancelled:
        return None
    except ToastError as error:
        if "libtpu" in str(error) and "not installed" in str(error):
            raise
        return {**row, "error": str(error)[:500], "outcome": "no result"}
    bytes_by_kind = {}
    if not compiled.refused:
        bytes_by_kind = diff_compiled(problem, outcome.plan, compiled).bytes_by_kind()
    return {
        **row,
        "outcome": "ok" if compiled.fits else "OOM",
        "compiled_fits": compiled.fits,
        "compiled_peak_bytes": compiled.total_needed_bytes,
        "compiled_compute_s": compiled.compute_s,
        "cycles": compiled.cycles,
        "compiled_collectives": None if compiled.refused else compiled.counts_by_kind(),
        "bytes_by_kind": {kind: list(sides) for kind, sides in bytes_by_kind.items()},
        "compile_s": compiled.compile_s,
        "compiler": dict(compiled.versions),
        "temporaries_only": compiled.needed_temporaries_only,
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
    """What is wrong with a row of the compiled table, empty if nothing is; see ``SweepStore``."""
    objects = ["sizes", *(key for key in _OBJECTS if row.get(key) is not None)]
    return checks.row_offence(row, texts=_TEXTS, numbers=_NUMBERS, objects=objects)


def table(todo: list[CompileTask], store: SweepStore) -> list[TaskRow]:
    """The rows of those jobs that have one, in the order of the jobs."""
    rows = [store.rows[job.digest] for job in todo if job.digest in store]
    return [
        {
            **row,
            "sizes": assignments_text(row["sizes"]),
            **{name: json.dumps(row[name]) for name in _OBJECTS if row.get(name)},
        }
        for row in rows
    ]

"""Turn rows into the tables of section 5.

Every number on the page and in the charts comes from these tables.

Start reading at ``join``, then ``step_times``.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evaluation.paper.paper_cases import Cell
from toast_lab.search.race import seconds_to
from toast_lab.search.search_child import ImprovementPoint
from toast_lab.sweep.table import assignments_text

Row = Mapping[str, Any]


class CaseResult(NamedTuple):
    """One search of the evaluation that has a row."""

    part: str
    case: str
    x: float
    machine: str
    method: str
    seed: int
    row: Row

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller is better: a plan that fits before any that does not, then the score."""
        return (not self.row["fits"], self.row["score"])

    @property
    def has_plan(self) -> bool:
        """Did the search find a plan?"""
        return self.row.get("score") is not None

    @property
    def points(self) -> list[ImprovementPoint]:
        """The anytime curve."""
        return [ImprovementPoint._make([*numbers, ()]) for numbers in self.row["curve"]]


def join(cells: Iterable[Cell], rows: Mapping[str, Row]) -> list[CaseResult]:
    """The cells that have a row, each with its row."""
    return [
        CaseResult(
            part=cell.part,
            case=cell.case,
            x=cell.x,
            machine=cell.task.machine,
            method=cell.task.method,
            seed=cell.task.seed,
            row=rows[cell.task.digest],
        )
        for cell in cells
        if cell.task.digest in rows
    ]


def problems(results: Iterable[CaseResult]) -> dict[tuple[str, str, str], list[CaseResult]]:
    """Group searches by their problem, (part, case, machine), in order."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = collections.defaultdict(list)
    for result in results:
        groups[result.part, result.case, result.machine].append(result)
    return dict(groups)


STEP_COLUMNS = (
    "part",
    "case",
    "model",
    "sizes",
    "mesh",
    "devices",
    "machine",
    "method",
    "seed",
    "status",
    "time_s",
    "peak_bytes",
    "memory_limit_bytes",
    "fits",
    "outcome",
    "score",
    "unsharded_time_s",
    "unsharded_peak_bytes",
    "actions",
)


def step_times(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """Step time and memory of the best plan of every search.

    ``outcome`` is as in ``outcome()``.
    """
    return [
        {
            **{column: result.row[column] for column in STEP_COLUMNS if column in result.row},
            "part": result.part,
            "case": result.case,
            "sizes": assignments_text(result.row["sizes"]),
            "devices": devices(result.row["mesh"]),
            "outcome": outcome(result),
            "actions": "  ".join(result.row.get("actions") or ()),
        }
        for result in results
    ]


def outcome(result: CaseResult) -> str:
    """Outcome of a search: "ok", "OOM" or why it has no plan.

    "OOM" means that its plan exceeds the device's memory; without a plan it is the search's status.
    """
    if not result.has_plan:
        return str(result.row["status"])
    return "ok" if result.row["fits"] else "OOM"


SEARCH_COLUMNS = (
    "part",
    "case",
    "machine",
    "method",
    "seed",
    "status",
    "evaluations",
    "elapsed_s",
    "own_best_s",
    "close_s",
    "prepare_s",
    "load_s",
    "analyse_s",
    "ops",
    "seconds",
)


def search_times(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """How long every search took.

    ``elapsed_s`` is the whole search, ``own_best_s`` the time to its own best plan, and ``close_s``
    the time to within 1% of the best plan of any method (None: never).
    """
    rows = []
    for group in problems(results).values():
        best = min((result.rank for result in group if result.has_plan), default=None)
        for result in group:
            close = seconds_to(result.points, best) if best else None
            rows.append(
                {
                    **{column: result.row.get(column) for column in SEARCH_COLUMNS},
                    "part": result.part,
                    "case": result.case,
                    "close_s": close,
                }
            )
    return rows


ANYTIME_COLUMNS = (
    "part",
    "case",
    "machine",
    "method",
    "seed",
    "elapsed_s",
    "score",
    "time_s",
    "peak_bytes",
    "fits",
    "simulation",
)


def anytime(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """The anytime curves: a row at each improvement of each search."""
    return [
        {
            "part": result.part,
            "case": result.case,
            "machine": result.machine,
            "method": result.method,
            "seed": result.seed,
            **{name: value for name, value in point._asdict().items() if name != "actions"},
        }
        for result in results
        for point in result.points
    ]


def devices(mesh: str) -> int:
    """Number of devices of a mesh, given as in tasks (``data=8,model=4``)."""
    return math.prod(int(axis.partition("=")[2]) for axis in mesh.split(","))

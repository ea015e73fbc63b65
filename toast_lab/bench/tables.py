"""From rows to the tables of section 5.

Every number on the page and in the charts comes from here.

Start reading at ``join``, then ``step_times``.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab.bench.cases import Cell
from toast_lab.search.race import seconds_to
from toast_lab.search.search_child import Point

Row = Mapping[str, Any]


class Found(NamedTuple):
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
        """Was anything found?"""
        return self.row.get("score") is not None

    @property
    def points(self) -> list[Point]:
        """The anytime curve."""
        return [Point._make([*numbers, ()]) for numbers in self.row["curve"]]


def join(cells: Iterable[Cell], rows: Mapping[str, Row]) -> list[Found]:
    """The cells that have a row, with it."""
    return [
        Found(c.part, c.case, c.x, c.task.machine, c.task.method, c.task.seed, rows[c.task.digest])
        for c in cells
        if c.task.digest in rows
    ]


def problems(found: Iterable[Found]) -> dict[tuple[str, str, str], list[Found]]:
    """Searches of the same problem together, by (part, case, machine), in order."""
    groups: dict[tuple[str, str, str], list[Found]] = collections.defaultdict(list)
    for one in found:
        groups[one.part, one.case, one.machine].append(one)
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


def step_times(found: Iterable[Found]) -> list[dict[str, Any]]:
    """Step time and memory of the best plan of every search.

    ``outcome`` is ok, OOM or the reason for no plan.
    """
    return [
        {
            **{k: one.row.get(k) for k in STEP_COLUMNS if k in one.row},
            "part": one.part,
            "case": one.case,
            "sizes": _sizes(one.row["sizes"]),
            "devices": devices(one.row["mesh"]),
            "outcome": outcome(one),
            "actions": "  ".join(one.row.get("actions") or ()),
        }
        for one in found
    ]


def outcome(one: Found) -> str:
    """Status of a search: "ok", "OOM" or why it has no plan.

    "OOM" is a plan that exceeds the device's memory; without a plan it is the search's own status.
    """
    if not one.has_plan:
        return str(one.row["status"])
    return "ok" if one.row["fits"] else "OOM"


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


def search_times(found: Iterable[Found]) -> list[dict[str, Any]]:
    """How long every search took.

    In all, to its own best, and to within 1% of the best of any (None: never).
    """
    made = []
    for group in problems(found).values():
        best = min((one.rank for one in group if one.has_plan), default=None)
        for one in group:
            close = seconds_to(one.points, best) if best else None
            made.append(
                {
                    **{k: one.row.get(k) for k in SEARCH_COLUMNS},
                    "part": one.part,
                    "case": one.case,
                    "close_s": close,
                }
            )
    return made


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


def anytime(found: Iterable[Found]) -> list[dict[str, Any]]:
    """The anytime curves: a row at each improvement of each search."""
    return [
        {
            "part": one.part,
            "case": one.case,
            "machine": one.machine,
            "method": one.method,
            "seed": one.seed,
            **{k: v for k, v in p._asdict().items() if k != "actions"},
        }
        for one in found
        for p in one.points
    ]


def devices(mesh: str) -> int:
    """Number of devices of a mesh as tasks write it."""
    total = 1
    for item in mesh.split(","):
        total *= int(item.partition("=")[2])
    return total


def _sizes(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in sizes.items())

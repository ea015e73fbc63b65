"""Coverage and divisibility as frames of findings, and as short notes that say what to do."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from toast_lab.conflicts.coverage import Coverage, UnsplitReason, row_cells
from toast_lab.sharding.divisibility import Divisibility, argument_cells, dim_cells
from toast_lab.text import first_items_text, line_text

COVERAGE_COLUMNS = ["op", "count", "FLOPs", "bytes", "finding", "colours", "source", "why"]
FINDINGS = {
    UnsplitReason.NO_RULE: "no rule",
    UnsplitReason.ALL_WHOLE: "computed whole",
    UnsplitReason.KEPT_WHOLE: "result kept whole",
    UnsplitReason.MINOR_FACTOR: "merged dim",
    UnsplitReason.SOME_WHOLE: "some dims whole",
    UnsplitReason.STACKED: "stacked by a loop",
    UnsplitReason.UNKNOWN_TRIPS: "trips unknown",
    UnsplitReason.UNKNOWN_BRANCH: "branch unknown",
    UnsplitReason.WITHOUT_COST: "kernel without FLOPs",
    UnsplitReason.FREE_AXES: "shard_map, free axes",
}
_COVERAGE_CELLS = ["op", "count", "FLOPs", "bytes", "colours", "source", "why"]
_DIMS_CELLS = ["colour", "size", "names", "bytes", "arguments", "remedy"]
DIMS_COLUMNS = ["colour", "size", "names", "bytes", "divided by", "remedy", "arguments"]
ARGUMENT_COLUMNS = ["argument", "type", "size", "of all", "why"]


class Note(NamedTuple):
    """A finding worth knowing; ``level`` is "good", "info" or "error"."""

    text: str
    level: str = "info"


def coverage_frame(report: Coverage) -> pd.DataFrame:
    """One row per op kind and reason; ops that are held whole come first."""
    frame = pd.DataFrame(map(row_cells, report.rows), columns=_COVERAGE_CELLS)
    return frame.assign(finding=[FINDINGS[row.reason] for row in report.rows])[COVERAGE_COLUMNS]


def sizes_frame(report: Divisibility) -> pd.DataFrame:
    """One row per colour and size that some axis of the mesh does not divide.

    Sizes that no axis divides come first.
    """
    rows = (*report.dims, *report.partly)
    frame = pd.DataFrame(map(dim_cells, rows), columns=_DIMS_CELLS)
    divided_by = [", ".join(row.divided_by) or "no axis" for row in rows]
    return frame.assign(**{"divided by": divided_by})[DIMS_COLUMNS]


def whole_arguments_frame(report: Divisibility) -> pd.DataFrame:
    """One row per large argument that every device holds whole, largest first."""
    return pd.DataFrame(map(argument_cells, report.arguments), columns=ARGUMENT_COLUMNS)


def notes(coverage: Coverage, divisibility: Divisibility | None, limit: int = 4) -> list[Note]:
    """A sentence for each report, then its main findings and what would resolve them."""
    held_whole = bool(coverage.whole_rows)
    findings = [Note(_sentence(coverage.headline()), "error" if held_whole else "good")]
    for row in coverage.whole_rows[:limit]:
        findings.append(
            Note(
                f"{row.kind} ({first_items_text((line_text(line) for line, _ in row.lines), 2)}): "
                f"{FINDINGS[row.reason]}"
            )
        )
    if divisibility is not None:
        undivided = bool(divisibility.dims or divisibility.whole_arguments)
        findings.append(Note(_sentence(divisibility.headline()), "info" if undivided else "good"))
        for dim in (*divisibility.dims, *divisibility.partly)[:limit]:
            findings.append(
                Note(f"{dim.colour} = {dim.size} on " + "; on ".join(map(str, dim.misses)))
            )
    return findings


def _sentence(headline: str) -> str:
    return headline[:1].upper() + headline[1:] + "."

"""Bound how far the evaluation's plans are from the best: a search and a proof for each problem.

Rows are kept as they come, so that an interrupted run continues with the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from toast_lab.bench.cases import MESH, OURS, Case
from toast_lab.bench.page import markdown
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.files import write_whole
from toast_lab.frontends import load
from toast_lab.search.contract import Budget, search
from toast_lab.text import csv_text

ROWS_FILE = "gaps.jsonl"


class GapRow(NamedTuple):
    """A problem of the evaluation, the best plan found for it, and the bound proven for it."""

    model: str
    machine: str
    mesh: str
    time_s: float  #: predicted, of the plan found
    peak_bytes: float
    fits: bool
    score: float  #: C(s)
    bound: float | None  #: no plan (that fits, if this one does) has a lower C(s)
    gap: float | None  #: ``score / bound - 1``
    search_s: float
    bound_s: float  #: seconds that the proof took
    settled: bool  #: would more time hardly have raised the bound?
    seconds: tuple[float, float]  #: limits of the search and of the proof


def run_gaps(
    cases: tuple[Case, ...],
    machines: tuple[str, ...],
    folder: Path,
    *,
    search_seconds: float,
    bound_seconds: float,
    quick: bool = False,
    on_progress: Callable[[float, str], None] = lambda share, remark: None,
    cancel: Callable[[], bool] | None = None,
) -> list[GapRow]:
    """Search and prove for every problem that has no row yet; gives all rows.

    Args:
        cases: models at their sizes.
        machines: by name.
        folder: where the rows and tables are kept.
        search_seconds: time limit of each search.
        bound_seconds: time limit of each proof.
        quick: use small sizes, to try out the command.
        on_progress: called with the share that is done and the next problem.
        cancel: polled; True ends the run and keeps the rows so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits = (search_seconds, bound_seconds)
    row_by_problem = {
        (row.model, row.machine): row
        for row in read_rows(folder / ROWS_FILE)
        if tuple(row.seconds) == limits
    }
    rows: list[GapRow] = []
    total = len(cases) * len(machines)
    for case in cases:
        analysis: Analysis | None = None
        for machine in machines:
            if (case.name, machine) not in row_by_problem:
                if cancel is not None and cancel():
                    return rows
                on_progress(len(rows) / total, f"{case.name} on {machine}")
                if analysis is None:
                    analysis = analyse(load(case.model, **(case.quick if quick else case.sizes)))
                row = _row(case, machine, analysis, limits, cancel=cancel)
                if cancel is not None and cancel():
                    return rows
                row_by_problem[case.name, machine] = row
                with (folder / ROWS_FILE).open("a", encoding="utf-8") as file:
                    # The previous line may have been cut off; empty lines are skipped
                    file.write("\n" + json.dumps(row._asdict()) + "\n")
            rows.append(row_by_problem[case.name, machine])
    return rows


def _row(
    case: Case,
    machine: str,
    analysis: Analysis,
    limits: tuple[float, float],
    cancel: Callable[[], bool] | None,
) -> GapRow:
    problem = Problem(analysis, mesh=MESH, machine=machine)
    result = search(
        problem, OURS, budget=Budget(seconds=limits[0]), cancel=cancel, actions_within=0.0
    )
    certified = result.certified(limits[1], cancel)
    assert certified.certificate is not None
    return GapRow(
        model=case.name,
        machine=machine,
        mesh=MESH,
        time_s=result.cost.time_s,
        peak_bytes=result.cost.peak_bytes,
        fits=result.cost.fits,
        score=result.cost.score,
        bound=certified.bound,
        gap=certified.gap,
        search_s=result.elapsed_s,
        bound_s=certified.certificate.elapsed_s,
        settled=certified.certificate.settled,
        seconds=limits,
    )


def read_rows(path: Path) -> list[GapRow]:
    """The rows of a file, without lines that were cut off; none if the file does not exist."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(GapRow(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return rows


def gap_table(rows: list[GapRow]) -> str:
    """The rows as a Markdown table."""
    lines = [
        (
            row.model,
            row.machine,
            f"{row.time_s * 1e3:,.2f} ({row.peak_bytes / 2**30:.3g} GiB)"
            + ("" if row.fits else ", over the limit"),
            "–" if not row.bound else f"{row.time_s * row.bound / row.score * 1e3:,.2f}",
            "–" if row.gap is None else f"{row.gap:.2%}",
            f"{row.bound_s:.0f}" + ("" if row.settled else "+"),
        )
        for row in rows
    ]
    return markdown(
        ("model", "machine", ">plan found, ms", ">no plan below, ms", ">gap", ">proof, s"), lines
    )


def write_tables(rows: list[GapRow], folder: Path) -> list[Path]:
    """Write ``gaps.csv`` and ``gaps.md``."""
    columns = GapRow._fields[:-1]
    table, page = folder / "gaps.csv", folder / "gaps.md"
    write_whole(table, csv_text(columns, [row._asdict() for row in rows]))
    write_whole(page, gap_table(rows) + "\n")
    return [table, page]

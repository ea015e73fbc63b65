"""``python -m evaluation gaps``: bound how far the paper's plans are from the best.

There is a search and a proof for each problem.
Rows are kept as they come, so that an interrupted run continues with the rest.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.pages import table
from evaluation.paper.paper_cases import MESH, OURS, Case, Choice
from evaluation.row_files import append_rows, read_rows
from toast_lab.commands import command_options, output, stopping
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
        for row in read_gaps(folder / ROWS_FILE)
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
                append_rows(folder / ROWS_FILE, [row._asdict()])
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


def read_gaps(path: Path) -> list[GapRow]:
    """The rows of a file; none if the file does not exist."""
    return [GapRow(**row) for row in read_rows(path)]


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
    columns = ("model", "machine", ">plan found, ms", ">no plan below, ms", ">gap", ">proof, s")
    return "\n".join(table(columns, lines))


def write_tables(rows: list[GapRow], folder: Path) -> list[Path]:
    """Write ``gaps.csv`` and ``gaps.md``."""
    columns = GapRow._fields[:-1]
    csv_file, page = folder / "gaps.csv", folder / "gaps.md"
    write_whole(csv_file, csv_text(columns, [row._asdict() for row in rows]))
    write_whole(page, gap_table(rows) + "\n")
    return [csv_file, page]


def main(arguments: Sequence[str]) -> int:
    """Run the searches and proofs without a row, then write the tables; Ctrl-C keeps the rows."""
    parser = ArgumentParser(prog="python -m evaluation gaps", description=__doc__)
    add_option = parser.add_argument
    add_option("--models", nargs="+", metavar="MODEL", help="any of gns, unet, itx, t2b, t7b (all)")
    add_option(
        "--machines", nargs="+", metavar="MACHINE", help="machines to price on (a100 p100 tpu-v3)"
    )
    for name, seconds, what in (("seconds", 20.0, "search"), ("bound", 60.0, "proof")):
        add_option(
            f"--{name}",
            type=command_options.positive,
            default=seconds,
            metavar="SECONDS",
            help=f"time limit of each {what} (%(default)g)",
        )
    add_option("--quick", action="store_true", help="small sizes, to try the command out")
    add_option("--out", required=True, metavar="FOLDER", help="folder for rows and tables")
    args = parser.parse_args(arguments)
    choice = Choice.make(models=args.models, machines=args.machines)
    with stopping.listening(), output.stoppable("proving") as (update, stopped):
        rows = run_gaps(
            choice.cases,
            choice.machines,
            Path(args.out),
            search_seconds=args.seconds,
            bound_seconds=args.bound,
            quick=args.quick,
            on_progress=update,
            cancel=stopped,
        )
    write_tables(rows, Path(args.out))
    print(gap_table(rows))
    missing = len(choice.cases) * len(choice.machines) - len(rows)
    if missing:
        print(f"{missing} problems are missing; repeat the same command to run them.")
    return 130 if missing else 0

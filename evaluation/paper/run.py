"""``run_paper``: run searches that lack a row, then write tables, charts and page from all rows.

All output is computed from ``rows.jsonl`` and ``compiled.jsonl`` in the output folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evaluation import pages
from evaluation.paper import compiled_plans, tables
from evaluation.paper.page import Content, page
from evaluation.paper.paper_cases import Choice
from evaluation.paper.tables import Row
from evaluation.paper.targets import EvaluationTarget, targets
from toast_lab.errors import InvalidProblem, NotSaved
from toast_lab.files import write_whole
from toast_lab.isolate import Cancel
from toast_lab.search.methods import METHODS
from toast_lab.sweep.run_sweep import (
    ONE_WORKER,
    Sweep,
    SweepProgress,
    Workers,
    open_store,
    run_sweep,
)
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.sweep.task import TaskRow
from toast_lab.text import csv_text

GROWTH_COLUMNS = (
    "part",
    "x",
    "mesh",
    "ops",
    "machine",
    "method",
    "status",
    "load_s",
    "analyse_s",
    "prepare_s",
    "own_best_s",
    "elapsed_s",
    "evaluations",
)


class Heading(NamedTuple):
    """What a page says of how it was made, and where it is written."""

    command: str  #: the command line that makes it
    remark: str = ""  #: on how its rows were made
    page_file: Path | None = None  #: None: "evaluation.md" in the folder of the rows


class NotKept(NamedTuple):
    """Rows that could not be written to a file."""

    path: Path
    rows: list[TaskRow]
    why: str


class Paper(NamedTuple):
    """The outcome of a run."""

    sweep: Sweep
    compiled_missing: int  #: plans that were requested to be compiled and have no row
    targets: list[EvaluationTarget]
    files: list[Path]
    notes: list[str]  #: what was left out, and why
    failures: list[str]  #: files that could not be written, and why; a rerun makes them
    not_kept: list[NotKept]  #: rows that could not be written to their file


def run_paper(
    choice: Choice,
    folder: Path,
    *,
    heading: Heading,
    compile_seconds: float | None = None,
    workers: Workers = ONE_WORKER,
    on_progress: Callable[[SweepProgress], None] | None = None,
    on_compile: Callable[[int, int, str], None] | None = None,
    cancel: Cancel | None = None,
) -> Paper:
    """Run the parts of the evaluation that have no rows yet, and write the results.

    Args:
        choice: what to run.
        folder: for rows, tables, charts and (by default) the page.
        heading: what the page says of how it was made.
        compile_seconds: time limit of each search whose plan is compiled; None to compile none.
        workers: as for ``run_sweep``; one by default, since searches that share cores take longer.
        on_progress: called as searches start and end.
        on_compile: called with (index, total, description) before each plan is compiled.
        cancel: polled; True ends the run. Finished work is written all the same.

    Raises:
        InvalidProblem: a package that is needed is not installed.
    """
    store, cells = open_store(folder), choice.cells()
    compiling = compile_seconds is not None
    compiled_s = choice.seconds if compile_seconds is None else compile_seconds
    jobs = compiled_plans.jobs(choice, compiled_s)
    compiled_store = SweepStore(folder / "compiled.jsonl", compiled_plans.row_offence)
    with store.claimed(), compiled_store.claimed():
        sweep = run_sweep(
            [cell.task for cell in cells],
            store,
            workers,
            on_progress=on_progress,
            cancel=cancel,
        )
        not_kept = [NotKept(store.path, list(sweep.not_kept), sweep.failure)]
        try:
            if compiling and not sweep.failure and not (cancel is not None and cancel()):
                rows, failure = compiled_plans.run_jobs(
                    jobs, compiled_store, on_progress=on_compile, cancel=cancel
                )
                not_kept.append(NotKept(compiled_store.path, rows, failure))
        finally:  # whatever stops a compiler, finished searches are written
            # Tables and page show every row in the folder, not only those of this choice.
            everything = _everything(choice)
            results = tables.join(everything.cells(), store.rows)
            judged_targets = targets(results, quick=choice.quick)
            compiled_rows = compiled_plans.table(
                compiled_plans.jobs(everything, compiled_s), compiled_store
            )
            missing_count = len(cells) - len(tables.join(cells, store.rows))
            content = Content(
                choice=everything,
                command=heading.command,
                results=results,
                n_searches=len(results) + missing_count,
                steps=tables.step_times(results),
                searches=tables.search_times(results),
                compiled=compiled_rows,
                compiled_wanted=len(jobs) if compiling or compiled_rows else 0,
                targets=judged_targets,
                remark=heading.remark,
            )
            files, notes, failures = write(
                content, folder, heading.page_file or folder / "evaluation.md"
            )
    return Paper(
        sweep=sweep,
        compiled_missing=sum(job.digest not in compiled_store for job in jobs) if compiling else 0,
        targets=judged_targets,
        files=files,
        notes=notes,
        failures=failures,
        not_kept=[unwritten for unwritten in not_kept if unwritten.rows],
    )


def _everything(choice: Choice) -> Choice:
    """All parts, models, machines and methods, with the settings of a choice.

    Earlier runs may have left rows of any of them.
    """
    full = Choice.make(seconds=choice.seconds, quick=choice.quick)
    return full._replace(
        seed=choice.seed,
        methods=tuple(dict.fromkeys((*full.methods, *METHODS))),
        machines=tuple(dict.fromkeys((*full.machines, *choice.machines))),
    )


def write(
    content: Content, folder: Path, page_file: Path
) -> tuple[list[Path], list[str], list[str]]:
    """Write tables, charts and page.

    Gives the files written, notes on what was left out, and failures to write a file.
    """
    growth = [
        {**result.row, "part": result.part, "x": result.x}
        for result in content.results
        if result.part in ("depth", "devices")
    ]
    search_columns = ("own_best_s", "close_s", "elapsed_s", "evaluations")
    scaling = [
        {**step, **{column: search[column] for column in search_columns}}
        for step, search in zip(content.steps, content.searches, strict=True)
        if step["part"] == "scaling"
    ]
    tables_by_file = {
        "step_times.csv": (tables.STEP_COLUMNS, content.steps),
        "search_times.csv": (tables.SEARCH_COLUMNS, content.searches),
        "scaling.csv": ((*tables.STEP_COLUMNS, *search_columns), scaling),
        "anytime.csv": (tables.ANYTIME_COLUMNS, tables.anytime(content.results)),
        "growth.csv": (GROWTH_COLUMNS, growth),
    }
    if content.compiled_wanted:
        tables_by_file["compiled.csv"] = (compiled_plans.COLUMNS, content.compiled)
    files: list[Path] = []
    notes: list[str] = []
    failures: list[str] = []

    @contextlib.contextmanager
    def attempt(*written: Path) -> Iterator[None]:
        try:
            yield
            files.extend(written)
        except NotSaved as error:  # the other files may still be writable
            failures.append(str(error))

    for name, (columns, rows) in tables_by_file.items():
        with attempt(folder / name):
            write_whole(folder / name, csv_text(columns, rows), "the table")
    try:
        with attempt():
            files += draw(content, folder)
    except InvalidProblem as error:
        notes.append(f"no charts were drawn: {error}")
    with attempt(page_file):
        with contextlib.suppress(OSError):  # the write below reports the error
            page_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page_file, page(content, folder, page_file), "the page")
    return files, notes, failures


def draw(content: Content, folder: Path) -> list[Path]:
    """Draw the charts that have rows. Raises InvalidProblem if charting packages are missing."""
    try:
        from evaluation.paper import charts
    except ImportError as error:
        raise InvalidProblem(
            f'charts need more packages ({error}): pip install "toast-lab[bench]"'
        ) from None
    files = []

    def save(figure: Any, name: str, size_px: tuple[float, float]) -> None:
        pages.save_figure(figure, folder / name, size_px)
        files.append(folder / name)

    def of_part(rows: Iterable[Row], part: str) -> list[Row]:
        return [row for row in rows if row["part"] == part]

    steps, searches = of_part(content.steps, "models"), of_part(content.searches, "models")
    if steps:
        save(charts.step_time_bars(steps), "step_times.svg", (172, 150))
        save(charts.search_time_bars(searches), "search_times.svg", (190, 200))
        curves = of_part(tables.anytime(content.results), "models")
        save(charts.anytime_lines(curves, searches), "anytime.svg", (240, 145))
    steps, searches = of_part(content.steps, "scaling"), of_part(content.searches, "scaling")
    if steps:
        save(charts.scaling_lines(steps, searches), "scaling.svg", (380, 240))
    growth = {
        against: [
            {**result.row, "x": result.x}
            for result in content.results
            if result.part == part and result.has_plan
        ]
        for part, against in (("depth", "layers"), ("devices", "devices"))
    }
    if any(growth.values()):
        save(charts.growth_lines(growth), "growth.svg", (330, 220))
    return files

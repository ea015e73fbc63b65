"""``toast-lab sweep``: run many searches on many workers, into one table."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.commands.output import or_dash
from toast_lab.errors import InvalidProblem, NotSaved, join_offenders
from toast_lab.files import write_whole
from toast_lab.isolate import Cancel
from toast_lab.text import JsonObject, bytes_text, csv_text

if TYPE_CHECKING:
    from toast_lab.sweep.run_sweep import SweepProgress
    from toast_lab.sweep.sweep_store import SweepStore
    from toast_lab.sweep.task import SweepTask

PRODUCT_OPTIONS = ("models", "meshes", "machines", "methods", "seeds", "seconds", "evaluations")


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab sweep``."""
    add_option = parser.add_argument
    add_option(
        "file",
        metavar="FILE",
        nargs="?",
        help="the sweep as TOML or JSON, instead of the options from --models to --evaluations",
    )
    add_option(
        "--models", nargs="+", metavar="MODEL", help='such as mlp or "t2b:layers=2|4,sequence=2048"'
    )
    add_option("--meshes", nargs="+", metavar="MESH", help='such as 4x2 or "data=4,model=2" (4x2)')
    add_option(
        "--machines", nargs="+", metavar="MACHINE", help='see "toast-lab machines" (tpu-v5e)'
    )
    add_option(
        "--methods", nargs="+", metavar="METHOD", help='see "toast-lab search --help" (mcts)'
    )
    add_option("--seeds", metavar="SEEDS", help='such as "0-4" or "0,3" (0)')
    add_option(
        "--seconds",
        type=command_options.not_negative,
        metavar="SECONDS",
        help="time limit of each search (30; none with --evaluations)",
    )
    add_option(
        "--evaluations",
        type=command_options.positive_int,
        help="limit on the number of shardings that each search prices",
    )
    command_options.rows(parser, "rows.jsonl and the tables")


def run(args: Namespace) -> int:
    """Run the searches that have no row yet; Ctrl-C or SIGTERM ends them and keeps all rows."""
    from toast_lab.sweep.task import read_sweep, tasks_of

    common.check_early(args)
    given_options = {
        key: getattr(args, key) for key in PRODUCT_OPTIONS if getattr(args, key) is not None
    }
    if args.file and given_options:
        raise InvalidProblem(
            f"give the sweep as {args.file} or as options, not both: {', '.join(given_options)}"
        )
    if not args.file and "models" not in given_options:
        raise InvalidProblem(
            "a sweep needs models: --models mlp attention, or a FILE that lists them"
        )
    return run_tasks(args, tasks_of(read_sweep(args.file) if args.file else given_options))


def run_tasks(args: Namespace, tasks: Sequence[SweepTask]) -> int:
    """Run the tasks that have no row in ``--out`` yet, and show the table of all."""
    from toast_lab.sweep.run_sweep import Workers, open_store, run_sweep
    from toast_lab.sweep.table import COLUMNS, table

    folder = Path(args.out)
    store = open_store(folder)
    say_damaged(store)
    with sweeping(len(tasks)) as (on_progress, stopped):
        sweep = run_sweep(
            tasks,
            store,
            Workers(args.scheduler, args.workers, args.retries, args.retry_crashed),
            on_progress=on_progress,
            cancel=stopped,
        )
    rows = table(sweep.rows)
    path = str(folder / "table.csv")
    written = keeping.keep_table(args, path, csv_text(COLUMNS, rows))
    if sweep.not_kept:
        keep_rows(args, store.path, sweep.not_kept, sweep.failure)
    report = {
        "table": path if written else None,
        "made": sweep.n_new,
        "missing": len(sweep.missing),
        "rows": rows,
    }
    output.emit(args, report, lambda console: _show(console, report))
    return 130 if sweep.missing and not sweep.failure else 0


def keep_rows(args: Namespace, path: Path, rows: Sequence[dict[str, Any]], why: str) -> None:
    """Write rows to another file, if their own could not be written, and report it."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    keeping.keep_elsewhere(
        args,
        f"{len(rows)} rows, to be appended",
        NotSaved(why),
        lambda to: write_whole(to, text, "the rows"),
        last_resort=lambda: f"Append them to {path}:\n{text}",
        name=path.name,
    )


def say_damaged(store: SweepStore) -> None:
    """Report on stderr which lines of a file of rows are ignored."""
    if store.damaged:
        n_damaged = len(store.damaged)
        remark = (
            "a line is damaged and ignored; its search runs again"
            if n_damaged == 1
            else f"{n_damaged} lines are damaged and ignored; their searches run again"
        )
        text = f"note: {store.path}: {remark}:"
        print(f"{text}\n{join_offenders(store.damaged, 5)}", file=sys.stderr)


@contextlib.contextmanager
def sweeping(total: int) -> Iterator[tuple[Callable[[SweepProgress], None], Cancel]]:
    """Show a progress bar; gives its listener, and a function that tells whether to stop."""
    with output.stoppable(f"{total} searches") as (update, stopped):

        def on_progress(event: SweepProgress) -> None:
            running_text = event.running[0] if event.running else ""
            update(
                event.done / max(event.total, 1), f"{event.done} of {event.total}  {running_text}"
            )

        yield on_progress, stopped


def _show(console: output.Out, data: JsonObject) -> None:
    rows = data["rows"]
    task_columns = ("model", "sizes", "mesh", "machine", "method", "seed")
    results = (">score", ">time", ">peak", "fits", "status", ">s")
    cells = [
        (
            *(row[column] for column in task_columns),
            or_dash("{:.4f}".format, row["score"]),
            or_dash(output.time_text, row["time_s"]),
            or_dash(bytes_text, row["peak_bytes"]),
            {True: "yes", False: "no", None: "-"}[row["fits"]],
            row["status"],
            or_dash("{:.2f}".format, row["elapsed_s"]),
        )
        for row in rows
    ]
    columns = ("~model", "~sizes", *task_columns[2:-1], ">seed", *results)
    console.table(f"{len(rows)} searches, {data['made']} of them new", columns, cells, 60)
    for row in rows:
        if row["status"] in ("CRASHED", "FAILED"):
            console.print(
                f"{row['method']} {row['model']} {row['mesh']} {row['machine']} "
                f"seed {row['seed']}: {row['message']}"
            )
    if data["missing"]:
        console.print(
            f"{data['missing']} searches are missing; repeat the same command to run them."
        )
    if data["table"]:
        console.print(f"Table: {data['table']}")

"""``toast-lab sweep``: many searches on many workers, one table."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.commands import common, keeping, output, stopping
from toast_lab.errors import InvalidProblem, NotSaved, join_offenders
from toast_lab.files import write_whole
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.sweep.run import Progress
    from toast_lab.sweep.store import Store

OPTIONS = ("models", "meshes", "machines", "methods", "seeds", "seconds", "evaluations")


def run(args: argparse.Namespace) -> int:
    """Search what has no row yet; Ctrl-C or SIGTERM ends it, and keeps every row that is done."""
    from toast_lab.sweep.run import Workers, open_store, run_sweep
    from toast_lab.sweep.table import COLUMNS, table
    from toast_lab.sweep.task import read_sweep, tasks_of
    from toast_lab.text import write_csv

    common.check_early(args)
    given = {key: getattr(args, key) for key in OPTIONS if getattr(args, key) is not None}
    if args.file and given:
        raise InvalidProblem(
            f"give the sweep as {args.file} or as options, not both: {', '.join(given)}"
        )
    if not args.file and "models" not in given:
        raise InvalidProblem(
            "a sweep needs models: --models mlp attention, or a FILE that lists them"
        )
    tasks = tasks_of(read_sweep(args.file) if args.file else given)
    folder = Path(args.out)
    store = open_store(folder)
    say_damaged(store)
    with sweeping(len(tasks)) as (on_progress, stopped):
        done = run_sweep(
            tasks,
            store,
            Workers(args.scheduler, args.workers, args.retries, args.retry_crashed),
            on_progress=on_progress,
            cancel=stopped,
        )
    rows = table(done.rows)
    path = str(folder / "table.csv")
    written = keeping.keep(args, "table", path, lambda to: write_csv(Path(to), COLUMNS, rows))
    if done.not_kept:
        keep_rows(args, store.path, done.not_kept, done.failure)
    data = {
        "table": path if written else None,
        "made": done.n_new,
        "missing": len(done.missing),
        "rows": rows,
    }
    output.emit(args, data, lambda out: _show(out, data))
    return 130 if done.missing and not done.failure else 0


def keep_rows(
    args: argparse.Namespace, path: Path, rows: Sequence[dict[str, Any]], why: str
) -> None:
    """Put rows that their file did not take elsewhere, and say so."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    keeping.keep_elsewhere(
        args,
        f"{len(rows)} rows, to be appended",
        NotSaved(why),
        lambda to: write_whole(to, text, "the rows"),
        lambda: f"Append them to {path}:\n{text}",
        path.name,
    )


def say_damaged(store: Store) -> None:
    """Say on stderr which lines of a file of rows count for nothing."""
    if store.damaged:
        what = f"{len(store.damaged)} lines" if len(store.damaged) > 1 else "a line"
        text = f"note: {store.path}: {what} left out, which no search wrote so; it runs again:"
        print(f"{text}\n{join_offenders(store.damaged, 5)}", file=sys.stderr)


@contextlib.contextmanager
def sweeping(total: int) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
    """A progress bar for searches on workers, and whether Ctrl-C was pressed."""
    with output.progress(f"{total} searches") as update, stopping.stop_gently() as stopped:

        def on_progress(event: Progress) -> None:
            now = event.running[0] if event.running else ""
            update(event.done / max(event.total, 1), f"{event.done} of {event.total}  {now}")

        yield on_progress, stopped


def _show(out: output.Out, data: dict[str, Any]) -> None:
    rows = data["rows"]
    out.table(
        f"{len(rows)} searches, {data['made']} of them made now",
        (
            "~model",
            "~sizes",
            "mesh",
            "machine",
            "method",
            ">seed",
            ">score",
            ">time",
            ">peak",
            "fits",
            "status",
            ">s",
        ),
        [
            (
                r["model"],
                r["sizes"],
                r["mesh"],
                r["machine"],
                r["method"],
                r["seed"],
                "-" if r["score"] is None else f"{r['score']:.4f}",
                "-" if r["time_s"] is None else output.time_text(r["time_s"]),
                "-" if r["peak_bytes"] is None else bytes_text(r["peak_bytes"]),
                {True: "yes", False: "no", None: "-"}[r["fits"]],
                r["status"],
                "-" if r["elapsed_s"] is None else f"{r['elapsed_s']:.2f}",
            )
            for r in rows
        ],
        60,
    )
    for r in rows:
        if r["status"] in ("CRASHED", "FAILED"):
            out.print(
                f"{r['method']} {r['model']} {r['mesh']} {r['machine']} seed {r['seed']}: "
                f"{r['message']}"
            )
    if data["missing"]:
        out.print(f"{data['missing']} searches are missing; the same command goes on with them.")
    if data["table"]:
        out.print(f"Table: {data['table']}")

"""``toast-lab runs``: list the measurements that ``toast-lab compare`` has kept."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace

from toast_lab.commands import common, kept_rows, output
from toast_lab.commands.output import or_dash, time_text
from toast_lab.errors import join_offenders
from toast_lab.text import JsonObject, bytes_text


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab runs``."""
    kept_rows.add_options(parser, "TOAST_LAB_RUNS", "runs.sqlite")


def run(args: Namespace) -> int:
    """List the measurements, export them or show one."""
    from toast_lab.compare.comparison_store import COLUMNS, ComparisonStore

    common.check_folder(args.csv, "--csv")
    number = kept_rows.row_number("runs", args.show)
    with ComparisonStore(args.store, read_only=True) as store:
        if number is not None:
            row = store.get(number)
            return output.emit(args, row, lambda console: _show(console, row))
        rows = store.rows(args.model, kept_rows.limit(args))
        path = str(store.path)
        if store.damaged:
            print(
                f"note: {path}: damaged rows are left out:\n{join_offenders(store.damaged, 5)}",
                file=sys.stderr,
            )
    kept_rows.write_rows(args, COLUMNS, rows)
    return output.emit(
        args, {"file": path, "rows": rows}, lambda console: _list(console, path, rows)
    )


def _list(console: output.Out, path: str, rows: list[JsonObject]) -> None:
    if not rows:
        console.print(f"No results in {path}.")
        return
    console.table(
        path,
        (
            ">id",
            "UTC",
            "model",
            "~plan",
            "~mesh",
            "~devices",
            "status",
            ">step",
            ">memory",
            ">error",
            ">predicted",
        ),
        [
            (
                row["id"],
                row["time_utc"][:16].replace("T", " "),
                row["model"],
                row["name"],
                row["mesh"],
                f"{row['devices']} {row['device_kind']}",
                row["status"],
                or_dash(time_text, row["median_s"]),
                or_dash(bytes_text, row["allocator_peak_bytes"] or row["peak_bytes"]),
                or_dash("{:.0e}".format, row["max_relative_error"]),
                or_dash(time_text, row["predicted_time_s"]),
            )
            for row in rows
        ],
    )


def _show(console: output.Out, row: JsonObject) -> None:
    plan = row["plan"] or {}
    shown = {**row, **row["measured"], "actions": " ".join(plan.get("actions", ())) or "-"}
    cells = [
        (key, json.dumps(value) if isinstance(value, dict | list) else or_dash(str, value))
        for key, value in shown.items()
        if key not in ("plan", "measured", "collectives")
    ]
    console.table(f"Row {row['id']} (--json has its plan and every collective)", ("", "~"), cells)

"""``toast-lab runs``: list the measurements that ``toast-lab compare`` has kept."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from operator import itemgetter

from toast_lab.commands import kept_rows, output
from toast_lab.commands.output import or_dash, time_text
from toast_lab.text import JsonObject, bytes_text


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab runs``."""
    kept_rows.add_options(parser, "TOAST_LAB_RUNS", "runs.sqlite")


def run(args: Namespace) -> int:
    """List the measurements, export them or show one."""
    from toast_lab.compare.comparison_store import COLUMNS, ComparisonStore

    shown: dict[str, Callable[[JsonObject], object]] = {
        ">id": itemgetter("id"),
        "UTC": kept_rows.when,
        "model": itemgetter("model"),
        "~plan": itemgetter("name"),
        "~mesh": itemgetter("mesh"),
        "~devices": lambda row: f"{row['devices']} {row['device_kind']}",
        "status": itemgetter("status"),
        ">step": lambda row: or_dash(time_text, row["median_s"]),
        ">memory": lambda row: or_dash(
            bytes_text, row["allocator_peak_bytes"] or row["peak_bytes"]
        ),
        ">error": lambda row: or_dash("{:.0e}".format, row["max_relative_error"]),
        ">predicted": lambda row: or_dash(time_text, row["predicted_time_s"]),
    }
    return kept_rows.run(
        args, "runs", ComparisonStore, columns=COLUMNS, shown=shown, show_one=_show
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

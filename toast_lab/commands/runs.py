"""``toast-lab runs``: what ``toast-lab compare`` has measured so far."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from toast_lab.commands import common, keeping, output
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.text import bytes_text


def run(args: argparse.Namespace) -> int:
    """List, export or show."""
    from toast_lab.compare.store import COLUMNS, Store
    from toast_lab.text import write_csv

    common.check_folder(args.csv, "--csv")
    number = _number(args.show)
    with Store(args.store, read_only=True) as store:
        if number is not None:
            row = store.get(number)
            return output.emit(args, row, lambda out: _show(out, row))
        rows = store.rows(args.model, None if args.csv and args.limit is None else args.limit or 20)
        path = str(store.path)
        if store.damaged:
            print(
                f"note: {path}: left out, damaged:\n{join_offenders(store.damaged, 5)}",
                file=sys.stderr,
            )
    if args.csv:
        keeping.keep(args, "table", args.csv, lambda to: write_csv(Path(to), COLUMNS, rows))
    return output.emit(args, {"file": path, "rows": rows}, lambda out: _list(out, path, rows))


def _number(words: list[str]) -> int | None:
    if not words:
        return None
    if (
        len(words) != 2
        or words[0] != "show"
        or not (words[1].isascii() and words[1].isdigit() and len(words[1]) < 19)
    ):
        raise InvalidProblem(
            f'cannot read "runs {" ".join(words)}"; write "toast-lab runs" or '
            '"toast-lab runs show 3"'
        )
    return int(words[1])


def _list(out: output.Out, path: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        out.print(f"Nothing in {path}.")
        return
    out.table(
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
                r["id"],
                r["time_utc"][:16].replace("T", " "),
                r["model"],
                r["name"],
                r["mesh"],
                f"{r['devices']} {r['device_kind']}",
                r["status"],
                _time(r["median_s"]),
                _bytes(r),
                "-" if r["max_relative_error"] is None else f"{r['max_relative_error']:.0e}",
                _time(r["predicted_time_s"]),
            )
            for r in rows
        ],
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else output.time_text(seconds)


def _bytes(row: dict[str, Any]) -> str:
    size = row["allocator_peak_bytes"] or row["peak_bytes"]
    return "-" if size is None else bytes_text(size)


def _show(out: output.Out, row: dict[str, Any]) -> None:
    plan = row["plan"] or {}
    brief = {k: v for k, v in row.items() if k not in ("plan", "measured")}
    cells = [
        (k, json.dumps(v) if isinstance(v, dict | list) else "-" if v is None else v)
        for k, v in brief.items()
    ]
    measured = {k: v for k, v in row["measured"].items() if k != "collectives"}
    cells += [(k, json.dumps(v) if isinstance(v, dict | list) else v) for k, v in measured.items()]
    cells.append(("actions", " ".join(plan.get("actions", ())) or "-"))
    out.table(f"Row {row['id']} (--json has its plan and every collective)", ("", "~"), cells)

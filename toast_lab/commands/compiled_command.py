"""``toast-lab compiled``: list the results that ``toast-lab compile`` has kept."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from toast_lab.commands import kept_rows, output
from toast_lab.commands.output import or_dash, time_text
from toast_lab.text import JsonObject, bytes_text


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab compiled``."""
    kept_rows.add_options(parser, "TOAST_LAB_COMPILED", "compiled.sqlite")


def run(args: Namespace) -> int:
    """List the results, export them or show one."""
    from toast_lab.runtime.compiled_store import COLUMNS, CompiledStore

    shown: dict[str, Callable[[JsonObject], object]] = {
        ">id": itemgetter("id"),
        "UTC": kept_rows.when,
        "model": itemgetter("model"),
        "~mesh": itemgetter("mesh"),
        "~topology": itemgetter("topology"),
        "fits": lambda row: "yes" if row["fits"] else "no",
        ">memory": lambda row: or_dash(bytes_text, row["peak_bytes"]),
        ">step": lambda row: or_dash(time_text, row["time_s"]),
        ">computing": lambda row: or_dash(time_text, row["compute_s"]),
    }
    return kept_rows.run(
        args,
        "compiled",
        CompiledStore,
        columns=COLUMNS,
        shown=shown,
        show_one=_show,
        one_data=lambda one: {**one[0], "result": one[1].to_json()},
    )


def _show(console: output.Out, one: Any) -> None:
    row, compiled = one
    cells = [(name, or_dash(str, value)) for name, value in row.items()]
    console.table(f"Row {row['id']} (--json has every collective)", ("", "~"), cells)
    console.print(str(compiled))

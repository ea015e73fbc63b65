"""``toast-lab compiled``: list the results that ``toast-lab compile`` has kept."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import common, kept_rows, output
from toast_lab.commands.output import or_dash, time_text
from toast_lab.text import JsonObject, bytes_text


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab compiled``."""
    kept_rows.add_options(parser, "TOAST_LAB_COMPILED", "compiled.sqlite")


def run(args: Namespace) -> int:
    """List the results, export them or show one."""
    from toast_lab.runtime.compiled_store import COLUMNS, CompiledStore

    common.check_folder(args.csv, "--csv")
    number = kept_rows.row_number("compiled", args.show)
    with CompiledStore(args.store, read_only=True) as store:
        if number is not None:
            row, compiled = store.get(number)
            report = {**row, "result": compiled.to_json()}
            return output.emit(args, report, lambda console: _show(console, row, str(compiled)))
        rows = store.rows(args.model, kept_rows.limit(args))
        path = str(store.path)
    kept_rows.write_rows(args, COLUMNS, rows)
    return output.emit(
        args, {"file": path, "rows": rows}, lambda console: _list(console, path, rows)
    )


def _list(console: output.Out, path: str, rows: list[JsonObject]) -> None:
    if not rows:
        console.print(f"No results in {path}.")
        return
    columns = (
        ">id",
        "UTC",
        "model",
        "~mesh",
        "~topology",
        "fits",
        ">memory",
        ">step",
        ">computing",
    )
    cells = [
        (
            row["id"],
            row["time_utc"][:16].replace("T", " "),
            row["model"],
            row["mesh"],
            row["topology"],
            "yes" if row["fits"] else "no",
            or_dash(bytes_text, row["peak_bytes"]),
            or_dash(time_text, row["time_s"]),
            or_dash(time_text, row["compute_s"]),
        )
        for row in rows
    ]
    console.table(path, columns, cells)


def _show(console: output.Out, row: JsonObject, summary: str) -> None:
    cells = [(name, or_dash(str, value)) for name, value in row.items()]
    console.table(f"Row {row['id']} (--json has every collective)", ("", "~"), cells)
    console.print(summary)

"""Shared code of the commands that list kept rows: ``runs`` and ``compiled``."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.text import JsonObject, csv_text, minute_text

DEFAULT_ROWS = 20  #: number of rows without --limit


def add_options(parser: ArgumentParser, variable: str, file_name: str) -> None:
    """The options of a command that lists the rows of a file."""
    add_option = parser.add_argument
    add_option("show", metavar="show ID", nargs="*", help="show everything about one row")
    add_option("--model", help="rows of this model only")
    add_option(
        "--limit",
        type=command_options.positive_int,
        metavar="N",
        help=f"maximum number of rows, newest first ({DEFAULT_ROWS}; all with --csv)",
    )
    add_option("--csv", metavar="FILE", help="write the rows as CSV")
    add_option(
        "--store",
        metavar="FILE",
        help=f"file that holds the rows (${variable}, or {file_name} in the user's data folder)",
    )


def run(
    args: Namespace,
    command: str,
    store_type: Any,
    *,
    columns: Sequence[str],
    shown: Mapping[str, Callable[[JsonObject], object]],
    show_one: Callable[[output.Out, Any], None],
    one_data: Callable[[Any], JsonObject] = dict,
) -> int:
    """List the rows of a store, export them or show one.

    Args:
        args: the arguments of the command.
        command: its name.
        store_type: the store.
        columns: columns of the CSV.
        shown: columns of the table, by title, as ``Out.table`` takes it.
        show_one: prints what the store's ``get`` gives for one row.
        one_data: makes JSON data of it.
    """
    common.check_folder(args.csv, "--csv")
    number = _row_number(command, args.show)
    with store_type(args.store, read_only=True) as store:
        if number is not None:
            one = store.get(number)
            return output.emit(args, one_data(one), lambda console: show_one(console, one))
        limit = None if args.csv and args.limit is None else args.limit or DEFAULT_ROWS
        rows: list[JsonObject] = store.rows(args.model, limit)
        path = str(store.path)
        if damaged := getattr(store, "damaged", ()):
            offenders = join_offenders(damaged, 5)
            print(f"note: {path}: damaged rows are left out:\n{offenders}", file=sys.stderr)
    if args.csv:
        keeping.keep_table(args, args.csv, csv_text(columns, rows))

    def show(console: output.Out) -> None:
        if not rows:
            console.print(f"No results in {path}.")
            return
        console.table(path, shown, [[cell(row) for cell in shown.values()] for row in rows])

    return output.emit(args, {"file": path, "rows": rows}, show)


def when(row: JsonObject) -> str:
    """The time of a row, to the minute."""
    return minute_text(row["time_utc"])


def _row_number(command: str, arguments: list[str]) -> int | None:
    """The row number after "show", or None without arguments."""
    if not arguments:
        return None
    request = " ".join(arguments)
    if not (shown := re.fullmatch(r"show ([0-9]{1,18})", request)):
        raise InvalidProblem(
            f'cannot read "{command} {request}"; write "toast-lab {command}" or "toast-lab '
            f'{command} show 3"'
        )
    return int(shown[1])

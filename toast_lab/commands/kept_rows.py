"""Shared code of the commands that list kept rows: ``runs`` and ``compiled``."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from toast_lab.commands import command_options, keeping
from toast_lab.errors import InvalidProblem
from toast_lab.text import JsonObject

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


def limit(args: Namespace) -> int | None:
    """Maximum number of rows to list; None: all."""
    return None if args.csv and args.limit is None else args.limit or DEFAULT_ROWS


def row_number(command: str, arguments: list[str]) -> int | None:
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


def write_rows(args: Namespace, columns: Sequence[str], rows: list[JsonObject]) -> None:
    """Write rows to the file of ``--csv``, if it was given."""
    from toast_lab.text import write_csv

    if args.csv:
        keeping.keep(args, "table", args.csv, lambda to: write_csv(Path(to), columns, rows))

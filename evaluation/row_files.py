"""Files of results: a JSON object a line, each written as soon as it is known.

A line that was cut off is ignored, so that an interrupted run continues where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toast_lab.files import write_whole

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file; there are none if the file does not exist."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows.append(row)
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a file of rows, either completely or not at all."""
    write_whole(path, "".join(map(_line, rows)))


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows to a file; an unfinished last line is ended first."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write("".join(map(_line, rows)).encode())


def _line(row: Row) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"

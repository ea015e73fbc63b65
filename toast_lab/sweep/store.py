"""Rows of finished tasks: one JSON object a line, only ever appended.

A row is written with one call and forced to disk before the next task is taken, so whatever ends the process, all
that was done stays.  A line that was cut off (a full disk, a power cut) is skipped when
reading, and its task runs again; so is a line that says something else than a row does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toast_lab.errors import StoreError


class Store:
    """The rows in one file, by the digests of their tasks; of several rows with one digest the last counts.

    Args:
        path: the file; made, with its folder, when the first row is added.
        offence: says what is wrong with a row, nothing if it is one.

    Attributes:
        damaged: lines that were left out, and why; the file itself is never changed.

    Raises:
        StoreError: the folder cannot be made, or the file cannot be read.
    """

    def __init__(
        self, path: str | os.PathLike[str], offence: Callable[[Mapping[str, Any]], str] = lambda row: ""
    ) -> None:
        self.path = Path(path)
        self.rows: dict[str, dict[str, Any]] = {}
        self.damaged: list[str] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            data = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise StoreError(f"cannot keep rows in {self.path}: {error.strerror}; give another folder") from None
        for number, line in enumerate(data.split(b"\n"), 1):
            if line:
                try:
                    row = _row(line, offence)
                    self.rows[row["digest"]] = row
                except ValueError as error:
                    self.damaged.append(f"line {number}: {error}")

    def __contains__(self, digest: str) -> bool:
        return digest in self.rows

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row.  It must have a ``digest``."""
        data = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                data = b"\n" + data  # the line before was cut off: it must not take this one with it
            if os.write(handle, data) != len(data):
                raise OSError(f"{self.path}: could not write a whole row; is the disk full?")
            os.fsync(handle)
        finally:
            os.close(handle)
        self.rows[row["digest"]] = row


def _row(line: bytes, offence: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """The row of a line.  Raises ValueError that says why it is none."""
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("no whole object of JSON") from None
    if not isinstance(row, dict) or not isinstance(row.get("digest"), str):
        raise ValueError("not an object with a digest")
    if wrong := offence(row):
        raise ValueError(wrong)
    return row


def _refuse(text: str) -> Any:
    raise ValueError(text)

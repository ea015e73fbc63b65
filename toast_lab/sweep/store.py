"""Rows of finished tasks: one JSON object a line, only ever appended.

A row is written with one call and forced to disk before the next task is taken, so whatever ends the process, all
that was done stays.  A line that was cut off (a full disk, a power cut) is skipped when
reading, and its task runs again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Store:
    """The rows in one file, by the digests of their tasks; of several rows with one digest the last counts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows: dict[str, dict[str, Any]] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            for line in self.path.read_bytes().split(b"\n"):
                row = _row(line)
                if row is not None:
                    self.rows[row["digest"]] = row

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


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "digest" in row else None

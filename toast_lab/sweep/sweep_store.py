"""Rows of finished tasks in a file: one JSON object per line, only ever appended.

A row is forced to disk before the next task is taken, so all finished work survives, whatever ends
the process. A line that was cut off (a power cut, a process that was killed) is skipped when
reading, and its task runs again; the same goes for a line that is not a valid row.

One process at a time may add rows (``SweepStore.claimed``). The claim is a lock of the operating
system on a file beside the rows, which is released when its process ends, for whatever reason; the
content of that file only says who holds the lock.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toast_lab.errors import StoreError
from toast_lab.files import PathLike, force_to_disk, lock, not_saved

#: A process killed while it starts a child leaves the lock to the child, until that is running.
_LOCK_PATIENCE_S = 0.5


class SweepStore:
    """The rows in one file, by the digests of their tasks.

    Of several rows with the same digest, the last counts.

    Args:
        path: the file; made when the first row is added, its folder at once.
        offence: says what is wrong with a row; an empty text if nothing is.

    Attributes:
        damaged: lines that were left out, and why; they stay in the file.

    Raises:
        StoreError: the folder cannot be made, or the file cannot be read.
    """

    def __init__(
        self,
        path: PathLike,
        offence: Callable[[Mapping[str, Any]], str] = lambda row: "",
    ) -> None:
        self.path = Path(path)
        self.rows: dict[str, dict[str, Any]] = {}
        self._offence = offence
        self.damaged: list[str] = []
        self._claims = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._read()
        except OSError as error:
            raise StoreError(
                f"{self.path}: rows cannot be kept here: {error.strerror}; give another folder"
            ) from None

    def _read(self) -> None:
        self.damaged = []
        data = self.path.read_bytes() if self.path.exists() else b""
        for line_number, line in enumerate(data.split(b"\n"), 1):
            if line:
                try:
                    row = _row(line, self._offence)
                    self.rows[row["digest"]] = row
                except ValueError as error:
                    self.damaged.append(f"line {line_number}: {error}")

    def __contains__(self, digest: str) -> bool:
        return digest in self.rows

    @property
    def lock_path(self) -> Path:
        """The file that says who is adding rows."""
        return self.path.with_name(self.path.name + ".lock")

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Within the block no other process can add rows.

        Rows that were added since the store was opened are read first.

        Raises:
            StoreError: another process, which is named, is adding rows.
        """
        self._claims += 1
        try:
            if self._claims > 1:
                yield
                return
            with _locked(self.lock_path, self.path):
                self._read()
                yield
        finally:
            self._claims -= 1

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row. It must have a ``digest``.

        Raises:
            NotSaved: the row cannot be written; the file is left as it was.
        """
        data = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            self._append(data)
        except OSError as error:
            raise not_saved(self.path, "a row", error) from error
        self.rows[row["digest"]] = row

    def _append(self, data: bytes) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                # The previous line was cut off: this row must not become part of it
                data = b"\n" + data
            try:
                # A full disk takes what still fits, and reports the error only at the next write
                while data:
                    data = data[os.write(handle, data) :]
                force_to_disk(handle)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, size)  # no partial row
                raise
        finally:
            os.close(handle)


@contextlib.contextmanager
def _locked(path: Path, rows_path: Path) -> Iterator[None]:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError(
            f"{path}: rows cannot be kept here: {error.strerror}; give another folder"
        ) from None
    try:
        try:
            is_held = not lock(handle, _LOCK_PATIENCE_S)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise StoreError(
                    f"{path}: cannot be locked: {error.strerror}; give another folder"
                ) from None
            # A file system without locks: rows are appended whole, so the worst is that two sweeps
            # do the same work.
            is_held = False
        if is_held:
            holder = os.pread(handle, 1000, 0).decode(errors="replace").strip()
            raise StoreError(
                f"{rows_path}: another sweep is adding rows here: {holder or 'an unknown process'}"
                ". Wait for it, stop it, or give another folder; existing rows are not computed "
                "again"
            )
        # On a full disk the holder cannot be written down, but the lock holds all the same
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            os.pwrite(
                handle,
                f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode(),
                0,
            )
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _row(line: bytes, offence: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """Parse the row on a line. Raises ValueError, with the reason, if it is not one."""
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("not a complete JSON object") from None
    if not isinstance(row, dict) or not isinstance(row.get("digest"), str):
        raise ValueError("not an object with a digest")
    if reason := offence(row):
        raise ValueError(reason)
    return row


def _refuse(text: str) -> Any:
    raise ValueError(text)

"""Measured rows kept in one sqlite file, for good.

Whatever ends a process, what was added before stays whole.

A row is one transaction.  Several processes may add at once: sqlite's write-ahead log lets readers
go on, and writers wait for each other.  A file that cannot be read is never changed or removed.

The file is $TOAST_LAB_RUNS, else ``toast-lab/runs.sqlite`` in $XDG_DATA_HOME or ~/.local/share.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toast_lab import checks
from toast_lab.compare import provenance
from toast_lab.compare.result import Comparison, ComparisonRow
from toast_lab.errors import StoreError
from toast_lab.files import PathLike
from toast_lab.text import JsonObject, plain_data

VERSION = 1  #: of the columns
APPLICATION = 0x544F4153  #: "TOAS", how sqlite knows its files apart
BUSY_S = 30.0  #: how long to wait for another writer

_TEXT = (
    "comparison",
    "time_utc",
    "model",
    "name",
    "status",
    "message",
    "mesh",
    "devices",
    "device_kind",
    "program_digest",
    "plan_digest",
    "machine_digest",
)
_NUMBER = (
    "n_devices",
    "n_processes",
    "seed",
    "median_s",
    "spread_s",
    "compile_s",
    "peak_bytes",
    "allocator_peak_bytes",
    "passed",
    "max_relative_error",
    "predicted_time_s",
    "predicted_peak_bytes",
)
_ALWAYS = ("versions", "machine", "measured")  #: JSON that every row has
_JSON = ("versions", "machine", "plan", "measured", "predicted", "certificate")
_MEASURED = (
    "batches_s",
    "argument_bytes",
    "output_bytes",
    "temp_bytes",
    "collectives",
    "collective_counts",
)
COLUMNS = ("id", *_TEXT, *_NUMBER)  #: what ``rows`` gives


def default_path() -> Path:
    """Where rows are kept unless told otherwise."""
    if given := os.environ.get("TOAST_LAB_RUNS"):
        return Path(given)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "toast-lab" / "runs.sqlite"


class ComparisonStore:
    """An open file of rows; a context that closes it.

    Args:
        path: the file; made, with its folder, if it is not there.
        read_only: change nothing, not even make the file.

    Attributes:
        damaged: rows that ``rows`` left out, and why.

    Raises:
        StoreError: it cannot be opened or made, is no such file, or was written by a newer version.
    """

    def __init__(self, path: PathLike | None = None, *, read_only: bool = False) -> None:
        self.path = Path(path) if path is not None else default_path()
        self.damaged: list[str] = []
        if read_only and not self.path.exists():
            raise StoreError(
                f"{self.path}: there are no kept results; toast-lab compare writes them"
            )
        with self._explained("open"):
            if not read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = self._connect(read_only)
        try:
            with self._explained("open"):
                self._check(read_only)
        except BaseException:
            self.connection.close()
            raise

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        if not read_only:
            return sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        # Where the folder cannot be written, sqlite cannot make the index of its log and has to do
        # without.
        writable = os.access(self.path.parent, os.W_OK)
        uri = f"file:{quote(str(self.path.absolute()))}?mode=ro{'' if writable else '&immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)

    def _check(self, read_only: bool) -> None:
        version = int(self.connection.execute("PRAGMA user_version").fetchone()[0])
        tables = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and self.connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise StoreError(
                f"{self.path} is a database of something else; give another file for results"
            )
        if version > VERSION:
            raise StoreError(
                f"{self.path} was written by a newer TOAST Lab (version {version} of its columns, "
                f"this one knows {VERSION}): upgrade, or give another file with --store or "
                "TOAST_LAB_RUNS"
            )
        if tables or read_only:
            return
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("BEGIN IMMEDIATE")
        with self._transaction():
            columns = [
                *(f"{column} TEXT NOT NULL" for column in _TEXT),
                *(f"{column} REAL" for column in _NUMBER),
            ]
            columns += [f"{column} TEXT" for column in _JSON]
            self.connection.execute(
                "CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY AUTOINCREMENT, "
                f"{', '.join(columns)})"
            )
            self.connection.execute("CREATE INDEX IF NOT EXISTS runs_model ON runs (model)")
            self.connection.execute(f"PRAGMA application_id = {APPLICATION}")
            self.connection.execute(f"PRAGMA user_version = {VERSION}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what was begun, or take it back."""
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "not a database" in text or "malformed" in text or "corrupt" in text:
                raise StoreError(
                    f"{self.path} cannot be read: {text}. Nothing was changed. Move the file away "
                    f'to start a new one ("mv {self.path} {self.path}.bad"), or try to rescue it '
                    f'with "sqlite3 {self.path} .recover"; --store and TOAST_LAB_RUNS name another '
                    "file"
                ) from None
            raise StoreError(f"cannot {doing} {self.path}: {text}{_advice(text)}") from None
        except OSError as error:
            raise StoreError(
                f"cannot {doing} {self.path}: {error.strerror}{_advice('unable to open')}"
            ) from None

    def add(self, row: Mapping[str, Any]) -> int:
        """Keep one row (see ``record``); gives its number.

        Raises:
            StoreError: the disk is full, the file cannot be written, or another process holds it
                for too long.
        """
        names = [*_TEXT, *_NUMBER, *_JSON]
        values = [
            json.dumps(row[name], allow_nan=False)
            if name in _JSON and row[name] is not None
            else row[name]
            for name in names
        ]
        marks = ", ".join("?" * len(names))
        with self._explained("write"):
            self.connection.execute("BEGIN IMMEDIATE")
            with self._transaction():
                done = self.connection.execute(
                    f"INSERT INTO runs ({', '.join(names)}) VALUES ({marks})", values
                )
                return int(done.lastrowid or 0)

    def rows(self, model: str | None = None, limit: int | None = None) -> list[JsonObject]:
        """The newest rows first, by ``COLUMNS``.

        Those that ``add`` did not write so are left out, see ``damaged``.
        """
        where, values = ("WHERE model = ?", [model]) if model else ("", [])
        limited = f"LIMIT {int(limit)}" if limit is not None else ""
        with self._explained("read"):
            answers = self.connection.execute(
                f"SELECT {', '.join(COLUMNS)} FROM runs {where} ORDER BY id DESC {limited}", values
            ).fetchall()
        kept_rows = [dict(zip(COLUMNS, values, strict=True)) for values in answers]
        offences = {row["id"]: _offence(row) for row in kept_rows}
        self.damaged = [
            f"row {number}: {offence}" for number, offence in offences.items() if offence
        ]
        return [_typed(row) for row in kept_rows if not offences[row["id"]]]

    def get(self, number: int) -> JsonObject:
        """Everything of one row.

        Raises:
            StoreError: there is none of this number.
        """
        names = [*COLUMNS, *_JSON]
        with self._explained("read"):
            values = self.connection.execute(
                f"SELECT {', '.join(names)} FROM runs WHERE id = ?", [number]
            ).fetchone()
            count, last = self.connection.execute("SELECT count(*), max(id) FROM runs").fetchone()
        if values is None:
            raise StoreError(
                f"{self.path} has no row {number}; there are {count}, the last one is {last}"
            )
        row = dict(zip(names, values, strict=True))
        if offence := _offence(row):
            raise StoreError(
                f"{self.path}: row {number} is damaged: {offence}. The others can be read; to take "
                f'it out: sqlite3 {self.path} "DELETE FROM runs WHERE id = {int(number)}"'
            )
        return {
            name: json.loads(value) if name in _JSON and value is not None else value
            for name, value in _typed(row).items()
        }

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def __enter__(self) -> ComparisonStore:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def keep(comparison: Comparison, path: PathLike | None = None) -> tuple[int, ...]:
    """Add all rows of a comparison, each by itself; gives their numbers.  Raises StoreError."""
    comparison_id = uuid.uuid4().hex[:12]
    with ComparisonStore(path) as store:
        return tuple(
            store.add(record(comparison, row, comparison_id)) for row in comparison.all_rows
        )


def record(comparison: Comparison, row: ComparisonRow, together: str) -> JsonObject:
    """A row of a comparison as a row of the file; those of one comparison share ``together``."""
    data = row.to_json()
    machine = provenance.machine(row.device_kind, row.n_devices, row.n_processes)
    derived = {
        **plain_data(row.judgement),
        "comparison": together,
        "time_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": comparison.model,
        "program_digest": comparison.program_digest,
        "plan_digest": provenance.plan_digest(row.plan),
        "machine_digest": provenance.digest(machine),
        "seed": comparison.seed,
        "versions": provenance.versions(),
        "machine": machine,
        "plan": row.plan,
        "measured": {
            **{key: data[key] for key in _MEASURED},
            "inputs": comparison.inputs,
            "order": comparison.order,
        },
    }
    names = (*_TEXT, *_NUMBER, *_JSON)
    return {name: derived[name] if name in derived else data[name] for name in names}


_WHOLE: Sequence[str] = ("n_devices", "n_processes", "seed", "peak_bytes", "allocator_peak_bytes")


def _offence(row: Mapping[str, Any]) -> str:
    """What is wrong with the columns of a row that are there, empty if nothing is."""
    if offence := checks.row_offence(row, texts=_TEXT, numbers=_NUMBER, least=None):
        return offence
    for name in _JSON:
        if name not in row:
            continue
        try:
            data = None if row[name] is None else json.loads(row[name])
        except (TypeError, ValueError, RecursionError):
            return f"{name} is no JSON, it begins with {row[name]!r:.60}"
        if not isinstance(data, dict | None) or (data is None and name in _ALWAYS):
            return f"{name} must be an object, it is {data!r:.60}"
    return ""


def _typed(row: JsonObject) -> JsonObject:
    for name in _WHOLE:
        row[name] = None if row[name] is None else int(row[name])
    row["passed"] = None if row["passed"] is None else bool(row["passed"])
    return row


def _advice(text: str) -> str:
    if "full" in text:
        return ". Free some space, or give a file elsewhere with --store or TOAST_LAB_RUNS"
    if "locked" in text or "busy" in text:
        return f": another process has held it for {BUSY_S:g} s"
    if "unable to open" in text or "readonly" in text:
        return (
            ". Is its folder there and can it be written to? --store and TOAST_LAB_RUNS name "
            "another file"
        )
    return ""

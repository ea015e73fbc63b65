"""Rows kept permanently in one SQLite file: the common base of all such files.

A row is one transaction. Several processes may add rows at once: SQLite's write-ahead log lets
readers continue, and writers wait for each other. A file that cannot be read is never changed or
removed. Each row carries a checksum of its values, so that a row that was changed afterwards, by
accident or by hand, does not count as measured; rows of older versions have none and are believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

from toast_lab.errors import StoreError
from toast_lab.files import PathLike

APPLICATION = 0x544F4153  #: "TOAS", by which our files are recognised
BUSY_S = 30.0  #: longest wait for another writer
CHECKSUM = "checksum"  #: the column that every table has beside its own


def data_file(name: str, variable: str) -> Path:
    """``$variable``, else the file ``name`` in ``toast-lab`` in the user's data folder.

    The data folder is $XDG_DATA_HOME or ~/.local/share.
    """
    if given_path := os.environ.get(variable):
        return Path(given_path)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "toast-lab" / name


class RowStore:
    """An open file of rows; a context manager that closes it.

    Args:
        path: the file; it is created, with its folder, if it does not exist.
        read_only: change nothing, and do not even create the file.

    Raises:
        StoreError: the file cannot be opened or created, is not such a file, or was written by a
            newer version.
    """

    version: ClassVar[int]  #: version of the columns
    table: ClassVar[str]
    columns: ClassVar[Sequence[str]]  #: columns of the table, as SQL
    file_name: ClassVar[str]
    variable: ClassVar[str]  #: the environment variable that names another file
    writer: ClassVar[str]  #: the command that adds rows

    def __init__(self, path: PathLike | None = None, *, read_only: bool = False) -> None:
        self.path = Path(path) if path is not None else self.default_path()
        if read_only and not self.path.exists():
            raise StoreError(f"{self.path}: there are no kept results; {self.writer} writes them")
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

    @classmethod
    def default_path(cls) -> Path:
        """The file in which rows are kept by default."""
        return data_file(cls.file_name, cls.variable)

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        if not read_only:
            return sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        # If the folder cannot be written to, SQLite cannot create the index of its log, and has to
        # treat the file as immutable.
        writable = os.access(self.path.parent, os.W_OK)
        uri = f"file:{quote(str(self.path.absolute()))}?mode=ro{'' if writable else '&immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)

    def _check(self, read_only: bool) -> None:
        version = int(self.connection.execute("PRAGMA user_version").fetchone()[0])
        tables = {row[0] for row in self.connection.execute("SELECT name FROM sqlite_master")}
        is_ours = self.connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
        if tables and not (is_ours and self.table in tables):
            raise StoreError(
                f"{self.path} is a database of another program; give another file for results"
            )
        if version > self.version:
            raise StoreError(
                f"{self.path} was written by a newer TOAST Lab (version {version} of its columns, "
                f"this one knows {self.version}): upgrade, or give another file with --store or "
                f"{self.variable}"
            )
        if read_only:
            return
        if tables:
            if CHECKSUM not in self._column_names():
                with contextlib.suppress(sqlite3.OperationalError):  # another process was faster
                    self.connection.execute(f"ALTER TABLE {self.table} ADD COLUMN {CHECKSUM} TEXT")
            return
        self.connection.execute("PRAGMA journal_mode = WAL")
        with self._transaction():
            self.connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} "
                f"({', '.join((*self.columns, CHECKSUM + ' TEXT'))})"
            )
            self.connection.execute(
                f"CREATE INDEX IF NOT EXISTS {self.table}_model ON {self.table} (model)"
            )
            self.connection.execute(f"PRAGMA application_id = {APPLICATION}")
            self.connection.execute(f"PRAGMA user_version = {self.version}")

    def _column_names(self) -> list[str]:
        return [row[1] for row in self.connection.execute(f"PRAGMA table_info({self.table})")]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the statements of the block, or roll them back if it raises."""
        self.connection.execute("BEGIN IMMEDIATE")
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
                    f'with "sqlite3 {self.path} .recover"; --store and {self.variable} name '
                    "another file"
                ) from None
            raise StoreError(f"cannot {doing} {self.path}: {text}{self._advice(text)}") from None
        except OSError as error:
            raise StoreError(
                f"cannot {doing} {self.path}: {error.strerror}{self._advice('unable to open')}"
            ) from None

    def _advice(self, text: str) -> str:
        if "full" in text:
            return f". Free some space, or give a file elsewhere with --store or {self.variable}"
        if "locked" in text or "busy" in text:
            return f": another process has held it for {BUSY_S:g} s"
        if "unable to open" in text or "readonly" in text:
            return (
                f". Does its folder exist, and can it be written to? --store and {self.variable} "
                "name another file"
            )
        return ""

    def _insert(self, row: dict[str, Any], *, replace: bool = False) -> int:
        """Add one row and give its number.

        Raises:
            StoreError: the disk is full, the file cannot be written, or another process locks it
                for too long.
        """
        row = {**row, CHECKSUM: _checksum(row)}
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        placeholders = ", ".join("?" * len(row))
        with self._explained("write"), self._transaction():
            cursor = self.connection.execute(
                f"{verb} INTO {self.table} ({', '.join(row)}) VALUES ({placeholders})",
                list(row.values()),
            )
            return int(cursor.lastrowid or 0)

    def _newest(
        self, names: Sequence[str], model: str | None, limit: int | None
    ) -> list[tuple[dict[str, Any], str]]:
        """The columns ``names`` of the newest ``limit`` rows (None: all), newest first.

        Each comes with its offence, empty if its values are those that were written.
        """
        where, values = ("WHERE model = ?", [model]) if model else ("", [])
        limited = f"LIMIT {int(limit)}" if limit is not None else ""
        with self._explained("read"):
            cursor = self.connection.execute(
                f"SELECT * FROM {self.table} {where} ORDER BY id DESC {limited}", values
            )
            return [self._read(cursor, row_values, names) for row_values in cursor.fetchall()]

    def _read(
        self, cursor: sqlite3.Cursor, values: Sequence[Any], names: Sequence[str]
    ) -> tuple[dict[str, Any], str]:
        row = dict(zip((column[0] for column in cursor.description), values, strict=True))
        written = row.pop(CHECKSUM, None)
        is_changed = written is not None and written != _checksum(row)
        offence = "its values are not those that were written" if is_changed else ""
        return {name: row[name] for name in names}, offence

    def _numbered(self, number: int, names: Sequence[str]) -> tuple[dict[str, Any], str]:
        """The columns ``names`` of the row of this number, and its offence as for ``_newest``.

        Raises:
            StoreError: there is no such row.
        """
        with self._explained("read"):
            cursor = self.connection.execute(f"SELECT * FROM {self.table} WHERE id = ?", [number])
            values = cursor.fetchone()
            count, last_id = self.connection.execute(
                f"SELECT count(*), max(id) FROM {self.table}"
            ).fetchone()
        if values is None:
            raise StoreError(
                f"{self.path} has no row {number}; there are {count}, the last one is {last_id}"
            )
        return self._read(cursor, values, names)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _checksum(row: Mapping[str, Any]) -> str:
    """A checksum of a row's values as SQLite gives them back: numbers of any kind are floats."""
    hashed = hashlib.sha256()
    for name in sorted(name for name in row if name != "id"):
        value = row[name]
        if isinstance(value, int | float):
            value = float(value)
        hashed.update(f"{name}={value!r}\n".encode())
    return hashed.hexdigest()[:16]

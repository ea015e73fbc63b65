"""Compiled results kept in one sqlite file, so that nothing is compiled twice (see ``row_store``).

The file is $TOAST_LAB_COMPILED, else ``toast-lab/compiled.sqlite`` in $XDG_DATA_HOME or
~/.local/share. A result is looked up by its key, a hash of everything that affects compilation: the
annotated text, the topology, versions and flags.
"""

from __future__ import annotations

import datetime
import json
import zlib
from typing import Any

from toast_lab.errors import InvalidPlan, StoreError
from toast_lab.row_store import RowStore
from toast_lab.runtime.compiled import Compiled
from toast_lab.text import JsonObject

#: Columns of ``rows``.
COLUMNS = (
    "id",
    "time_utc",
    "model",
    "program",
    "plan",
    "mesh",
    "topology",
    "machine",
    "fits",
    "peak_bytes",
    "time_s",
    "compute_s",
    "compile_s",
    "versions",
)


class CompiledStore(RowStore):
    """An open file of compiled results."""

    version = 1
    table = "compiled"
    columns = (
        "id INTEGER PRIMARY KEY AUTOINCREMENT",
        "key TEXT NOT NULL UNIQUE",
        *(
            f"{column} TEXT NOT NULL"
            for column in ("time_utc", "model", "program", "plan", "mesh", "topology", "machine")
        ),
        "fits INTEGER NOT NULL",
        *(f"{column} REAL" for column in ("peak_bytes", "time_s", "compute_s", "compile_s")),
        "versions TEXT NOT NULL",
        "result BLOB NOT NULL",
    )
    file_name = "compiled.sqlite"
    variable = "TOAST_LAB_COMPILED"
    writer = "toast-lab compile"

    def keep(self, key: str, compiled: Compiled, model: str) -> int:
        """Keep a result for the model named ``model``, replacing an older one with this key.

        Gives the number of the row.

        Raises:
            StoreError: the disk is full, the file cannot be written, or another process holds it
                for too long.
        """
        row = {
            "key": key,
            "time_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "model": model,
            "program": compiled.program,
            "plan": f"{compiled.plan_key:016x}",
            "mesh": ",".join(f"{axis}={size}" for axis, size in compiled.mesh.items()),
            "topology": compiled.topology,
            "machine": compiled.machine,
            "fits": compiled.fits,
            "peak_bytes": compiled.total_needed_bytes,
            "time_s": compiled.time_s,
            "compute_s": compiled.compute_s,
            "compile_s": compiled.compile_s,
            "versions": json.dumps(dict(compiled.versions)),
            "result": zlib.compress(json.dumps(compiled.to_json()).encode()),
        }
        return self._insert(row, replace=True)

    def find(self, key: str) -> Compiled | None:
        """The result with this key; None if there is none.

        A result that cannot be read, or was changed, counts as none: its plan is compiled anew and
        it is replaced.
        """
        with self._explained("read"):
            cursor = self.connection.execute(f"SELECT * FROM {self.table} WHERE key = ?", [key])
            values = cursor.fetchone()
        if values is None:
            return None
        row, changed = self._read(cursor, values, ["result"])
        try:
            return None if changed else _result(row["result"])
        except InvalidPlan:
            return None

    def rows(self, model: str | None = None, limit: int | None = None) -> list[JsonObject]:
        """Rows with the columns ``COLUMNS``, newest first; rows that were changed are left out."""
        rows = self._newest(COLUMNS, model, limit)
        return [_typed(row) for row, changed in rows if not changed]

    def get(self, number: int) -> tuple[JsonObject, Compiled]:
        """A row and its result.

        Raises:
            StoreError: there is no row of this number, or it is damaged.
        """
        row, changed = self._numbered(number, [*COLUMNS, "result"])
        try:
            if changed:
                raise InvalidPlan(changed)
            compiled = _result(row.pop("result"))
        except InvalidPlan as error:
            raise StoreError(
                f"{self.path}: row {number} is damaged: {error}. The others can be read; this one "
                "is replaced when its plan is compiled again"
            ) from None
        return _typed(row), compiled


def _result(content: Any) -> Compiled:
    try:
        data = json.loads(zlib.decompress(content))
    except (TypeError, ValueError, RecursionError, zlib.error) as error:
        raise InvalidPlan(f"it is not a compiled result: {error}") from None
    return Compiled.from_json(data)


def _typed(row: JsonObject) -> JsonObject:
    row["fits"] = bool(row["fits"])
    try:
        row["versions"] = json.loads(row["versions"])
    except (TypeError, ValueError):
        row["versions"] = {}
    return row

"""Measured rows, stored permanently in one sqlite file (see ``row_store``).

The file is $TOAST_LAB_RUNS, else ``toast-lab/runs.sqlite`` in $XDG_DATA_HOME or ~/.local/share.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from toast_lab import checks
from toast_lab.compare import provenance
from toast_lab.compare.result import Comparison, ComparisonRow
from toast_lab.errors import StoreError
from toast_lab.files import PathLike
from toast_lab.row_store import RowStore
from toast_lab.text import JsonObject, plain_data

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
_ALWAYS = ("versions", "machine", "measured")  #: JSON columns that every row has
_JSON = ("versions", "machine", "plan", "measured", "predicted", "certificate")
_MEASURED = (
    "batches_s",
    "argument_bytes",
    "output_bytes",
    "temp_bytes",
    "collectives",
    "collective_counts",
)
COLUMNS = ("id", *_TEXT, *_NUMBER)  #: columns that ``rows`` gives


class ComparisonStore(RowStore):
    """An open file of measured rows.

    Attributes:
        damaged: rows that ``rows`` left out, and why.
    """

    version = 1
    table = "runs"
    columns = (
        "id INTEGER PRIMARY KEY AUTOINCREMENT",
        *(f"{column} TEXT NOT NULL" for column in _TEXT),
        *(f"{column} REAL" for column in _NUMBER),
        *(f"{column} TEXT" for column in _JSON),
    )
    file_name = "runs.sqlite"
    variable = "TOAST_LAB_RUNS"
    writer = "toast-lab compare"
    damaged: list[str] = []  # noqa: RUF012

    def add(self, row: Mapping[str, Any]) -> int:
        """Store one row (see ``record``), and return its number.

        Raises:
            StoreError: the disk is full, the file cannot be written, or another process holds it
                for too long.
        """
        values = {name: row[name] for name in (*_TEXT, *_NUMBER, *_JSON)}
        for name in _JSON:
            if values[name] is not None:
                values[name] = json.dumps(values[name], allow_nan=False)
        return self._insert(values)

    def rows(self, model: str | None = None, limit: int | None = None) -> list[JsonObject]:
        """Rows by ``COLUMNS``, the newest first.

        Rows that ``add`` cannot have written are left out; see ``damaged``.
        """
        rows, self.damaged = [], []
        for row, changed in self._newest(COLUMNS, model, limit):
            if offence := _offence(row) or changed:
                self.damaged.append(f"row {row['id']}: {offence}")
            else:
                rows.append(_typed(row))
        return rows

    def get(self, number: int) -> JsonObject:
        """One row with all its data.

        Raises:
            StoreError: no row has this number, or it is damaged.
        """
        row, changed = self._numbered(number, [*COLUMNS, *_JSON])
        if offence := _offence(row) or changed:
            raise StoreError(
                f"{self.path}: row {number} is damaged: {offence}. The others can be read; to take "
                f'it out: sqlite3 {self.path} "DELETE FROM runs WHERE id = {int(number)}"'
            )
        return {
            name: json.loads(value) if name in _JSON and value is not None else value
            for name, value in _typed(row).items()
        }


def keep(comparison: Comparison, path: PathLike | None = None) -> tuple[int, ...]:
    """Add all rows of a comparison, one by one; return their numbers. Raises StoreError."""
    comparison_id = uuid.uuid4().hex[:12]
    with ComparisonStore(path) as store:
        return tuple(
            store.add(record(comparison, row, comparison_id)) for row in comparison.all_rows
        )


def record(comparison: Comparison, row: ComparisonRow, comparison_id: str) -> JsonObject:
    """A row of a comparison as a row of the file; ``comparison_id`` identifies the comparison."""
    data = row.to_json()
    machine = provenance.machine(row.device_kind, row.n_devices, row.n_processes)
    derived = {
        **plain_data(row.judgement),
        "comparison": comparison_id,
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
    """What is wrong with the columns that a row has; empty if nothing is."""
    if offence := checks.row_offence(row, texts=_TEXT, numbers=_NUMBER, least=None):
        return offence
    for name in _JSON:
        if name not in row:
            continue
        try:
            data = None if row[name] is None else json.loads(row[name])
        except (TypeError, ValueError, RecursionError):
            return f"{name} is not JSON: it begins with {row[name]!r:.60}"
        if not isinstance(data, dict | None) or (data is None and name in _ALWAYS):
            return f"{name} must be an object, but it is {data!r:.60}"
    return ""


def _typed(row: JsonObject) -> JsonObject:
    for name in _WHOLE:
        row[name] = None if row[name] is None else int(row[name])
    row["passed"] = None if row["passed"] is None else bool(row["passed"])
    return row

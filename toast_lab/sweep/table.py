"""The rows of a sweep as one flat table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = (
    "model",
    "sizes",
    "mesh",
    "machine",
    "method",
    "options",
    "seed",
    "seconds_limit",
    "evaluations_limit",
    "status",
    "score",
    "time_s",
    "peak_bytes",
    "fits",
    "memory_limit_bytes",
    "unsharded_time_s",
    "unsharded_peak_bytes",
    "evaluations",
    "elapsed_s",
    "own_best_s",
    "bound",
    "load_s",
    "analyse_s",
    "prepare_s",
    "ops",
    "attempts",
    "actions",
    "program",
    "cpu",
    "cores",
    "code",
    "date",
    "digest",
    "message",
)


def assignments_text(values: Mapping[str, Any]) -> str:
    """Sizes or options as text: ``layers=2 batch=64``."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def table(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with every one of COLUMNS and nothing nested.

    A number that a search does not report is None.
    """
    return [
        {
            **{column: row.get(column) for column in COLUMNS},
            "sizes": assignments_text(row["sizes"]),
            "options": assignments_text(row["options"]),
            "actions": "  ".join(row.get("actions") or ()),
            "seconds_limit": row["seconds"],
        }
        for row in rows
    ]

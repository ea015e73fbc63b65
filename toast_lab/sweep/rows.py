"""Check that a line of a sweep's file is a row of one of its searches.

Fields that are counted and plotted are checked before they are used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from toast_lab import checks
from toast_lab.sweep.task import SweepTask

_TEXTS = ("model", "mesh", "machine", "method", "status", "message")
_NUMBERS = (
    "score",
    "time_s",
    "peak_bytes",
    "memory_limit_bytes",
    "unsharded_time_s",
    "unsharded_peak_bytes",
    "elapsed_s",
    "prepare_s",
    "own_best_s",
    "bound",
    "load_s",
    "analyse_s",
    "seconds",
    "memory_limit_gib",
    "evaluations",
    "evaluations_limit",
    "ops",
    "attempts",
    "cores",
)
_NEEDED = (
    "model",
    "sizes",
    "mesh",
    "machine",
    "method",
    "options",
    "seed",
    "status",
    "message",
    "curve",
)
_POINT_LENGTH = 6  #: elapsed_s, score, time_s, peak_bytes, fits, simulation


def row_offence(row: Mapping[str, Any]) -> str:
    """What is wrong with a row, with the field and its value; empty if nothing is."""
    if missing := [key for key in _NEEDED if key not in row]:
        return f"it lacks {', '.join(missing)}"
    if offence := checks.row_offence(
        row, texts=_TEXTS, objects=("sizes", "options"), numbers=_NUMBERS
    ):
        return offence
    if offence := checks.whole_offence(row["seed"], 0):
        return f"seed {offence}"
    if row.get("fits") not in (None, True, False):
        return f"fits must be true, false or null, got {row['fits']!r:.60}"
    actions = row.get("actions") or []
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        return f"actions must be a list of texts, got {actions!r:.60}"
    if not isinstance(row["curve"], list) or not all(_is_point(point) for point in row["curve"]):
        return "curve must be a list of points of six numbers"
    # A row names its task twice: by the fields that decide what the task is, and by their digest.
    task = {field.name: row.get(field.name) for field in dataclasses.fields(SweepTask)}
    task["evaluations"] = row.get("evaluations_limit")
    digest = hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:16]
    if row["digest"] != digest:
        return f"digest is {row['digest']!r:.40}, that of its task is {digest}"
    return ""


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == _POINT_LENGTH and all(map(_is_plain, point))


def _is_plain(number: Any) -> bool:
    return isinstance(number, bool) or not checks.number_offence(number)

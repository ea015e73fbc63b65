"""Memory of one device in program order, and what is in memory where a plan peaks.

``memory_chart`` draws it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toast_lab.text import line_text
from toast_lab.views.compare_table import PlanEntry, bytes_text, seconds_text

#: most points of a line; longer timelines are thinned to the largest point of each stretch
MAX_POINTS = 1500


def thinned(timeline_bytes: np.ndarray, at_most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """(op, bytes) of a timeline in at most ``at_most`` points.

    Each stretch gives its largest point, so that no peak is lost.
    """
    op_count = len(timeline_bytes)
    if op_count <= at_most:
        return np.arange(op_count), np.asarray(timeline_bytes, float)
    borders = np.linspace(0, op_count, at_most + 1).astype(int)
    positions = np.array(
        [
            start + np.argmax(timeline_bytes[start:stop])
            for start, stop in itertools.pairwise(borders)
        ]
    )
    return positions, np.asarray(timeline_bytes[positions], float)


def timeline_frame(entries: Iterable[PlanEntry], where: Sequence[str]) -> pd.DataFrame:
    """The data of the picture as a table, in SI units.

    One row for each op of each shown plan: bytes of one device, and the op's source line.
    """
    rows = [
        (entry.name, op, op_bytes, where[op] if op < len(where) else "")
        for entry in entries
        if entry.shown
        for op, op_bytes in enumerate(entry.cost.timeline_bytes)
    ]
    return pd.DataFrame(rows, columns=["plan", "op", "bytes", "where"])


def shown_peaks(entries: Iterable[PlanEntry], where: Sequence[str]) -> pd.DataFrame:
    """Where the memory of each shown plan peaks, as text for display.

    Each row also has the memory in use at the first and at the last op.
    """
    rows = [
        (
            f"{entry.style.symbol} {entry.name}",
            bytes_text(entry.cost.peak_bytes),
            f"{entry.cost.peak_bytes / entry.cost.memory_limit_bytes:.2%}",
            line_of(entry.cost.peak_op, where),
            bytes_text(entry.cost.timeline_bytes[0]),
            bytes_text(entry.cost.timeline_bytes[-1]),
        )
        for entry in entries
        if entry.shown
    ]
    return pd.DataFrame(rows, columns=["plan", "peak", "of limit", "at", "first", "last"])


def line_of(op: int, where: Sequence[str]) -> str:
    """Source line of an op; "the end" for what comes after all ops."""
    return where[op] if op < len(where) else "the end"


def held_frame(cost: Any) -> pd.DataFrame:
    """The values in memory where a plan peaks, largest first, in SI units; they add up to the peak.

    Shares are of everything alive, including what a TPU has in vector memory.
    """
    alive_bytes = float(sum(held.bytes for held in cost.at_peak if held.bytes > 0)) or 1.0
    return pd.DataFrame(
        [
            (held.kind, held.value, held.where, held.bytes, held.bytes / alive_bytes, held.op)
            for held in cost.at_peak
        ],
        columns=["what", "value", "line", "bytes", "share", "op"],
    )


def shown_held(held_rows: pd.DataFrame) -> pd.DataFrame:
    """The first 400 rows of ``held_frame`` as text for display."""
    held_rows = held_rows.head(400)
    return pd.DataFrame(
        {
            "bytes": [bytes_text(nbytes) for nbytes in held_rows["bytes"]],
            "share": [f"{share:.1%}" for share in held_rows["share"]],
            "what": held_rows["what"],
            "value": [value or "–" for value in held_rows["value"]],
            "line": [line_text(location) or "–" for location in held_rows["line"]],
        }
    )


def shown_changes(changes: Iterable[tuple[str, float, float, bool]]) -> pd.DataFrame:
    """Changes that save memory, as text for display.

    Args:
        changes: (what is changed, seconds of a step, peak bytes, does it fit).
    """
    rows = [
        ("fits" if fits else "", bytes_text(peak_bytes), seconds_text(time_s), text)
        for text, time_s, peak_bytes, fits in changes
    ]
    return pd.DataFrame(rows, columns=["", "memory", "step", "one change"])

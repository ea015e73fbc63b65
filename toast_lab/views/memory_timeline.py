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
from toast_lab.views.compare_table import PlanEntry, bytes_text

#: of a line; more are drawn as the largest of their neighbours
MAX_POINTS = 1500


def thinned(timeline_bytes: np.ndarray, at_most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """(op, bytes) of a timeline in at most ``at_most`` points.

    Each stretch gives its largest, so that no peak is lost.
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
    """The whole picture in SI units.

    Bytes of one device at every op of every shown plan, with its source line.
    """
    rows = [
        (entry.name, op, op_bytes, where[op] if op < len(where) else "")
        for entry in entries
        if entry.shown
        for op, op_bytes in enumerate(entry.cost.timeline_bytes)
    ]
    return pd.DataFrame(rows, columns=["plan", "op", "bytes", "where"])


def shown_peaks(entries: Iterable[PlanEntry], where: Sequence[str]) -> pd.DataFrame:
    """The table twin.

    Where each shown plan peaks, and what it has in memory before and after everything.
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
    """Source line of an op; what comes after all of them is the end."""
    return where[op] if op < len(where) else "the end"


def held_frame(cost: Any) -> pd.DataFrame:
    """What is in memory where a plan peaks, largest first, in SI units; adds up to the peak.

    Shares are of all that is alive, what a TPU has in vector memory included.
    """
    whole = float(sum(held.bytes for held in cost.at_peak if held.bytes > 0)) or 1.0
    return pd.DataFrame(
        [
            (held.kind, held.value, held.where, held.bytes, held.bytes / whole, held.op)
            for held in cost.at_peak
        ],
        columns=["what", "value", "line", "bytes", "share", "op"],
    )


def shown_held(held_rows: pd.DataFrame) -> pd.DataFrame:
    """``held_frame`` as people read it."""
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

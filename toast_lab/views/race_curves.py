"""A race as tables: its methods, and the best plan of each against time.

``race_chart`` draws them; each method has its own hue, dash and marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.palette import style

DASHES: tuple[Any, ...] = (
    "solid",
    "dashed",
    "dotted",
    "dotdash",
    "dashdot",
    (10, 3),
    (2, 6),
    (12, 3, 2, 3, 2, 3),
)
QUANTITY_TITLES = {"score": "C(s)", "time_s": "step time", "peak_bytes": "peak memory"}
COLUMNS = (
    "method",
    "best step",
    "best peak",
    "fits",
    "best C(s)",
    "time to best, s",
    "priced",
    "status",
)


def look_of(index: int) -> tuple[str, str, Any]:
    """(hue, marker, dash) of the ``index``-th method; all three differ for the first eight."""
    method_style = style(index)
    return method_style.hue, method_style.marker, DASHES[index % len(DASHES)]


def race_frame(rows: Iterable[Any]) -> pd.DataFrame:
    """The data of the chart as text for display: one row per ``RaceRow``."""
    return pd.DataFrame(
        [
            (
                row.method,
                seconds_text(row.time_s),
                bytes_text(row.peak_bytes),
                {True: "yes", False: "no", None: "–"}[row.fits],
                "–" if row.score is None else f"{row.score:.4f}",
                "–" if row.own_best_s is None else f"{row.own_best_s:.2f}",
                "–" if row.evaluations is None else f"{row.evaluations:,}",
                row.status.lower(),
            )
            for row in rows
        ],
        columns=COLUMNS,
    )


def points_frame(points: Mapping[str, Sequence[Any]], until_s: Mapping[str, float]) -> pd.DataFrame:
    """Improvements of all methods in SI units; each curve keeps its last height up to ``until_s``.

    Args:
        points: ``search.search_child.ImprovementPoint`` by method.
        until_s: by method, how many seconds its own search has run so far.
    """
    rows = []
    for method, improvements in points.items():
        shown = [*improvements, *improvements[-1:]]
        for index, point in enumerate(shown):
            elapsed_s = point.elapsed_s
            if index == len(shown) - 1:
                elapsed_s = max(elapsed_s, until_s.get(method, 0.0))
            measures = (elapsed_s, point.score, point.time_s, point.peak_bytes)
            rows.append((method, *measures, "yes" if point.fits else "no"))
    columns = ["method", "elapsed_s", "score", "time_s", "peak_bytes", "fits"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype(dict.fromkeys(columns[1:5], float))

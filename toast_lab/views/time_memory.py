"""Time against memory as a table: one row per plan and source, with the plans that none beats.

``time_memory_chart`` draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from toast_lab.views.compare_table import PlanEntry, compare_frame

SOURCES = (("estimated", "time_s", "peak_bytes"), ("measured", "measured_s", "measured_peak_bytes"))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other one beats in both coordinates, sorted by the first one.

    >>> front([(1.0, 3.0), (2.0, 2.0), (2.5, 2.5), (3.0, 1.0)])
    [0, 1, 3]
    """
    least_y, unbeaten = float("inf"), []
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        if points[index][1] < least_y:
            least_y = points[index][1]
            unbeaten.append(index)
    return unbeaten


def time_memory_frame(entries: Iterable[PlanEntry]) -> pd.DataFrame:
    """The data of the chart as a table, in SI units.

    One row for each shown plan and source of its numbers; each source has its own front.
    """
    shown_entries = [entry for entry in entries if entry.shown]
    frame, table_rows = compare_frame(shown_entries), []
    for source, time_s, peak in SOURCES:
        points = frame[[peak, time_s]].astype(float).dropna()
        on_front = front(list(points.itertuples(index=False, name=None)))
        for point_index, (index, x, y) in enumerate(points.itertuples(name=None)):
            entry = shown_entries[index]
            table_rows.append((entry.name, source, y, x, point_index in on_front, entry.number))
    return pd.DataFrame(
        table_rows, columns=["plan", "source", "time_s", "peak_bytes", "on_front", "number"]
    )

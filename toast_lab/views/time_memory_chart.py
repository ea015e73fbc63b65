"""Time against memory as a chart: one marker per plan, and a line along the front.

Estimates are hollow, measurements filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import pandas as pd

from toast_lab.views.chart_scale import padded
from toast_lab.views.chart_style import (
    NamesBeside,
    chart,
    drawn,
    hover,
    level_line,
)
from toast_lab.views.compare_table import PlanEntry, byte_unit, bytes_text, time_unit
from toast_lab.views.palette import CONFLICT, NEUTRAL

#: from this ratio of the largest time to the smallest on the axis is logarithmic
FAR = 30.0
FIGURE = "time against memory"


def time_memory_chart(
    frame: pd.DataFrame, entries: Sequence[PlanEntry], memory_limit_bytes: float | None = None
) -> Any:
    """An overlay of markers with names, and fronts.

    Selections are linked by its dimension ``plan``.

    Args:
        frame: ``time_memory_frame``, in SI units.
        entries: plans, for their hues and markers.
        memory_limit_bytes: of a device; drawn where a plan comes near it.
    """
    slowest = float(frame["time_s"].max()) if len(frame) else 1.0
    largest_peak = float(frame["peak_bytes"].max()) if len(frame) else 1.0
    quickest = float(frame["time_s"].min()) if len(frame) else 1.0
    logarithmic = len(frame) > 1 and slowest > FAR * quickest
    unit_name, unit_s = time_unit(quickest if logarithmic else slowest)
    memory_unit, unit_bytes = byte_unit(largest_peak)
    rows = _drawn_rows(frame, entries, unit_s, unit_bytes)
    tooltips = [
        ("plan", "@plan"),
        ("", "@source"),
        ("time", f"@time {unit_name}"),
        ("memory", f"@memory {memory_unit}"),
    ]
    elements: list[Any] = []
    for source, of_source in rows.groupby("source", sort=False):
        elements += _of_source(str(source), of_source, tooltips)
    if memory_limit_bytes is not None and largest_peak > 0.3 * memory_limit_bytes:
        limit = memory_limit_bytes / unit_bytes
        label = f"limit {bytes_text(memory_limit_bytes)}"
        elements.append(level_line(limit, label, CONFLICT, vertical=True))
    low, high = padded(quickest / unit_s, slowest / unit_s, 0.15, logarithmic=logarithmic)
    return chart(
        elements or [hv.Scatter([], "memory", "time")],
        name=FIGURE,
        xlabel=f"peak memory per device ({memory_unit})",
        ylabel=f"step time ({unit_name})",
        xlim=(0, 1.15 * max(largest_peak, _near(memory_limit_bytes, largest_peak)) / unit_bytes),
        ylim=(low if logarithmic else -0.08 * slowest / unit_s, high),
        logy=logarithmic,
        legend="top" if len(frame) else None,
        tappable=tuple(str(source) for source in rows["source"].unique()),
    )


def _near(limit_bytes: float | None, largest_peak: float) -> float:
    """The limit where it lies beside the plans, else 0."""
    return limit_bytes if limit_bytes is not None and limit_bytes < 1.6 * largest_peak else 0.0


def _drawn_rows(
    frame: pd.DataFrame, entries: Sequence[PlanEntry], unit_s: float, unit_bytes: float
) -> pd.DataFrame:
    """The rows with their looks, in the units of the axes."""
    styles = {entry.number: entry.style for entry in entries}
    parts = []
    for _, rows in frame.groupby("source", sort=False):
        peaks = rows["peak_bytes"].tolist()
        leftwards = _leftwards(peaks, float(frame["peak_bytes"].max()))
        parts.append(
            rows.assign(
                memory=rows["peak_bytes"] / unit_bytes,
                time=rows["time_s"] / unit_s,
                hue=[styles[number].hue for number in rows["number"]],
                marker=[styles[number].marker for number in rows["number"]],
                align=["right" if is_left else "left" for is_left in leftwards],
                dx=[-11 if is_left else 11 for is_left in leftwards],
                dy=_apart(peaks, rows["time_s"].tolist()),
            )
        )
    if parts:
        return pd.concat(parts)
    return frame.assign(**dict.fromkeys(["memory", "time", "hue", "marker", "align", "dx", "dy"]))


def _of_source(source: str, rows: pd.DataFrame, tooltips: list[tuple[str, str]]) -> list[Any]:
    """The front, and the markers of plans whose numbers come from one source."""
    front_rows = rows[rows["on_front"]].sort_values("peak_bytes")
    estimated = source == "estimated"
    looks = ["hue", "marker", "align", "dx", "dy"]
    columns = ["time", "plan", "source", "time_s", "peak_bytes", *looks]
    markers = hv.Scatter(rows, "memory", columns, label=source)
    return [
        drawn(
            hv.Curve(front_rows, "memory", ["time", "plan"], label=f"front, {source}"),
            color=NEUTRAL,
            line_dash="dotted" if estimated else "solid",
            line_width=1.4,
            show_legend=False,
        ),
        drawn(
            markers,
            NamesBeside("memory", "time", "plan"),
            marker=hv.dim("marker"),
            size=13,
            line_color=hv.dim("hue"),
            fill_color=hv.dim("hue"),
            fill_alpha=0.0 if estimated else 1.0,
            line_width=2.2,
            nonselection_line_alpha=1.0,
            nonselection_fill_alpha=0.0 if estimated else 1.0,
            **hover(tooltips),
        ),
    ]


def _leftwards(positions: list[float], width: float) -> list[bool]:
    """Which names stand left of their marker.

    Those do at the right edge, and those with a neighbour at the right.
    """
    return [
        x > 0.6 * width
        or (x > 0.2 * width and any(x < other < x + 0.18 * width for other in positions))
        for x in positions
    ]


def _apart(xs: list[float], ys: list[float]) -> list[int]:
    """Label offsets in pixels.

    Plans that lie close together get their names one below the other.
    """
    width, height = max(xs, default=1) or 1, max(ys, default=1) or 1
    offsets: list[int] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        neighbours = sum(
            1
            for other_x, other_y in zip(xs[:index], ys[:index], strict=True)
            if abs(other_x - x) < 0.15 * width and abs(other_y - y) < 0.07 * height
        )
        offsets.append(5 + (13 * ((neighbours + 1) // 2) * (-1 if neighbours % 2 else 1)))
    return offsets

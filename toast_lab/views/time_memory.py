"""Time against memory, one marker per plan, and the plans that no other one beats.

Estimates are hollow, measurements filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, HoverTool, PanTool, ResetTool, TapTool, WheelZoomTool
from bokeh.plotting import figure

from toast_lab.views.compare_table import (
    PlanEntry,
    byte_unit,
    bytes_text,
    compare_frame,
    seconds_text,
    time_unit,
)
from toast_lab.views.palette import NEUTRAL
from toast_lab.views.plot_style import FONT, add_memory_limit, legend_above, new_chart

#: from this ratio of the largest time to the smallest on the axis is logarithmic
FAR = 30.0
SOURCES = (("estimated", "time_s", "peak_bytes"), ("measured", "measured_s", "measured_peak_bytes"))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points that no other one beats in both numbers, by the first of them.

    >>> front([(1.0, 3.0), (2.0, 2.0), (2.5, 2.5), (3.0, 1.0)])
    [0, 1, 3]
    """
    least, unbeaten = float("inf"), []
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        if points[index][1] < least:
            least = points[index][1]
            unbeaten.append(index)
    return unbeaten


def time_memory_frame(entries: Iterable[PlanEntry]) -> pd.DataFrame:
    """The table twin in SI units.

    A row for each shown plan and source of its numbers; ``on_front`` within a source.
    """
    shown_entries = [entry for entry in entries if entry.shown]
    frame, table_rows = compare_frame(shown_entries), []
    for source, time_s, peak in SOURCES:
        points = frame[[peak, time_s]].astype(float).dropna()
        on_front = front(list(points.itertuples(index=False, name=None)))
        for position, (index, x, y) in enumerate(points.itertuples(name=None)):
            entry = shown_entries[index]
            table_rows.append((entry.name, source, y, x, position in on_front, entry.number))
    return pd.DataFrame(
        table_rows, columns=["plan", "source", "time_s", "peak_bytes", "on_front", "number"]
    )


def shown_time_memory(frame: pd.DataFrame) -> pd.DataFrame:
    """``time_memory_frame`` as people read it."""
    return pd.DataFrame(
        {
            "plan": frame["plan"],
            "source": frame["source"],
            "step": [seconds_text(value) for value in frame["time_s"]],
            "peak": [bytes_text(value) for value in frame["peak_bytes"]],
            "front": ["on it" if is_best else "–" for is_best in frame["on_front"]],
        }
    )


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


def time_memory_plot(
    frame: pd.DataFrame, entries: Sequence[PlanEntry], memory_limit_bytes: float | None = None
) -> figure:
    """The picture of ``time_memory_frame``."""
    styles = {entry.number: entry.style for entry in entries}
    slowest = float(frame["time_s"].max()) if len(frame) else 1.0
    largest_peak = float(frame["peak_bytes"].max()) if len(frame) else 1.0
    logarithmic = len(frame) > 1 and slowest > FAR * float(frame["time_s"].min())
    unit_name, unit_s = time_unit(float(frame["time_s"].min()) if logarithmic else slowest)
    memory_unit, unit_bytes = byte_unit(largest_peak)
    plot = new_chart(
        "time against memory",
        toolbar_location="right",
        y_axis_type="log" if logarithmic else "linear",
        x_axis_label=f"peak memory per device ({memory_unit})",
        y_axis_label=f"step time ({unit_name})",
    )
    renderers: list[Any] = []
    for source, source_rows in frame.groupby("source", sort=False):
        x, y = source_rows["peak_bytes"] / unit_bytes, source_rows["time_s"] / unit_s
        plan_styles = [styles[number] for number in source_rows["number"]]
        leftwards = _leftwards(source_rows["peak_bytes"].tolist(), largest_peak)
        marker_source = ColumnDataSource(
            {
                "x": x.to_numpy(float),
                "y": y.to_numpy(float),
                "plan": source_rows["plan"].tolist(),
                "kind": source_rows["source"].tolist(),
                "hue": [style.hue for style in plan_styles],
                "marker": [style.marker for style in plan_styles],
                "align": ["right" if is_left else "left" for is_left in leftwards],
                "dx": [-11 if is_left else 11 for is_left in leftwards],
                "dy": _apart(x.tolist(), y.tolist()),
            }
        )
        front_rows = source_rows[source_rows["on_front"]].sort_values("peak_bytes")
        plot.line(
            (front_rows["peak_bytes"] / unit_bytes).to_numpy(float),
            (front_rows["time_s"] / unit_s).to_numpy(float),
            line_color=NEUTRAL,
            line_dash="dotted" if source == "estimated" else "solid",
            line_width=1.4,
            name=f"front, {source}",
        )
        markers = plot.scatter(
            "x",
            "y",
            source=marker_source,
            marker="marker",
            size=13,
            line_color="hue",
            line_width=2.2,
            name=source,
            fill_color=None if source == "estimated" else "hue",
            legend_label=str(source),
            nonselection_alpha=1.0,
        )
        renderers.append(markers)
        plot.text(
            "x",
            "y",
            text="plan",
            source=marker_source,
            x_offset="dx",
            y_offset="dy",
            text_align="align",
            text_font_size="11px",
            text_color=NEUTRAL,
            text_font=value(FONT),
            nonselection_alpha=1.0,
        )
    if memory_limit_bytes is not None and largest_peak > 0.3 * memory_limit_bytes:
        add_memory_limit(plot, memory_limit_bytes / unit_bytes, memory_limit_bytes, on_x_axis=True)
    plot.x_range.start = 0
    if not logarithmic:
        plot.y_range.start = -0.08 * slowest / unit_s
    plot.x_range.range_padding = plot.y_range.range_padding = 0.25
    if len(frame):
        legend_above(plot)
    tooltips = [
        ("plan", "@plan"),
        ("", "@kind"),
        ("time", f"@y {unit_name}"),
        ("memory", f"@x {memory_unit}"),
    ]
    plot.add_tools(
        HoverTool(renderers=renderers, tooltips=tooltips),
        PanTool(),
        WheelZoomTool(),
        ResetTool(),
        TapTool(renderers=renderers),
    )
    return plot

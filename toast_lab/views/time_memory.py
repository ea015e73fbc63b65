"""Time against memory, one marker a plan.

Estimates are hollow, measurements filled.  Also finds the plans that no other one beats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, HoverTool, PanTool, ResetTool, TapTool, WheelZoomTool
from bokeh.models.annotations import Label, Span
from bokeh.plotting import figure

from toast_lab.views.compare_table import (
    Entry,
    byte_unit,
    bytes_text,
    compare_frame,
    seconds_text,
    time_unit,
)
from toast_lab.views.graph_plot import FONT, _style
from toast_lab.views.palette import CONFLICT, NEUTRAL

FAR = 30.0  #: from this ratio of the largest time to the smallest on the axis is logarithmic
SOURCES = (("estimated", "time_s", "peak_bytes"), ("measured", "measured_s", "measured_peak_bytes"))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points that no other one beats in both numbers, by the first of them.

    >>> front([(1.0, 3.0), (2.0, 2.0), (2.5, 2.5), (3.0, 1.0)])
    [0, 1, 3]
    """
    best, found = float("inf"), []
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        if points[i][1] < best:
            best = points[i][1]
            found.append(i)
    return found


def time_memory_frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """The table twin in SI units.

    A row for each shown plan and source of its numbers; ``on_front`` within a source.
    """
    every = [e for e in entries if e.shown]
    frame, rows = compare_frame(every), []
    for source, time_s, peak in SOURCES:
        there = [
            i for i in range(len(frame)) if pd.notna(frame[time_s][i]) and pd.notna(frame[peak][i])
        ]
        points = [(float(frame[peak][i]), float(frame[time_s][i])) for i in there]
        best = set(front(points))
        for k, (i, (x, y)) in enumerate(zip(there, points, strict=True)):
            rows.append((every[i].name, source, y, x, k in best, every[i].number))
    return pd.DataFrame(
        rows, columns=["plan", "source", "time_s", "peak_bytes", "on_front", "number"]
    )


def shown_time_memory(frame: pd.DataFrame) -> pd.DataFrame:
    """``time_memory_frame`` as people read it."""
    return pd.DataFrame(
        {
            "plan": frame["plan"],
            "source": frame["source"],
            "step": [seconds_text(v) for v in frame["time_s"]],
            "peak": [bytes_text(v) for v in frame["peak_bytes"]],
            "front": ["on it" if f else "–" for f in frame["on_front"]],
        }
    )


def _leftwards(xs: list[float], wide: float) -> list[bool]:
    """Which names stand left of their marker.

    Those do at the right edge, and those with a neighbour at the right.
    """
    return [
        x > 0.6 * wide or (x > 0.2 * wide and any(x < other < x + 0.18 * wide for other in xs))
        for x in xs
    ]


def _apart(xs: list[float], ys: list[float]) -> list[int]:
    """Label offsets in pixels.

    Plans that lie close together get their names one below the other.
    """
    wide, high = max(xs, default=1) or 1, max(ys, default=1) or 1
    out: list[int] = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        near = sum(
            1
            for a, b in zip(xs[:i], ys[:i], strict=True)
            if abs(a - x) < 0.15 * wide and abs(b - y) < 0.07 * high
        )
        out.append(5 + (13 * ((near + 1) // 2) * (-1 if near % 2 else 1)))
    return out


def time_memory_plot(
    frame: pd.DataFrame, entries: Sequence[Entry], memory_limit_bytes: float | None = None
) -> figure:
    """The picture of ``time_memory_frame``."""
    styles = {e.number: e.style for e in entries}
    slowest = float(frame["time_s"].max()) if len(frame) else 1.0
    wide = float(frame["peak_bytes"].max()) if len(frame) else 1.0
    far = len(frame) > 1 and slowest > FAR * float(frame["time_s"].min())
    unit, scale = time_unit(float(frame["time_s"].min()) if far else slowest)
    memory_unit, memory_scale = byte_unit(wide)
    plot: Any = figure(
        sizing_mode="stretch_both",
        tools=[],
        output_backend="canvas",
        name="time against memory",
        toolbar_location="right",
        y_axis_type="log" if far else "linear",
        x_axis_label=f"peak memory a device ({memory_unit})",
        y_axis_label=f"step time ({unit})",
    )
    quiet(plot)
    hover: list[Any] = []
    for source, rows in frame.groupby("source", sort=False):
        x, y = rows["peak_bytes"] / memory_scale, rows["time_s"] / scale
        found = [styles[n] for n in rows["number"]]
        right = _leftwards(rows["peak_bytes"].tolist(), wide)
        data = ColumnDataSource(
            {
                "x": x.to_numpy(float),
                "y": y.to_numpy(float),
                "plan": rows["plan"].tolist(),
                "kind": rows["source"].tolist(),
                "hue": [s.hue for s in found],
                "marker": [s.marker for s in found],
                "align": ["right" if r else "left" for r in right],
                "dx": [-11 if r else 11 for r in right],
                "dy": _apart(x.tolist(), y.tolist()),
            }
        )
        best = rows[rows["on_front"]].sort_values("peak_bytes")
        plot.line(
            (best["peak_bytes"] / memory_scale).to_numpy(float),
            (best["time_s"] / scale).to_numpy(float),
            line_color=NEUTRAL,
            line_dash="dotted" if source == "estimated" else "solid",
            line_width=1.4,
            name=f"front, {source}",
        )
        drawn = plot.scatter(
            "x",
            "y",
            source=data,
            marker="marker",
            size=13,
            line_color="hue",
            line_width=2.2,
            name=source,
            fill_color=None if source == "estimated" else "hue",
            legend_label=str(source),
            nonselection_alpha=1.0,
        )
        hover.append(drawn)
        plot.text(
            "x",
            "y",
            text="plan",
            source=data,
            x_offset="dx",
            y_offset="dy",
            text_align="align",
            text_font_size="11px",
            text_color=NEUTRAL,
            text_font=value(FONT),
            nonselection_alpha=1.0,
        )
    if memory_limit_bytes is not None and wide > 0.3 * memory_limit_bytes:
        limit = Span(
            location=memory_limit_bytes / memory_scale,
            dimension="height",
            line_color=CONFLICT,
            line_dash="dashed",
        )
        plot.add_layout(limit)
        words = f"limit {bytes_text(memory_limit_bytes)}"
        plot.add_layout(
            Label(
                x=memory_limit_bytes / memory_scale,
                y=4,
                y_units="screen",
                x_offset=4,
                text=words,
                text_color=CONFLICT,
                text_font_size="11px",
            )
        )
    plot.x_range.start = 0
    if not far:
        plot.y_range.start = -0.08 * slowest / scale
    plot.x_range.range_padding = plot.y_range.range_padding = 0.25
    if len(frame):
        legend_above(plot)
    tips = [
        ("plan", "@plan"),
        ("", "@kind"),
        ("time", f"@y {unit}"),
        ("memory", f"@x {memory_unit}"),
    ]
    plot.add_tools(
        HoverTool(renderers=hover, tooltips=tips),
        PanTool(),
        WheelZoomTool(),
        ResetTool(),
        TapTool(renderers=hover),
    )
    return plot


def legend_above(plot: Any, columns: int | None = None) -> None:
    """Put the legend of a figure in rows above it, where it covers nothing."""
    plot.add_layout(plot.legend[0], "above")
    plot.legend.orientation = "horizontal"
    plot.legend.border_line_color = None
    plot.legend.background_fill_color = None
    plot.legend.padding = plot.legend.margin = 0
    plot.legend.label_text_font_size = "11px"
    plot.legend.label_text_color = NEUTRAL
    if columns is not None:
        plot.legend.ncols = columns


def quiet(plot: Any) -> None:
    """The look of all figures that compare plans."""
    _style(plot)
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    for axis in plot.axis:
        axis.axis_label_text_color = NEUTRAL
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font = FONT
        axis.axis_label_text_font_size = "11px"

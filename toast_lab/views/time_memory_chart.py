"""Time against memory as a chart: one marker per plan, and a line along the front.

Markers of estimates are hollow, those of measurements are filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import holoviews as hv
import pandas as pd

from toast_lab.views.chart_scale import padded
from toast_lab.views.chart_style import (
    chart,
    drawn,
    hover,
    level_line,
    names_beside,
    plain_ticks,
)
from toast_lab.views.compare_table import PlanEntry, byte_unit, bytes_text, time_unit
from toast_lab.views.palette import CONFLICT, NEUTRAL

#: an axis is logarithmic if its largest number is more than this many times its smallest
LOGARITHMIC_RATIO = 8.0
FIGURE = "time against memory"


def time_memory_chart(
    frame: pd.DataFrame, entries: Sequence[PlanEntry], memory_limit_bytes: float | None = None
) -> Any:
    """An overlay of markers with names, and fronts.

    ``holoviews.link_selections`` links it with other charts by its dimension ``plan``.

    Args:
        frame: ``time_memory_frame``, in SI units.
        entries: plans, which give hues and markers.
        memory_limit_bytes: memory limit of a device; drawn if a plan comes near it.
    """
    times_s, peaks_bytes = frame["time_s"].tolist(), frame["peak_bytes"].tolist()
    largest_peak = max(peaks_bytes, default=1.0)
    near_limit = _near(memory_limit_bytes, largest_peak)
    time_span = _Span.over(times_s)
    memory_span = _Span.over([*peaks_bytes, *([near_limit] if near_limit else [])])
    unit_name, unit_s = time_unit(time_span.typical)
    memory_unit, unit_bytes = byte_unit(memory_span.typical)
    rows = _drawn_rows(frame, entries, (memory_span, unit_bytes), (time_span, unit_s))
    tooltips = [
        ("plan", "@plan"),
        ("", "@source"),
        ("time", f"@time {unit_name}"),
        ("memory", f"@memory {memory_unit}"),
    ]
    elements: list[Any] = []
    for source, source_rows in rows.groupby("source", sort=False):
        elements += _of_source(str(source), source_rows, tooltips)
    if memory_limit_bytes is not None and largest_peak > 0.3 * memory_limit_bytes:
        limit = memory_limit_bytes / unit_bytes
        label = f"limit {bytes_text(memory_limit_bytes)}"
        is_right = memory_span.place(memory_limit_bytes) > 0.6
        elements.append(level_line(limit, label, CONFLICT, vertical=True, leftwards=is_right))
    return chart(
        elements or [hv.Scatter([], "memory", "time")],
        name=FIGURE,
        xlabel=f"peak memory per device ({memory_unit})",
        ylabel=f"step time ({unit_name})",
        xlim=memory_span.limits(unit_bytes, below=0.0),
        ylim=time_span.limits(unit_s, below=0.08),
        logx=memory_span.logarithmic,
        logy=time_span.logarithmic,
        hooks=[plain_ticks],
        legend="top" if len(frame) else None,
        tappable=tuple(str(source) for source in rows["source"].unique()),
    )


class _Span(NamedTuple):
    """From the least to the largest number of an axis, and whether it is logarithmic."""

    least: float
    largest: float
    logarithmic: bool

    @classmethod
    def over(cls, numbers: Sequence[float]) -> _Span:
        """The span of ``numbers``, logarithmic where good plans would otherwise overlap."""
        least, largest = min(numbers, default=1.0), max(numbers, default=1.0)
        return cls(least, largest, least > 0 and largest > LOGARITHMIC_RATIO * least)

    @property
    def typical(self) -> float:
        """The number in whose unit the ticks have the fewest digits."""
        return math.sqrt(self.least * self.largest) if self.logarithmic else self.largest

    def place(self, number: float) -> float:
        """Where a number lies on the axis, from 0 to 1."""
        if self.logarithmic:
            return math.log(number / self.least) / math.log(self.largest / self.least)
        return number / self.largest if self.largest else 0.0

    def limits(self, unit: float, below: float) -> tuple[float, float]:
        """Ends of the axis, in its unit; ``below`` is the share that a linear one has below 0."""
        low, high = padded(
            self.least / unit, self.largest / unit, 0.15, logarithmic=self.logarithmic
        )
        return (low, high) if self.logarithmic else (-below * high, 1.15 * self.largest / unit)


def _near(limit_bytes: float | None, largest_peak: float) -> float:
    """The limit if it lies near the plans, else 0."""
    return limit_bytes if limit_bytes is not None and limit_bytes < 1.6 * largest_peak else 0.0


def _drawn_rows(
    frame: pd.DataFrame,
    entries: Sequence[PlanEntry],
    memory_axis: tuple[_Span, float],
    time_axis: tuple[_Span, float],
) -> pd.DataFrame:
    """The rows in the units of the axes, with the look of each; an axis is (span, unit)."""
    (memory_span, unit_bytes), (time_span, unit_s) = memory_axis, time_axis
    styles = {entry.number: entry.style for entry in entries}
    rows_of_sources = []
    for _, rows in frame.groupby("source", sort=False):
        xs = [memory_span.place(peak_bytes) for peak_bytes in rows["peak_bytes"]]
        ys = [time_span.place(time_s) for time_s in rows["time_s"]]
        leftwards = _leftwards(xs)
        rows_of_sources.append(
            rows.assign(
                memory=rows["peak_bytes"] / unit_bytes,
                time=rows["time_s"] / unit_s,
                hue=[styles[number].hue for number in rows["number"]],
                marker=[styles[number].marker for number in rows["number"]],
                align=["right" if is_left else "left" for is_left in leftwards],
                dx=[-11 if is_left else 11 for is_left in leftwards],
                dy=_apart(xs, ys),
            )
        )
    if rows_of_sources:
        return pd.concat(rows_of_sources)
    return frame.assign(**dict.fromkeys(["memory", "time", "hue", "marker", "align", "dx", "dy"]))


def _of_source(source: str, rows: pd.DataFrame, tooltips: list[tuple[str, str]]) -> list[Any]:
    """Elements of one source of numbers: its front, and the markers of its plans."""
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
            names_beside("memory", "time", "plan"),
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


def _leftwards(xs: list[float]) -> list[bool]:
    """Which names stand left of their marker: near the right edge, or a neighbour's left."""
    return [x > 0.6 or (x > 0.2 and any(x < other < x + 0.18 for other in xs)) for x in xs]


def _apart(xs: list[float], ys: list[float]) -> list[int]:
    """Vertical label offsets in pixels: names of plans that lie close go one below the other."""
    offsets: list[int] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        neighbours = sum(
            1
            for other_x, other_y in zip(xs[:index], ys[:index], strict=True)
            if abs(other_x - x) < 0.15 and abs(other_y - y) < 0.07
        )
        offsets.append(5 + (13 * ((neighbours + 1) // 2) * (-1 if neighbours % 2 else 1)))
    return offsets

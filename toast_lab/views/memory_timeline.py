"""Memory in program order, all plans on one axis, with the limit.

A table shows what is in memory at the peak of a plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, HoverTool, PanTool, ResetTool, TapTool, WheelZoomTool
from bokeh.plotting import figure

from toast_lab.text import line_text
from toast_lab.views.compare_table import PlanEntry, byte_unit, bytes_text
from toast_lab.views.plot_style import add_memory_limit, legend_above, new_chart

#: of a line; more are drawn as the largest of their neighbours
MAX_POINTS = 1500
_DASHES = ("solid", "dashed", "dotdash", "dotted", "dashdot")


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
            _line_of(entry.cost.peak_op, where),
            bytes_text(entry.cost.timeline_bytes[0]),
            bytes_text(entry.cost.timeline_bytes[-1]),
        )
        for entry in entries
        if entry.shown
    ]
    return pd.DataFrame(rows, columns=["plan", "peak", "of limit", "at", "first", "last"])


def _line_of(op: int, where: Sequence[str]) -> str:
    return where[op] if op < len(where) else "the end"


def held_frame(cost: Any) -> pd.DataFrame:
    """What is in memory where a plan peaks, largest first, in SI units; adds up to the peak."""
    whole = float(cost.peak_bytes) or 1.0
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


def timeline_plot(
    entries: Sequence[PlanEntry], memory_limit_bytes: float, where: Sequence[str]
) -> figure:
    """The picture of ``timeline_frame``; the markers stand at the peaks."""
    shown_entries = [entry for entry in entries if entry.shown]
    highest = max((float(entry.cost.peak_bytes) for entry in shown_entries), default=1.0)
    unit_name, unit_bytes = byte_unit(highest)
    plot = new_chart(
        "memory timelines",
        toolbar_location="right",
        x_axis_label="program order (op)",
        y_axis_label=f"memory ({unit_name})",
    )
    steps = []
    for entry in shown_entries:
        positions, drawn_bytes = thinned(entry.cost.timeline_bytes)
        source = ColumnDataSource(
            {
                "x": positions,
                "y": drawn_bytes / unit_bytes,
                "plan": [entry.name] * len(positions),
                "where": [_line_of(op, where) for op in positions],
            }
        )
        steps.append(
            plot.step(
                "x",
                "y",
                source=source,
                mode="after",
                line_width=1.6,
                name=entry.name,
                legend_label=entry.name,
                nonselection_alpha=1.0,
                line_color=entry.style.hue,
                line_dash=_DASHES[entry.number % len(_DASHES)],
            )
        )
    peak_source = ColumnDataSource(
        {
            "x": [entry.cost.peak_op for entry in shown_entries],
            "y": [float(entry.cost.peak_bytes) / unit_bytes for entry in shown_entries],
            "plan": [entry.name for entry in shown_entries],
            "hue": [entry.style.hue for entry in shown_entries],
            "marker": [entry.style.marker for entry in shown_entries],
            "where": [_line_of(entry.cost.peak_op, where) for entry in shown_entries],
        }
    )
    peak_markers = plot.scatter(
        "x",
        "y",
        source=peak_source,
        marker="marker",
        size=12,
        fill_color="hue",
        line_color="white",
        name="peaks",
        nonselection_alpha=1.0,
    )
    if highest > 0.3 * memory_limit_bytes:
        add_memory_limit(plot, memory_limit_bytes / unit_bytes, memory_limit_bytes)
        plot.y_range.end = 1.12 * max(highest, memory_limit_bytes) / unit_bytes
    else:
        plot.y_range.end = 1.15 * highest / unit_bytes
    plot.y_range.start = 0
    if shown_entries:
        legend_above(plot, 4)
    tooltips = [("plan", "@plan"), ("op", "@x"), ("memory", f"@y {unit_name}"), ("line", "@where")]
    plot.add_tools(
        HoverTool(renderers=[peak_markers, *steps], tooltips=tooltips),
        TapTool(renderers=[peak_markers]),
        PanTool(),
        WheelZoomTool(),
        ResetTool(),
    )
    return plot

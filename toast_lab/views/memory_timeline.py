"""Memory in program order, all plans on one axis, with the limit.

Shows what is in memory where a plan peaks, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, HoverTool, PanTool, ResetTool, TapTool, WheelZoomTool
from bokeh.models.annotations import Label, Span
from bokeh.plotting import figure

from toast_lab.text import line_text
from toast_lab.views.compare_table import Entry, byte_unit, bytes_text
from toast_lab.views.palette import CONFLICT
from toast_lab.views.time_memory import legend_above, quiet

MAX_POINTS = 1500  #: of a line; more are drawn as the largest of their neighbours
_DASHES = ("solid", "dashed", "dotdash", "dotted", "dashdot")


def thinned(timeline_bytes: np.ndarray, at_most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """(op, bytes) of a timeline in at most so many points.

    Of each stretch its largest, so that no peak is lost.
    """
    n = len(timeline_bytes)
    if n <= at_most:
        return np.arange(n), np.asarray(timeline_bytes, float)
    edges = np.linspace(0, n, at_most + 1).astype(int)[:-1]
    found = np.maximum.reduceat(timeline_bytes, edges)
    ends = np.append(edges[1:], n)
    at = np.array(
        [a + int(np.argmax(timeline_bytes[a:b])) for a, b in zip(edges, ends, strict=True)]
    )
    return at, np.asarray(found, float)


def timeline_frame(entries: Iterable[Entry], where: Sequence[str] = ()) -> pd.DataFrame:
    """The whole picture in SI units.

    Bytes of one device at every op of every shown plan, with its source line.
    """
    parts = []
    for e in entries:
        if e.shown:
            n = len(e.cost.timeline_bytes)
            lines = [where[i] if i < len(where) else "" for i in range(n)]
            parts.append(
                pd.DataFrame(
                    {
                        "plan": e.name,
                        "op": np.arange(n),
                        "bytes": e.cost.timeline_bytes,
                        "where": lines,
                    }
                )
            )
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=["plan", "op", "bytes", "where"])
    )


def shown_peaks(entries: Iterable[Entry], where: Sequence[str]) -> pd.DataFrame:
    """The table twin.

    Where each shown plan peaks, and what it has in memory before and after everything.
    """
    rows = []
    for e in entries:
        if not e.shown:
            continue
        line, cost = e.cost.timeline_bytes, e.cost
        rows.append(
            {
                "plan": f"{e.style.symbol} {e.name}",
                "peak": bytes_text(cost.peak_bytes),
                "of limit": f"{cost.peak_bytes / cost.memory_limit_bytes:.2%}",
                "at": where[cost.peak_op] if cost.peak_op < len(where) else "the end",
                "first": bytes_text(float(line[0])),
                "last": bytes_text(float(line[-1])),
            }
        )
    return pd.DataFrame(rows, columns=["plan", "peak", "of limit", "at", "first", "last"])


def held_frame(cost: Any) -> pd.DataFrame:
    """What is in memory where a plan peaks, largest first, in SI units; adds up to the peak."""
    whole = float(cost.peak_bytes) or 1.0
    return pd.DataFrame(
        [(h.what, h.value, h.where, h.bytes, h.bytes / whole, h.op) for h in cost.at_peak],
        columns=["what", "value", "line", "bytes", "share", "op"],
    )


def shown_held(frame: pd.DataFrame, at_most: int = 400) -> pd.DataFrame:
    """``held_frame`` as people read it."""
    frame = frame.head(at_most)
    return pd.DataFrame(
        {
            "bytes": [bytes_text(b) for b in frame["bytes"]],
            "share": [f"{s:.1%}" for s in frame["share"]],
            "what": frame["what"],
            "value": [v or "–" for v in frame["value"]],
            "line": [line_text(w) or "–" for w in frame["line"]],
        }
    )


def timeline_plot(
    entries: Sequence[Entry], memory_limit_bytes: float, where: Sequence[str]
) -> figure:
    """The picture of ``timeline_frame``; the markers stand at the peaks."""
    shown = [e for e in entries if e.shown]
    highest = max((float(e.cost.peak_bytes) for e in shown), default=1.0)
    unit, scale = byte_unit(highest)
    plot: Any = figure(
        sizing_mode="stretch_both",
        tools=[],
        output_backend="canvas",
        name="memory timelines",
        toolbar_location="right",
        x_axis_label="program order (op)",
        y_axis_label=f"memory ({unit})",
    )
    quiet(plot)
    hover = []
    for e in shown:
        at, held = thinned(e.cost.timeline_bytes)
        lines = [where[i] if i < len(where) else "the end" for i in at]
        source = ColumnDataSource(
            {"x": at, "y": held / scale, "plan": [e.name] * len(at), "where": lines}
        )
        look: dict[str, Any] = {
            "line_color": e.style.hue,
            "line_dash": _DASHES[e.number % len(_DASHES)],
        }
        hover.append(
            plot.step(
                "x",
                "y",
                source=source,
                mode="after",
                line_width=1.6,
                name=e.name,
                legend_label=e.name,
                nonselection_alpha=1.0,
                **look,
            )
        )
    peaks = ColumnDataSource(
        {
            "x": [e.cost.peak_op for e in shown],
            "y": [float(e.cost.peak_bytes) / scale for e in shown],
            "plan": [e.name for e in shown],
            "hue": [e.style.hue for e in shown],
            "marker": [e.style.marker for e in shown],
            "where": [
                where[e.cost.peak_op] if e.cost.peak_op < len(where) else "the end" for e in shown
            ],
        }
    )
    drawn = plot.scatter(
        "x",
        "y",
        source=peaks,
        marker="marker",
        size=12,
        fill_color="hue",
        line_color="white",
        name="peaks",
        nonselection_alpha=1.0,
    )
    if highest > 0.3 * memory_limit_bytes:
        limit = Span(
            location=memory_limit_bytes / scale,
            dimension="width",
            line_color=CONFLICT,
            line_dash="dashed",
            name="memory limit",
        )
        plot.add_layout(limit)
        words = f"limit {bytes_text(memory_limit_bytes)}"
        plot.add_layout(
            Label(
                x=4,
                x_units="screen",
                y=memory_limit_bytes / scale,
                y_offset=2,
                text=words,
                text_color=CONFLICT,
                text_font_size="11px",
            )
        )
        plot.y_range.end = 1.12 * max(highest, memory_limit_bytes) / scale
    else:
        plot.y_range.end = 1.15 * highest / scale
    plot.y_range.start = 0
    if shown:
        legend_above(plot, 4)
    tips = [("plan", "@plan"), ("op", "@x"), ("memory", f"@y {unit}"), ("line", "@where")]
    plot.add_tools(
        HoverTool(renderers=[drawn, *hover], tooltips=tips),
        TapTool(renderers=[drawn]),
        PanTool(),
        WheelZoomTool(),
        ResetTool(),
    )
    return plot

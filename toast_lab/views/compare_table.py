"""Plans side by side: what the cost model says, what was executed, and the ratio of the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, HoverTool, PanTool, ResetTool, WheelZoomTool
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from toast_lab.views.graph_plot import FONT, _style
from toast_lab.views.palette import CONFLICT, NEUTRAL, style

GiB = 2.0**30
COLUMNS = (
    "plan",
    "actions",
    "time_s",
    "peak_bytes",
    "fits",
    "collectives",
    "measured_s",
    "measured_peak_bytes",
    "max_relative_error",
    "ratio",
    "devices",
)


class Entry(NamedTuple):
    """A plan with its price and, once it was executed, what came out."""

    name: str
    actions: tuple[str, ...]
    cost: Any  #: toast_lab.cost.problem.Cost
    run: Any = None  #: toast_lab.runtime.run.Run or the same fields


def collectives_text(cost: Any) -> str:
    """``8 all_reduce, 2 all_gather``; ``none`` for a plan without communication."""
    counts = Counter(c.kind for c in cost.collectives)
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))) or "none"


SHORT = {"all_gather": "AG", "all_reduce": "AR", "reduce_scatter": "RS", "all_to_all": "A2A", "permute": "CP"}


def _short(text: str) -> str:
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


def compare_frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """One row a plan, in SI units; what was not executed is missing, never zero.

    ``ratio`` is measured over estimated time.
    """
    rows = []
    for e in entries:
        run = e.run
        rows.append(
            {
                "plan": e.name,
                "actions": ", ".join(e.actions) or "none",
                "time_s": float(e.cost.time_s),
                "peak_bytes": float(e.cost.peak_bytes),
                "fits": bool(e.cost.fits),
                "collectives": collectives_text(e.cost),
                "measured_s": float(run.median_s) if run is not None else None,
                "measured_peak_bytes": float(run.peak_bytes) if run is not None and run.peak_bytes else None,
                "max_relative_error": float(run.max_relative_error)
                if run is not None and run.max_relative_error is not None
                else None,
                "ratio": float(run.median_s) / float(e.cost.time_s) if run is not None and e.cost.time_s else None,
                "devices": str(run.devices) if run is not None else "",
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def seconds_text(value: float | None) -> str:
    """Time with a unit that fits: ``12.3 ms``.

    >>> seconds_text(0.0123), seconds_text(3e-6), seconds_text(None)
    ('12.3 ms', '3 µs', '–')
    """
    if value is None or value != value:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def bytes_text(value: float | None) -> str:
    """Bytes with a binary unit.

    >>> bytes_text(3 * 2**20), bytes_text(None)
    ('3.00 MiB', '–')
    """
    if value is None or value != value:
        return "–"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B"


def time_unit(seconds: float) -> tuple[str, float]:
    """A unit in which ``seconds`` is easy to read, and its size.

    >>> time_unit(8e-6)
    ('µs', 1e-06)
    """
    return next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))


def byte_unit(value: float) -> tuple[str, float]:
    """The same for bytes.

    >>> byte_unit(5e6)
    ('MiB', 1048576.0)
    """
    return next(((u, s) for u, s in (("GiB", 2.0**30), ("MiB", 2.0**20)) if value >= s), ("KiB", 2.0**10))


def shown_frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """``compare_frame`` as people read it; the column titles say where each number comes from."""
    frame = compare_frame(entries)

    def texts(column: str, write: Any) -> list[str]:
        return [write(v) for v in frame[column].tolist()]

    def number(v: Any, form: str) -> str:
        return "–" if v is None or v != v else form.format(v)

    return pd.DataFrame(
        {
            "plan": frame["plan"],
            "step": texts("time_s", seconds_text),
            "peak": texts("peak_bytes", bytes_text),
            "fits": ["yes" if f else "no" for f in frame["fits"]],
            "collectives": [_short(c) for c in frame["collectives"]],
            "measured": texts("measured_s", seconds_text),
            "compiled": texts("measured_peak_bytes", bytes_text),
            "ratio": texts("ratio", lambda v: number(v, "{:.3g}×")),
            "error": texts("max_relative_error", lambda v: number(v, "{:.1e}")),
            "on": [d or "–" for d in frame["devices"]],
        }
    )


GROUPS = {
    "estimated by the cost model": ["step", "peak", "fits", "collectives"],
    "executed (ratio: measured / estimated)": ["measured", "compiled", "ratio", "error", "on"],
}  #: headings over the columns of ``shown_frame``; ratio is measured over estimated


def _apart(xs: list[float], ys: list[float]) -> list[int]:
    """Label offsets in pixels: plans that lie close together get their names one below the other."""
    wide, high = max(xs, default=1) or 1, max(ys, default=1) or 1
    out: list[int] = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        near = sum(
            1 for a, b in zip(xs[:i], ys[:i], strict=True) if abs(a - x) < 0.15 * wide and abs(b - y) < 0.07 * high
        )
        out.append(5 + (13 * ((near + 1) // 2) * (-1 if near % 2 else 1)))
    return out


def compare_plot(entries: Iterable[Entry], memory_limit_bytes: float | None = None) -> figure:
    """Time against memory: estimated hollow, measured filled, one marker a plan."""
    frame = compare_frame(entries)
    step_unit, step_scale = time_unit(frame["time_s"].max() if len(frame) else 1.0)
    memory_unit, memory_scale = byte_unit(frame["peak_bytes"].max() if len(frame) else 1.0)
    plot: Any = figure(
        sizing_mode="stretch_width",
        height=200,
        tools=[],
        output_backend="canvas",
        name="plans",
        toolbar_location="right",
        x_axis_label=f"peak memory a device ({memory_unit})",
        y_axis_label=f"step time ({step_unit})",
    )
    _style(plot)
    for axis in plot.axis:
        axis.axis_label_text_color = NEUTRAL
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font = FONT
    hover: list[Any] = []
    for kind, x, y, filled in (
        ("estimated", "peak_bytes", "time_s", False),
        ("measured", "measured_peak_bytes", "measured_s", True),
    ):
        part = frame[frame[x].notna() & frame[y].notna()]
        styles = [style(i) for i in part.index]
        source = ColumnDataSource(
            {
                "x": part[x].astype(float).to_numpy() / memory_scale,
                "y": part[y].astype(float).to_numpy() / step_scale,
                "plan": part["plan"].tolist(),
                "align": ["right" if v > 0.7 * frame["peak_bytes"].max() else "left" for v in part[x].tolist()],
                "dx": [-11 if v > 0.7 * frame["peak_bytes"].max() else 11 for v in part[x].tolist()],
                "dy": _apart(part[x].tolist(), part[y].tolist()),
                "kind": [kind] * len(part),
                "hue": [s.hue for s in styles],
                "marker": [s.marker for s in styles],
            }
        )
        hover.append(
            plot.scatter(
                "x",
                "y",
                source=source,
                marker="marker",
                size=13,
                line_color="hue",
                line_width=2.2,
                fill_color="hue" if filled else None,
                legend_label=kind,
            )
        )
        plot.text(
            "x",
            "y",
            text="plan",
            source=source,
            x_offset="dx",
            y_offset="dy",
            text_align="align",
            text_font_size="11px",
            text_color=NEUTRAL,
            text_font=value(FONT),
        )
    if memory_limit_bytes is not None and len(frame) and frame["peak_bytes"].max() > 0.3 * memory_limit_bytes:
        plot.add_layout(
            Span(
                location=memory_limit_bytes / memory_scale, dimension="height", line_color=CONFLICT, line_dash="dashed"
            )
        )
    plot.x_range.start = 0
    plot.y_range.start = (
        -0.08 * float(frame[["time_s", "measured_s"]].astype(float).max().max() if len(frame) else 1) / step_scale
    )
    plot.x_range.range_padding = plot.y_range.range_padding = 0.25
    plot.legend.location = "top_left"
    plot.legend.orientation = "horizontal"
    plot.legend.border_line_color = None
    plot.legend.padding = 2
    plot.legend.background_fill_color = None
    plot.legend.label_text_color = NEUTRAL
    plot.legend.label_text_font_size = "11px"
    plot.add_tools(
        HoverTool(
            renderers=hover,
            tooltips=[("plan", "@plan"), ("", "@kind"), ("time", f"@y {step_unit}"), ("memory", f"@x {memory_unit}")],
        ),
        PanTool(),
        WheelZoomTool(),
        ResetTool(),
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    return plot

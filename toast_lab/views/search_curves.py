"""A search while it runs: best time and best peak memory against simulations, with the memory limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool, Label, PanTool, ResetTool, Span, WheelZoomTool
from bokeh.models import Column as BokehColumn
from bokeh.plotting import figure

from toast_lab.views.graph_plot import _style
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL

COLUMNS = ("simulation", "elapsed_s", "best_ms", "best_gib", "tried_ms", "tried_gib", "fits", "improved")
GiB = 2.0**30


class Point(NamedTuple):
    """One simulation, in the units that are drawn."""

    simulation: int
    elapsed_s: float
    best_ms: float
    best_gib: float
    tried_ms: float
    tried_gib: float
    fits: bool
    improved: bool


def point(simulation: Any) -> Point:
    """What the curves show of a ``Simulation``."""
    s = simulation
    return Point(
        s.index, s.elapsed_s, s.best_time_s * 1e3, s.best_peak_bytes / GiB, s.time_s * 1e3, s.peak_bytes / GiB, s.fits, s.improved
    )


def curve_frame(points: Iterable[Point]) -> pd.DataFrame:
    """The table twin: one row a simulation, in order."""
    return pd.DataFrame([tuple(p) for p in points], columns=list(COLUMNS))


def improvements_frame(points: Iterable[Point]) -> pd.DataFrame:
    """Only the simulations that found something better."""
    frame = curve_frame(points)
    return frame[frame["improved"].astype(bool)].drop(columns=["improved"]).reset_index(drop=True)


class SearchCurves:
    """Two linked curves that grow; feed them with ``append``.

    Attributes:
        root: the Bokeh layout.
        source: one row a simulation shown.
    """

    def __init__(self, memory_limit_bytes: float | None = None, unsharded_s: float | None = None) -> None:
        self.source = ColumnDataSource({name: [] for name in COLUMNS})
        self.time = self._figure("step time, estimated (ms)", "best_ms", "tried_ms")
        self.memory = self._figure("peak memory a device, estimated (GiB)", "best_gib", "tried_gib")
        self.memory.x_range = self.time.x_range
        self.memory.xaxis.axis_label = "simulations"
        if memory_limit_bytes is not None:
            limit = memory_limit_bytes / GiB
            self.memory.add_layout(Span(location=limit, dimension="width", line_color=CONFLICT, line_dash="dashed", line_width=1.5))
            self.memory.add_layout(
                Label(x=8, y=limit, x_units="screen", text=f"memory limit {limit:.4g} GiB", text_color=CONFLICT, text_font_size="11px",
                      y_offset=2)  # fmt: skip
            )
        if unsharded_s is not None:
            self.time.add_layout(Span(location=unsharded_s * 1e3, dimension="width", line_color=NEUTRAL, line_dash="dotted"))
            self.time.add_layout(
                Label(x=8, y=unsharded_s * 1e3, x_units="screen", text="unsharded", text_color=NEUTRAL, text_font_size="11px", y_offset=-16)
            )
        self.root: BokehColumn = column(self.time, self.memory, sizing_mode="stretch_both")

    def append(self, points: list[Point], rollover: int = 20000) -> None:
        """Add points at the end."""
        if points:
            columns = list(zip(*points, strict=True))
            self.source.stream(dict(zip(COLUMNS, map(list, columns), strict=True)), rollover=rollover)

    def _figure(self, title: str, best: str, tried: str) -> figure:
        plot = figure(
            title=title, sizing_mode="stretch_both", min_height=150, tools=[], output_backend="canvas", name=title,
            toolbar_location="right",
        )  # fmt: skip
        _style(plot)
        plot.title.text_color = NEUTRAL
        plot.title.text_font_size = "12px"
        plot.y_range.start = 0
        plot.xaxis.axis_label_text_color = NEUTRAL
        plot.xaxis.axis_label_text_font_style = "normal"
        dots = plot.scatter("simulation", tried, source=self.source, size=4, color=NEUTRAL, alpha=0.35, legend_label="tried")
        line = plot.step("simulation", best, source=self.source, color=ACCENT, line_width=2.5, mode="after", legend_label="best so far")
        plot.legend.location = "top_right"
        plot.legend.background_fill_alpha = 0.6
        plot.legend.border_line_color = None
        plot.legend.orientation = "horizontal"
        plot.legend.label_text_font_size = "11px"
        plot.legend.padding = 4
        plot.add_tools(
            HoverTool(renderers=[dots], tooltips=[("simulation", "@simulation"), ("tried", f"@{tried}"), ("best", f"@{best}"), ("fits", "@fits")]),
            PanTool(), WheelZoomTool(dimensions="width"), ResetTool(),
        )  # fmt: skip
        plot.toolbar.logo = None
        plot.toolbar.autohide = True
        line.level = "overlay"
        return plot

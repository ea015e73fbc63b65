"""Draw a ``GraphLayout`` with Bokeh, on canvas.

M is drawn as lines, names as markers with the hue and the shape of their lane, conflicts as red dashed lines
without direction, compatibility sets as labelled outlines.  A tap on a marker, on a red line or on an outline is
reported as names and conflicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    ColumnDataSource,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    TapTool,
    WheelPanTool,
    WheelZoomTool,
)
from bokeh.plotting import figure

from toast_lab.views.graph_layout import GraphLayout
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL

ROWS_AT_ONCE = 34  # more rows than this are scrolled
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
OnSelect = Callable[[tuple[int, ...], tuple[int, ...]], None]


def nodes_frame(layout: GraphLayout) -> pd.DataFrame:
    """One row a marker: the table twin of the picture."""
    return pd.DataFrame(
        {
            "node": range(len(layout.nodes)),
            "colour": [layout.lanes[n.lane].label for n in layout.nodes],
            "row": [row_text(layout, n.y) for n in layout.nodes],
            "where": [layout.rows[n.y].where for n in layout.nodes],
            "side": ["" if n.track < 0 else str(n.track) for n in layout.nodes],
            "name": [n.title for n in layout.nodes],
            "n_names": [len(n.names) for n in layout.nodes],
            "size": [n.sizes for n in layout.nodes],
        }
    )


def row_text(layout: GraphLayout, row: int) -> str:
    """Label of a row, with how often its code ran."""
    found = layout.rows[row]
    return f"{found.label} ×{found.repeats}" if found.repeats > 1 else found.label


class GraphPlot:
    """The picture of one layout, and what is selected in it.

    Attributes:
        figure: the Bokeh figure.
        on_select: called with (names, conflicts) when the user taps; a tap beside everything gives two empty tuples.
    """

    def __init__(self, layout: GraphLayout, on_select: OnSelect | None = None) -> None:
        self.layout = layout
        self.on_select = on_select
        self._quiet = False
        self.nodes = ColumnDataSource(_node_columns(layout))
        self.conflicts = ColumnDataSource(
            {
                "xs": [list(c.xs) for c in layout.conflicts],
                "ys": [list(c.ys) for c in layout.conflicts],
                "title": [c.title for c in layout.conflicts],
            }
        )
        self.edges = ColumnDataSource(
            {
                "xs": [list(e.xs) for e in layout.edges],
                "ys": [list(e.ys) for e in layout.edges],
                "hue": [layout.lanes[layout.nodes[e.source].lane].style.hue for e in layout.edges],
                "width": [1.0 + 0.7 * math.log2(e.weight) for e in layout.edges],
            }
        )
        self.marks = ColumnDataSource({"x": [], "y": [], "size": []})
        self.figure = self._draw()

    # -- selection ----------------------------------------------------------------------------------
    def select(self, names: Iterable[int], conflicts: Iterable[int] = ()) -> None:
        """Show a selection made elsewhere; does not call ``on_select``."""
        picked = {int(self.layout.node_of[n]) for n in names} - {-1}
        wanted = set(conflicts)
        red = [i for i, c in enumerate(self.layout.conflicts) if wanted & set(c.conflicts)]
        self._quiet = True
        try:
            self.nodes.selected.indices = sorted(picked)
            self.conflicts.selected.indices = red
            rows = sorted(picked)
            self.marks.data = {
                "x": [self.layout.nodes[i].x for i in rows],
                "y": [self.layout.nodes[i].y for i in rows],
                "size": [float(self.nodes.data["size"][i]) + 10 for i in rows],
            }
            self._bring_into_view([self.layout.nodes[i].y for i in rows])
        finally:
            self._quiet = False

    def _bring_into_view(self, rows: list[int]) -> None:
        view: Any = self.figure.y_range
        if not rows or any(view.end <= y <= view.start for y in rows):
            return
        half = (view.start - view.end) / 2
        middle = rows[0]
        view.start, view.end = middle + half, middle - half

    def _picked(self, _attr: str, _old: Any, _new: Any) -> None:
        if self._quiet or self.on_select is None:
            return
        red = [self.layout.conflicts[i] for i in self.conflicts.selected.indices]
        names = [n for i in self.nodes.selected.indices for n in self.layout.nodes[i].names]
        if not names:
            names = [n for c in red for node in (c.source, c.target) for n in self.layout.nodes[node].names]
        self.on_select(tuple(names), tuple(k for c in red for k in c.conflicts))

    # -- drawing ------------------------------------------------------------------------------------
    def _draw(self) -> figure:
        layout = self.layout
        n_rows = max(len(layout.rows), 1)
        width = max(sum(lane.width for lane in layout.lanes), 2.0)
        shown = min(n_rows, ROWS_AT_ONCE)
        plot: Any = figure(
            x_range=Range1d(start=-0.1, end=width + 0.1, bounds=(-1.0, width + 1.0)),
            y_range=Range1d(start=shown - 0.3, end=-0.75),
            x_axis_location="above",
            sizing_mode="stretch_both",
            min_height=320,
            toolbar_location="right",
            tools=[],
            output_backend="canvas",
            name="dimension graph",
        )
        _style(plot)
        self._axes(plot)
        self._lanes(plot, n_rows)
        self._outlines(plot)
        plot.multi_line(
            "xs",
            "ys",
            source=self.edges,
            color="hue",
            line_width="width",
            line_alpha=0.5 if len(layout.edges) < 300 else 0.25,
        )
        red = plot.multi_line(
            "xs",
            "ys",
            source=self.conflicts,
            color=CONFLICT,
            line_width=2.2,
            line_dash=[6, 3],
            line_alpha=0.95,
            selection_line_width=5,
            selection_line_alpha=1,
            nonselection_line_alpha=0.5,
            name="conflicts",
        )
        plot.scatter("x", "y", source=self.marks, size="size", fill_color=None, line_color=ACCENT, line_width=2.5)
        names = plot.scatter(
            "x",
            "y",
            source=self.nodes,
            size="size",
            marker="marker",
            fill_color="hue",
            line_color="white",
            line_width=0.8,
            fill_alpha=0.95,
            nonselection_fill_alpha=0.55,
            nonselection_line_alpha=0.6,
            selection_line_color="white",
            name="names",
        )
        if len(layout.nodes) <= 400:
            plot.text(
                "x",
                "y",
                text="text",
                source=self.nodes,
                x_offset="offset",
                y_offset=-4,
                text_font_size="10px",
                text_color=NEUTRAL,
                text_font=value(FONT),
                nonselection_text_alpha=0.8,
            )
        hover = HoverTool(
            renderers=[names],
            tooltips=[
                ("name", "@title"),
                ("size", "@sizes"),
                ("colour", "@colour"),
                ("row", "@row"),
                ("line", "@where"),
            ],
        )
        red_hover = HoverTool(renderers=[red], tooltips=[("conflict", "@title")], line_policy="interp", visible=False)
        tap = TapTool(renderers=[names, red])
        scroll = WheelPanTool(dimension="height")
        zoom = WheelZoomTool()
        plot.add_tools(
            hover,
            red_hover,
            tap,
            PanTool(),
            BoxZoomTool(),
            scroll,
            zoom,
            ResetTool(),
            SaveTool(filename="dimension-graph"),
        )
        plot.toolbar.active_scroll = scroll if n_rows > ROWS_AT_ONCE else None
        plot.toolbar.logo = None
        plot.toolbar.autohide = False
        self.nodes.selected.on_change("indices", self._picked)
        self.conflicts.selected.on_change("indices", self._picked)
        return plot

    def _axes(self, plot: figure) -> None:
        layout = self.layout
        lanes: dict[Any, Any] = {
            lane.x: f"{lane.style.symbol} {lane.label}".replace(" ×", "\n×") for lane in layout.lanes
        }
        plot.xaxis.ticker = FixedTicker(ticks=list(lanes))
        plot.xaxis.major_label_overrides = lanes
        plot.xaxis.major_label_text_font_size = "12px" if len(lanes) <= 6 else "10.5px"
        plot.xaxis.major_label_text_line_height = 1.1
        plot.xaxis.major_label_text_font_style = "bold"
        if len(layout.lanes) > 12:
            plot.xaxis.major_label_orientation = 0.5
        labels = [_cut(row_text(layout, i), 34) for i in range(len(layout.rows))]
        n = len(labels)
        plot.yaxis.ticker = (
            FixedTicker(ticks=list(range(n)))
            if n <= ROWS_AT_ONCE
            else BasicTicker(min_interval=1, desired_num_ticks=ROWS_AT_ONCE)
        )
        plot.yaxis.formatter = CustomJSTickFormatter(
            args={"labels": labels},
            code="return Math.abs(tick - Math.round(tick)) < 1e-6 ? (labels[Math.round(tick)] ?? '') : ''",
        )
        plot.yaxis.major_label_text_font_size = "11px"
        if layout.level in ("names", "lines"):
            plot.yaxis.major_label_text_font = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
        plot.ygrid.ticker = plot.yaxis.ticker

    def _lanes(self, plot: figure, n_rows: int) -> None:
        lanes = self.layout.lanes
        if not lanes:
            return
        plot.quad(
            left=[lane.x - lane.width / 2 + 0.04 for lane in lanes],
            right=[lane.x + lane.width / 2 - 0.04 for lane in lanes],
            top=[-0.75] * len(lanes),
            bottom=[n_rows - 0.3] * len(lanes),
            fill_color=[lane.style.hue for lane in lanes],
            fill_alpha=0.055,
            line_color=None,
        )

    def _outlines(self, plot: figure) -> None:
        outlines = self.layout.outlines
        if not outlines:
            return
        plot.patches(
            xs=[list(o.xs) for o in outlines],
            ys=[list(o.ys) for o in outlines],
            fill_color=CONFLICT,
            fill_alpha=0.05,
            line_color=CONFLICT,
            line_alpha=0.55,
            line_dash=[2, 3],
        )
        plot.text(
            x=[min(o.xs) for o in outlines],
            y=[min(o.ys) for o in outlines],
            text=[o.label for o in outlines],
            text_align="left",
            text_baseline="bottom",
            text_font_size="10.5px",
            text_color=CONFLICT,
            text_font=value(FONT),
            y_offset=-1,
        )


def _node_columns(layout: GraphLayout) -> dict[str, Any]:
    frame = nodes_frame(layout)
    styles = [layout.lanes[n.lane].style for n in layout.nodes]
    folded = layout.level != "names"
    return {
        "x": np.array([n.x for n in layout.nodes]),
        "y": np.array([n.y for n in layout.nodes]),
        "hue": [s.hue for s in styles],
        "marker": [s.marker for s in styles],
        "size": np.array(
            [
                (12.0 + (1.3 * math.log2(len(n.names)) if folded else 0)) * (1.3 if s.marker == "diamond" else 1.0)
                for n, s in zip(layout.nodes, styles, strict=True)
            ]
        ),
        "offset": np.array([8.0 + (0.65 * math.log2(len(n.names)) if folded else 0) for n in layout.nodes]),
        "text": [("" if len(n.names) == 1 else f"{n.label}") if folded else n.label for n in layout.nodes],
        "title": frame["name"].tolist(),
        "sizes": frame["size"].tolist(),
        "colour": frame["colour"].tolist(),
        "row": frame["row"].tolist(),
        "where": frame["where"].tolist(),
    }


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width * 2 // 3] + "…" + text[-(width // 3 - 1) :]


# Hover cards follow the page's theme; their own colours are weaker than what the figure around them says.
TOOLTIP = """.bk-Tooltip {
  --background-color: var(--tl-card, #fff) !important; --color: var(--tl-ink, #18191d) !important;
  --divider-color: var(--tl-edge, #d7d7d8) !important; }"""


def _style(plot: figure) -> None:
    """Quiet axes, colours that are seen on white and on near-black."""
    plot.stylesheets = [TOOLTIP]
    plot.background_fill_color = None
    plot.border_fill_color = None
    plot.outline_line_color = None
    plot.xgrid.grid_line_color = None
    plot.ygrid.grid_line_color = NEUTRAL
    plot.ygrid.grid_line_alpha = 0.13
    for axis in plot.axis:
        axis.axis_line_color = None
        axis.major_tick_line_color = None
        axis.minor_tick_line_color = None
        axis.major_label_text_color = NEUTRAL
        axis.major_label_text_font = FONT

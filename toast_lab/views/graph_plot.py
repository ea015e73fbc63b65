"""Draw a ``GraphLayout`` with Bokeh, on canvas.

M is drawn as lines, names as markers with the hue and the shape of their lane, conflicts as red
dashed lines without direction, compatibility sets as labelled outlines, the chain that causes a
selected conflict as a broad line. A tap on a marker or on a red line is reported as names and
conflicts, a double tap as the row that it hit.

The browser draws a selection from the indices alone: nothing else is sent to it, and nothing is
laid out again.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.core.properties import value
from bokeh.events import DoubleTap
from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    Scatter,
    TapTool,
    WheelPanTool,
    WheelZoomTool,
)
from bokeh.plotting import figure

from toast_lab.text import shortened
from toast_lab.views.graph_layout import ConflictEdge, GraphLayout, Outline, chain_path
from toast_lab.views.graph_rows import GraphRow
from toast_lab.views.overlay import Overlay
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL
from toast_lab.views.plot_style import FONT, new_figure
from toast_lab.views.text_width import text_px

# a graph with more rows than this scrolls
ROWS_AT_ONCE = 34
# least height of a row in the first view, and of a row that has room for numbers
ROW_PX, TEXT_PX = 16, 22
LANE_TEXT_PX = 40  #: least width of a lane that has room for numbers
MANY_LANES = 12  #: with more lanes, headings are vertical and markers smaller
MANY_TEXTS = 400  #: more markers than this have no texts beside them
#: width in pixels of all lanes together on the narrowest page
LEAST_WIDTH = 480
BOLD_WIDTH_FACTOR = 1.08  #: how much wider bold letters are
SHOW_TEXTS_CODE = """
texts.visible = plot.inner_height / Math.abs(y.start - y.end) >= high
  && plot.inner_width / Math.abs(x.start - x.end) >= wide
"""
# Once the browser knows the height of the picture, show no more rows than have room in it.
FIT_ROWS_CODE = """
const height = cb_obj.inner_height
if (cb_obj.tags.includes('fitted') || !(height > 0)) return
cb_obj.tags.push('fitted')
const most = Math.max(6, Math.floor(height / row))
if (rows > most) y.start = y.end + most + 0.45
"""
TAPPED = """
setTimeout(() => { tapped.tags = [[...nodes.selected.indices], [...red.selected.indices],\
 [...sets.selected.indices], Date.now()] }, 0)
"""
OnSelect = Callable[[tuple[int, ...], tuple[int, ...]], None]


def nodes_frame(layout: GraphLayout) -> pd.DataFrame:
    """One row per marker: the data of the picture as a table."""
    return pd.DataFrame(
        {
            "node": range(len(layout.nodes)),
            "colour": [layout.lanes[node.lane].label for node in layout.nodes],
            "row": [row_text(layout.rows[node.y]) for node in layout.nodes],
            "where": [layout.rows[node.y].where for node in layout.nodes],
            "side": ["" if node.track < 0 else str(node.track) for node in layout.nodes],
            "name": [node.title for node in layout.nodes],
            "n_names": [len(node.names) for node in layout.nodes],
            "size": [node.sizes for node in layout.nodes],
        }
    )


def row_text(row: GraphRow) -> str:
    """Label of a row, with how often its code ran."""
    return f"{row.label} ×{row.repeats}" if row.repeats > 1 else row.label


class GraphPlot:
    """The picture of one layout, and what is selected in it.

    Attributes:
        figure: the Bokeh figure.
        on_select: called with (names, conflicts) when the user taps; a tap beside everything gives
            two empty tuples.
        on_row: called with the key of a row that can be unfolded or folded back when the user taps
            it twice.

    ``label_width``: most characters of a row label; by default as many as leave room for the lanes.
    """

    def __init__(
        self,
        layout: GraphLayout,
        on_select: OnSelect | None = None,
        *,
        on_row: Callable[[str], None] | None = None,
        overlay: Overlay | None = None,
        label_width: int | None = None,
    ) -> None:
        self.layout, self._label_width = layout, label_width
        self.on_select, self.on_row = on_select, on_row
        self.nodes = ColumnDataSource(_node_columns(layout, overlay))
        self.conflicts = ColumnDataSource(
            {
                "xs": [list(conflict.xs) for conflict in layout.conflicts],
                "ys": [list(conflict.ys) for conflict in layout.conflicts],
                "title": [conflict.title for conflict in layout.conflicts],
            }
        )
        self.edges = ColumnDataSource(_edge_columns(layout))
        self.outlines = ColumnDataSource(
            {
                "xs": [list(outline.xs) for outline in layout.outlines],
                "ys": [list(outline.ys) for outline in layout.outlines],
                "label": [f"{outline.title}, settled by one bit" for outline in layout.outlines],
            }
        )
        self.chain = ColumnDataSource({"xs": [], "ys": []})
        #: its tags hold what a tap hit: [markers, red lines, outlines of sets, time]
        self.tapped = ColumnDataSource()
        self._width = max(sum(lane.width for lane in layout.lanes), 2.0)
        self.figure = self._draw()

    # -- selection ---------------------------------------------------------------------------------
    def select(
        self, names: Iterable[int], conflicts: Iterable[int] = (), chain: Sequence[int] = ()
    ) -> None:
        """Show a selection, without calling ``on_select``.

        Args:
            names: names to mark.
            conflicts: conflicts to mark.
            chain: names that a broad line joins, in order.
        """
        picked = self._nodes_of(names)
        marked = set(conflicts)
        red_lines = [
            index
            for index, conflict in enumerate(self.layout.conflicts)
            if not marked.isdisjoint(conflict.conflicts)
        ]
        self.nodes.selected.indices = picked
        self.conflicts.selected.indices = red_lines
        self._show_chain(chain)
        self._bring_into_view([self.layout.nodes[index].y for index in picked])

    def _nodes_of(self, names: Iterable[int]) -> list[int]:
        return sorted({int(self.layout.node_of[name]) for name in names} - {-1})

    def _show_chain(self, names: Sequence[int]) -> None:
        nodes = [self.layout.nodes[node] for node in chain_path(self.layout, names)]
        lines = {
            "xs": [list(xs) for xs in itertools.pairwise(node.x for node in nodes)],
            "ys": [list(ys) for ys in itertools.pairwise(node.y for node in nodes)],
        }
        if lines != dict(self.chain.data):
            self.chain.data = lines

    def _bring_into_view(self, rows: list[int]) -> None:
        view: Any = self.figure.y_range
        if not rows or any(view.end <= row <= view.start for row in rows):
            return
        half_height = (view.start - view.end) / 2
        middle = rows[0]
        view.start, view.end = middle + half_height, middle - half_height

    def _picked(self, _attr: str, _old: Any, new: Any) -> None:
        if not new:
            return
        nodes, red_lines, outlines = new[:3]
        # A tap on a marker also hits the red line under it, and the outline around both
        edges = [self.layout.conflicts[index] for index in red_lines]
        sets = [self.layout.outlines[index] for index in outlines]
        hit: Sequence[ConflictEdge | Outline] = [] if nodes else edges or sets
        nodes = nodes or [node for shape in hit for node in shape.nodes]
        names = tuple(name for node in nodes for name in self.layout.nodes[node].names)
        assert self.on_select is not None
        self.on_select(names, tuple(conflict for shape in hit for conflict in shape.conflicts))

    def _tapped_twice(self, event: Any) -> None:
        row_index = round(event.y) if event.y is not None else -1
        if self.on_row is not None and 0 <= row_index < len(self.layout.rows):
            if key := self.layout.rows[row_index].key:
                self.on_row(key)

    # -- view --------------------------------------------------------------------------------------
    def zoom_to(self, names: Iterable[int]) -> bool:
        """Zoom until these names fill the view; False if none of them is shown."""
        picked = [self.layout.nodes[index] for index in self._nodes_of(names)]
        if not picked:
            return False
        xs, ys = [node.x for node in picked], [node.y for node in picked]
        self._view(min(xs) - 1.2, max(xs) + 1.2, min(ys) - 2.2, max(ys) + 2.2)
        return True

    def reset(self) -> None:
        """Return to the first view."""
        self._show_rows(min(self._row_count, ROWS_AT_ONCE))

    def show_all_rows(self) -> None:
        """Show all rows at once."""
        self._show_rows(self._row_count)

    def _show_rows(self, row_count: int) -> None:
        self._view(-0.1, self._width + 0.1, -0.75, self._bottom(row_count))

    def _view(self, left: float, right: float, top: float, bottom: float) -> None:
        x_range: Any = self.figure.x_range
        y_range: Any = self.figure.y_range
        x_range.update(start=max(left, -0.1), end=min(right, self._width + 0.1))
        y_range.update(start=bottom, end=top)

    @property
    def size_px(self) -> tuple[float, float]:
        """Width and height at which all rows and lanes can be read."""
        row_px = 52 if self._row_count < 8 else 26 if self._row_count < 30 else 17
        return 190.0 + 84 * self._width, 60.0 + row_px * self._row_count

    @property
    def _row_count(self) -> int:
        return max(len(self.layout.rows), 1)

    def _bottom(self, row_count: int) -> float:
        """Where the first ``row_count`` rows end, with any label that hangs below the last one."""
        hangs = any(
            outline.label_is_below and max(outline.ys) > row_count - 1
            for outline in self.layout.outlines
        )
        return row_count + (0.2 if hangs else -0.3)

    # -- overlay -----------------------------------------------------------------------------------
    def colour_by(self, overlay: Overlay | None) -> None:
        """Give the markers other hues and texts; everything else stays as it is."""
        columns = _node_columns(self.layout, overlay)
        for name in ("hue", "text"):
            self.nodes.data[name] = columns[name]

    # -- drawing -----------------------------------------------------------------------------------
    def _draw(self) -> figure:
        layout = self.layout
        row_count = self._row_count
        width, rows_shown = self._width, min(row_count, ROWS_AT_ONCE)
        plot = new_figure(
            "dimension graph",
            x_range=Range1d(start=-0.1, end=width + 0.1, bounds=(-1.0, width + 1.0)),
            y_range=Range1d(start=self._bottom(rows_shown), end=-0.75),
            x_axis_location="above",
            min_height=320,
            toolbar_location="right",
            tags=[layout.level],
        )
        self._axes(plot)
        self._lanes(plot, row_count)
        set_outlines = self._outlines(plot)
        self._thin_lines(plot)
        red_lines, markers = self._red_lines(plot), self._markers(plot)
        if len(layout.nodes) <= MANY_TEXTS:
            self._texts(plot)
        _add_tools(
            plot,
            markers=markers,
            red_lines=red_lines,
            set_outlines=set_outlines,
            scrolls=row_count > ROWS_AT_ONCE,
        )
        plot.js_on_change(
            "inner_height",
            CustomJS(
                args={"y": plot.y_range, "rows": rows_shown, "row": ROW_PX}, code=FIT_ROWS_CODE
            ),
        )
        self._listen(plot)
        return plot

    def _thin_lines(self, plot: figure) -> None:
        """Draw M, and the chain of the selection."""
        plot.quadratic(
            x0="x0",
            y0="y0",
            x1="x1",
            y1="y1",
            cx="cx",
            cy="cy",
            source=self.edges,
            line_color="hue",
            line_width="width",
            line_alpha=0.5 if len(self.layout.edges) < 300 else 0.25,
        )
        plot.multi_line(
            "xs",
            "ys",
            source=self.chain,
            color=ACCENT,
            line_width=7,
            line_alpha=0.4,
            line_cap="round",
            name="chain",
        )

    def _red_lines(self, plot: Any) -> Any:
        """Draw the conflicts."""
        return plot.multi_line(
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

    def _markers(self, plot: figure) -> Any:
        """Draw the names."""
        markers = plot.scatter(
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
            name="names",
        )
        # Hollow, with a broad rim, and larger: seen on every hue and on both themes
        markers.selection_glyph = Scatter(
            x="x",
            y="y",
            size="size_on",
            marker="marker",
            fill_color="white",
            line_color="hue",
            line_width=4,
        )
        return markers

    def _texts(self, plot: figure) -> None:
        """Draw the texts beside the markers; they show while there is room."""
        texts = plot.text(
            "x",
            "y",
            text="text",
            source=self.nodes,
            x_offset="offset",
            y_offset=-4,
            text_align="align",
            text_font_size="10px",
            text_color=NEUTRAL,
            text_font=value(FONT),
            nonselection_text_alpha=0.8,
        )
        show_if_room = CustomJS(
            args={
                "plot": plot,
                "texts": texts,
                "x": plot.x_range,
                "y": plot.y_range,
                "wide": LANE_TEXT_PX,
                "high": TEXT_PX,
            },
            code=SHOW_TEXTS_CODE,
        )
        for side in ("inner_width", "inner_height"):
            plot.js_on_change(side, show_if_room)
        for end in ("start", "end"):
            plot.x_range.js_on_change(end, show_if_room)
            plot.y_range.js_on_change(end, show_if_room)

    def _listen(self, plot: figure) -> None:
        """Report taps."""
        # On a page without a server there is no callback
        if self.on_row is not None:
            plot.on_event(DoubleTap, self._tapped_twice)
        # One message per tap: the sources would report it one after the other, and one report
        # alone would be a different selection.
        args = {
            "nodes": self.nodes,
            "red": self.conflicts,
            "sets": self.outlines,
            "tapped": self.tapped,
        }
        plot.js_on_event("tap", CustomJS(args=args, code=TAPPED))
        if self.on_select is not None:
            self.tapped.on_change("tags", self._picked)

    def _axes(self, plot: figure) -> None:
        layout = self.layout
        count = len(layout.lanes)
        longest = 30 if count <= 4 else 16 if count > MANY_LANES else 10
        names = [lane.label.partition(" ×") for lane in layout.lanes]
        shortened = _told_apart([name for name, _, _ in names], longest)
        lanes: dict[Any, Any] = {
            lane.x: f"{lane.style.symbol}{mirrored}{times}\n{shortened[name]}"
            for lane, (name, mirrored, times) in zip(layout.lanes, names, strict=True)
        }
        upright = len(lanes) > MANY_LANES or _are_crowded(lanes, self._width)
        if upright:
            lanes = {x: heading.replace("\n", " ") for x, heading in lanes.items()}
        plot.xaxis.ticker = FixedTicker(ticks=list(lanes))
        plot.xaxis.major_label_overrides = lanes
        plot.xaxis.major_label_text_font_size = f"{_heading_px(len(lanes))}px"
        plot.xaxis.major_label_text_line_height = 1.1
        plot.xaxis.major_label_text_font_style = "bold"
        if upright:
            plot.xaxis.major_label_orientation = "vertical"
        widest = self._label_width or (34 if len(lanes) <= 6 else 25)
        labels = [_cut(row_text(row), widest) for row in layout.rows]
        plot.yaxis.ticker = (
            FixedTicker(ticks=list(range(len(labels))))
            if len(labels) <= 12
            else BasicTicker(min_interval=1, desired_num_ticks=20)
        )
        plot.yaxis.formatter = CustomJSTickFormatter(
            args={"labels": labels},
            code="return Math.abs(tick - Math.round(tick)) < 1e-6 ? (labels[Math.round(tick)] ?? "
            "'') : ''",
        )
        plot.yaxis.major_label_text_font_size = "11px"
        if layout.level in ("names", "lines"):
            plot.yaxis.major_label_text_font = (
                "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
            )
        plot.ygrid.ticker = plot.yaxis.ticker

    def _lanes(self, plot: figure, row_count: int) -> None:
        lanes = self.layout.lanes
        if not lanes:
            return
        plot.quad(
            left=[lane.x - lane.width / 2 + 0.04 for lane in lanes],
            right=[lane.x + lane.width / 2 - 0.04 for lane in lanes],
            top=[-0.75] * len(lanes),
            bottom=[self._bottom(row_count)] * len(lanes),
            fill_color=[lane.style.hue for lane in lanes],
            fill_alpha=0.055,
            line_color=None,
        )

    def _outlines(self, plot: figure) -> list[Any]:
        layout, outlines = self.layout, self.layout.outlines
        if not outlines:
            return []
        # A selected set keeps its look: the selection shows in its names and red lines
        sets = plot.patches(
            "xs",
            "ys",
            source=self.outlines,
            fill_color=CONFLICT,
            fill_alpha=0.05,
            line_color=CONFLICT,
            line_alpha=0.55,
            line_dash=[2, 3],
            selection_fill_alpha=0.05,
            selection_line_alpha=0.55,
            nonselection_fill_alpha=0.05,
            nonselection_line_alpha=0.55,
            name="sets",
        )
        plot.text(
            x=[outline.label_place[0] for outline in outlines],
            y=[outline.label_place[1] for outline in outlines],
            text=[
                outline.title if layout.level == "names" else outline.label for outline in outlines
            ],
            text_align="left",
            text_baseline=["top" if outline.label_is_below else "bottom" for outline in outlines],
            text_font_size="10.5px",
            text_color=CONFLICT,
            text_font=value(FONT),
            y_offset=[2 if outline.label_is_below else -1 for outline in outlines],
        )
        return [sets]


def _add_tools(
    plot: figure, *, markers: Any, red_lines: Any, set_outlines: list[Any], scrolls: bool
) -> None:
    texts = ("title", "sizes", "colour", "row", "where", "text")
    titles = ("name", "size", "colour", "row", "line", "shown as")
    rows = [(title, f"@{text}") for title, text in zip(titles, texts, strict=True)]
    name_hover = HoverTool(renderers=[markers], tooltips=rows)
    conflict_hover = HoverTool(
        renderers=[red_lines],
        tooltips=[("conflict", "@title")],
        line_policy="interp",
        visible=False,
    )
    set_hover = HoverTool(
        renderers=set_outlines, tooltips=[("compatibility set", "@label")], visible=False
    )
    scroll_tool = WheelPanTool(dimension="height")
    plot.add_tools(
        name_hover,
        conflict_hover,
        set_hover,
        TapTool(renderers=[markers, red_lines, *set_outlines]),
        PanTool(),
        BoxZoomTool(),
        scroll_tool,
        WheelZoomTool(),
        ResetTool(),
        SaveTool(filename="dimension-graph"),
    )
    plot.toolbar.active_scroll = scroll_tool if scrolls else None
    plot.toolbar.logo = None
    plot.toolbar.autohide = False


def _node_columns(layout: GraphLayout, overlay: Overlay | None) -> dict[str, Any]:
    frame = nodes_frame(layout)
    styles = [layout.lanes[node.lane].style for node in layout.nodes]
    folded = layout.level != "names"
    base_size, growth = (12.0, 1.3) if len(layout.rows) <= 13 else (9.0, 0.8)
    if len(layout.lanes) > MANY_LANES:
        base_size, growth = 8.0, 0.5
    growths = growth * np.log2(frame["n_names"].to_numpy(float)) if folded else 0.0
    size = (base_size + growths) * np.array(
        [1.3 if style.marker == "diamond" else 1.0 for style in styles]
    )
    # The text of side 0 stands outside, on its left
    leftwards = np.array([node.track == 0 for node in layout.nodes], dtype=bool)
    offset = size / 2 + 2
    texts = ["" if folded and len(node.names) == 1 else node.label for node in layout.nodes]
    return {
        "x": np.array([node.x for node in layout.nodes]),
        "y": np.array([node.y for node in layout.nodes], dtype=np.int32),
        "hue": list(overlay.hues) if overlay is not None else [style.hue for style in styles],
        "marker": [style.marker for style in styles],
        "size": size,
        "size_on": size + 6,
        "offset": np.where(leftwards, -offset, offset),
        "align": np.where(leftwards, "right", "left").tolist(),
        "text": list(overlay.texts) if overlay is not None else texts,
        "title": frame["name"].tolist(),
        "sizes": frame["size"].tolist(),
        **frame[["colour", "row", "where"]].to_dict("list"),
    }


def _edge_columns(layout: GraphLayout) -> dict[str, Any]:
    """Parabolas in Bokeh's form, as plain arrays, which are sent quickly."""
    xs = np.array([edge.xs for edge in layout.edges], dtype=float).reshape(-1, 3)
    ys = np.array([edge.ys for edge in layout.edges], dtype=float).reshape(-1, 3)
    return {
        "x0": xs[:, 0],
        "y0": ys[:, 0],
        "x1": xs[:, 2],
        "y1": ys[:, 2],
        "cx": 2 * xs[:, 1] - (xs[:, 0] + xs[:, 2]) / 2,
        "cy": 2 * ys[:, 1] - (ys[:, 0] + ys[:, 2]) / 2,
        "hue": [layout.lanes[layout.nodes[edge.source].lane].style.hue for edge in layout.edges],
        "width": np.array([1.0 + 0.7 * math.log2(edge.weight) for edge in layout.edges]),
    }


def _heading_px(count: int) -> int:
    """Font size in pixels of the headings of ``count`` lanes."""
    return 12 if count <= 6 else 10


def _are_crowded(headings: Mapping[float, str], width: float) -> bool:
    """Whether headings, given by the middles of their lanes, would overlap side by side.

    ``width`` is that of all lanes together, in the unit of the middles.
    """
    size_px = _heading_px(len(headings))
    half_widths = {
        x: max(text_px(line, size_px) for line in heading.split("\n")) * BOLD_WIDTH_FACTOR / 2
        for x, heading in headings.items()
    }
    return any(
        half_widths[left] + half_widths[right] > (right - left) * LEAST_WIDTH / width
        for left, right in itertools.pairwise(sorted(half_widths))
    )


def _told_apart(names: Sequence[str], longest: int) -> dict[str, str]:
    """Names of about ``longest`` letters: their beginnings, if these differ.

    Otherwise a name is shortened in each of its parts.

    >>> _told_apart(["decoder_node_hidden1", "decoder_node_hidden2", "x"], 10).values()
    dict_values(['de_no_hi1', 'de_no_hi2', 'x'])
    >>> _told_apart(["hidden_features", "x"], 10).values()
    dict_values(['hidden_fe…', 'x'])
    """
    begun = {name: shortened(name, longest) for name in names}
    if len(set(begun.values())) == len(begun):
        return begun
    return {name: _abbreviated(name, longest) for name in names}


def _abbreviated(name: str, longest: int) -> str:
    """A name of at most ``longest`` letters that has the beginning and number of every part."""
    if len(name) <= longest:
        return name
    parts = re.findall(r"([a-zA-Z]*)([^a-zA-Z]*)", name)
    for kept in range(longest, 1, -1):
        shorter = "".join(f"{word[:kept]}{rest}" for word, rest in parts)
        if len(shorter) <= longest:
            return shorter
    return shortened(name, longest)


def _cut(label: str, width: int) -> str:
    if len(label) <= width:
        return label
    return label[: width * 2 // 3] + "…" + label[-(width // 3 - 1) :]

"""A search while it runs.

Best C(s), step time and peak memory against simulations, with the memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
from bokeh.models import ColumnDataSource, GridBox, HoverTool, PanTool, ResetTool, WheelZoomTool
from bokeh.models.annotations import BoxAnnotation, Label, Span
from bokeh.plotting import figure

from toast_lab.views.compare_table import byte_unit, bytes_text, seconds_text, time_unit
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL
from toast_lab.views.plot_style import hide_toolbar, new_figure, plain_legend, plain_ticks

COLUMNS = (
    "simulation",
    "elapsed_s",
    "best_s",
    "best_bytes",
    "tried_s",
    "tried_bytes",
    "fits",
    "improved",
    "best_score",
    "tried_score",
)


class CurvePoint(NamedTuple):
    """One simulation, in SI units."""

    simulation: int
    elapsed_s: float
    best_s: float
    best_bytes: float
    tried_s: float
    tried_bytes: float
    fits: bool
    improved: bool
    #: C(s)
    best_score: float = math.nan
    tried_score: float = math.nan


def point(simulation: Any) -> CurvePoint:
    """What the curves show of a ``Simulation``."""
    return CurvePoint(
        simulation=simulation.index,
        elapsed_s=simulation.elapsed_s,
        best_s=simulation.best_time_s,
        best_bytes=simulation.best_peak_bytes,
        tried_s=simulation.time_s,
        tried_bytes=simulation.peak_bytes,
        fits=simulation.fits,
        improved=simulation.improved,
        best_score=simulation.best_score,
        tried_score=simulation.score,
    )


def curve_frame(points: Iterable[CurvePoint]) -> pd.DataFrame:
    """The table twin: one row per simulation, in order."""
    return pd.DataFrame([tuple(point) for point in points], columns=COLUMNS)


def improvements_frame(points: Iterable[CurvePoint]) -> pd.DataFrame:
    """Only the simulations that improved on the best plan."""
    frame = curve_frame(points)
    return frame[frame["improved"].astype(bool)].drop(columns=["improved"]).reset_index(drop=True)


def shown_frame(points: Iterable[CurvePoint]) -> pd.DataFrame:
    """``improvements_frame`` as people read it, the best first."""
    frame = improvements_frame(points).iloc[::-1].head(200)
    return pd.DataFrame(
        {
            "simulation": frame["simulation"].tolist(),
            "after": [seconds_text(value) for value in frame["elapsed_s"].tolist()],
            "best step, estimated": [seconds_text(value) for value in frame["best_s"].tolist()],
            "best peak, estimated": [bytes_text(value) for value in frame["best_bytes"].tolist()],
            "fits": ["yes" if value else "no" for value in frame["fits"].tolist()],
        }
    )


MOST_DRAWN = 800
#: times the unsharded memory, up to which the limit is drawn whatever the curve does
IN_VIEW = 3.0
SCORE = "C(s) by simulation, estimated: time over unsharded, plus memory over the limit"


class SearchCurves:
    """Three linked curves that grow: C(s) above, time and memory below; feed them with ``append``.

    The axes follow the best plan and the unsharded one; trials that are worse than both lie above
    the frame.

    Attributes:
        root: the Bokeh layout.
        source: one row per simulation shown, in the units of the axes.
    """

    def __init__(
        self,
        memory_limit_bytes: float = 0.0,
        unsharded_s: float = 1.0,
        unsharded_bytes: float = 2.0**30,
        scale_type: str = "log",
    ) -> None:
        self._scale_type = scale_type
        self.time_unit, self.time_scale = time_unit(unsharded_s)
        self.byte_unit, self.byte_scale = byte_unit(unsharded_bytes)
        limit_text = f"; limit {bytes_text(memory_limit_bytes)}" if memory_limit_bytes else ""
        self.source = ColumnDataSource({name: [] for name in COLUMNS})
        self._every, self._count = 1, 0
        self.time = self._figure(
            f"step time ({self.time_unit}), estimated",
            "best_s",
            "tried_s",
            "curve time",
            whole=unsharded_s / self.time_scale,
        )
        self.memory = self._figure(
            f"peak ({self.byte_unit}), estimated{limit_text}",
            "best_bytes",
            "tried_bytes",
            "curve memory",
            whole=unsharded_bytes / self.byte_scale,
        )
        self.cost = self._figure(SCORE, "best_score", "tried_score", "curve cost", keyed=True)
        self.figures = (self.cost, self.time, self.memory)
        self.time.x_range = self.memory.x_range = self.cost.x_range
        self.veils = [
            BoxAnnotation(
                fill_color=NEUTRAL,
                fill_alpha=0.35,
                line_color=NEUTRAL,
                level="overlay",
                visible=False,
            )
            for _ in self.figures
        ]
        for plot, veil in zip(self.figures, self.veils, strict=True):
            plot.add_layout(veil)
        self._line(
            self.memory,
            memory_limit_bytes / self.byte_scale,
            f"memory limit {bytes_text(memory_limit_bytes)}",
            CONFLICT,
            most=IN_VIEW * unsharded_bytes / self.byte_scale,
        )
        self._line(self.time, unsharded_s / self.time_scale, "unsharded", NEUTRAL, offset_px=-16)
        self._line(self.cost, 1.0, "unsharded: 1", NEUTRAL, offset_px=-16)
        places: Any = [(self.cost, 0, 0, 1, 2), (self.time, 1, 0), (self.memory, 1, 1)]
        equal_tracks: Any = ["minmax(0, 1fr)"] * 2
        self.root = GridBox(
            children=places,
            rows=equal_tracks,
            cols=equal_tracks,
            sizing_mode="stretch_both",
            name="search curves",
        )

    def append(self, points: list[CurvePoint]) -> None:
        """Add points at the end.

        A canvas takes some 15 ms to draw a thousand of them, several times a second, on cores that
        the search wants, too.  Beyond ``MOST_DRAWN`` points, every second one that is no
        improvement is dropped, and so are those that follow.
        """
        points = self._thinned(points)
        if not points:
            return
        time_scale, byte_scale = self.time_scale, self.byte_scale
        scaled_points = [
            point._replace(
                best_s=point.best_s / time_scale,
                tried_s=point.tried_s / time_scale,
                best_bytes=point.best_bytes / byte_scale,
                tried_bytes=point.tried_bytes / byte_scale,
            )
            for point in points
        ]
        new_columns: dict[str, Any] = dict(
            zip(COLUMNS, map(list, zip(*scaled_points, strict=True)), strict=True)
        )
        if len(self.source.data["simulation"]) + len(scaled_points) <= MOST_DRAWN:
            self.source.stream(new_columns)
            return
        all_columns = {name: [*self.source.data[name], *new_columns[name]] for name in COLUMNS}
        last_index = len(all_columns["simulation"]) - 1
        while True:
            kept_indices = [
                index
                for index, better in enumerate(all_columns["improved"])
                if better or index % 2 == 0 or index == last_index
            ]
            all_columns = {
                name: [values[index] for index in kept_indices]
                for name, values in all_columns.items()
            }
            self._every *= 2
            last_index = len(kept_indices) - 1
            if last_index < MOST_DRAWN or all(all_columns["improved"]):
                break
        self.source.data = all_columns

    def _thinned(self, points: list[CurvePoint]) -> list[CurvePoint]:
        """Of ``points`` the improvements, the last one and some of the others.

        The others are thinned as those before them were.
        """
        first_index, self._count = self._count, self._count + len(points)
        last_index = len(points) - 1
        return [
            point
            for index, point in enumerate(points)
            if point.improved or index == last_index or (first_index + index) % self._every == 0
        ]

    def mark(self, at: int | None) -> None:
        """Veil what came after simulation ``at``; None: nothing."""
        for veil in self.veils:
            veil.update(left=at, visible=at is not None)

    @staticmethod
    def _line(
        plot: figure,
        level: float,
        label: str,
        hue: str,
        *,
        offset_px: int = 2,
        most: float = math.inf,
    ) -> None:
        if level > 0:
            plot.add_layout(
                Span(
                    location=level,
                    dimension="width",
                    line_color=hue,
                    line_dash="dashed",
                    line_width=1.5,
                )
            )
            if level <= most:
                # the line stays in view
                seen = plot.scatter([0], [level], size=1, alpha=0)
                view: Any = plot.y_range
                view.renderers = [*view.renderers, seen]
            plot.add_layout(
                Label(
                    x=8,
                    y=level,
                    x_units="screen",
                    text=label,
                    text_color=hue,
                    text_font_size="11px",
                    y_offset=offset_px,
                )
            )

    def _figure(
        self,
        title: str,
        best: str,
        tried: str,
        name: str,
        *,
        whole: float = 1.0,
        keyed: bool = False,
    ) -> figure:
        plot = new_figure(
            name,
            title=title,
            # Linear, the first bad plans would make flat lines of all that follow
            y_axis_type=self._scale_type,
            min_height=110,
            toolbar_location="right",
        )
        plot.title.text_color = NEUTRAL
        plot.title.text_font_size = "12px"
        if self._scale_type == "linear":
            plot.y_range.start = 0
        plain_ticks(plot)
        plot.yaxis.ticker.desired_num_ticks = 4
        plot.min_border = 0
        plot.xaxis.axis_label_text_color = NEUTRAL
        plot.xaxis.axis_label_text_font_style = "normal"
        tried_dots = plot.scatter(
            "simulation",
            tried,
            source=self.source,
            size=4,
            color=NEUTRAL,
            alpha=0.35,
            **({"legend_label": "tried"} if keyed else {}),
        )
        best_line = plot.step(
            "simulation",
            best,
            source=self.source,
            color=ACCENT,
            line_width=2.5,
            mode="after",
            **({"legend_label": "best so far"} if keyed else {}),
        )
        # gives an empty curve its axes
        axes = plot.scatter([0, 20], [whole, whole], size=1, alpha=0)
        plot.y_range.renderers = [best_line, axes]
        plot.y_range.range_padding = 0.15
        if keyed:
            # the best plan's curve comes from above
            plot.legend.location = "bottom_left"
            plain_legend(plot, "11px")
            plot.legend.orientation = "horizontal"
            plot.legend.padding = 4
        plot.add_tools(
            HoverTool(
                renderers=[tried_dots],
                tooltips=[
                    ("simulation", "@simulation"),
                    ("tried", f"@{tried}"),
                    ("best", f"@{best}"),
                    ("C(s)", "@tried_score{0.0000}"),
                    ("fits", "@fits"),
                ],
            ),
            PanTool(),
            WheelZoomTool(dimensions="width"),
            ResetTool(),
        )
        hide_toolbar(plot)
        best_line.level = "overlay"
        return plot

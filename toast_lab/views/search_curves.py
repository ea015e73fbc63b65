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
from toast_lab.views.graph_plot import _style
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL

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


class Point(NamedTuple):
    """One simulation, in SI units."""

    simulation: int
    elapsed_s: float
    best_s: float
    best_bytes: float
    tried_s: float
    tried_bytes: float
    fits: bool
    improved: bool
    best_score: float = math.nan  #: C(s)
    tried_score: float = math.nan


def point(simulation: Any) -> Point:
    """What the curves show of a ``Simulation``."""
    s = simulation
    return Point(
        s.index,
        s.elapsed_s,
        s.best_time_s,
        s.best_peak_bytes,
        s.time_s,
        s.peak_bytes,
        s.fits,
        s.improved,
        s.best_score,
        s.score,
    )


def curve_frame(points: Iterable[Point]) -> pd.DataFrame:
    """The table twin: one row a simulation, in order."""
    return pd.DataFrame([tuple(p) for p in points], columns=list(COLUMNS))


def improvements_frame(points: Iterable[Point]) -> pd.DataFrame:
    """Only the simulations that found something better."""
    frame = curve_frame(points)
    return frame[frame["improved"].astype(bool)].drop(columns=["improved"]).reset_index(drop=True)


def shown_frame(points: Iterable[Point]) -> pd.DataFrame:
    """``improvements_frame`` as people read it, the best first."""
    frame = improvements_frame(points).iloc[::-1].head(200)
    return pd.DataFrame(
        {
            "simulation": frame["simulation"].tolist(),
            "after": [seconds_text(v) for v in frame["elapsed_s"].tolist()],
            "best step, estimated": [seconds_text(v) for v in frame["best_s"].tolist()],
            "best peak, estimated": [bytes_text(v) for v in frame["best_bytes"].tolist()],
            "fits": ["yes" if v else "no" for v in frame["fits"].tolist()],
        }
    )


MOST_DRAWN = 800
IN_VIEW = 3.0  #: times the unsharded memory, up to which the limit is drawn whatever the curve does
SCORE = "C(s) by simulation, estimated: time over unsharded, plus memory over the limit"


class SearchCurves:
    """Three linked curves that grow: C(s) above, time and memory below; feed them with ``append``.

    The axes follow the best plan and the unsharded one; what was tried and is worse than both lies
    above the frame.

    Attributes:
        root: the Bokeh layout.
        source: one row a simulation shown, in the units of the axes.
    """

    def __init__(
        self,
        memory_limit_bytes: float = 0.0,
        unsharded_s: float = 1.0,
        unsharded_bytes: float = 2.0**30,
    ) -> None:
        self.time_unit, self.time_scale = time_unit(unsharded_s)
        self.byte_unit, self.byte_scale = byte_unit(unsharded_bytes)
        limit = f"; limit {bytes_text(memory_limit_bytes)}" if memory_limit_bytes else ""
        self.source = ColumnDataSource({name: [] for name in COLUMNS})
        self._every, self._count = 1, 0
        self.time = self._figure(
            f"step time ({self.time_unit}), estimated", "best_s", "tried_s", "curve time"
        )
        self.memory = self._figure(
            f"peak ({self.byte_unit}), estimated{limit}",
            "best_bytes",
            "tried_bytes",
            "curve memory",
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
            2,
            IN_VIEW * unsharded_bytes / self.byte_scale,
        )
        self._line(self.time, unsharded_s / self.time_scale, "unsharded", NEUTRAL, -16)
        self._line(self.cost, 1.0, "unsharded: 1", NEUTRAL, -16)
        places: Any = [(self.cost, 0, 0, 1, 2), (self.time, 1, 0), (self.memory, 1, 1)]
        even: Any = ["minmax(0, 1fr)"] * 2
        self.root = GridBox(
            children=places, rows=even, cols=even, sizing_mode="stretch_both", name="search curves"
        )

    def append(self, points: list[Point]) -> None:
        """Add points at the end.

        A canvas takes some 15 ms to draw a thousand of them, several times a second and on cores
        that the search wants, too: beyond ``MOST_DRAWN`` every second one goes that was no
        improvement, and so it does from there on.
        """
        points = self._thinned(points)
        if not points:
            return
        t, b = self.time_scale, self.byte_scale
        rows = [
            p._replace(
                best_s=p.best_s / t,
                tried_s=p.tried_s / t,
                best_bytes=p.best_bytes / b,
                tried_bytes=p.tried_bytes / b,
            )
            for p in points
        ]
        new: dict[str, Any] = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
        if len(self.source.data["simulation"]) + len(rows) <= MOST_DRAWN:
            self.source.stream(new)
            return
        whole = {name: [*self.source.data[name], *new[name]] for name in COLUMNS}
        last = len(whole["simulation"]) - 1
        while True:
            kept = [
                i for i, better in enumerate(whole["improved"]) if better or i % 2 == 0 or i == last
            ]
            whole = {name: [values[i] for i in kept] for name, values in whole.items()}
            self._every *= 2
            last = len(kept) - 1
            if last < MOST_DRAWN or all(whole["improved"]):
                break
        self.source.data = whole

    def _thinned(self, points: list[Point]) -> list[Point]:
        """Of ``points`` the improvements, the last one and some of the others.

        The others are thinned as those before them were.
        """
        first, self._count = self._count, self._count + len(points)
        last = len(points) - 1
        return [
            p
            for i, p in enumerate(points)
            if p.improved or i == last or (first + i) % self._every == 0
        ]

    def mark(self, at: int | None) -> None:
        """Veil what came after simulation ``at``; None: nothing."""
        for veil in self.veils:
            veil.update(left=at, visible=at is not None)

    @staticmethod
    def _line(
        plot: figure, at: float, words: str, hue: str, offset: int, most: float = math.inf
    ) -> None:
        if at > 0:
            plot.add_layout(
                Span(
                    location=at,
                    dimension="width",
                    line_color=hue,
                    line_dash="dashed",
                    line_width=1.5,
                )
            )
            if at <= most:
                seen = plot.scatter([0], [at], size=1, alpha=0)  # the line stays in view
                view: Any = plot.y_range
                view.renderers = [*view.renderers, seen]
            plot.add_layout(
                Label(
                    x=8,
                    y=at,
                    x_units="screen",
                    text=words,
                    text_color=hue,
                    text_font_size="11px",
                    y_offset=offset,
                )
            )

    def _figure(
        self, title: str, best: str, tried: str, name: str, *, keyed: bool = False
    ) -> figure:
        plot: Any = figure(
            title=title,
            sizing_mode="stretch_both",
            min_height=110,
            tools=[],
            output_backend="canvas",
            name=name,
            toolbar_location="right",
        )
        _style(plot)
        plot.title.text_color = NEUTRAL
        plot.title.text_font_size = "12px"
        plot.y_range.start = 0
        plot.yaxis.ticker.desired_num_ticks = 4
        plot.min_border = 0
        plot.xaxis.axis_label_text_color = NEUTRAL
        plot.xaxis.axis_label_text_font_style = "normal"
        dots = plot.scatter(
            "simulation",
            tried,
            source=self.source,
            size=4,
            color=NEUTRAL,
            alpha=0.35,
            **({"legend_label": "tried"} if keyed else {}),
        )
        line = plot.step(
            "simulation",
            best,
            source=self.source,
            color=ACCENT,
            line_width=2.5,
            mode="after",
            **({"legend_label": "best so far"} if keyed else {}),
        )
        plot.scatter([0, 20], [0, 0], size=1, alpha=0)  # gives an empty curve its axes
        plot.y_range.renderers = [line]
        plot.y_range.range_padding = 0.15
        if keyed:
            plot.legend.location = "bottom_left"  # the best plan's curve comes from above
            plot.legend.background_fill_color = None
            plot.legend.label_text_color = NEUTRAL
            plot.legend.border_line_color = None
            plot.legend.orientation = "horizontal"
            plot.legend.label_text_font_size = "11px"
            plot.legend.padding = 4
        plot.add_tools(
            HoverTool(
                renderers=[dots],
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
        plot.toolbar.logo = None
        plot.toolbar.autohide = True
        line.level = "overlay"
        return plot

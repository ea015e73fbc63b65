"""A race on one chart.

The best plan of each method is drawn against time, with a hue, a dash and a marker of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, HoverTool, PanTool, ResetTool, WheelZoomTool
from bokeh.plotting import figure

from toast_lab.views.compare_table import byte_unit, bytes_text, seconds_text, time_unit
from toast_lab.views.palette import NEUTRAL, style
from toast_lab.views.plot_style import hide_toolbar, new_figure, plain_legend, plain_ticks

DASHES: tuple[Any, ...] = (
    "solid",
    "dashed",
    "dotted",
    "dotdash",
    "dashdot",
    (10, 3),
    (2, 6),
    (12, 3, 2, 3, 2, 3),
)
SHOWN = {"score": "C(s)", "time_s": "step time", "peak_bytes": "peak memory"}
COLUMNS = (
    "method",
    "best step",
    "best peak",
    "fits",
    "best C(s)",
    "own best after, s",
    "priced",
    "status",
)


def look_of(index: int) -> tuple[str, str, Any]:
    """(hue, marker, dash) of the ``index``-th method; all three differ for the first eight."""
    method_style = style(index)
    return method_style.hue, method_style.marker, DASHES[index % len(DASHES)]


def race_frame(rows: Iterable[Any]) -> pd.DataFrame:
    """The table twin of the chart: one row per ``Row`` of a race, as people read it."""
    return pd.DataFrame(
        [
            (
                row.method,
                seconds_text(row.time_s),
                bytes_text(row.peak_bytes),
                {True: "yes", False: "no", None: "–"}[row.fits],
                "–" if row.score is None else f"{row.score:.4f}",
                "–" if row.own_best_s is None else f"{row.own_best_s:.2f}",
                "–" if row.evaluations is None else f"{row.evaluations:,}",
                row.status.lower(),
            )
            for row in rows
        ],
        columns=COLUMNS,
    )


class RaceCurves:
    """The chart; ``show`` brings it up to date.

    Attributes:
        figure: the Bokeh figure.
        lines: by method, one row at each improvement and one where the curve ends.
    """

    def __init__(
        self,
        methods: Sequence[str],
        kind: str = "score",
        unsharded: tuple[float, float] = (1.0, 1.0),
        scale_type: str = "log",
    ) -> None:
        self.kind, self.scale_type = kind, scale_type
        unit, self.scale = {
            "score": ("", 1.0),
            "time_s": time_unit(unsharded[0]),
            "peak_bytes": byte_unit(unsharded[1]),
        }[kind]
        self.lines = {
            method: ColumnDataSource({"x": [], "y": [], "fits": [], "method": []})
            for method in methods
        }
        self.figure = self._draw(
            f"{SHOWN[kind]} of the best plan so far, estimated{f' ({unit})' if unit else ''}"
        )

    def show(self, points: Mapping[str, Sequence[Any]], until_s: Mapping[str, float]) -> None:
        """Draw improvements (``search.search_child.Point``); each curve goes on to ``until_s``."""
        for method, source in self.lines.items():
            improvements = points.get(method, ())
            # The curve goes on at its last height
            shown = [*improvements, *improvements[-1:]]
            times_s = [point.elapsed_s for point in shown]
            if times_s:
                times_s[-1] = max(times_s[-1], until_s.get(method, 0.0))
            if list(source.data["x"]) != times_s:
                source.data = {
                    "x": times_s,
                    "y": [getattr(point, self.kind) / self.scale for point in shown],
                    "fits": ["yes" if point.fits else "no" for point in shown],
                    "method": [method] * len(shown),
                }

    def _draw(self, title: str) -> figure:
        plot = new_figure(
            "race curves",
            title=title,
            # Linear, the first bad plans would make flat lines of all that follow
            y_axis_type=self.scale_type,
            min_height=220,
            toolbar_location="above",
        )
        plot.title.text_color = NEUTRAL
        plot.title.text_font_size = "12px"
        plot.xaxis.axis_label = "seconds of each method's own search"
        plot.xaxis.axis_label_text_color = NEUTRAL
        plot.xaxis.axis_label_text_font_style = "normal"
        plot.x_range.start = 0
        plot.y_range.range_padding = 0.1
        plain_ticks(plot)
        dots = []
        for index, (method, source) in enumerate(self.lines.items()):
            hue, marker, dash = look_of(index)
            plot.step(
                "x",
                "y",
                source=source,
                mode="after",
                color=hue,
                line_dash=dash,
                line_width=2.2,
                legend_label=method,
                name=method,
            )
            dots.append(
                plot.scatter(
                    "x", "y", source=source, marker=marker, color=hue, size=6, legend_label=method
                )
            )
        if not dots:
            # gives an empty chart its axes
            plot.scatter([0, 1], [0.1, 1], size=1, alpha=0)
        else:
            # inside, it would lie over a curve
            plot.add_layout(plot.legend[0], "right")
            plain_legend(plot, "11.5px")
            plot.legend.glyph_width = 44
            plot.legend.padding = 4
        plot.add_tools(
            HoverTool(
                renderers=dots,
                tooltips=[
                    ("method", "@method"),
                    ("after", "@x{0.00} s"),
                    ("best", "@y"),
                    ("fits", "@fits"),
                ],
            ),
            PanTool(),
            WheelZoomTool(dimensions="width"),
            ResetTool(),
        )
        hide_toolbar(plot)
        return plot

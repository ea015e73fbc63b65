"""A confirmed search as a chart: the judge's clock beside the price.

The price belongs to one search and its price list, so its line begins anew with every round. A
judged plan is a filled marker at its clock's time, with a line from a hollow one at its price: the
length of the line is the error of the price. If clock and price are of different machines, they
have two charts and no line joins them.

``ConfirmCurve`` shows a running search: HoloViews draws the empty charts once, and new rows go into
the sources of their Bokeh figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import pandas as pd
from bokeh.models import ColumnDataSource, GridBox

from toast_lab.views.chart_scale import LAST_TEN_PERCENT, height_limits, show_last
from toast_lab.views.chart_style import (
    chart,
    drawn,
    growing_figure,
    hover,
    plain_ticks,
    renderer_named,
)
from toast_lab.views.compare_table import time_unit
from toast_lab.views.confirm_curve import AT_S, COLUMNS, JUDGED, TIMES, confirm_frame
from toast_lab.views.palette import ACCENT, style
from toast_lab.views.plot_style import few_ticks

FIGURE = "confirmed curve"
CLOCK = style(2).hue
PRICED, BY_CLOCK = "best by the price, of each round", "best by the judge's clock"
X_LABELS = {AT_S: "seconds since the first search began", JUDGED: "plans judged"}
#: column with the x at which the line from a price to its clock ends
_END = "end"


def confirm_charts(
    frame: pd.DataFrame,
    unsharded_s: float = 1.0,
    *,
    scale_type: str = "log",
    apart: bool = False,
) -> tuple[Any, ...]:
    """An overlay of price and clock, or one of each if they are of different machines.

    Args:
        frame: ``confirm_frame`` or ``judged_frame``, in seconds.
        unsharded_s: step time of the unsharded program, which gives the unit.
        scale_type: scale of the y axes, one of ``chart_scale.SCALES``.
        apart: whether clock and price are of different machines.
    """
    unit, scale = time_unit(unsharded_s)
    x = next(name for name in X_LABELS if name in frame.columns)
    rows = frame.assign(**{name: frame[name] / scale for name in TIMES})
    price, clock = _price(rows, x), _clock(rows, x, unit, apart=apart)
    title = f"step time ({unit})"
    heights = pd.concat([rows[name] for name in TIMES]).dropna().tolist() or [0.1, 1.0]
    last = float(rows[x].max()) if len(rows) else 1.0

    def overlay(elements: Sequence[Any], figure: str, title: str) -> Any:
        return chart(
            elements,
            name=figure,
            title=title,
            xlabel=X_LABELS[x],
            ylabel="",
            xlim=(0, 1.02 * last or 1.0),
            ylim=height_limits(heights, _ends(rows), 0.15, scale_type),
            logy=scale_type == "log",
            legend="top",
            zoom="width",
            hooks=[plain_ticks, _few_ticks],
            min_height=150,
        )

    if not apart:
        joint_title = f"{title}: estimated, and by the judge's clock"
        return (overlay([*price, *clock], FIGURE, joint_title),)
    figure_name = "step by price and clock"
    return (
        overlay(price, figure_name, f"{title}, estimated for the problem's machine"),
        overlay(clock, figure_name, f"{title} by the clock of another machine"),
    )


def _price(rows: pd.DataFrame, x: str) -> list[Any]:
    priced = rows[rows["kind"] == "priced"]
    return [
        drawn(
            hv.Curve(priced, x, ["time_s", "round"], label=PRICED),
            renderer_named("priced"),
            interpolation="steps-post",
            color=ACCENT,
            line_width=2,
            line_dash="dashed",
        )
    ]


def _clock(rows: pd.DataFrame, x: str, unit: str, *, apart: bool) -> list[Any]:
    judged = rows[rows["kind"] == "judged"]
    tooltips = [
        ("round", "@round"),
        ("priced", f"@priced_s{{0.000}} {unit}"),
        ("by the clock", f"@time_s{{0.000}} {unit}"),
        ("verdict", "@state"),
    ]
    elements: list[Any] = []
    if apart:
        del tooltips[1]
    else:
        ends = judged.assign(**{_END: judged[x]})
        elements += [
            drawn(
                hv.Segments(ends, [x, "priced_s", _END, "time_s"]),
                renderer_named("price errors"),
                color=CLOCK,
                alpha=0.6,
            ),
            drawn(
                hv.Scatter(judged, x, ["priced_s", "round"]),
                renderer_named("priced plans"),
                size=7,
                line_color=ACCENT,
                fill_color=None,
                show_legend=False,
            ),
        ]
    clock = rows[rows["kind"] == "clock"]
    return [
        *elements,
        drawn(
            hv.Curve(clock, x, ["time_s", "round"], label=BY_CLOCK),
            renderer_named("clock"),
            interpolation="steps-post",
            color=CLOCK,
            line_width=2.5,
        ),
        drawn(
            hv.Scatter(
                judged,
                x,
                ["time_s", "round", "priced_s", "state"],
                label="a judged plan" if apart else "a judged plan, ○ its price",
            ),
            renderer_named("judged"),
            size=8,
            marker="triangle",
            color=CLOCK,
            **hover(tooltips),
        ),
    ]


def _ends(rows: pd.DataFrame) -> list[float]:
    """Last height of the line of the clock, or of the price if nothing was judged."""
    known = rows.dropna(subset=["time_s"])
    for kind in ("clock", "priced"):
        if ends := known[known["kind"] == kind]["time_s"].tolist()[-1:]:
            return ends
    return []


def _few_ticks(plot: Any, _: Any) -> None:
    few_ticks(plot.state.yaxis[0], 4)


class ConfirmCurve:
    """The charts of a running confirmed search; ``show`` brings them up to date.

    Attributes:
        root: the Bokeh model that holds the charts.
        figures: one figure, or price and clock apart.
        sources: sources by the ``kind`` of rows, in the units of the axis.
    """

    def __init__(
        self, unsharded_s: float = 1.0, scale_type: str = "log", *, apart: bool = False
    ) -> None:
        """``apart`` says whether clock and price are of different machines."""
        self.unit, self.scale = time_unit(unsharded_s)
        self.scale_type = scale_type
        self.unsharded_s, self.apart = unsharded_s, apart
        empty = confirm_frame([], [], 0.0)
        self.sources = {
            kind: ColumnDataSource(_columns(empty, kind, 1.0))
            for kind in ("priced", "clock", "judged")
        }
        charts = confirm_charts(empty, unsharded_s, scale_type=scale_type, apart=apart)
        self.figures = tuple(self._growing(overlay, scale_type) for overlay in charts)
        if not apart:
            (self.root,) = self.figures
            return
        price, clock = self.figures
        clock.x_range = price.x_range
        two_columns: Any = ["minmax(0, 1fr)"] * 2
        places: Any = [(price, 0, 0), (clock, 0, 1)]
        one_row: Any = ["minmax(0, 1fr)"]
        self.root = GridBox(
            children=places, rows=one_row, cols=two_columns, sizing_mode="stretch_both", name=FIGURE
        )

    def _growing(self, overlay: Any, scale_type: str) -> Any:
        """The Bokeh figure of an overlay; it draws ``sources``, and its axes follow them."""
        judged = self.sources["judged"]
        unsharded = self.unsharded_s / self.scale
        figure = growing_figure(
            overlay,
            {**self.sources, "price errors": judged, "priced plans": judged},
            [(0.0, unsharded), (1.0, unsharded)],
            part=0.15,
            scale_type=scale_type,
        )
        figure.min_height = 150
        return figure

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the rows of ``confirm_frame``."""
        for kind, source in self.sources.items():
            columns = _columns(frame, kind, self.scale)
            if not _equal(source.data, columns):
                source.data = columns
        if self.scale_type == LAST_TEN_PERCENT:
            ends = _ends(frame.assign(time_s=frame["time_s"] / self.scale))
            for figure in self.figures:
                show_last(figure, ends)


def _columns(frame: pd.DataFrame, kind: str, scale: float) -> dict[str, list[Any]]:
    """Data of the marks of a kind, in the units of the axes."""
    rows = frame[frame["kind"] == kind]
    columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in COLUMNS}
    for name in TIMES:
        columns[name] = [seconds / scale for seconds in columns[name]]
    return {**columns, _END: columns[AT_S]}


def _equal(data: Any, columns: dict[str, list[Any]]) -> bool:
    """Whether the columns are the same; NaN, at which a line breaks, counts as equal to itself."""
    return repr([list(data[name]) for name in columns]) == repr([*columns.values()])

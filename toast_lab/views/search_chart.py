"""A search as charts: C(s), step time and peak memory of the best plan and of every simulation.

``search_charts`` makes them from the rows of ``search_curves``. ``SearchCurves`` shows a running
search: HoloViews draws the empty charts once, and points are then streamed into the sources of its
Bokeh figures, because drawing a chart anew takes a tenth of a second of a core that the search
needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import holoviews as hv
import pandas as pd
from bokeh.models import ColumnDataSource, GridBox
from bokeh.models.annotations import BoxAnnotation

from toast_lab.text import bytes_text
from toast_lab.views.chart_scale import LAST_TEN_PERCENT, height_limits, show_last
from toast_lab.views.chart_style import chart, drawn, growing_figure, hover, plain_ticks
from toast_lab.views.compare_table import byte_unit, time_unit
from toast_lab.views.palette import ACCENT, CONFLICT, NEUTRAL
from toast_lab.views.plot_style import few_ticks
from toast_lab.views.search_curves import COLUMNS, CurvePoint, SearchScales, curve_frame, thinned

#: most points of a chart that grows
MOST_DRAWN = 800
#: the limit stays in view up to this many times the unsharded memory, whatever the curve does
IN_VIEW = 3.0
SCORE = "C(s), estimated: time over unsharded (1, dashed), plus excess memory"
#: share of the unsharded program's price that every axis has room for: smaller differences are
#: rounding, and would otherwise be drawn as steps between ticks of sixteen digits
LEAST_SHARE = 0.02


class _Quantity(NamedTuple):
    """One of the three charts."""

    name: str
    title: str
    column: str  #: ending of its columns
    unit: float
    whole: float
    limit: float = 0.0

    @property
    def best(self) -> str:
        """The column of the best plan."""
        return f"best_{self.column}"


def _quantities(scales: SearchScales) -> tuple[_Quantity, ...]:
    """C(s), time and memory, in the units that fit the unsharded program."""
    time_name, time_scale = time_unit(scales.unsharded_s)
    byte_name, byte_scale = byte_unit(scales.unsharded_bytes)
    limit, whole_s = scales.memory_limit_bytes, scales.unsharded_s / time_scale
    limit_text = f"; limit {bytes_text(limit)}" if limit else ""
    time = f"step ({time_name}), estimated; unsharded {whole_s:.3g}"
    memory = f"peak ({byte_name}), estimated{limit_text}"
    drawn_bytes = {"whole": scales.unsharded_bytes / byte_scale, "limit": limit / byte_scale}
    return (
        _Quantity("cost", "C(s), estimated; unsharded 1", "score", 1.0, whole=1.0),
        _Quantity("time", time, "s", time_scale, whole=whole_s),
        _Quantity("memory", memory, "bytes", byte_scale, **drawn_bytes),
    )


def search_charts(
    frame: pd.DataFrame, scales: SearchScales | None = None, *, legend_at: int = 0
) -> tuple[Any, ...]:
    """Overlays of C(s), step time and peak memory against simulations.

    Args:
        frame: ``curve_frame``, in SI units.
        scales: the memory limit, the unsharded program, and the scale.
        legend_at: index of the chart that has the legend for all.
    """
    scales = scales or SearchScales()
    return tuple(
        _chart(frame, quantity, scales, keyed=index == legend_at)
        for index, quantity in enumerate(_quantities(scales))
    )


def _chart(frame: pd.DataFrame, quantity: _Quantity, scales: SearchScales, *, keyed: bool) -> Any:
    best, tried = quantity.best, f"tried_{quantity.column}"
    scaled = frame.assign(**{name: frame[name] / quantity.unit for name in (best, tried)})
    tooltips = [
        ("simulation", "@simulation"),
        ("tried", f"@{tried}"),
        ("best", f"@{best}"),
        ("C(s)", "@tried_score{0.0000}"),
        ("fits", "@fits"),
    ]
    columns = list(dict.fromkeys([tried, best, "tried_score", "fits"]))
    elements = [
        drawn(
            hv.Scatter(scaled, "simulation", columns, label="tried"),
            size=4,
            color=NEUTRAL,
            alpha=0.35,
            **hover(tooltips),
        ),
        drawn(
            hv.Curve(scaled, "simulation", [best], label="best so far"),
            interpolation="steps-post",
            color=ACCENT,
            line_width=2.5,
        ),
    ]
    in_view = [
        quantity.whole,
        (1.0 - LEAST_SHARE) * quantity.whole,
        *scaled[best].dropna().tolist(),
    ]
    if quantity.limit:
        if quantity.limit <= IN_VIEW * quantity.whole:
            in_view.append(quantity.limit)
        elements.append(_level(quantity.limit, CONFLICT))
    if quantity.name != "memory":
        elements.append(_level(quantity.whole, NEUTRAL))
    ends = scaled[best].dropna().tolist()[-1:]
    return chart(
        elements,
        name=f"curve {quantity.name}",
        title=quantity.title,
        xlabel="simulations",
        ylabel="",
        xlim=(0, max(20, *scaled["simulation"].tolist())) if len(scaled) else (0, 20),
        ylim=height_limits(in_view, ends, 0.15, scales.scale_type),
        logy=scales.scale_type == "log",
        legend="top" if keyed else None,
        zoom="width",
        hooks=[plain_ticks, _small_chart],
        min_height=110,
    )


def _level(height: float, hue: str) -> Any:
    """A dashed line; the title says what it is, since a label would lie on the plans tried."""
    return drawn(hv.HLine(height), color=hue, line_dash="dashed", line_width=1.5)


def _small_chart(plot: Any, _: Any) -> None:
    figure = plot.state
    few_ticks(figure.yaxis[0], 4)
    figure.min_border = 0
    # In a notebook's cell, a title has 230 pixels, and Bokeh would cut off the rest of it
    figure.title.text_font_size = "11px"
    figure.title.text_font_style = "normal"
    for legend in figure.legend:
        legend.orientation = "horizontal"
        legend.padding = 4


class SearchCurves:
    """Three linked charts that grow: C(s) above, time and memory below; feed them with ``append``.

    The axes follow the best plan and the unsharded one; trials that are worse than both lie above
    the frame.

    Attributes:
        scales: the scales as given.
        root: the Bokeh layout.
        figures: the figures of C(s), time and memory.
        source: one row per simulation shown, in the units of the axes.
    """

    def __init__(self, scales: SearchScales | None = None) -> None:
        self.scales = scales = scales or SearchScales()
        self._quantities = _quantities(scales)
        self.source = ColumnDataSource({name: [] for name in COLUMNS})
        self._every, self._count = 1, 0
        self.figures = tuple(
            self._growing(overlay, quantity, scales)
            for overlay, quantity in zip(
                search_charts(curve_frame([]), scales), self._quantities, strict=True
            )
        )
        cost, time, memory = self.figures
        cost.title.text = SCORE  # this chart is as wide as two
        time.x_range = memory.x_range = cost.x_range
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
        for figure, veil in zip(self.figures, self.veils, strict=True):
            figure.add_layout(veil)
        places: Any = [(cost, 0, 0, 1, 2), (time, 1, 0), (memory, 1, 1)]
        equal_tracks: Any = ["minmax(0, 1fr)"] * 2
        self.root = GridBox(
            children=places,
            rows=equal_tracks,
            cols=equal_tracks,
            sizing_mode="stretch_both",
            name="search curves",
        )

    def _growing(self, overlay: Any, quantity: _Quantity, scales: SearchScales) -> Any:
        """The Bokeh figure of an overlay; its y axis follows the line of the best plan."""
        heights = [quantity.whole, (1.0 - LEAST_SHARE) * quantity.whole]
        if 0 < quantity.limit <= IN_VIEW * quantity.whole:
            heights.append(quantity.limit)
        figure = growing_figure(
            overlay,
            {"tried": self.source, "best so far": self.source},
            list(zip((0.0, 20.0, 0.0), heights, strict=False)),
            part=0.15,
            scale_type=scales.scale_type,
            above=("tried",),
        )
        figure.min_height = 110
        figure.xaxis.axis_label = None  # three of them take the height of a chart
        return figure

    def append(self, points: list[CurvePoint]) -> None:
        """Add points at the end.

        A canvas takes some 15 ms to draw a thousand of them, several times a second, on cores that
        the search needs, too. Beyond ``MOST_DRAWN`` points, every second one that is no improvement
        is dropped, and later points are thinned likewise.
        """
        if not points:
            return
        first, self._count = self._count, self._count + len(points)
        _, time, memory = self._quantities
        scaled_points = [
            point._replace(
                best_s=point.best_s / time.unit,
                tried_s=point.tried_s / time.unit,
                best_bytes=point.best_bytes / memory.unit,
                tried_bytes=point.tried_bytes / memory.unit,
            )
            for point in thinned(points, self._every, first)
        ]
        if len(self.source.data["simulation"]) + len(scaled_points) <= MOST_DRAWN:
            self.source.stream(_columns(scaled_points))
        else:
            drawn_rows = zip(*(self.source.data[name] for name in COLUMNS), strict=True)
            kept = [*(CurvePoint(*row) for row in drawn_rows), *scaled_points]
            while len(kept) > MOST_DRAWN and not all(point.improved for point in kept):
                kept = thinned(kept, 2)
                self._every *= 2
            self.source.data = _columns(kept)
        self._show_last()

    def _show_last(self) -> None:
        if self.scales.scale_type == LAST_TEN_PERCENT:
            for figure, quantity in zip(self.figures, self._quantities, strict=True):
                show_last(figure, [*self.source.data[quantity.best][-1:]])

    def restart(self, points: list[CurvePoint]) -> None:
        """Show ``points`` in place of the present ones."""
        self._every, self._count = 1, 0
        self.source.data = {name: [] for name in COLUMNS}
        self.append(points)

    def mark(self, at: int | None) -> None:
        """Veil everything after simulation ``at``; None: nothing."""
        for veil in self.veils:
            veil.update(left=at, visible=at is not None)


def _columns(points: Sequence[CurvePoint]) -> dict[str, Any]:
    return dict(zip(COLUMNS, map(list, zip(*points, strict=True)), strict=True))

"""A race as a chart: the best plan of each method against the seconds of its own search.

Each method has its own hue, dash and marker. ``RaceCurves`` shows a running race: HoloViews draws
the empty chart once, and new points go into the sources of its Bokeh figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import holoviews as hv
import pandas as pd
from bokeh.models import ColumnDataSource

from toast_lab.views.chart_scale import LAST_TEN_PERCENT, height_limits, show_last
from toast_lab.views.chart_style import (
    chart,
    drawn,
    growing_figure,
    hover,
    plain_ticks,
    renderer_named,
)
from toast_lab.views.compare_table import byte_unit, time_unit
from toast_lab.views.race_curves import QUANTITY_TITLES, look_of, points_frame

FIGURE = "race curves"


def race_chart(
    frame: pd.DataFrame,
    methods: Sequence[str],
    kind: str = "score",
    *,
    unsharded: tuple[float, float] = (1.0, 1.0),
    scale_type: str = "log",
) -> Any:
    """An overlay of a line and markers for each method.

    Args:
        frame: ``points_frame``, in SI units.
        methods: the methods, in the order that gives them their hues.
        kind: "score", "time_s" or "peak_bytes".
        unsharded: step time in seconds and peak memory in bytes of the unsharded program.
        scale_type: scale of the y axis, one of ``chart_scale.SCALES``; on a linear one the first,
            bad plans flatten all later ones.
    """
    unit, scale = _unit(kind, unsharded)
    elements: list[Any] = []
    tooltips = [
        ("method", "@method"),
        ("after", "@elapsed_s{0.00} s"),
        ("best", f"@{kind}"),
        ("fits", "@fits"),
    ]
    markers = []
    for index, method in enumerate(methods):
        rows = frame[frame["method"] == method]
        rows = rows.assign(**{kind: rows[kind] / scale})
        hue, marker, dash = look_of(index)
        elements.append(
            drawn(
                hv.Curve(rows, "elapsed_s", [kind, "method"], label=method),
                renderer_named(method),
                interpolation="steps-post",
                color=hue,
                line_dash=dash,
                line_width=2.2,
            )
        )
        markers.append(
            drawn(
                hv.Scatter(rows, "elapsed_s", [kind, "method", "fits"], label=method),
                renderer_named(f"{method}: improvements"),
                marker=marker,
                color=hue,
                size=6,
                **hover(tooltips),
            )
        )
    heights = (frame[kind] / scale).dropna().tolist() or [0.1, 1.0]
    ends = (frame.groupby("method")[kind].last() / scale).dropna().tolist()
    last_s = max(frame["elapsed_s"].tolist(), default=1.0) or 1.0
    return chart(
        [*elements, *markers] or [hv.Scatter([], "elapsed_s", kind)],
        name=FIGURE,
        title=f"{QUANTITY_TITLES[kind]} of the best plan so far, estimated"
        + (f" ({unit})" if unit else ""),
        xlabel="seconds of each method's own search",
        ylabel="",
        xlim=(0, last_s),
        ylim=height_limits(heights, ends, 0.1, scale_type),
        logy=scale_type == "log",
        # Inside the chart, it would cover a curve
        legend="right" if methods else None,
        zoom="width",
        hooks=[plain_ticks, _wide_keys],
        min_height=220,
    )


def _unit(kind: str, unsharded: tuple[float, float]) -> tuple[str, float]:
    """Name and size of the unit that ``kind`` is drawn in."""
    if kind == "score":
        return "", 1.0
    return time_unit(unsharded[0]) if kind == "time_s" else byte_unit(unsharded[1])


def _wide_keys(plot: Any, _: Any) -> None:
    """Make the keys long enough for two dashes, without which dash patterns look alike."""
    for legend in plot.state.legend:
        legend.label_text_font_size = "11.5px"
        legend.location = "top_right"
        legend.glyph_width = 44
        legend.padding = 4


class RaceCurves:
    """The chart of a running race; ``show`` brings it up to date.

    Attributes:
        figure: the Bokeh figure.
        lines: source of each method, with a row at each improvement and one where its curve ends.
    """

    def __init__(
        self,
        methods: Sequence[str],
        kind: str = "score",
        unsharded: tuple[float, float] = (1.0, 1.0),
        scale_type: str = "log",
    ) -> None:
        self.kind, self.scale_type = kind, scale_type
        _, self.scale = _unit(kind, unsharded)
        empty = points_frame({}, {})
        overlay = race_chart(empty, methods, kind, unsharded=unsharded, scale_type=scale_type)
        self.lines = {method: ColumnDataSource(_columns(empty, kind, 1.0)) for method in methods}
        markers = {f"{method}: improvements": source for method, source in self.lines.items()}
        self.figure = growing_figure(
            overlay, {**self.lines, **markers}, [], part=0.1, scale_type=scale_type
        )
        self.figure.min_height = 220

    def show(self, points: Mapping[str, Sequence[Any]], until_s: Mapping[str, float]) -> None:
        """Draw each method's improvements (``ImprovementPoint``); its curve ends at ``until_s``."""
        for method, source in self.lines.items():
            columns = _columns(
                points_frame({method: points.get(method, ())}, until_s), self.kind, self.scale
            )
            if list(source.data["elapsed_s"]) != columns["elapsed_s"]:
                source.data = columns
        if self.scale_type == LAST_TEN_PERCENT:
            heights_of_methods = [source.data[self.kind] for source in self.lines.values()]
            show_last(self.figure, [heights[-1] for heights in heights_of_methods if len(heights)])


def _columns(frame: pd.DataFrame, kind: str, scale: float) -> dict[str, list[Any]]:
    """Data of the markers of a method, in the units of the axes."""
    return {
        "elapsed_s": frame["elapsed_s"].tolist(),
        kind: (frame[kind] / scale).tolist(),
        "fits": frame["fits"].tolist(),
        "method": frame["method"].tolist(),
    }

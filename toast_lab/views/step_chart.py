"""One step over time as charts: lanes of compute and of collectives, and memory below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import pandas as pd
from bokeh.layouts import column
from bokeh.models import Range1d

from toast_lab.views.chart_style import bokeh_figure, chart, drawn, hover, on_glyph, renderer_named
from toast_lab.views.compare_table import byte_unit, seconds_text, time_unit
from toast_lab.views.palette import ACCENT, NEUTRAL, style
from toast_lab.views.step_timeline import COLLECTIVE, COMPILED, COMPUTE, ESTIMATED, FIGURE, LOOP

_HUES = {COMPUTE: style(0).hue, COLLECTIVE: style(1).hue, LOOP: NEUTRAL}
_LANES = {COMPUTE: "compute", COLLECTIVE: "collectives", LOOP: "compute"}
_LABELS = {
    COMPUTE: COMPUTE,
    COLLECTIVE: COLLECTIVE,
    LOOP: "further rounds of a loop",
}
_CORNERS = ["left", "bottom", "right", "top"]
#: columns of a bar, and the rows of its hover card
_TEXTS = ["op", "lane", "side", "kind", "line", "length", "rounds", "exposed"]
_TOOLTIPS = [
    ("", "@side @kind"),
    ("line", "@line"),
    ("takes", "@length@rounds"),
    ("exposed", "@exposed"),
]
_HEIGHT = 0.74  #: height of a bar, as a share of the distance between lanes
_MARKED_HEIGHT = 0.9


def step_charts(bars: pd.DataFrame, memory: pd.DataFrame) -> tuple[Any, Any]:
    """Overlays of the lanes and of the memory; both are as long as the step.

    ``holoviews.link_selections`` links them by their dimension ``op``.

    Args:
        bars: ``bars_frame``, in seconds.
        memory: ``memory_frame``, in seconds and bytes.
    """
    end_s = _end_s(bars)
    unit_name, unit_s = time_unit(end_s)
    right = 1.01 * end_s / unit_s
    return _lanes(bars, unit_s, right), _curve(memory, unit_name, unit_s, right)


def step_figure(bars: pd.DataFrame, memory: pd.DataFrame) -> Any:
    """Both charts as a Bokeh layout; they pan and zoom together, along the time only."""
    lanes, curve = map(bokeh_figure, step_charts(bars, memory))
    _, unit_s = time_unit(_end_s(bars))
    right = 1.01 * _end_s(bars) / unit_s
    lanes.x_range = curve.x_range = Range1d(start=0.0, end=right, bounds=(0.0, right))
    lanes.min_height = 60
    curve.update(sizing_mode="stretch_width", height=104)
    return column(lanes, curve, name=FIGURE, sizing_mode="stretch_both", spacing=0)


def mark_ops(figure: Any, bars: pd.DataFrame, ops: Sequence[int]) -> None:
    """Outline the bars of some ops in a figure that ``step_figure`` gave for ``bars``."""
    _, unit_s = time_unit(_end_s(bars))
    rows = _drawn_bars(bars[bars["op"].isin(list(ops))], _lane_rows(bars), unit_s, _MARKED_HEIGHT)
    source = figure.select_one({"name": "marked"}).data_source
    source.data = {name: rows[name].tolist() for name in [*_CORNERS, "lane"]}


def _end_s(bars: pd.DataFrame) -> float:
    return float(bars["end_s"].max()) if len(bars) else 1.0


def _lane_rows(bars: pd.DataFrame) -> dict[str, int]:
    """Height of each lane on the y axis, the compiled lanes above."""
    sides = [side for side in (COMPILED, ESTIMATED) if (bars["side"] == side).any()]
    lanes = [f"{side}: {lane}" for side in sides for lane in ("compute", "collectives")]
    return {lane: len(lanes) - 1 - index for index, lane in enumerate(lanes)}


def _drawn_bars(
    rows: pd.DataFrame, lane_rows: dict[str, int], unit_s: float, height: float = _HEIGHT
) -> pd.DataFrame:
    """Bars as rectangles in the units of the axes, with their texts."""
    lanes = [
        f"{side}: {_LANES[lane]}" for side, lane in zip(rows["side"], rows["lane"], strict=True)
    ]
    middles = pd.Series([lane_rows[lane] for lane in lanes], dtype=float)
    return pd.DataFrame(
        {
            "left": rows["start_s"].to_numpy() / unit_s,
            "bottom": (middles - height / 2).to_numpy(),
            "right": rows["end_s"].to_numpy() / unit_s,
            "top": (middles + height / 2).to_numpy(),
            "op": rows["op"].to_numpy(),
            "lane": lanes,
            "side": rows["side"].tolist(),
            "kind": rows["kind"].tolist(),
            "line": [line or "unknown" for line in rows["line"]],
            "length": [seconds_text(time_s) for time_s in rows["end_s"] - rows["start_s"]],
            "rounds": [f", {count:g} times" if count != 1 else "" for count in rows["times"]],
            "exposed": [
                seconds_text(time_s) if time_s > 0 else "–" for time_s in rows["exposed_s"]
            ],
        }
    )


def _lanes(bars: pd.DataFrame, unit_s: float, right: float) -> Any:
    lane_rows = _lane_rows(bars)
    elements, tappable = [], []
    for lane in (COMPUTE, COLLECTIVE, LOOP):
        rows = bars[bars["lane"] == lane]
        if len(rows):
            tappable.append(lane)
            elements.append(_lane(_drawn_bars(rows, lane_rows, unit_s), lane))
    exposed = bars[bars["exposed_s"] > 0]
    if len(exposed):
        # A compiled collective is waited for at its end; an estimated one is drawn likewise
        waits = exposed.assign(start_s=exposed["end_s"] - exposed["exposed_s"])
        elements.append(_waits(_drawn_bars(waits, lane_rows, unit_s)))
    elements.append(
        drawn(
            hv.Rectangles([], _CORNERS, ["lane"]),
            renderer_named("marked"),
            fill_color=None,
            line_color=ACCENT,
            line_width=2.5,
            show_legend=False,
        )
    )
    count = max(len(lane_rows), 1)
    return chart(
        elements,
        name="lanes",
        xlabel="",
        ylabel="",
        xlim=(0, right),
        ylim=(-0.5 - 0.03 * count, count - 0.5 + 0.03 * count),
        yticks=[(row, lane) for lane, row in lane_rows.items()],
        legend="top" if tappable else None,
        zoom="time",
        tappable=tappable,
        hooks=[_lanes_look],
        min_height=60,
    )


def _lane(rectangles: pd.DataFrame, lane: str) -> Any:
    """The bars of one kind."""
    alpha = 0.3 if lane == COLLECTIVE else 0.2 if lane == LOOP else 0.75
    hatch = {"hatch_pattern": "horizontal_line"} if lane == LOOP else {}
    return drawn(
        hv.Rectangles(rectangles, _CORNERS, _TEXTS, label=_LABELS[lane]),
        on_glyph(**hatch, hatch_color=NEUTRAL, hatch_alpha=0.5),
        renderer_named(lane),
        fill_color=_HUES[lane],
        line_color=_HUES[lane],
        fill_alpha=alpha,
        line_width=0.4,
        nonselection_fill_alpha=0.3 if lane == COLLECTIVE else 0.75,
        nonselection_line_alpha=1.0,
        selection_line_color=ACCENT,
        selection_line_width=2.0,
        **hover(_TOOLTIPS),
    )


def _waits(rectangles: pd.DataFrame) -> Any:
    """The part of collectives that the compute lane waits for."""
    return drawn(
        hv.Rectangles(rectangles, _CORNERS, _TEXTS, label="exposed: the compute lane is idle"),
        on_glyph(
            hatch_pattern="right_diagonal_line",
            hatch_color="white",
            hatch_alpha=0.5,
            hatch_scale=9,
        ),
        renderer_named("exposed"),
        fill_color=_HUES[COLLECTIVE],
        fill_alpha=0.9,
        line_color=None,
    )


def _lanes_look(plot: Any, _: Any) -> None:
    plot.state.xaxis.visible = False
    plot.state.ygrid.grid_line_color = None


def _curve(memory: pd.DataFrame, unit_name: str, unit_s: float, right: float) -> Any:
    highest = float(memory["bytes"].max()) if len(memory) else 1.0
    bytes_name, unit_bytes = byte_unit(highest)
    elements = []
    for side, dash in ((COMPILED, "solid"), (ESTIMATED, "dashed")):
        rows = memory[memory["side"] == side]
        if not len(rows):
            continue
        drawn_rows = rows.assign(time=rows["at_s"] / unit_s, memory=rows["bytes"] / unit_bytes)
        elements.append(
            drawn(
                hv.Curve(drawn_rows, "time", ["memory", "side"], label=f"memory, {side}"),
                interpolation="steps-post",
                line_width=1.6,
                line_dash=dash,
                color=style(2).hue if side == COMPILED else style(3).hue,
                **hover([("memory, @side", f"@memory{{0.000}} {bytes_name}")]),
            )
        )
    return chart(
        elements or [hv.Scatter([], "time", "memory")],
        name="memory over time",
        xlabel=f"time in the step ({unit_name})",
        ylabel=bytes_name,
        xlim=(0, right),
        ylim=(0, 1.12 * highest / unit_bytes),
        legend="top" if elements else None,
        zoom="time",
        hooks=[_few_ticks],
        min_height=104,
    )


def _few_ticks(plot: Any, _: Any) -> None:
    ticker = plot.state.yaxis.ticker
    ticker.desired_num_ticks, ticker.num_minor_ticks = 3, 0

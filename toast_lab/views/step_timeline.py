"""One step as a timeline: what a compiler scheduled, above what the price expects.

Two lanes each, one computes and the other carries collectives; below them the memory over the same
time.  ``bars_frame`` and ``memory_frame`` are the numbers in SI units, ``timeline_figure`` the
picture of them, also for notebooks:

    bars = bars_frame(cost, compiled.schedule, where)
    timeline_figure(bars, memory_frame(cost, compiled.schedule))

The price is drawn as it counts overlap (``Cost.overlapped_s``).  A collective's *exposed* part is
the one in which the compute lane is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.layouts import column
from bokeh.models import (
    ColumnDataSource,
    FactorRange,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    TapTool,
    WheelZoomTool,
)

from toast_lab.text import line_text
from toast_lab.views.compare_table import byte_unit, seconds_text, time_unit
from toast_lab.views.memory_timeline import thinned
from toast_lab.views.palette import ACCENT, NEUTRAL, style
from toast_lab.views.plot_style import legend_above, new_chart

COMPILED, ESTIMATED = "compiled", "estimated"
COMPUTE, COLLECTIVE, LOOP = "compute", "collective", "loop"
COLUMNS = ("side", "lane", "kind", "op", "line", "start_s", "end_s", "exposed_s", "times")
#: of each side; more are left out, the shortest first
MAX_BARS = 4000
FIGURE = "step timeline"
_HUES = {COMPUTE: style(0).hue, COLLECTIVE: style(1).hue, LOOP: NEUTRAL}
_LANES = {COMPUTE: "compute", COLLECTIVE: "collectives", LOOP: "compute"}


def bars_frame(
    cost: Any, schedule: Any, where: Sequence[str], most: int = MAX_BARS
) -> pd.DataFrame:
    """A row for each bar of both sides, in the order of their starts.

    Args:
        cost: of the plan, a ``Cost``.
        schedule: the compiler's, a ``Schedule``, or None.
        where: source line of each op.
        most: bars of each side; the shortest are left out.
    """
    rows: list[tuple[Any, ...]] = []
    for event in schedule.events if schedule is not None else ():
        times = (event.start_s, event.end_s, event.exposed_s, event.times)
        line = line_text(event.source) or _line(event.op, where)
        rows.append((COMPILED, event.lane, event.kind, event.op, line, *times))
    compute = [
        (start, start + row.time_s) for row, start in zip(cost.ops, cost.op_start_s, strict=True)
    ]
    ends = np.array([end for _, end in compute])
    starts = np.array([start for start, _ in compute])
    estimated: list[tuple[Any, ...]] = [
        (ESTIMATED, COMPUTE, row.kind, row.op, _line(row.op, where), start, end, 0.0, 1.0)
        for row, (start, end) in zip(cost.ops, compute, strict=True)
    ]
    for row, start in zip(cost.collectives, cost.collective_start_s, strict=True):
        end = start + row.time_s
        busy = np.minimum(ends, end) - np.maximum(starts, start)
        exposed_s = max(0.0, row.time_s - float(busy[busy > 0].sum()))
        estimated.append(
            (
                *(ESTIMATED, COLLECTIVE, row.kind, row.op, _line(row.op, where)),
                *(start, end, exposed_s, 1.0),
            )
        )
    estimated.sort(key=lambda row: row[5] - row[6])
    rows += estimated[:most]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.sort_values(["side", "start_s"], kind="stable", ignore_index=True)


def _line(op: int, where: Sequence[str]) -> str:
    return line_text(where[op]) if 0 <= op < len(where) else ""


def memory_frame(cost: Any, schedule: Any) -> pd.DataFrame:
    """Bytes of one device over the time of a step, by side.

    The compiled ones are the scheduler's own count, which leaves out what lives all along.
    """
    rows: list[tuple[str, float, float]] = []
    if schedule is not None:
        rows += [(COMPILED, at_s, size) for at_s, size in schedule.memory]
    ops, sizes = thinned(np.asarray(cost.timeline_bytes, float))
    clock = np.full(len(cost.timeline_bytes), -1.0)
    for row, start_s in zip(cost.ops, cost.op_start_s, strict=True):
        clock[row.op] = max(clock[row.op], start_s)
    clock = np.maximum.accumulate(np.maximum(clock, 0.0))
    rows += [
        (ESTIMATED, float(clock[op]), float(size)) for op, size in zip(ops, sizes, strict=True)
    ]
    return pd.DataFrame(rows, columns=["side", "at_s", "bytes"])


def exposed_frame(bars: pd.DataFrame) -> pd.DataFrame:
    """Exposed communication by source line, compiled and estimated, longest first."""
    collectives = bars[bars["lane"] == COLLECTIVE]
    rows = []
    for line, of_line in collectives.groupby("line", sort=False):
        seconds = {
            side: float((part["exposed_s"] * part["times"]).sum())
            for side, part in of_line.groupby("side")
        }
        longest = of_line.loc[(of_line["exposed_s"] * of_line["times"]).idxmax()]
        kinds = ", ".join(dict.fromkeys(of_line["kind"]))
        compiled_s, estimated_s = seconds.get(COMPILED, 0.0), seconds.get(ESTIMATED, 0.0)
        rows.append((line, kinds, compiled_s, estimated_s, int(longest["op"])))
    frame = pd.DataFrame(rows, columns=["line", "kinds", COMPILED, ESTIMATED, "op"])
    return frame.sort_values([COMPILED, ESTIMATED], ascending=False, ignore_index=True)


def shown_exposed(frame: pd.DataFrame) -> pd.DataFrame:
    """``exposed_frame`` as people read it."""
    return pd.DataFrame(
        {
            "line": [line or "–" for line in frame["line"]],
            "collectives": frame["kinds"],
            "exposed, compiled": [seconds_text(s) if s else "–" for s in frame[COMPILED]],
            "exposed, estimated": [seconds_text(s) if s else "–" for s in frame[ESTIMATED]],
        }
    )


def timeline_figure(bars: pd.DataFrame, memory: pd.DataFrame) -> Any:
    """The picture: lanes above, memory below; both pan and zoom along the time alone."""
    end_s = float(bars["end_s"].max()) if len(bars) else 1.0
    unit_name, unit_s = time_unit(end_s)
    right = 1.01 * end_s / unit_s
    x_range = Range1d(start=0.0, end=right, bounds=(0.0, right))
    lanes = _lanes(bars, x_range, unit_s)
    curve = _curve(memory, x_range, unit_name, unit_s)
    return column(lanes, curve, name=FIGURE, sizing_mode="stretch_both", spacing=0)


def _tools(plot: Any) -> None:
    wheel = WheelZoomTool(dimensions="width")
    plot.add_tools(PanTool(dimensions="width"), wheel, ResetTool())
    plot.toolbar.active_scroll = wheel


def _lanes(bars: pd.DataFrame, x_range: Range1d, unit_s: float) -> Any:
    sides = [side for side in (COMPILED, ESTIMATED) if (bars["side"] == side).any()]
    factors = [f"{side}: {lane}" for side in sides for lane in ("compute", "collectives")]
    plot = new_chart(
        "lanes",
        x_range=x_range,
        y_range=FactorRange(factors=factors[::-1], range_padding=0.06),
        toolbar_location="right",
        min_height=60,
    )
    plot.sizing_mode = "stretch_both"
    plot.xaxis.visible = False
    plot.ygrid.grid_line_color = None
    renderers = []
    for lane in (COMPUTE, COLLECTIVE, LOOP):
        rows = bars[bars["lane"] == lane]
        if not len(rows):
            continue
        renderers.append(
            plot.hbar(
                y="y",
                left="left",
                right="right",
                height=0.74,
                source=ColumnDataSource(_columns(rows, unit_s)),
                name=lane,
                fill_color=_HUES[lane],
                fill_alpha=0.3 if lane == COLLECTIVE else 0.2 if lane == LOOP else 0.75,
                line_color=_HUES[lane],
                line_width=0.4,
                hatch_pattern="horizontal_line" if lane == LOOP else None,
                hatch_color=NEUTRAL,
                hatch_alpha=0.5,
                nonselection_fill_alpha=0.3 if lane == COLLECTIVE else 0.75,
                nonselection_line_alpha=1.0,
                selection_line_color=ACCENT,
                selection_line_width=2.0,
                legend_label={COLLECTIVE: "collective", LOOP: "further rounds of a loop"}.get(
                    lane, lane
                ),
            )
        )
    exposed = bars[bars["exposed_s"] > 0]
    if len(exposed):
        columns = _columns(exposed, unit_s)
        # A compiled collective is waited for at its end; ours is drawn likewise
        columns["left"] = (exposed["end_s"] - exposed["exposed_s"]) / unit_s
        plot.hbar(
            y="y",
            left="left",
            right="right",
            height=0.74,
            source=ColumnDataSource(columns),
            name="exposed",
            fill_color=_HUES[COLLECTIVE],
            fill_alpha=0.9,
            line_color=None,
            hatch_pattern="right_diagonal_line",
            hatch_color="white",
            hatch_alpha=0.5,
            hatch_scale=9,
            legend_label="exposed: the compute lane is idle",
        )
    plot.hbar(
        y="y",
        left="left",
        right="right",
        height=0.9,
        source=ColumnDataSource({"y": [], "left": [], "right": []}),
        name="marked",
        fill_color=None,
        line_color=ACCENT,
        line_width=2.5,
    )
    if renderers:
        legend_above(plot)
    _tools(plot)
    tooltips = [
        ("", "@side @kind"),
        ("line", "@line"),
        ("takes", "@length@rounds"),
        ("exposed", "@exposed"),
    ]
    plot.add_tools(HoverTool(renderers=renderers, tooltips=tooltips), TapTool(renderers=renderers))
    return plot


def _columns(rows: pd.DataFrame, unit_s: float) -> dict[str, Any]:
    return {
        "y": [
            f"{side}: {_LANES[lane]}" for side, lane in zip(rows["side"], rows["lane"], strict=True)
        ],
        "left": rows["start_s"].to_numpy() / unit_s,
        "right": rows["end_s"].to_numpy() / unit_s,
        "op": rows["op"].to_numpy(),
        "side": rows["side"].tolist(),
        "kind": rows["kind"].tolist(),
        "line": [line or "unknown" for line in rows["line"]],
        "length": [seconds_text(s) for s in rows["end_s"] - rows["start_s"]],
        "rounds": [f", {count:g} times" if count != 1 else "" for count in rows["times"]],
        "exposed": [seconds_text(s) if s > 0 else "–" for s in rows["exposed_s"]],
    }


def mark(figure: Any, bars: pd.DataFrame, ops: Sequence[int]) -> None:
    """Outline the bars of some ops in a figure that ``timeline_figure`` gave for ``bars``."""
    _, unit_s = time_unit(float(bars["end_s"].max()) if len(bars) else 1.0)
    columns = _columns(bars[bars["op"].isin(list(ops))], unit_s)
    source = figure.select_one({"name": "marked"}).data_source
    source.data = {name: columns[name] for name in ("y", "left", "right")}


def _curve(memory: pd.DataFrame, x_range: Range1d, unit_name: str, unit_s: float) -> Any:
    highest = float(memory["bytes"].max()) if len(memory) else 1.0
    bytes_name, unit_bytes = byte_unit(highest)
    plot = new_chart(
        "memory over time",
        x_range=x_range,
        toolbar_location="right",
        x_axis_label=f"time in the step ({unit_name})",
        y_axis_label=bytes_name,
        height=110,
    )
    plot.sizing_mode = "stretch_width"
    lines = []
    for side, dash in ((COMPILED, "solid"), (ESTIMATED, "dashed")):
        rows = memory[memory["side"] == side]
        if not len(rows):
            continue
        source = ColumnDataSource(
            {
                "x": rows["at_s"].to_numpy() / unit_s,
                "y": rows["bytes"].to_numpy() / unit_bytes,
                "side": [side] * len(rows),
            }
        )
        lines.append(
            plot.step(
                "x",
                "y",
                source=source,
                mode="after",
                name=f"memory, {side}",
                line_width=1.6,
                line_dash=dash,
                line_color=style(2).hue if side == COMPILED else style(3).hue,
                legend_label=f"memory, {side}",
            )
        )
    plot.yaxis.ticker.desired_num_ticks = 3
    plot.yaxis.ticker.num_minor_ticks = 0
    plot.y_range.start, plot.y_range.end = 0, 1.12 * highest / unit_bytes
    if lines:
        legend_above(plot)
    _tools(plot)
    plot.add_tools(
        HoverTool(renderers=lines, tooltips=[("memory, @side", f"@y{{0.000}} {bytes_name}")])
    )
    return plot

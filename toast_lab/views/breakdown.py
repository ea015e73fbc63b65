"""Where the estimated step time of each plan goes.

There is one bar per plan, with its collectives by kind or by mesh axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from bokeh.models import ColumnDataSource, FactorRange, HoverTool
from bokeh.plotting import figure

from toast_lab.views.compare_table import PlanEntry, seconds_text, time_unit
from toast_lab.views.palette import NEUTRAL, style
from toast_lab.views.plot_style import legend_above, new_chart

COMPUTE, TRAFFIC = "compute", "memory traffic"
BY = {"by kind": "kind", "by mesh axis": "axis"}
_HATCH = (
    None,
    "dot",
    "right_diagonal_line",
    "horizontal_line",
    "left_diagonal_line",
    "cross",
    "ring",
    "vertical_line",
)


class BreakdownRates(NamedTuple):
    """Numbers of a machine and a program that tell compute from memory traffic."""

    memory_bytes_per_s: float
    op_overhead_s: float
    #: how often one step runs each op
    trips: Sequence[float]


def breakdown_frame(
    entries: Iterable[PlanEntry], rates: Mapping[str, BreakdownRates], by: str = "kind"
) -> pd.DataFrame:
    """Seconds of one step by plan and part; the parts of a plan add up to its estimated step time.

    Args:
        entries: plans; those that are not shown are left out.
        rates: by plan.
        by: collectives by "kind", or by the mesh "axis" that they run over.

    The cost model takes the longer of an op's arithmetic and its memory traffic, plus the time to
    start it.  An op counts as memory traffic if moving its bytes explains its time, else as
    compute.
    """
    parts_of_plans = []
    for entry in entries:
        if not entry.shown:
            continue
        part_seconds: dict[str, float] = {COMPUTE: 0.0, TRAFFIC: 0.0}
        plan_rates = rates[entry.name]
        for op_cost in entry.cost.ops:
            moving_s = op_cost.moved_bytes / plan_rates.memory_bytes_per_s
            starting_s = plan_rates.op_overhead_s * plan_rates.trips[op_cost.op]
            is_moving = op_cost.time_s - moving_s <= starting_s + 1e-6 * op_cost.time_s
            part_seconds[TRAFFIC if is_moving else COMPUTE] += op_cost.time_s
        for collective in entry.cost.collectives:
            part_name = collective.kind if by == "kind" else f"over {','.join(collective.axes)}"
            part_seconds[part_name] = part_seconds.get(part_name, 0.0) + collective.time_s
        parts_of_plans += [
            (entry.name, part_name, seconds, entry.number)
            for part_name, seconds in part_seconds.items()
        ]
    return pd.DataFrame(parts_of_plans, columns=["plan", "part", "time_s", "number"])


def shown_breakdown(frame: pd.DataFrame) -> pd.DataFrame:
    """The table twin: a row for each part of a plan, then one for all of them together."""
    table_rows = []
    for plan_name, plan_parts in frame.groupby("plan", sort=False):
        step_s = float(plan_parts["time_s"].sum())
        part_seconds = [*zip(plan_parts["part"], plan_parts["time_s"], strict=True)]
        table_rows += [
            (plan_name, part_name, seconds_text(seconds), _share_text(seconds, step_s))
            for part_name, seconds in [*part_seconds, ("together", step_s)]
        ]
    return pd.DataFrame(table_rows, columns=["plan", "part", "time", "share"])


def _share_text(seconds: float, step_s: float) -> str:
    return f"{seconds / step_s:.1%}" if step_s else "–"


def _shortened(plan_name: str) -> str:
    return plan_name if len(plan_name) <= 18 else f"{plan_name[:17]}…"


def breakdown_plot(frame: pd.DataFrame, entries: Sequence[PlanEntry]) -> figure:
    """The picture of ``breakdown_frame``.

    Parts differ by hue and by hatch, and the legend names them.
    """
    plan_names = list(dict.fromkeys(frame["plan"]))
    symbol = {entry.name: entry.style.symbol for entry in entries}
    labels = {name: f"{symbol.get(name, '')} {_shortened(name)}" for name in plan_names}
    if len(set(labels.values())) < len(labels):
        labels = {name: f"{symbol.get(name, '')} {name}" for name in plan_names}
    step_s = frame.groupby("plan")["time_s"].sum().to_dict()
    unit_name, unit_s = time_unit(max(step_s.values(), default=1.0))
    plot = new_chart(
        "cost breakdown",
        y_range=FactorRange(factors=list(labels.values())[::-1], range_padding=0.15),
        toolbar_location=None,
        x_axis_label=f"estimated step time ({unit_name})",
    )
    plot.xgrid.grid_line_color, plot.xgrid.grid_line_alpha = NEUTRAL, 0.13
    plot.ygrid.grid_line_color = None
    drawn_until = dict.fromkeys(plan_names, 0.0)
    renderers = []
    for part_index, (part_name, part_rows) in enumerate(frame.groupby("part", sort=False)):
        bars = []
        for plan_name, seconds in zip(part_rows["plan"], part_rows["time_s"], strict=True):
            left = drawn_until[plan_name]
            drawn_until[plan_name] += seconds
            bars.append(
                {
                    "plan": plan_name,
                    "y": labels[plan_name],
                    "left": left / unit_s,
                    "right": drawn_until[plan_name] / unit_s,
                    "part": part_name,
                    "text": seconds_text(seconds),
                    "share": _share_text(seconds, step_s[plan_name]),
                }
            )
        part_hue = style(part_index).hue
        renderers.append(
            plot.hbar(
                y="y",
                left="left",
                right="right",
                height=0.62,
                source=ColumnDataSource(pd.DataFrame(bars).to_dict("list")),
                name=part_name,
                fill_color=part_hue,
                fill_alpha=0.75,
                line_color=part_hue,
                legend_label=part_name,
                hatch_pattern=_HATCH[part_index % len(_HATCH)],
                hatch_color="white",
                hatch_alpha=0.7,
                hatch_scale=7,
            )
        )
    plot.x_range.start = 0
    if renderers:
        legend_above(plot, 4)
    plot.add_tools(
        HoverTool(
            renderers=renderers,
            tooltips=[("plan", "@plan"), ("", "@part"), ("time", "@text, @share of the step")],
        )
    )
    return plot

"""Where the estimated step time of each plan goes.

There is one bar per plan, with its collectives by kind or by mesh axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
            starting_s = plan_rates.op_overhead_s * float(plan_rates.trips[op_cost.op])
            part_seconds[
                TRAFFIC
                if op_cost.time_s - moving_s <= starting_s + 1e-6 * op_cost.time_s
                else COMPUTE
            ] += op_cost.time_s
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
        for part_name, seconds in [
            *zip(plan_parts["part"], plan_parts["time_s"], strict=True),
            ("together", step_s),
        ]:
            table_rows.append(
                (
                    plan_name,
                    part_name,
                    seconds_text(seconds),
                    f"{seconds / step_s:.1%}" if step_s else "–",
                )
            )
    return pd.DataFrame(table_rows, columns=["plan", "part", "time", "share"])


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
    longest = float(frame.groupby("plan")["time_s"].sum().max()) if len(frame) else 1.0
    unit_name, unit_s = time_unit(longest)
    plot = new_chart(
        "cost breakdown",
        y_range=FactorRange(
            factors=[labels[plan_name] for plan_name in reversed(plan_names)], range_padding=0.15
        ),
        toolbar_location=None,
        x_axis_label=f"estimated step time ({unit_name})",
    )
    plot.xgrid.grid_line_color, plot.xgrid.grid_line_alpha = NEUTRAL, 0.13
    plot.ygrid.grid_line_color = None
    drawn_until = dict.fromkeys(plan_names, 0.0)
    renderers = []
    part_names = list(dict.fromkeys(frame["part"]))
    for part_index, part_name in enumerate(part_names):
        frame_of_part = frame[frame["part"] == part_name]
        columns: dict[str, list[Any]] = {
            column: [] for column in ("plan", "y", "left", "right", "part", "text", "share")
        }
        for plan_name, seconds in zip(frame_of_part["plan"], frame_of_part["time_s"], strict=True):
            columns["plan"].append(plan_name)
            columns["y"].append(labels[plan_name])
            columns["left"].append(drawn_until[plan_name] / unit_s)
            drawn_until[plan_name] += seconds
            columns["right"].append(drawn_until[plan_name] / unit_s)
            columns["part"].append(part_name)
            columns["text"].append(seconds_text(seconds))
            step_s = float(frame[frame["plan"] == plan_name]["time_s"].sum())
            columns["share"].append(f"{seconds / step_s:.1%}" if step_s else "–")
        part_hue = style(part_index).hue
        renderers.append(
            plot.hbar(
                y="y",
                left="left",
                right="right",
                height=0.62,
                source=ColumnDataSource(columns),
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
    if part_names:
        legend_above(plot, 4)
    plot.add_tools(
        HoverTool(
            renderers=renderers,
            tooltips=[("plan", "@plan"), ("", "@part"), ("time", "@text, @share of the step")],
        )
    )
    return plot

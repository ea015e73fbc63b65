"""Colour the markers of the dimension graph by colour, size, bytes, time or axes of a plan.

An overlay gives every marker of a layout a hue and a short text, so that hue is never the only cue,
and a key that says what the hues mean. Numbers get a logarithmic scale of one hue family, which can
be read without telling red from green.

Start reading at ``overlay``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.coverage import value_bytes
from toast_lab.cost.problem import Cost
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import bytes_text
from toast_lab.views.graph_layout import GraphLayout
from toast_lab.views.palette import NEUTRAL, style

OVERLAYS = {
    "colour": "colour",
    "size": "size of the dim",
    "bytes": "bytes that carry it",
    "cost": "share of the step's time",
    "axis": "mesh axis of a plan",
}
PLAN_OVERLAYS = ("cost", "axis")
#: hues from the least number to the largest
HUE_SCALE = ("#8fb4d9", "#5f93c9", "#3a75b5", "#7a5aa6", "#a8438f", "#b0305f")
WHOLE = "whole"


class Overlay(NamedTuple):
    """Hue and text of every marker, and what the hues mean."""

    hues: tuple[str, ...]
    texts: tuple[str, ...]
    #: (hue, meaning)
    key: tuple[tuple[str, str], ...]
    about: str


def overlay(
    analysis: Analysis,
    layout: GraphLayout,
    subject: str,
    plan: ShardingPlan | None = None,
    cost: Cost | None = None,
) -> Overlay | None:
    """Hues and texts of the markers; None for ``colour``, which is how they are drawn anyway.

    It is also None for ``axis`` without a plan, and for ``cost`` without a cost.

    Args:
        analysis: the analysed program.
        layout: the layout of the markers.
        subject: a key of ``OVERLAYS``.
        plan: the plan whose axes ``axis`` shows.
        cost: the cost of that plan, whose times ``cost`` shows.
    """
    if subject == "size":
        return _numbers(
            [float(analysis.names.size[list(node.names)].max()) for node in layout.nodes],
            "{:,.0f}".format,
            _SIZE,
        )
    if subject == "bytes":
        carried = name_bytes(analysis)
        return _numbers(
            [float(carried[list(node.names)].sum()) for node in layout.nodes], bytes_text, _BYTES
        )
    if subject == "cost" and cost is not None:
        return _numbers(_shares(analysis, layout, cost), _share_text, _COST)
    if subject == "axis" and plan is not None:
        return _axes(layout, name_axes(analysis, plan), plan.mesh.axes)
    return None


_SIZE = "the size of the dim; if several are folded, of the largest"
_BYTES = "the unsharded bytes of all values that have the dim"
_COST = (
    "the share of the step's estimated compute time that its ops take; an op with several "
    "dims counts for each"
)


def name_bytes(analysis: Analysis) -> np.ndarray:
    """[N] bytes of the whole values that are defined with each name."""
    program = analysis.program
    # A value that has a name on two dims counts once
    name, value = np.unique(np.stack([program.def_dim_factor, program.dim_value]), axis=1)
    return np.bincount(name, value_bytes(program)[value], minlength=analysis.names.n)


def name_axes(analysis: Analysis, plan: ShardingPlan) -> list[tuple[str, ...]]:
    """[N] mesh axes that cut each name.

    They are those along which its op is split, and those on which its values are kept.
    """
    program, axes = analysis.program, plan.mesh.axes
    is_cut = np.zeros((analysis.names.n, len(axes)), dtype=bool)
    for axis_index in range(len(axes)):
        split_factors = plan.op_factor[:, axis_index]
        is_cut[split_factors[split_factors >= 0], axis_index] = True
        sharded_values = np.flatnonzero(plan.value_dim[:, axis_index] >= 0)
        is_cut[
            program.def_dim_factor[
                program.shape_ptr[sharded_values] + plan.value_dim[sharded_values, axis_index]
            ],
            axis_index,
        ] = True
    return [tuple(itertools.compress(axes, cuts)) for cuts in is_cut.tolist()]


def _shares(analysis: Analysis, layout: GraphLayout, cost: Cost) -> list[float]:
    time_s = np.zeros(analysis.program.n_ops)
    for op_cost in cost.ops:
        time_s[op_cost.op] += op_cost.time_s
    share = time_s / (time_s.sum() or 1.0)
    ops_of_nodes = [np.unique(analysis.names.op[list(node.names)]) for node in layout.nodes]
    return [float(share[ops].sum()) for ops in ops_of_nodes]


def _numbers(values: list[float], write: Callable[[float], str], about: str) -> Overlay:
    """Colour numbers by steps of a logarithmic scale; zero has no hue."""
    positive = [value for value in values if value > 0]
    lowest, highest = (min(positive), max(positive)) if positive else (1.0, 1.0)
    lowest = max(lowest, highest * 1e-6)
    log_range = math.log(highest / lowest) or 1.0
    last_step = len(HUE_SCALE) - 1

    def step(value: float) -> int:
        share_of_range = math.log(max(value, lowest) / lowest) / log_range
        return (
            last_step if value >= highest else min(last_step, int(share_of_range * len(HUE_SCALE)))
        )

    marker_hues = tuple(HUE_SCALE[step(value)] if value > 0 else NEUTRAL for value in values)
    thresholds = [
        lowest * math.exp(log_range * index / len(HUE_SCALE)) for index in range(len(HUE_SCALE))
    ]
    used_steps = sorted({step(value) for value in positive})
    legend = [(HUE_SCALE[index], f"from {write(thresholds[index])}") for index in used_steps]
    if len(positive) < len(values):
        legend.append((NEUTRAL, "none"))
    marker_texts = tuple(write(value) if value > 0 else "" for value in values)
    return Overlay(marker_hues, marker_texts, tuple(legend), about)


def _axes(
    layout: GraphLayout, axes_of_name: list[tuple[str, ...]], axes: tuple[str, ...]
) -> Overlay:
    hue_of_axes: dict[str, str] = {}
    marker_hues, marker_texts = [], []
    for node in layout.nodes:
        counts = Counter("+".join(axes_of_name[name]) for name in node.names if axes_of_name[name])
        if not counts:
            marker_hues.append(NEUTRAL)
            marker_texts.append("")
            continue
        [(cutting_axes, count)] = counts.most_common(1)
        marker_hues.append(hue_of_axes.setdefault(cutting_axes, style(len(hue_of_axes)).hue))
        share = count / len(node.names)
        marker_texts.append(cutting_axes if share == 1 else f"{cutting_axes} {share:.0%}")
    legend = [(hue, cutting_axes) for cutting_axes, hue in hue_of_axes.items()]
    if NEUTRAL in marker_hues:
        legend.append((NEUTRAL, WHOLE))
    about = (
        f"the mesh axis ({', '.join(axes)}) that cuts the dim; a percentage says for how many of a "
        "marker's names"
    )
    return Overlay(tuple(marker_hues), tuple(marker_texts), tuple(legend), about)


def _share_text(value: float) -> str:
    return f"{value:.1%}" if value >= 0.001 else "<0.1%"

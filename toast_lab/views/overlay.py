"""What the markers of the dimension graph are coloured by.

Colour, size, bytes, share of the time, axes of a plan.

An overlay gives every marker of a layout a hue and a short text, so that hue is never the only cue,
and a key that says what the hues mean.  Numbers go on a logarithmic scale of one hue family that is
read without telling red from green.

Start reading at ``overlay``.
"""

from __future__ import annotations

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
OF_A_PLAN = ("cost", "axis")
SCALE = ("#8fb4d9", "#5f93c9", "#3a75b5", "#7a5aa6", "#a8438f", "#b0305f")  #: least to most
WHOLE = "whole"


class Overlay(NamedTuple):
    """Hue and text of every marker, and what they mean."""

    hues: tuple[str, ...]
    texts: tuple[str, ...]
    key: tuple[tuple[str, str], ...]  #: (hue, meaning)
    about: str


def overlay(
    analysis: Analysis,
    layout: GraphLayout,
    what: str,
    plan: ShardingPlan | None = None,
    cost: Cost | None = None,
) -> Overlay | None:
    """Hues and texts of the markers; None for ``colour``, which is how they are drawn anyway.

    Args:
        analysis: of the program.
        layout: the markers.
        what: a key of ``OVERLAYS``.
        plan: whose axes are shown by ``axis``.
        cost: of that plan, whose times are shown by ``cost``.
    """
    if what == "size":
        return _numbers(
            [float(analysis.names.size[list(n.names)].max()) for n in layout.nodes],
            _whole_text,
            _SIZE,
        )
    if what == "bytes":
        carried = name_bytes(analysis)
        return _numbers(
            [float(carried[list(n.names)].sum()) for n in layout.nodes], bytes_text, _BYTES
        )
    if what == "cost" and cost is not None:
        return _numbers(_shares(analysis, layout, cost), _share_text, _COST)
    if what == "axis" and plan is not None:
        return _axes(layout, name_axes(analysis, plan), plan.mesh.axes)
    return None


_SIZE = "the size of the dim, of the largest one where several are folded"
_BYTES = "the bytes of all whole values that have the dim"
_COST = (
    "the share of the step's estimated compute time that its ops take; an op with several "
    "dims counts for each"
)


def name_bytes(analysis: Analysis) -> np.ndarray:
    """[N] bytes of the whole values that are defined with each name."""
    program = analysis.program
    value = program.dim_value
    found = np.zeros(analysis.names.n)
    # A value with a name twice counts once
    seen = np.unique(np.stack([program.def_dim_factor, value]), axis=1)
    np.add.at(found, seen[0], value_bytes(program)[seen[1]])
    return found


def name_axes(analysis: Analysis, plan: ShardingPlan) -> list[tuple[str, ...]]:
    """[N] mesh axes that cut each name.

    Those its op is split along, and those its values are kept on.
    """
    program, axes = analysis.program, plan.mesh.axes
    on = np.zeros((analysis.names.n, len(axes)), dtype=bool)
    for a in range(len(axes)):
        split = plan.op_factor[:, a]
        on[split[split >= 0], a] = True
        kept = np.flatnonzero(plan.value_dim[:, a] >= 0)
        on[program.def_dim_factor[program.shape_ptr[kept] + plan.value_dim[kept, a]], a] = True
    return [tuple(axis for axis, yes in zip(axes, row, strict=True) if yes) for row in on.tolist()]


def _shares(analysis: Analysis, layout: GraphLayout, cost: Cost) -> list[float]:
    time_s = np.zeros(analysis.program.n_ops)
    for row in cost.ops:
        time_s[row.op] += row.time_s
    total = float(time_s.sum()) or 1.0
    op = analysis.names.op
    return [float(time_s[np.unique(op[list(n.names)])].sum()) / total for n in layout.nodes]


def _numbers(values: list[float], write: Callable[[float], str], about: str) -> Overlay:
    """Steps of a logarithmic scale; zero has no hue."""
    positive = [v for v in values if v > 0]
    low, high = (min(positive), max(positive)) if positive else (1.0, 1.0)
    low = max(low, high * 1e-6)
    span = math.log(high / low) or 1.0
    top = len(SCALE) - 1

    def step(v: float) -> int:
        return (
            top
            if v >= high
            else max(0, min(top, int(math.log(max(v, low) / low) / span * len(SCALE))))
        )

    hues = tuple(SCALE[step(v)] if v > 0 else NEUTRAL for v in values)
    edges = [low * math.exp(span * i / len(SCALE)) for i in range(len(SCALE))]
    used = sorted({step(v) for v in positive})
    key = [(SCALE[i], f"from {write(edges[i])}" if i else f"from {write(low)}") for i in used]
    if len(positive) < len(values):
        key.append((NEUTRAL, "none"))
    return Overlay(hues, tuple(write(v) if v > 0 else "" for v in values), tuple(key), about)


def _axes(layout: GraphLayout, on: list[tuple[str, ...]], axes: tuple[str, ...]) -> Overlay:
    hue: dict[str, str] = {}
    hues, texts = [], []
    for node in layout.nodes:
        counts = Counter("+".join(on[n]) or WHOLE for n in node.names)
        cut = [text for text, _ in counts.most_common() if text != WHOLE]
        text = cut[0] if cut else WHOLE
        if text != WHOLE:
            hue.setdefault(text, style(len(hue)).hue)
        hues.append(hue.get(text, NEUTRAL))
        share = counts[text] / len(node.names)
        texts.append("" if text == WHOLE else text if share == 1 else f"{text} {share:.0%}")
    key = [(h, text) for text, h in hue.items()] + ([(NEUTRAL, WHOLE)] if NEUTRAL in hues else [])
    about = (
        f"the mesh axis ({', '.join(axes)}) that cuts the dim; a per cent says how many of a "
        "marker's names"
    )
    return Overlay(tuple(hues), tuple(texts), tuple(key), about)


def _whole_text(value: float) -> str:
    return f"{value:,.0f}"


def _share_text(value: float) -> str:
    return f"{value:.1%}" if value >= 0.001 else "<0.1%"

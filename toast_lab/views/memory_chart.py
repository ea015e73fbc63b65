"""Memory in program order as a chart: all plans on one axis, with the limit and their peaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import pandas as pd

from toast_lab.views.chart_style import chart, drawn, hover, level_line, renderer_named
from toast_lab.views.compare_table import PlanEntry, byte_unit, bytes_text
from toast_lab.views.memory_timeline import line_of, thinned
from toast_lab.views.palette import CONFLICT

FIGURE = "memory timelines"
_DASHES = ("solid", "dashed", "dotdash", "dotted", "dashdot")


def memory_chart(
    entries: Sequence[PlanEntry], memory_limit_bytes: float, where: Sequence[str]
) -> Any:
    """An overlay with a line for each shown plan; the markers stand at the peaks.

    ``holoviews.link_selections`` links it with other charts by its dimension ``plan``.

    Args:
        entries: plans with their costs.
        memory_limit_bytes: memory limit of a device; drawn if a plan comes near it.
        where: the source line of each op.
    """
    shown_entries = [entry for entry in entries if entry.shown]
    highest = max((float(entry.cost.peak_bytes) for entry in shown_entries), default=1.0)
    unit_name, unit_bytes = byte_unit(highest)
    tooltips = [
        ("plan", "@plan"),
        ("op", "@op"),
        ("memory", f"@memory {unit_name}"),
        ("line", "@line"),
    ]
    elements = []
    for entry in shown_entries:
        ops, drawn_bytes = thinned(entry.cost.timeline_bytes)
        rows = pd.DataFrame(
            {
                "op": ops,
                "memory": drawn_bytes / unit_bytes,
                "plan": entry.name,
                "line": [line_of(op, where) for op in ops],
            }
        )
        elements.append(
            drawn(
                hv.Curve(rows, "op", ["memory", "plan", "line"], label=entry.name),
                interpolation="steps-post",
                line_width=1.6,
                color=entry.style.hue,
                line_dash=_DASHES[entry.number % len(_DASHES)],
                **hover(tooltips),
            )
        )
    peaks = pd.DataFrame(
        [
            (
                entry.cost.peak_op,
                float(entry.cost.peak_bytes) / unit_bytes,
                entry.name,
                line_of(entry.cost.peak_op, where),
                entry.style.hue,
                entry.style.marker,
            )
            for entry in shown_entries
        ],
        columns=["op", "memory", "plan", "line", "hue", "marker"],
    )
    if shown_entries:
        elements.append(
            drawn(
                hv.Scatter(peaks, "op", ["memory", "plan", "line", "hue", "marker"]),
                renderer_named("peaks"),
                marker=hv.dim("marker"),
                size=12,
                fill_color=hv.dim("hue"),
                line_color="white",
                nonselection_alpha=1.0,
                show_legend=False,
                **hover(tooltips),
            )
        )
    top = 1.15 * highest
    if highest > 0.3 * memory_limit_bytes:
        label = f"limit {bytes_text(memory_limit_bytes)}"
        elements.append(level_line(memory_limit_bytes / unit_bytes, label, CONFLICT))
        top = 1.12 * max(highest, memory_limit_bytes)
    most_ops = max((len(entry.cost.timeline_bytes) for entry in shown_entries), default=1)
    return chart(
        elements or [hv.Scatter([], "op", "memory")],
        name=FIGURE,
        xlabel="program order (op)",
        ylabel=f"memory ({unit_name})",
        xlim=(-0.02 * most_ops, 1.02 * most_ops),
        ylim=(0, top / unit_bytes),
        legend="top" if shown_entries else None,
        legend_columns=4,
        tappable=("peaks",),
    )

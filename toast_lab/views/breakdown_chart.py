"""Where the estimated step time of each plan goes, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import pandas as pd

from toast_lab.text import shortened
from toast_lab.views.breakdown import share_text
from toast_lab.views.chart_style import chart, drawn, grid_across, hover, on_glyph
from toast_lab.views.compare_table import PlanEntry, seconds_text, time_unit
from toast_lab.views.palette import style

FIGURE = "cost breakdown"
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
_HEIGHT = 0.62  #: height of a bar, as a share of the distance between bars


def breakdown_chart(frame: pd.DataFrame, entries: Sequence[PlanEntry]) -> Any:
    """An overlay with rectangles for each part; parts differ by hue and by hatch.

    ``holoviews.link_selections`` links it with other charts by its dimension ``plan``.

    Args:
        frame: ``breakdown_frame``, in seconds.
        entries: plans, which give the symbols beside their names.
    """
    plan_names = list(dict.fromkeys(frame["plan"]))
    symbol = {entry.name: entry.style.symbol for entry in entries}
    labels = [f"{symbol.get(name, '')} {shortened(name, 18)}" for name in plan_names]
    if len(set(labels)) < len(labels):
        labels = [f"{symbol.get(name, '')} {name}" for name in plan_names]
    # The first plan stands at the top
    row_of = {name: len(plan_names) - 1 - index for index, name in enumerate(plan_names)}
    step_s = frame.groupby("plan")["time_s"].sum().to_dict()
    longest_s = max(step_s.values(), default=1.0)
    unit_name, unit_s = time_unit(longest_s)
    drawn_until = dict.fromkeys(plan_names, 0.0)
    elements = []
    tooltips = [("plan", "@plan"), ("", "@part"), ("time", "@text, @share of the step")]
    for part_index, (part_name, part_rows) in enumerate(frame.groupby("part", sort=False)):
        bars = []
        for plan_name, seconds in zip(part_rows["plan"], part_rows["time_s"], strict=True):
            left, middle = drawn_until[plan_name], row_of[plan_name]
            drawn_until[plan_name] += seconds
            lower_left = (left / unit_s, middle - _HEIGHT / 2)
            upper_right = (drawn_until[plan_name] / unit_s, middle + _HEIGHT / 2)
            text = (seconds_text(seconds), share_text(seconds, step_s[plan_name]))
            bars.append((*lower_left, *upper_right, plan_name, part_name, *text, seconds))
        hue = style(part_index).hue
        elements.append(
            drawn(
                hv.Rectangles(
                    bars,
                    ["left", "bottom", "right", "top"],
                    ["plan", "part", "text", "share", "time_s"],
                    label=str(part_name),
                ),
                on_glyph(
                    hatch_pattern=_HATCH[part_index % len(_HATCH)],
                    hatch_color="white",
                    hatch_alpha=0.7,
                    hatch_scale=7,
                ),
                fill_color=hue,
                fill_alpha=0.75,
                line_color=hue,
                **hover(tooltips),
            )
        )
    count = max(len(plan_names), 1)
    return chart(
        elements or [hv.Scatter([], "left", "bottom")],
        name=FIGURE,
        xlabel=f"estimated step time ({unit_name})",
        ylabel="",
        xlim=(0, 1.02 * longest_s / unit_s),
        ylim=(-0.5 - 0.08 * count, count - 0.5 + 0.08 * count),
        yticks=[(row_of[name], label) for name, label in zip(plan_names, labels, strict=True)],
        legend="top" if elements else None,
        legend_columns=4,
        zoom=None,
        hooks=[grid_across],
    )

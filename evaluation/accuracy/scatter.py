"""Scatter charts of priced against compiled values: a point for each plan, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import holoviews as hv
import pandas as pd

from toast_lab.views.chart_style import chart, drawn
from toast_lab.views.palette import NEUTRAL

# Okabe and Ito's colours, which colour-blind readers can tell apart; shapes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "plus")
SIZE_PX = (400.0, 400.0)  #: of each plot


class Panel(NamedTuple):
    """One plot: (group, x, y) of each point, all above 0; x is compiled, y priced."""

    title: str
    points: Sequence[tuple[str, float, float]]


def scatter(panels: Sequence[Panel]) -> Any:
    """A layout of all panels side by side; a group looks the same in all of them."""
    groups = sorted({group for panel in panels for group, *_ in panel.points})
    return hv.Layout([_plot(panel, groups) for panel in panels]).cols(len(panels))


def _plot(panel: Panel, groups: Sequence[str]) -> Any:
    values = [value for _, x, y in panel.points for value in (x, y)] or [1.0, 10.0]
    ends = (10 ** (math.log10(min(values)) - 0.1), 10 ** (math.log10(max(values)) + 0.1))
    rows = pd.DataFrame(panel.points, columns=["group", "compiled", "priced"])
    equal = hv.Curve([(end, end) for end in ends], "compiled", "priced")
    elements = [drawn(equal, color=NEUTRAL, line_dash="dashed", line_width=1)]
    for index, group in enumerate(groups):
        points = hv.Scatter(
            rows[rows["group"] == group], "compiled", ["priced", "group"], label=group
        )
        look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        elements.append(drawn(points, size=6, alpha=0.7, **look))
    options: dict[str, Any] = {"xlim": ends, "ylim": ends, "logx": True, "logy": True}
    return chart(
        elements,
        name=panel.title,
        title=panel.title,
        xlabel="compiled",
        ylabel="priced",
        **options,
    )

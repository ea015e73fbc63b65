"""Confirmed searches over time: the best plan that a compiler judged so far beside the rivals'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import holoviews as hv

from toast_lab.views.chart_style import chart, drawn
from toast_lab.views.palette import NEUTRAL

OURS = "#0072B2"
SIZE_PX = (360.0, 300.0)  #: of each plot
MOST = 2.0  #: times the best rival's time, at the upper edge


class ConfirmedCurve(NamedTuple):
    """One search."""

    topology: str
    rival_s: float  #: the best rival's time
    judged: Sequence[tuple[float, float]]  #: (seconds since it began, the plan's time)

    def steps(self, end_s: float) -> list[tuple[float, float]]:
        """(minutes, the best time so far over the rival's), drawn on to ``end_s``."""
        points: list[tuple[float, float]] = []
        best = float("inf")
        for at_s, time_s in self.judged:
            if time_s < best:
                if points:
                    points.append((at_s / 60.0, best / self.rival_s))
                best = time_s
                points.append((at_s / 60.0, best / self.rival_s))
        return [*points, (end_s / 60.0, best / self.rival_s)] if points else []


def curves(searches: Sequence[ConfirmedCurve]) -> Any:
    """A layout with a plot for each target, a curve for each program."""
    topologies = list(dict.fromkeys(search.topology for search in searches))
    panels = []
    for topology in topologies:
        own = [search for search in searches if search.topology == topology]
        end_s = max(search.judged[-1][0] for search in own)
        even = hv.Curve([(0.0, 1.0), (end_s / 60.0, 1.0)], "minutes", "ratio")
        elements = [drawn(even, color=NEUTRAL, line_dash="dashed", line_width=1)]
        for search in own:
            line = hv.Curve(search.steps(end_s), "minutes", "ratio")
            elements.append(drawn(line, color=OURS, alpha=0.6, line_width=1.5))
        panels.append(
            chart(
                elements,
                name=topology,
                title=topology,
                xlabel="minutes",
                ylabel="best judged, over the best rival",
                legend=None,
                ylim=(0.5, MOST),
            )
        )
    return hv.Layout(panels).cols(len(panels))

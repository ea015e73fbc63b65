"""Charts of confirmed searches over time: the best plan judged so far beside the best rival's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import holoviews as hv

from evaluation.accuracy.scatter import COLOURS
from toast_lab.views.chart_style import chart, drawn
from toast_lab.views.palette import NEUTRAL

SIZE_PX = (360.0, 300.0)  #: of each plot
MOST = 2.0  #: upper edge of the plots, over the best rival's time


class ConfirmedCurve(NamedTuple):
    """The verdicts of one confirmed search over time."""

    topology: str
    rival_s: float  #: the best rival's time
    judged: Sequence[
        tuple[float, float]
    ]  #: (seconds since the search began, the plan's time in seconds); at least one

    def steps(self, end_s: float) -> list[tuple[float, float]]:
        """(minutes, the best time so far over the rival's) at each verdict, and at ``end_s``."""
        best = itertools.accumulate((time_s for _, time_s in self.judged), min)
        points = [
            (at_s / 60.0, time_s / self.rival_s)
            for (at_s, _), time_s in zip(self.judged, best, strict=True)
        ]
        return [*points, (end_s / 60.0, points[-1][1])]


def curves(searches: Sequence[ConfirmedCurve]) -> Any:
    """A layout with a plot for each target, a curve for each program."""
    topologies = list(dict.fromkeys(search.topology for search in searches))
    panels = []
    for topology in topologies:
        shown = [search for search in searches if search.topology == topology]
        end_s = max(search.judged[-1][0] for search in shown)
        even = hv.Curve([(0.0, 1.0), (end_s / 60.0, 1.0)], "minutes", "ratio")
        elements = [drawn(even, color=NEUTRAL, line_dash="dashed", line_width=1)]
        for search in shown:
            line = hv.Curve(search.steps(end_s), "minutes", "ratio")
            look = {"color": COLOURS[0], "alpha": 0.6, "line_width": 1.5}
            elements.append(drawn(line, interpolation="steps-post", **look))
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

"""Curves of a search with its trajectories below; before the first one, a text in their place.

Three charts and a table are most of the page's cost to create, send and draw, so they wait for the
first simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from toast_lab.app import look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.pace import Beat
from toast_lab.app.pages.search_trajectories import TrajectoryPane
from toast_lab.app.session import Session
from toast_lab.views.markup import Safe, bytes_text, h, join, quiet, seconds_text
from toast_lab.views.search_curves import CurvePoint, SearchScales

if TYPE_CHECKING:
    # Importing HoloViews would delay the first page too much
    from toast_lab.views.search_chart import SearchCurves


class CurvesPane:
    """Shows the points that ``feed`` receives; ``tick`` draws those that wait for their beat.

    Attributes:
        curves: the charts; None before the first simulation.
        centre: the Panel object to show.
    """

    def __init__(self, session: Session, trajectories: TrajectoryPane) -> None:
        self.session, self.trajectories = session, trajectories
        self.curves: SearchCurves | None = None
        self.scale = look.scale_switch(self.begin)
        self._chart = look.figure(least_px=300)
        self._waiting = look.text(margin=(24, 24))
        self._with_curves = [
            self._chart,
            look.row(self.scale, pn.HSpacer(), figure_menu("search curves")),
            trajectories.centre,
        ]
        self.centre = look.filled_column(self._waiting, stylesheets=[look.SCROLLING])
        #: Did simulations arrive while the curves were hidden?
        self._is_behind = False
        self._undrawn: list[CurvePoint] = []  #: points that wait for the next beat
        self._beat = Beat()
        self.begin()
        session.choices.keep("curves, scale", self.scale)

    def begin(self) -> None:
        """Show the current search from its beginning, for a new problem, search or scale.

        A new search reuses the charts of the last one if their scales are equal.
        """
        points, scales = self.session.searches.points, self._scales()
        self._is_behind, self._undrawn = False, []
        if self.curves is not None and self.curves.scales == scales:
            look.later(self.curves.restart, list(points))  # far quicker than new figures
        elif points:
            self._make_curves(scales, points)
        else:
            self.curves = None
            self._waiting.object = self._expected()
        shown = [self._waiting] if self.curves is None else self._with_curves
        if self.centre.objects != shown:
            self.centre.objects = shown

    def _make_curves(self, scales: SearchScales, points: list[CurvePoint]) -> None:
        # Importing HoloViews would delay the first page too much
        from toast_lab.views.search_chart import SearchCurves

        self.curves = SearchCurves(scales)
        self.curves.append(points)
        self._chart.object = self.curves.root

    def _scales(self) -> SearchScales:
        problem = self.session.loaded.problem
        if problem is None:
            return SearchScales()
        unsharded_s, unsharded_bytes = problem.baseline
        return SearchScales(
            problem.memory_limit_bytes, unsharded_s, unsharded_bytes, str(self.scale.value)
        )

    def _expected(self) -> Safe:
        """The text in place of the curves before the first simulation."""
        problem = self.session.loaded.problem
        if problem is None:
            return quiet("Load a model on page 1; its search will be drawn here.")
        unsharded_s, unsharded_bytes = problem.baseline
        score = problem.pricer().judged(unsharded_s, unsharded_bytes).score
        return join(
            h("h2", "the search will be drawn here"),
            h(
                "p",
                "Simulation by simulation: C(s), step time and peak memory of every plan tried "
                "and of the best so far; below, the improvements.",
            ),
            h(
                "p",
                "Unsharded, a step takes ",
                h("b", seconds_text(unsharded_s)),
                " and ",
                h("b", bytes_text(unsharded_bytes)),
                " of a device's ",
                h("b", bytes_text(problem.memory_limit_bytes)),
                "; that is C(s) = ",
                h("b", f"{score:.4g}"),
                ", the score to beat.",
            ),
        )

    def feed(self, points: list[CurvePoint], *, is_seen: bool) -> None:
        """Add new simulations.

        Drawing a hidden figure costs the browser, and through it the search, as much as drawing a
        visible one, so hidden curves are drawn once they are shown.

        Args:
            points: of the simulations.
            is_seen: whether the curves are visible.
        """
        if not is_seen:
            self._is_behind = True
            self._undrawn = []
            return
        drawn = [] if self.curves is None else list(self.curves.source.data["simulation"][-1:])
        last_simulations = [*drawn, *(point.simulation for point in self._undrawn[-1:])]
        if self.curves is None or (
            points and last_simulations and last_simulations[-1] >= points[0].simulation
        ):
            self.begin()  # the first points, another search, or points that are shown already
        else:
            self._undrawn += points
            self._draw_new()

    def tick(self) -> None:
        """Draw the points that were waiting; called while the curves are visible."""
        if self._is_behind:
            self.begin()
        self._draw_new()

    def mark(self, at: int | None) -> None:
        """Veil the curves after simulation ``at``; None lifts the veil."""
        if self.curves is not None:
            look.later(self.curves.mark, at)

    def _draw_new(self) -> None:
        """Draw the waiting points: on the beat while a search runs, otherwise at once."""
        if not self._undrawn or self.curves is None:
            return
        work = self.session.work
        is_live = work.runs("search") and not work.paused
        if not is_live or self._beat.due(self._undrawn[-1].elapsed_s):
            points, self._undrawn = self._undrawn, []
            look.later(self.curves.append, points)

"""Step 3: watch a search, pause it, step it, and keep its best plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from toast_lab.app import look
from toast_lab.app.pace import WORDS_EVERY_S
from toast_lab.app.pages.curves_pane import CurvesPane
from toast_lab.app.pages.search_confirm import ConfirmPane
from toast_lab.app.pages.search_controls import SearchControls
from toast_lab.app.pages.search_facts import SearchFacts
from toast_lab.app.pages.search_race import RacePane
from toast_lab.app.pages.search_scrubber import SearchScrubber
from toast_lab.app.pages.search_trajectories import TrajectoryPane
from toast_lab.app.pages.search_tree import TreePane
from toast_lab.app.session import Session
from toast_lab.app.tree_state import TreeState
from toast_lab.jobs.job import JobState
from toast_lab.views.markup import ESTIMATED, h
from toast_lab.views.search_curves import CurvePoint

SIDES = ("left", "centre", "right")
VIEWS = {"Curves": "curves", "Tree": "tree", "Race": "race", "Confirm": "confirm"}


class SearchPage:
    """The page's three columns.

    Settings and controls on the left; curves, the tree, a race or a confirmed search in the centre;
    the results on the right.

    Attributes:
        panes: the views so far, by name; all but the curves are created when first shown.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.controls = SearchControls(session, self._checked, self._begun)
        self.tree_state = TreeState(session.searches)
        self.trajectories = TrajectoryPane(session, self.tree_state, lambda: self._show_view())
        self.trajectories.tree.on_click(lambda _: self._to_tree())
        self.curves = CurvesPane(session, self.trajectories)
        self.panes: dict[str, Any] = {"curves": self.curves}
        self.facts = SearchFacts(session, self.tree_state)
        self.scrubber = SearchScrubber(self.tree_state)
        self.view = look.switch(
            options=VIEWS,
            value="curves",
            margin=(0, 10, 0, 0),
            width=272,
            height=30,
        )
        look.watch(self.view, self._show_view, "value")
        self._title = look.text()
        problem_box = self.controls.settings.problem_box
        self.left = look.side(problem_box, self.controls.view, width=290)
        self.centre = look.filled_column(
            self._title,
            look.row(self.view, self.scrubber.view, margin=(0, 0, 4, 0), height=42),
            self.curves.centre,
            # Panel adds up the heights of hidden children too
            stylesheets=[look.CANVAS + ":host { min-height: 0 !important; }"],
        )
        self.right = look.side(self.trajectories.right, self.facts.view, width=300)
        self._is_stale, self._refreshed_at = False, 0.0
        self._state: tuple[bool, JobState | None] = (False, None)
        look.watch(session.loaded, self._new_problem, "problem")
        look.watch(session.work, self._changed, "changes")
        look.watch(session.plans, self._changed, "items")
        self.refresh()
        self._show_view()
        job = session.work.job
        if job is not None and job.kind in ("race", "confirm"):
            self.view.value = job.kind
        session.choices.keep("search, view", self.view)

    # -- views, created when first shown -----------------------------------------------------------
    @property
    def tree(self) -> TreePane:
        """The tree of the search."""
        return self._pane("tree", lambda: TreePane(self.tree_state, self.session))

    @property
    def race(self) -> RacePane:
        """A race of methods."""
        return self._pane("race", lambda: RacePane(self.session))

    @property
    def confirm(self) -> ConfirmPane:
        """A search whose plans a compiler or devices judge."""
        return self._pane("confirm", lambda: ConfirmPane(self.session))

    def _pane(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.panes:
            self.panes[name] = make()
        return self.panes[name]

    def _show_view(self) -> None:
        """Bring curves, tree, race or a confirmed search to the front."""
        view = str(self.view.value)
        shown = getattr(self, view)
        if view == "confirm":
            shown.show()
        for side in SIDES:
            column = getattr(self, side)
            for pane in self.panes.values():
                side_view = getattr(pane, side, None)
                if side_view is None:
                    continue
                side_view.visible = pane is shown
                if side_view.visible and side_view not in column.objects:
                    column.append(side_view)
        has_picked = self.trajectories.picked is not None
        self.trajectories.right.visible = view == "curves" and has_picked
        self.facts.view.visible = view == "curves" and not has_picked
        self.controls.view.visible = view != "race"
        self.scrubber.view.visible = view in ("curves", "tree")
        self.tick()

    # -- progress ----------------------------------------------------------------------------------
    def feed(self, points: list[CurvePoint]) -> None:
        """Pass new simulations to the curves."""
        is_seen = self.view.value == "curves" and self.session.step == "search"
        self.curves.feed(points, is_seen=is_seen)

    def tick(self) -> None:
        """Update what follows the search or the slider; called at each tick of the page."""
        if self._is_stale:
            self._changed()
        elif self.facts.waits_for_prices:
            self.refresh()
        self.facts.panel.tick()
        work = self.session.work
        self.scrubber.follow(is_live=work.runs() and not work.paused)
        view = self.view.value
        if self.scrubber.is_moved:
            self._show_moved()
        elif view == "tree":
            self.tree.refresh()
        elif view == "curves":
            self.curves.tick()
            self.trajectories.refresh()
        elif view == "confirm":
            self.confirm.tick()

    def _show_moved(self) -> None:
        """Show the search as of the simulation to which the slider was moved."""
        self.scrubber.is_moved = False
        self.tree_state.count(now=True)
        self.curves.mark(self.tree_state.at)
        self.trajectories.refresh(now=True)
        self.refresh()
        if self.view.value == "tree":
            self.tree.draw()

    def _changed(self) -> None:
        """Show a change of the job.

        While a search runs, texts change at most twice a second, since every change makes the
        browser lay the page out again, on cores that the search needs.
        """
        job = self.session.work.job
        state = (self.session.work.busy, job.state if job is not None else None)
        self._is_stale = (
            state == (True, JobState.RUNNING)
            and state == self._state
            and time.monotonic() - self._refreshed_at < WORDS_EVERY_S
        )
        if not self._is_stale:
            self._state = state
            self.refresh()

    def _new_problem(self) -> None:
        self.curves.begin()
        self.refresh()

    def _begun(self, kind: str) -> None:
        """Show the view of a search or a confirmed search that has just started or resumed."""
        if kind == "confirm":
            self.view.value = "confirm"
            return
        self._new_problem()
        if self.view.value == "confirm":
            self.view.value = "curves"

    def _checked(self) -> None:
        """Show the error of a checked field, if any; no search can start while there is one."""
        if hasattr(self, "_title"):
            self.refresh()

    def refresh(self) -> None:
        """Update the buttons and the numbers."""
        self._refreshed_at = time.monotonic()
        self.controls.refresh()
        problem = self.session.loaded.problem
        self._title.object = h(
            "p",
            h("b", problem.describe() if problem is not None else "no model"),
            " ",
            ESTIMATED,
            h("span", f"  {self._simulations():,} simulations", cls="quiet"),
        )
        for name in ("race", "confirm"):
            if name in self.panes:
                self.panes[name].refresh()
        self.facts.refresh()

    def _simulations(self) -> int:
        """Number of simulations of the search that is shown."""
        points = self.session.confirmations.state.points
        if self.view.value == "confirm":
            return points[-1].simulations if points else 0
        return int(self.session.searches.simulations)

    def _to_tree(self) -> None:
        if self.trajectories.picked is not None:
            self.tree_state.show_trajectory(self.trajectories.picked.index)
            self.view.value = "tree"
            self.tree.draw()

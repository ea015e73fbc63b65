"""Step 4: watch a search, hold it, step it, keep what it found."""

from __future__ import annotations

import io
import time

import panel as pn

from toast_lab.app import keys, look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.pace import Beat
from toast_lab.app.pages.confirm_settings import ConfirmSettings
from toast_lab.app.pages.search_confirm import ConfirmPane
from toast_lab.app.pages.search_race import RacePane
from toast_lab.app.pages.search_settings import SearchSettings
from toast_lab.app.pages.search_trajectories import TrajectoryPane
from toast_lab.app.pages.search_tree import TreePane
from toast_lab.app.plan_facts import Lookup, is_action, steps_worth
from toast_lab.app.plan_words import cut_arguments, step_words
from toast_lab.app.session import Session
from toast_lab.app.tree_state import TreeState
from toast_lab.jobs.job import JobState
from toast_lab.text import gap_text
from toast_lab.views.markup import (
    ESTIMATED,
    Facts,
    Safe,
    bytes_text,
    facts,
    h,
    join,
    numbered,
    quiet,
    seconds_text,
)
from toast_lab.views.search_curves import CurvePoint

WORDS_EVERY_S = 0.5
RUN = "Run the search"
VIEWS = {"Curves": "curves", "Tree": "tree", "Race": "race", "Confirm": "confirm"}


class SearchPage:
    """Lay the page out in three columns.

    Settings and controls left; curves, the tree or a race in the centre; what was found right.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.settings = SearchSettings(session, self._checked)
        self.confirm_settings = ConfirmSettings(session, self._checked)
        self.run = look.button(
            RUN, self.run_now, button_type="primary", description=keys.tip("run")
        )
        self.pause = look.button("Pause", session.searches.pause, disabled=True)
        self.step = look.button("Step", self.step_now, description=keys.tip("step"))
        self.round = look.button(
            "Round",
            lambda: self.step_now(whole_round=True),
            description="one round of simulations, then stand still",
        )
        self.stop = look.button(
            "Stop and keep the best",
            session.searches.stop,
            disabled=True,
            description=keys.tip("stop"),
        )
        self.resume = look.button(
            "Resume",
            self._resume,
            disabled=True,
            description="go on where the last search ended, for another budget",
        )
        self.save = pn.widgets.FileDownload(
            callback=self._trace,
            filename="search.npz",
            label="Save its trace",
            button_type="default",
            disabled=True,
            sizing_mode="stretch_width",
            margin=(2, 0),
            stylesheets=[look.BUTTON],
        )
        self.file = pn.widgets.FileInput(
            accept=".npz", sizing_mode="stretch_width", margin=(2, 0), stylesheets=[look.INPUT]
        )
        look.watch_value(self.file, self._resume_saved)
        gap = pn.Spacer(width=6)
        holds = look.row(self.pause, gap, self.step, gap.clone(), self.round)
        ends = look.row(self.resume, gap.clone(), self.save)
        self.tree_state = TreeState(session.searches)
        self.tree = TreePane(self.tree_state, session)
        self.race = RacePane(session)
        self.confirm = ConfirmPane(session)
        self.trajectories = TrajectoryPane(session, self.tree_state, lambda: self._show_view())
        self.trajectories.tree.on_click(lambda _: self._to_tree())
        self._why_not = look.text(visible=False)
        self._settings_box = look.column(
            self.settings.search_box,
            self.confirm_settings,
            # In view without scrolling, also on a low screen
            self.run,
            self._why_not,
            holds,
            self.stop,
            self.settings.options_box,
            self.confirm_settings.reasons,
            ends,
            look.text(quiet("or go on from a saved trace:"), margin=(6, 0, 0, 0)),
            self.file,
        )
        self.left = look.side(self.settings.problem_box, self._settings_box, width=290)
        self.view = look.switch(
            options=VIEWS,
            value="curves",
            margin=(0, 10, 0, 0),
            width=272,
            height=30,
            sizing_mode="fixed",
        )
        self.scrub = pn.widgets.IntSlider(
            name="as of simulation",
            start=0,
            end=1,
            value=1,
            sizing_mode="stretch_width",
            margin=(0, 10, 0, 0),
            disabled=True,
            stylesheets=[look.INPUT],
        )
        self.live = look.button(
            "Live",
            lambda: self._scrub(None),
            sizing_mode="fixed",
            width=64,
            height=30,
            margin=(2, 0),
            disabled=True,
        )
        self._scrubbing = False  #: the slider is being set by us
        look.watch_value(self.scrub, self._scrub)
        look.watch(self.view, self._show_view, "value")
        self._scrubber = look.row(self.scrub, self.live)
        self._curves_pane = look.figure(min_height=300, stylesheets=[look.FILL])
        self.scale = look.scale_switch(self._new_problem)
        self._title = look.text()
        self._curves_box = look.filled_column(
            self._curves_pane,
            look.row(self.scale, pn.HSpacer(), figure_menu("search curves")),
            self.trajectories.centre,
            stylesheets=[look.FILL],
        )
        self.centre = look.filled_column(
            self._title,
            look.row(self.view, self._scrubber, margin=(0, 0, 4, 0), height=42),
            self._curves_box,
            # Panel adds up hidden ones
            stylesheets=[look.CANVAS + ":host { min-height: 0 !important; }"],
        )
        self._facts, self._details = look.text(), look.text()
        go = look.button("Compare with other plans →", lambda: setattr(session, "step", "compare"))
        # The way on stays in view, however long the plan is
        self._facts_box = look.column(self._facts, go, self._details)
        self.right = look.side(
            self.trajectories.right,
            self._facts_box,
            width=300,
        )
        self._scrubbed = False
        self._scrub_shown: tuple[int, int | None] = (-1, None)
        self._scrub_shown_at = 0.0
        self._behind = False  #: are there simulations that came while the curves were hidden?
        self._undrawn: list[CurvePoint] = []  #: those that wait for the next beat
        self._beat = Beat()
        look.watch(session.loaded, self._new_problem, "problem")
        self._stale, self._refreshed_at, self._state = False, 0.0, (False, None)
        self._prices, self._unpriced = Lookup(), False
        look.watch(session.work, self._changed, "changes")
        look.watch(session.plans, self._changed, "items")
        self._new_problem()
        self._show_view()
        job = session.work.job
        if job is not None and job.kind in ("race", "confirm"):
            self.view.value = job.kind

    def _show_view(self) -> None:
        """Bring curves, tree or race to the front."""
        view = self.view.value
        if view == "confirm":
            self.confirm.show()
        self._curves_box.visible = view == "curves"
        for name, place, part in (
            ("tree", self.centre, self.tree.centre),
            ("tree", self.right, self.tree.right),
            ("race", self.centre, self.race.centre),
            ("race", self.right, self.race.right),
            ("race", self.left, self.race.left),
            ("confirm", self.centre, self.confirm.centre),
            ("confirm", self.right, self.confirm.right),
        ):
            part.visible = view == name
            # What nobody has looked at would only be built, and sent with the page.
            if part.visible and part not in place.objects:
                place.append(part)
        picked = self.trajectories.picked is not None
        self.trajectories.right.visible = view == "curves" and picked
        self._facts_box.visible = view == "curves" and not picked
        self._settings_box.visible = view != "race"
        self._scrubber.visible = view in ("curves", "tree")
        self.tick()

    def _scrub(self, at: int | None) -> None:
        """Show everything as of a simulation; None: as it is now."""
        if self._scrubbing:
            return
        self.tree_state.at = None if at is None or at >= self.tree_state.shown_count else max(1, at)
        self._set_scrubber()
        self._scrubbed = True

    def _set_scrubber(self) -> None:
        state = self.tree_state
        simulation_count = state.shown_count
        self._scrubbing = True
        try:
            self.scrub.disabled = simulation_count < 2
            self.scrub.param.update(
                start=min(1, simulation_count),
                end=max(simulation_count, 1),
                value=max(state.shown, min(1, simulation_count)),
            )
        finally:
            self._scrubbing = False
        self.live.disabled = state.at is None
        self.live.button_type = "success" if state.at is None and simulation_count else "default"

    def _changed(self) -> None:
        """Show a change of the job.

        While a search runs, words change no more than twice a second.

        Every word that changes makes the browser lay the page out anew, on cores that the search
        wants.
        """
        job = self.session.work.job
        state = (self.session.work.busy, job.state if job is not None else None)
        running = state == (True, JobState.RUNNING)
        self._stale = (
            running
            and state == self._state
            and time.monotonic() - self._refreshed_at < WORDS_EVERY_S
        )
        if not self._stale:
            self._state = state
            self.refresh()

    def tick(self) -> None:
        """At each tick of the page: what has to follow the search or the slider."""
        state = self.tree_state
        if self._stale:
            self._changed()
        elif self._unpriced:
            self.refresh()
        work = self.session.work
        live = work.runs() and not work.paused
        if (state.shown_count, state.at) != self._scrub_shown and not (
            live
            and state.at == self._scrub_shown[1]
            and time.monotonic() - self._scrub_shown_at < WORDS_EVERY_S
        ):
            self._scrub_shown_at = time.monotonic()
            self._scrub_shown = (state.shown_count, state.at)
            self._set_scrubber()
        if self._scrubbed:
            self._scrubbed = False
            state.count(now=True)
            look.later(self.curves.mark, state.at)
            self.trajectories.refresh(now=True)
            self.refresh()
            if self.view.value == "tree":
                self.tree.draw()
        elif self.view.value == "tree":
            self.tree.refresh()
        elif self.view.value == "curves":
            if self._behind:
                self._new_problem()
            self._draw_new()
            self.trajectories.refresh()
        elif self.view.value == "confirm":
            self.confirm.tick()

    def _new_problem(self) -> None:
        # HoloViews takes too long to import for the first page
        from toast_lab.views.search_chart import SearchCurves, SearchScales

        problem = self.session.loaded.problem
        scales = SearchScales()
        if problem is not None:
            time_s, peak_bytes = problem.baseline
            scales = SearchScales(
                problem.memory_limit_bytes, time_s, peak_bytes, str(self.scale.value)
            )
        points = self.session.searches.points
        shown: SearchCurves | None = getattr(self, "curves", None)
        if shown is not None and shown.scales == scales:
            look.later(shown.restart, list(points))  # far quicker than new figures
        else:
            self.curves: SearchCurves = SearchCurves(scales)
            self.curves.append(points)
            self._curves_pane.object = self.curves.root
        self._behind, self._undrawn = False, []
        self.refresh()

    def _checked(self) -> None:
        """Take in what was typed.

        Say what is wrong with it, and let nothing start before it is right.
        """
        if hasattr(self, "_facts_box"):
            self.refresh()

    def run_now(self) -> None:
        """Run the search with these settings."""
        self.settings.apply()
        if self.confirm_settings.apply():
            self.session.confirmations.start()
            self.view.value = "confirm"
        else:
            self.session.searches.start()
            self._new_problem()
            if self.view.value == "confirm":
                self.view.value = "curves"

    def _resume(self) -> None:
        self.settings.apply_budget()
        self.session.searches.resume()
        self._new_problem()

    def _resume_saved(self, file: bytes | None) -> None:
        if file:
            self.settings.apply_budget()
            self.session.searches.resume_saved(file)
            self._new_problem()

    def _trace(self) -> io.BytesIO:
        """The file to be saved."""
        job = self.session.searches.job
        path = job.trace_path if job is not None and job.left_trace else None
        return io.BytesIO(path.read_bytes() if path is not None else b"")

    def _to_tree(self) -> None:
        if self.trajectories.picked is not None:
            self.tree_state.show_trajectory(self.trajectories.picked.index)
            self.view.value = "tree"
            self.tree.draw()

    def step_now(self, *, whole_round: bool = False) -> None:
        """Do one simulation, or one round of them, and stand still."""
        if not self.session.work.busy:
            self.settings.apply()
            self._new_problem()
        if whole_round:
            self.session.searches.step_round()
        else:
            self.session.searches.step()

    def feed(self, points: list[CurvePoint]) -> None:
        """New simulations for the curves, which take them in when they are looked at.

        A hidden figure costs the browser, and with it the search, as much as one that is shown.
        """
        if self.view.value != "curves" or self.session.step != "search":
            self._behind = True
            self._undrawn = []
            return
        last = [
            *self.curves.source.data["simulation"][-1:],
            *(point.simulation for point in self._undrawn[-1:]),
        ]
        if points and last and last[-1] >= points[0].simulation:
            self._new_problem()  # another search, or what is shown already
        else:
            self._undrawn += points
            self._draw_new()

    def _draw_new(self) -> None:
        """Give the curves what is new, at the beat of a running search, at once else."""
        if not self._undrawn:
            return
        work = self.session.work
        live = work.runs("search") and not work.paused
        if not live or self._beat.due(self._undrawn[-1].elapsed_s):
            points, self._undrawn = self._undrawn, []
            look.later(self.curves.append, points)

    def refresh(self) -> None:
        """Buttons and numbers."""
        self._refreshed_at = time.monotonic()
        session = self.session
        searching = session.work.runs("search")
        paused = searching and session.work.paused
        confirming = session.work.runs("confirm")
        errors = self.settings.errors + self.confirm_settings.errors
        self.run.name = "Run and confirm" if self.confirm_settings.judge.value else RUN
        self.run.disabled = session.work.busy or bool(errors)
        self.pause.disabled = not searching
        self.stop.disabled = not (searching or confirming)
        self.step.disabled = self.round.disabled = (session.work.busy and not searching) or (
            not searching and bool(errors)
        )
        last_job = session.searches.job
        left_trace = last_job is not None and last_job.left_trace
        self.resume.disabled = session.work.busy or not left_trace
        self.save.disabled = not left_trace
        self.file.disabled = session.work.busy
        if left_trace and last_job is not None and last_job.about:
            self.save.filename = f"search-{last_job.about['method']}-{last_job.about['seed']}.npz"
        refusal = f"Not yet: {errors[0]}." if errors and not session.work.busy else ""
        if self._why_not.visible != bool(refusal) or refusal:
            self._why_not.object, self._why_not.visible = h("p", refusal, cls="red"), bool(refusal)
        self.pause.name = "Go on" if paused else "Pause"
        problem = session.loaded.problem
        self._title.object = h(
            "p",
            h("b", problem.describe() if problem is not None else "no model"),
            " ",
            ESTIMATED,
            h("span", f"  {self._simulations():,} simulations", cls="quiet"),
        )
        self.race.refresh()
        self.confirm.refresh()
        self._facts.object, self._details.object = self._words(searching, paused)

    def _simulations(self) -> int:
        """Of the search that is shown."""
        points = self.session.confirmations.state.points
        if self.view.value == "confirm":
            return points[-1].simulations if points else 0
        return int(self.session.searches.simulations)

    def _words(self, searching: bool, paused: bool) -> tuple[Safe, Safe]:
        """What the search has come to, and its best plan."""
        session, problem, job = self.session, self.session.loaded.problem, self.session.work.job
        if problem is None or not session.searches.points:
            state = (
                "The worker starts; the first simulations come in a few seconds."
                if searching
                else (
                    "Run the search, or step it one simulation at a time. The curves show the best "
                    "plan so far; grey dots are what was tried."
                )
            )
            return join([h("h2", "search"), quiet(state)]), join([])
        seen = self.tree_state.best() if self.tree_state.at is not None else None
        last_point = session.searches.points[-1]
        best_s = last_point.best_s
        best_bytes = last_point.best_bytes
        best_score = last_point.best_score
        actions = session.searches.best_actions
        if seen is not None:
            best_s, best_bytes, best_score = seen.best_time_s, seen.best_peak_bytes, seen.best_score
            actions = seen.actions
        base = problem.baseline
        state = session.searches.held_state if paused else "searching" if searching else "ended"
        rows: Facts = [
            ("state", f"{state}, {job.worked_s:.1f} s" if job is not None else state),
            ("simulations", f"{session.searches.simulations:,}"),
            ("best C(s)", f"{best_score:.4f}"),
            (
                "best step",
                f"{seconds_text(best_s)}, {base[0] / best_s:.2f}× unsharded speed"
                if best_s
                else "–",
            ),
            ("best peak", f"{bytes_text(best_bytes)} of {bytes_text(problem.memory_limit_bytes)}"),
            ("unsharded", f"{seconds_text(base[0])}, {bytes_text(base[1])}"),
        ]
        if seen is not None:
            rows.insert(
                0,
                (
                    "as of",
                    f"simulation {self.tree_state.shown:,}, best found by number {seen.index:,}",
                ),
            )
        elif session.searches.gap is not None:
            rows.insert(1, ("proof", gap_text(session.searches.gap)))
        details = join(
            [
                h("h2", "actions of the best plan"),
                numbered(self._lines(actions, last_point if seen is None else None))
                if actions
                else quiet("none: unsharded is the best so far"),
                self._cuts() if seen is None else join([]),
                quiet(session.searches.note),
            ]
        )
        return join([h("h2", "search ", ESTIMATED), facts(rows)]), details

    def _cuts(self) -> Safe:
        """What the plan that a search has found does with the arguments, in words."""
        plan = self.session.searches.best_plan
        if plan is None:
            return join([])
        return join([h("h2", "what it does with the arguments"), cut_arguments(plan)])

    def _lines(self, actions: tuple[str, ...], best: CurvePoint | None) -> list[Safe | str]:
        """The best plan line by line, each with the step that it leads to.

        Args:
            actions: of the plan.
            best: its price; None: an earlier plan, which the tree has the prices of.
        """
        problem, taken = self.session.loaded.problem, tuple(filter(is_action, actions))
        self._unpriced = False
        if problem is None or best is None or self.session.work.busy:
            return list(map(step_words, actions))
        priced = self._prices.get(problem, taken)
        self._unpriced = priced is None
        if priced is None or len(priced.steps) < len(taken):
            return list(map(step_words, actions))
        judged = problem.pricer().judged
        unsharded, reached = judged(*problem.baseline), judged(best.best_s, best.best_bytes)
        worth = steps_worth(actions, priced.steps, unsharded, reached)
        return [
            join([step_words(line), h("span", f"  {price}", cls="quiet")])
            for line, price in zip(actions, worth, strict=True)
        ]

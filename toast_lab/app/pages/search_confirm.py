"""A confirmed search: its curve, its verdicts and, at its end, the front of written plans."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pandas as pd
import panel as pn

from toast_lab.app import look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.session import Session
from toast_lab.jobs.confirm_job import WRITTEN_MARGIN, ConfirmState, FrontPlan
from toast_lab.sharding.space import renaming
from toast_lab.views.confirm_curve import (
    FRONT_COLUMNS,
    VERDICT_COLUMNS,
    confirm_frame,
    front_frame,
    verdict_frame,
)
from toast_lab.views.markup import ESTIMATED, Facts, Safe, facts, h, join, quiet, seconds_text

if TYPE_CHECKING:
    # Importing HoloViews would delay the first page too much
    from toast_lab.views.confirm_chart import ConfirmCurve

DRAWN_EVERY_S = 1.0
HELP = (
    "Choose a judge under “confirm with” on the left and run the search. The plans that anybody "
    "gets for nothing are compiled or executed first, then those of the search, prices learn from "
    "the clock, and the search starts again until the best plan is confirmed."
)
STAGES = {
    "searching": "searching for plans",
    "searched": "choosing plans to judge",
    "learned": "prices have learned from the clock",
    "judged": "choosing plans to judge",
}
CURVE_TAB, WRITTEN_TAB = 0, 1


class ConfirmPane:
    """The view of a confirmed search.

    Call ``refresh`` after a change, ``tick`` to advance its clock.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._progress = look.text(margin=(0, 0, 4, 0))
        self.scale = look.scale_switch(self._begin)
        self._pane = look.figure(least_px=200)
        self.verdicts = look.table(
            _no_rows(VERDICT_COLUMNS), height=look.rows_height(3, 190), selectable=False
        )
        curve = look.filled_column(
            self._pane,
            look.row(self.scale, pn.HSpacer(), figure_menu("confirmed curve")),
            look.text(h("h2", "judged plans")),
            self.verdicts,
            stylesheets=[look.SCROLLING],
        )
        self.front = look.table(_no_rows(FRONT_COLUMNS), height=150)
        look.on_row(self.front, self._pick)
        self._head = look.text(margin=(4, 0, 2, 0))
        self._words = look.text()
        self._front_words = look.text()
        written = look.filled_column(
            self._front_words,
            self.front,
            self._head,
            look.filled_column(self._words, scroll=True),
            stylesheets=[look.FILL],
        )
        self.tabs = look.tabs(("Curve and verdicts", curve), ("Written plans", written))
        self.centre = look.filled_column(self._progress, self.tabs, stylesheets=[look.FILL])
        self._facts = look.text()
        self.compare = look.button(
            "Compare & execute →",
            self._compare,
            button_type="primary",
            disabled=True,
            description="compare the plan chosen under “Written plans” with others, and execute it",
        )
        self.right = look.column(self._facts, self.compare)
        self._state: ConfirmState | None = None
        self._shown: tuple[Any, ...] = ()
        self._picked: int | None = None
        self._drawn_at = 0.0
        self.curve: ConfirmCurve | None = None  #: created when the view is first shown
        self._is_elsewhere = False
        self._begin()
        session.choices.keep("confirm, tab", self.tabs, "active")
        session.choices.keep("confirm, scale", self.scale)

    # -- chart -------------------------------------------------------------------------------------
    def show(self) -> None:
        """Create the chart when the view is first shown."""
        if self.curve is None:
            self._make_curve()

    def _make_curve(self) -> None:
        from toast_lab.views.confirm_chart import ConfirmCurve

        state = self.session.confirmations.state
        problem = state.problem
        unsharded_s = 1.0 if problem is None else problem.baseline[0]
        self.curve = ConfirmCurve(unsharded_s, str(self.scale.value), apart=self._is_elsewhere)
        self.curve.show(self._frame(state))
        self._pane.object = self.curve.root

    def _begin(self) -> None:
        """Redraw everything for another search or another scale."""
        state = self.session.confirmations.state
        self._is_elsewhere = self._elsewhere(state)
        if self.curve is not None:
            self._make_curve()
        if state is not self._state:
            self._picked = None
            self.tabs.active = CURVE_TAB
        self._state, self._shown = state, ()
        self.refresh()

    @staticmethod
    def _elsewhere(state: ConfirmState) -> bool:
        return any(verdict.elsewhere for verdict in state.verdicts)

    def _frame(self, state: ConfirmState) -> pd.DataFrame:
        return confirm_frame(state.points, state.verdicts, self._until_s(state))

    def _until_s(self, state: ConfirmState) -> float:
        """Time in seconds up to which the curves are drawn."""
        latest = [point.at_s for point in state.points[-1:]]
        latest += [verdict.at_s for verdict in state.verdicts[-1:]]
        if state.step is not None:
            since_s = time.monotonic() - state.step_since if self._is_running else 0.0
            latest.append(state.step.at_s + since_s)
        return max(latest, default=0.0)

    @property
    def _is_running(self) -> bool:
        return bool(self.session.work.runs("confirm"))

    # -- showing -----------------------------------------------------------------------------------
    def tick(self) -> None:
        """Update the clock and the curve, at most once a second."""
        if self._is_running and time.monotonic() - self._drawn_at >= DRAWN_EVERY_S:
            self._show_progress()
            self._draw()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if self.curve is not None:
            look.later(self.curve.show, self._frame(self.session.confirmations.state))

    def refresh(self) -> None:
        """Update the whole view."""
        state: ConfirmState = self.session.confirmations.state
        if state is not self._state or self._elsewhere(state) != self._is_elsewhere:
            self._begin()
            return
        self._show_progress()
        shown = (len(state.verdicts), len(state.points), state.end is not None, self._is_running)
        if shown == self._shown:
            return
        ended = state.end is not None and not (self._shown and self._shown[2])
        self._shown = shown
        self._draw()
        standing = "best so far" if self._is_running else "best judged"
        self.verdicts.value = verdict_frame(
            state.verdicts, state.best, "confirmed" if state.confirmed else standing
        )
        self.verdicts.height = look.rows_height(max(3, len(state.verdicts)), 190)
        self._facts.object = self._say()
        self.compare.disabled = state.end is None
        if ended:
            self._show_front()

    def _show_front(self) -> None:
        """Once the search is over, show the front, with the smallest good plan selected."""
        state = self.session.confirmations.state
        end = state.end
        assert end is not None
        self.front.value = front_frame(end.front, [_standing_text(state, row) for row in end.front])
        self.front.height = look.rows_height(len(end.front), 170)
        if end.first is None:
            self._front_words.object = quiet("No plan was written in rules and constraints.")
            return
        self._front_words.object = h(
            "h2", "size against time: what each further rule or constraint buys ", ESTIMATED
        )
        self._pick(end.first)
        self.tabs.active = WRITTEN_TAB

    def _pick(self, front_index: int) -> None:
        state = self.session.confirmations.state
        if state.end is None or state.learned is None or front_index >= len(state.end.front):
            return
        self._picked = front_index
        row = state.end.front[front_index]
        self.front.selection = [front_index]
        name = f"{row.name}, as argument shardings alone" if row.name else "this plan"
        if front_index == state.end.first:
            name = f"{row.name or 'the smallest plan'} within {WRITTEN_MARGIN:.0%} of the best"
        analysis = self.session.loaded.analysis
        summary, *lines = renaming(state.learned.analysis, analysis)(row.text).splitlines()
        self._head.object = join(
            h("h2", f"{name} ", h("span", _standing_text(state, row), cls="tag")), quiet(summary)
        )
        self._words.object = h("pre", "\n".join(lines))

    def _compare(self) -> None:
        end = self.session.confirmations.state.end
        if end is not None and self._picked is not None:
            with self.session.notices.guarded():
                name = self.session.confirmations.take(end.front[self._picked].parts)
                self.session.plans.wanted = name
                self.session.step = "compare"

    def _show_progress(self) -> None:
        status = progress(self.session.confirmations.state, runs=self._is_running)
        if status != self._progress.object:
            self._progress.object = status

    def _say(self) -> Safe:
        """The facts of the search so far."""
        state = self.session.confirmations.state
        if state.problem is None:
            return join(h("h2", "confirmed search"), quiet(HELP))
        judged = f"{len(state.verdicts)} of at most {state.most_compiles}"
        rows: Facts = [
            ("judge", state.judge),
            ("judged", judged),
        ]
        best = None if state.best is None else state.verdicts[state.best]
        if best is not None:
            rows.append(("best by the clock", seconds_text(best.time_s)))
            if not best.elsewhere:
                priced_s = best.priced_s if state.end is None else state.end.cost.time_s
                rows.append(("its price", seconds_text(priced_s)))
                if best.time_s is not None:
                    rows.append(("clock over price", f"{best.time_s / priced_s:.2f}"))
        if state.points:
            rows.append(("best by the price", seconds_text(state.points[-1].best_s)))
        rows.append(("round", f"{max((point.round for point in state.points), default=1)}"))
        rows.append(("on", state.problem.describe()))
        elements = [h("h2", "confirmed search"), facts(rows)]
        if state.end is not None and state.end.quicker_written:
            elements.append(h("p", state.end.quicker_written))
        if best is not None and best.elsewhere:
            elements.append(h("p", best.elsewhere, cls="red"))
        return join(*elements)


def progress(state: ConfirmState, *, runs: bool) -> Safe:
    """The current activity and its time so far, with the standing of the best plan."""
    if state.problem is None:
        return quiet(HELP)
    tag = standing_tag(state)
    if not runs:
        sentence = state.end.sentence if state.end is not None else "The search has ended."
        return h("p", tag, f" {sentence}")
    step = state.step
    if step is None:
        return h("p", tag, " The worker is starting; the first plans will appear in a few seconds.")
    since = f"{max(0.0, time.monotonic() - state.step_since):.0f} s"
    if state.activity and step.stage != "judging":
        activity = state.activity
    elif step.stage == "judging":
        number = f"plan {step.compiles + 1} of at most {step.most_compiles}"
        verb = "executing" if state.judge.startswith("cpu") or state.judge == "gpu" else "compiling"
        priced = f", priced {seconds_text(step.priced_s)}"
        activity = f"{verb} {number} for {state.judge}{priced}"
    else:
        activity = STAGES.get(step.stage, step.stage)
    return h("p", tag, f" Round {step.round}: {activity}, {since}")


def standing_tag(state: ConfirmState) -> Safe:
    """The current standing of the best plan, in a few words."""
    if state.confirmed:
        return h("span", "confirmed", cls="tag measured")
    if state.best is not None:
        return h("span", "judged, not confirmed", cls="tag")
    return h("span", "only priced", cls="tag estimated")


def _standing_text(state: ConfirmState, row: FrontPlan) -> str:
    """The judge's verdict on a plan of the front, in a few words."""
    if row.clock_s is None:
        return "only priced"
    best = None if state.best is None else state.verdicts[state.best]
    is_best = best is not None and best.is_written and best.time_s == row.clock_s
    standing = "confirmed" if state.confirmed and is_best else "judged"
    return f"{standing}, {seconds_text(row.clock_s)}"


def _no_rows(columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame([], columns=list(columns))

"""A race of methods on one problem.

The chart and its table in the centre, settings on the left, the winner on the right.
"""

from __future__ import annotations

from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.checked import CheckedField, number
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.from_search import race_to_compare
from toast_lab.app.session import Session
from toast_lab.jobs.race_job import best_row
from toast_lab.search.methods import METHODS
from toast_lab.views.markup import (
    ESTIMATED,
    Facts,
    Safe,
    bytes_text,
    facts,
    h,
    join,
    quiet,
    seconds_text,
)
from toast_lab.views.race_curves import race_frame

HELP = (
    "One method after the other, each in its own process with the same budget, so that none takes "
    "another's cores. Preparation does not count. A running method cannot be paused, since its "
    "clock would keep running: Hold lets it finish and pauses before the next one."
)
DEFAULT_METHODS = ["mcts", "beam", "random"]


def racing_methods() -> list[str]:
    """Methods that can race: all but those by hand, which take plans as input."""
    return [name for name, cls in METHODS.items() if not cls.by_hand]


class RacePane:
    """The settings and results of a race."""

    def __init__(self, session: Session) -> None:
        self.session = session

        self.methods = pn.widgets.CheckBoxGroup(
            options=racing_methods(), value=DEFAULT_METHODS, **look.FIELD
        )
        look.watch(self.methods, self._checked, "value")
        self.seconds = CheckedField(
            "seconds each",
            "10",
            number(0.5, 86_400, unit=" seconds"),
            on_check=self._checked,
            description="Budget of each method, counted from the start of its own search.",
        )
        self.seed = CheckedField(
            "seed", "0", number(0, 2**63 - 1, whole=True), on_check=self._checked
        )
        self._why_not = look.text(visible=False)
        self.run = look.button("Run the race", self._run, button_type="primary")
        self.hold = look.button(
            "Hold after this",
            session.searches.pause,
            disabled=True,
            description="pause before the next method",
        )
        self.stop = look.button("Stop and keep", session.searches.stop, disabled=True)
        gap = pn.Spacer(width=8)
        self._about = look.text(
            join(quiet(HELP), *[_sentence(method) for method in racing_methods()])
        )
        self.left = look.column(
            look.text(h("h2", "methods that race")),
            self.methods,
            look.row(self.seconds, gap, self.seed),
            self.run,
            self._why_not,
            look.row(self.hold, gap.clone(), self.stop),
            self._about,
        )
        self.kind = look.quantity_switch(self._new_chart)
        self.scale = look.scale_switch(self._new_chart)
        self._pane = look.figure(least_px=200)
        self.table = look.table(race_frame([]), height=190, selectable=False)
        self.centre = look.filled_column(
            pn.Row(self.kind, self.scale, figure_menu("race curves"), margin=0),
            self._pane,
            look.text(h("h2", "the race as a table")),
            self.table,
            stylesheets=[look.SCROLLING],
        )
        self._facts = look.text()
        self.compare = look.button(
            "Compare the plans of the race →", lambda: race_to_compare(session), disabled=True
        )
        self.right = look.column(self._facts, self.compare)
        self._shown: tuple[Any, ...] = ()
        self._new_chart()
        for name, widget in {
            "methods": self.methods,
            "seconds": self.seconds.input,
            "seed": self.seed.input,
            "quantity": self.kind,
            "scale": self.scale,
        }.items():
            session.choices.keep(f"race, {name}", widget)

    def _run(self) -> None:
        self.session.searches.start_race(
            list(self.methods.value or []), float(self.seconds.value), int(self.seed.value)
        )
        self._new_chart()

    @property
    def errors(self) -> list[str]:
        """Errors that prevent a race from starting."""
        errors = [field.error for field in (self.seconds, self.seed) if field.error]
        return errors if self.methods.value else [*errors, "tick at least one method"]

    def _checked(self) -> None:
        if hasattr(self, "_race"):
            self.refresh()

    def _new_chart(self) -> None:
        # Importing HoloViews would delay the first page too much
        from toast_lab.views.race_chart import RaceCurves

        race = self.session.searches.race
        unsharded = race.problem.baseline if race.problem is not None else (1.0, 2.0**30)
        self.curves = RaceCurves(
            race.methods, str(self.kind.value), unsharded, str(self.scale.value)
        )
        self._race, self._shown = race, ()
        self._pane.object = self.curves.figure
        self.refresh()

    def refresh(self) -> None:
        """Update the buttons, the chart, the table and the facts."""
        session, race = self.session, self.session.searches.race
        if race is not self._race:
            self._new_chart()
            return
        racing = session.work.runs("race")
        errors = self.errors
        self.run.disabled = session.work.busy or bool(errors)
        self._why_not.visible = bool(errors)
        self._why_not.object = h("p", f"Not yet: {errors[0]}.", cls="red") if errors else ""
        self.hold.disabled = self.stop.disabled = not racing
        self.hold.name = "Go on" if racing and session.work.paused else "Hold after this"
        self.compare.disabled = race.result is None or not race.result.costs
        shown = (
            race.changes,
            race.result is not None,
            racing,
            session.work.paused,
        )
        if shown == self._shown:
            return
        self._shown = shown
        rows = race.rows
        look.later(
            self.curves.show,
            {method: list(points) for method, points in race.points.items()},
            {row.method: row.elapsed_s for row in rows},
        )
        self.table.value = race_frame(rows)
        self._facts.object = self._words(racing)

    def _words(self, racing: bool) -> Safe:
        session, race = self.session, self.session.searches.race
        if race.problem is None:
            return join(h("h2", "race"), quiet("Choose two or more methods and race them."))
        state = "racing" if racing else "over"
        if racing and session.work.paused:
            waits_between = not race.running or race.running in race.outcomes
            state = "held" if waits_between else f"held after {race.running}"
        ended_text = f"{len(race.outcomes)} of {len(race.methods)} methods done"
        rows: Facts = [
            ("state", f"{state}, {ended_text}"),
            ("on", race.problem.describe()),
        ]
        best = best_row(race.rows)
        elements: list[Any] = [
            h("h2", "race ", ESTIMATED),
            facts(rows),
        ]
        if best is not None:
            time_to_best = f"after {best.own_best_s or 0.0:.2f} s of {best.method}"
            elements += [
                h("h2", "best so far" if racing else "best of all"),
                facts(
                    [
                        ("method", best.method),
                        ("step", seconds_text(best.time_s)),
                        ("peak", bytes_text(best.peak_bytes)),
                        ("found", time_to_best),
                    ]
                ),
            ]
        for method, outcome in race.outcomes.items():
            if outcome.status in ("CRASHED", "FAILED"):
                elements.append(h("p", f"{method}: {outcome.message}", cls="red"))
        return join(*elements)


def _sentence(method: str) -> Safe:
    return quiet(h("b", method), " ", METHODS[method].sentence())

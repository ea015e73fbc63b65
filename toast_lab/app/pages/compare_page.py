"""Step 4: plans side by side, predicted, compiled and executed, and what to do with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.pages.compare_collectives import Collectives
from toast_lab.app.pages.compare_listing import SideBySide
from toast_lab.app.pages.compare_pictures import Breakdown, Picture, Timelines, TimeMemory
from toast_lab.app.pages.compare_tables import Ops
from toast_lab.app.pages.compare_timeline import StepTimeline
from toast_lab.app.pages.compare_words import PlanSide
from toast_lab.app.pending import Pending
from toast_lab.app.plan_store import ANSWERS
from toast_lab.app.saver import ONE_LINE, SMALL, csv_button, heading, saver
from toast_lab.app.session import Session
from toast_lab.compare.kept_runs import kept_runs
from toast_lab.views.compare_table import GROUPS, TITLES, compare_frame, shown_frame
from toast_lab.views.markup import h

WIDTHS = {
    "show": 48,
    "plan": 100,
    "step": 70,
    "peak": 88,
    "fits": 122,
    "size": 72,
    "compiled": 88,
    "compiled ratio": 48,
    "measured": 70,
    "spread": 74,
    "steps": 30,
    "ratio": 48,
    "error": 58,
    "on": 54,
    "collectives": 110,
    "compiled collectives": 110,
}
HELP = (
    "A click selects a plan; a click on ☑ takes it out of the pictures. Size: rules and "
    "constraints of the plan as it is written. AG all_gather, AR all_reduce, RS reduce_scatter, "
    "A2A all_to_all, CP collective_permute. Measured: median ± half the interquartile range of n "
    "steps; × is relative to the estimate."
)
TIME = "Where time goes"
#: what the picture can answer, and the views of an answer that has several
QUESTIONS = (TimeMemory.title, TIME, Timelines.title, SideBySide.title, Collectives.title)
TIME_VIEWS = (Breakdown.title, StepTimeline.title, Ops.title)


class ComparePage:
    """The table of plans above a picture; on the right, the selected plan and what can be done."""

    left = None

    def __init__(self, session: Session) -> None:
        self.session = session
        self._plan_names: list[str] = []
        self._stale = False
        self._kept = Pending()
        self._kept_of: list[PlanItem] = []  #: what runs were last looked up for
        save = saver(session.notices.say)
        self.table = look.table(
            shown_frame([]),
            height=150,
            groups=GROUPS,
            titles=TITLES,
            widths=WIDTHS,
            frozen_columns=["show", "plan"],
        )
        self.table.on_click(lambda event: self._clicked(int(event.row), str(event.column)))
        self._makers: dict[str, Callable[[], Any]] = {
            TimeMemory.title: lambda: TimeMemory(session, save, self.select),
            Breakdown.title: lambda: Breakdown(session, save, self.select),
            StepTimeline.title: lambda: StepTimeline(session, save, self.select),
            Ops.title: lambda: Ops(session, save),
            Timelines.title: lambda: Timelines(session, save, self.select),
            SideBySide.title: lambda: SideBySide(session, save),
            Collectives.title: lambda: Collectives(session, save),
        }
        self.panes: dict[str, Any] = {}  #: by title; made when first looked at
        self._fresh: set[str] = set()  #: panes that are up to date
        self.question = look.switch(
            options=list(QUESTIONS), value=QUESTIONS[0], stylesheets=[look.BUTTON + ONE_LINE]
        )
        self.time_view = look.switch(
            options=list(TIME_VIEWS),
            value=TIME_VIEWS[0],
            margin=(0, 0, 0, 12),
            button_style="outline",
            stylesheets=[look.BUTTON + ONE_LINE],
        )
        session.choices.keep("compare, picture", self.question)
        session.choices.keep("compare, time", self.time_view)
        for switch in (self.question, self.time_view):
            look.watch(switch, self._draw, "value")
        self._picture = look.filled_column(stylesheets=[look.FILL])
        self.centre = look.canvas(
            *self._plan_table(save),
            look.row(self.question, self.time_view, pn.Spacer(), height=34, margin=(6, 0, 0, 0)),
            self._picture,
        )
        self.right = PlanSide(session, save)
        session.param.watch(lambda event: self._changed(event.name), "step")
        names = ["items", "hidden", "kept"]
        session.plans.param.watch(lambda event: self._changed(event.name), names)
        session.loaded.param.watch(lambda event: self._changed(event.name), "problem")
        look.watch(session.selection, self._selected, "names")
        look.watch(session.plans, self._wanted, "wanted")
        self.show_plans()
        self._wanted()

    def _plan_table(self, save: Any) -> list[Any]:
        """The table of plans, below the ways to add some."""
        session = self.session
        small: dict[str, Any] = {
            "height": 26,
            "margin": (2, 0, 2, 4),
            "stylesheets": [look.BUTTON + SMALL],
        }
        parallel = look.button(
            "Add data parallel", session.plans.add_data_parallel, width=112, **small
        )
        usual = look.button("Add usual plans", session.plans.add_usual_plans, width=104, **small)
        self.typed = pn.widgets.TextAreaInput(
            name="actions (colour->axis, ...)",
            placeholder="batch->data, hidden->model",
            rows=1,
            max_length=4000,
            **look.FIELD,
        )
        self.typed_name = pn.widgets.TextInput(
            name="name of that plan",
            placeholder="typed",
            max_length=60,
            width=160,
            margin=(3, 6),
            stylesheets=[look.INPUT],
        )
        add = look.button(
            "Add typed plan",
            self._add_typed,
            width=136,
            margin=(23, 0, 0, 0),
        )
        form = look.row(self.typed, self.typed_name, add)
        typing = look.unfolds("Type a plan", form, width=82, **small)
        session.choices.keep("compare, typing", typing)
        session.choices.keep("compare, actions", self.typed)
        session.choices.keep("compare, name", self.typed_name)
        csv = csv_button(save, lambda: "plans", lambda: compare_frame(session.plans.entries()))
        help_line = look.text(
            h("p", h("b", "Plans"), h("span", f"  {HELP}", cls="quiet"), cls="one", title=HELP),
            margin=(5, 0, 0, 0),
        )
        return [heading(help_line, parallel, usual, typing, csv), form, self.table]

    # -- state -------------------------------------------------------------------------------------
    @property
    def _looked_at(self) -> str:
        return str(self.session.plans.looked_at)

    @_looked_at.setter
    def _looked_at(self, name: str) -> None:
        self.session.plans.looked_at = name

    @property
    def selected(self) -> PlanItem | None:
        """The plan of the selected row."""
        return self.session.plans.named(self._looked_at)

    def select(self, name: str) -> None:
        """Select a plan."""
        if name != self._looked_at and self.session.plans.named(name) is not None:
            self._looked_at = name
            self._mark()
            self.right.show_plan(self.selected)
            for title, pane in self.panes.items():
                if isinstance(pane, Picture):
                    pane.follow(self.selected)
                else:
                    self._fresh.discard(title)
            self._draw()

    def _wanted(self) -> None:
        """Select the plan that another page requested, once."""
        wanted, self.session.plans.wanted = self.session.plans.wanted, ""
        if wanted:
            self.show_plans()
            self.select(wanted)

    def _add_typed(self) -> None:
        self.session.plans.add_typed(
            str(self.typed.value_input or self.typed.value), str(self.typed_name.value or "")
        )

    def _clicked(self, row: int, column: str) -> None:
        plans = self.session.plans.items
        if row >= len(plans):
            return
        if column == "show":
            self.session.plans.toggle(plans[row].name)
            self._mark()
        else:
            self.select(plans[row].name)

    # -- showing -----------------------------------------------------------------------------------
    def _changed(self, changed: str) -> None:
        """Handle a change of the plans or the step; nothing is drawn before the page is shown."""
        self._stale |= changed != "step"
        if self._stale and self.session.step == "compare":
            self.show_plans()

    def show_plans(self) -> None:
        """Update the table, the picture below it and the right side."""
        self._stale = False
        plans = self.session.plans
        names = [item.name for item in plans.items]
        added = [name for name in names if name not in self._plan_names]
        if self._looked_at not in names or (added and self._plan_names):
            self._looked_at = added[-1] if added else names[-1] if names else ""
        self._plan_names = names
        frame = shown_frame(plans.entries())
        if not frame.equals(self.table.value):
            self.table.value = frame
            self.table.height = min(74 + 25 * max(len(names), 1), 180)
        self._mark()
        self._fresh.clear()
        self.right.show_plan(self.selected)
        self._draw()
        self._look_up_runs()

    def _look_up_runs(self) -> None:
        """Find earlier executions of the plans; a thread does, since digests take a while."""
        analysis, items = self.session.loaded.analysis, self.session.plans.items
        # Whatever changes plans, an execution among it, makes a new list of them
        if analysis is not None and items is not self._kept_of:
            self._kept_of, plans = items, {item.name: item.plan for item in items}
            self._kept.start_next(items, lambda: ANSWERS.submit(kept_runs, analysis, plans))

    def _mark(self) -> None:
        names = [item.name for item in self.session.plans.items]
        self.table.selection = [names.index(self._looked_at)] if self._looked_at in names else []

    @property
    def shown(self) -> str:
        """The title of the pane that answers the question."""
        question = str(self.question.value)
        return str(self.time_view.value) if question == TIME else question

    def _draw(self) -> None:
        """Draw the picture, unless it is up to date."""
        self.time_view.visible = self.question.value == TIME
        title = self.shown
        if self.session.loaded.problem is None:
            return
        pane = self.panes.get(title) or self._makers[title]()
        self.panes[title] = pane
        if title not in self._fresh:
            self._fresh.add(title)
            pane.refresh(self.selected)
        for other in self.panes.values():
            other.view.visible = other is pane
        # Appended once drawn: changes made during a first rendering are lost
        if pane.view not in self._picture.objects:
            self._picture.append(pane.view)
        self._selected()

    def _selected(self) -> None:
        pane = self.panes.get(self.shown)
        if pane is not None and self.session.step == "compare" and hasattr(pane, "mark"):
            pane.mark()

    def tick(self) -> None:
        """Process the results of threads; called at each tick of the page."""
        for pane in (*self.panes.values(), self.right):
            if hasattr(pane, "tick"):
                pane.tick()
        if self.session.job is not None:
            self.right.verbs.show_job()
        kept = self._kept.done()
        if kept is not None and kept.subject is self._kept_of:
            with self.session.notices.guarded():
                self.session.plans.kept = kept.future.result()

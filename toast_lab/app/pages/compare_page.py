"""Step 4: plans side by side, predicted, compiled and executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.pages.compare_collectives import Collectives
from toast_lab.app.pages.compare_listing import SideBySide
from toast_lab.app.pages.compare_pictures import Breakdown, Picture, Timelines, TimeMemory
from toast_lab.app.pages.compare_run import RunPane
from toast_lab.app.pages.compare_tables import Ops, Runs
from toast_lab.app.pages.compare_timeline import StepTimeline
from toast_lab.app.pages.compare_words import PlanWords
from toast_lab.app.saver import csv_button, heading, saver
from toast_lab.app.session import Session
from toast_lab.views.compare_table import GROUPS, TITLES, compare_frame, shown_frame
from toast_lab.views.markup import h, quiet

WIDTHS = {
    "show": 48,
    "plan": 100,
    "step": 70,
    "peak": 88,
    "fits": 122,
    "size": 68,
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
    "constraints of the plan as it is written (Words). AG all_gather, AR all_reduce, RS "
    "reduce_scatter, A2A all_to_all, CP collective_permute. Measured: median ± half the "
    "interquartile range of n steps; × is relative to the estimate."
)


class ComparePage:
    """Ways to add plans on the left, table and pictures in the centre, execution on the right."""

    def __init__(self, session: Session) -> None:
        self.session = session

        parallel = look.button("Add data parallel", session.plans.add_data_parallel)
        usual = look.button("Add usual plans", session.plans.add_usual_plans)
        self.typed = pn.widgets.TextAreaInput(
            name="actions (colour->axis, ...)",
            placeholder="batch->data, hidden->model",
            rows=3,
            max_length=4000,
            **look.FIELD,
        )
        self.typed_name = pn.widgets.TextInput(
            name="name of that plan", placeholder="typed", max_length=60, **look.FIELD
        )
        add = look.button("Add typed plan", self._add_typed)
        self.left = look.side(
            look.text(h("h2", "more plans")),
            parallel,
            usual,
            self.typed,
            self.typed_name,
            add,
            look.text(
                quiet("Plans also come from pages 2 and 3: by hand, searches and races."),
                margin=(6, 0),
            ),
            width=216,
        )
        self._plan_names: list[str] = []
        self._stale = False
        save = saver()
        self.table = look.table(
            shown_frame([]),
            height=150,
            groups=GROUPS,
            titles=TITLES,
            widths=WIDTHS,
            frozen_columns=["show", "plan"],
        )
        self.table.on_click(lambda event: self._clicked(int(event.row), str(event.column)))
        self._makers: list[tuple[str, Callable[[], Any]]] = [
            (TimeMemory.title, lambda: TimeMemory(session, save, self.select)),
            (Breakdown.title, lambda: Breakdown(session, save, self.select)),
            (StepTimeline.title, lambda: StepTimeline(session, save, self.select)),
            (Timelines.title, lambda: Timelines(session, save, self.select)),
            (SideBySide.title, lambda: SideBySide(session, save)),
            (Collectives.title, lambda: Collectives(session, save)),
            (Ops.title, lambda: Ops(session, save)),
            (Runs.title, lambda: Runs(session, save)),
            (PlanWords.title, lambda: PlanWords(session, save)),
        ]
        self.panes: dict[int, Any] = {}  #: by tab; created when a tab is first opened
        self._fresh: set[int] = set()  #: tabs whose panes are up to date
        self._bodies = [look.filled_column() for _ in self._makers]
        self.tabs = look.tabs(
            *[(title, body) for (title, _), body in zip(self._makers, self._bodies, strict=True)],
            margin=(4, 0, 0, 0),
            stylesheets=[look.TABS + WIDE],
        )
        session.choices.keep("compare, tab", self.tabs, "active")
        session.choices.keep("compare, actions", self.typed)
        session.choices.keep("compare, name", self.typed_name)
        look.watch(self.tabs, self._draw, "active")
        csv = csv_button(
            save,
            lambda: "plans",
            lambda: compare_frame(session.plans.entries()),
            session.notices.say,
        )
        help_line = look.text(
            h("p", h("b", "Plans"), h("span", f"  {HELP}", cls="quiet"), cls="one", title=HELP),
            margin=(5, 0, 0, 0),
        )
        self.centre = look.canvas(heading(help_line, csv), self.table, self.tabs)
        self.right = RunPane(session, save)
        session.param.watch(lambda event: self._changed(event.name), "step")
        session.plans.param.watch(lambda event: self._changed(event.name), ["items", "hidden"])
        session.loaded.param.watch(lambda event: self._changed(event.name), "problem")
        look.watch(session.selection, self._selected, "names")
        look.watch(session.plans, self._wanted, "wanted")
        self.show_plans()
        self._wanted()

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
            for i, pane in self.panes.items():
                if isinstance(pane, Picture):
                    pane.follow(self.selected)
                elif not isinstance(pane, Runs):
                    self._fresh.discard(i)
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
        """Update the table and the open tab below it."""
        self._stale = False
        names = [item.name for item in self.session.plans.items]
        added = [name for name in names if name not in self._plan_names]
        if self._looked_at not in names or (added and self._plan_names):
            self._looked_at = added[-1] if added else names[-1] if names else ""
        self._plan_names = names
        frame = shown_frame(self.session.plans.entries())
        if not frame.equals(self.table.value):
            self.table.value = frame
            self.table.height = min(80 + 25 * max(len(names), 1), 180)
        self._mark()
        self._forget()

    def _mark(self) -> None:
        names = [item.name for item in self.session.plans.items]
        self.table.selection = [names.index(self._looked_at)] if self._looked_at in names else []

    def _forget(self) -> None:
        """Mark the panes below the table as out of date; redraw the open one and the right side."""
        self._fresh.clear()
        self.right.show_plan(self.selected)
        self._draw()

    def _draw(self) -> None:
        """Draw the open tab, unless it is up to date."""
        i = self.tabs.active
        if i in self._fresh or self.session.loaded.problem is None:
            return
        self._fresh.add(i)
        is_new = i not in self.panes
        if is_new:
            self.panes[i] = self._makers[i][1]()
        self.panes[i].refresh(self.selected)
        self._selected()
        if is_new:  # appended once drawn: changes made during a first rendering are lost
            self._bodies[i].append(self.panes[i].view)

    def _selected(self) -> None:
        pane = self.panes.get(self.tabs.active)
        if pane is not None and self.session.step == "compare" and hasattr(pane, "mark"):
            pane.mark()

    def tick(self) -> None:
        """Process the results of threads; called at each tick of the page."""
        for pane in self.panes.values():
            if hasattr(pane, "tick"):
                pane.tick()
        if self.session.job is not None:
            self.right.show_job()


WIDE = ":host { flex: 1 1 0 !important; min-height: 0 !important; }"

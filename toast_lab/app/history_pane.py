"""The plan by hand in words: its price beside those of other plans, its actions and branches."""

from __future__ import annotations

from typing import Any

import panel as pn
import param

from toast_lab.app import assets, look
from toast_lab.app.session import Session
from toast_lab.explain.plan_by_hand import PlanAfterAction, collective_changes
from toast_lab.views.by_hand_tables import costs_rows, sent_text, taken_frame
from toast_lab.views.markup import ESTIMATED, Safe, h, join, quiet

NO_KEPT_PLAN = "(choose a kept plan)"


class HistoryPane(look.Pane):
    """Costs on the left, the actions as a table on the right, the kept plans below."""

    at = param.Integer(default=0, doc="number of the action that is selected, 0 for the start")

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._quiet = False
        self._followed: tuple[str, ...] | None = None
        field_options: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "margin": (2, 6, 2, 0),
            "stylesheets": [look.INPUT],
        }
        self.costs = look.text(stylesheets=[look.TEXT + COSTS])
        self.table = look.table(
            taken_frame(()),
            height=138,
            layout="fit_data_table",
            widths={"#": 24, "action": 106, "step": 76, "collectives": 88},
            wraps=True,  # a number that is cut off would read as another number
        )
        # Not by its selection: that does not change at a click on a row that the browser still
        # shows as selected, before another list has reached it
        look.on_row(self.table, self.pick)
        self._detail = look.text()
        self.kept_name = pn.widgets.TextInput(
            placeholder="its name", max_length=60, **field_options
        )
        self.branch = look.button("Keep a copy", self._branch, margin=(2, 6, 2, 0))
        self.other = pn.widgets.Select(options=[NO_KEPT_PLAN], **field_options)
        look.watch_value(self.other, self._go_on)
        compare = look.button(
            "Compare with other plans →", lambda: setattr(session, "step", "compare")
        )
        taken = look.column(
            look.text(h("h2", "actions taken")),
            self.table,
            self._detail,
            compare,
            margin=(0, 0, 0, 12),
        )
        self.view = look.filled_column(
            look.row(self.costs, taken),
            look.row(self.kept_name, self.branch, self.other),
            scroll=True,
        )

    def refresh(self) -> None:
        """Show the plan by hand as it is now."""
        session = self.session
        if session.loaded.problem is None:
            return
        steps = session.hand.plans_after_actions()
        actions = session.hand.actions
        if actions != self._followed:  # another list: select its last action
            self._followed, self.at = actions, len(actions)
        self.costs.object = self._cost_words(steps)
        frame = taken_frame(steps)
        if not frame.equals(self.table.value):
            self.table.value = frame
        self.table.selection = [self.at]
        self.branch.disabled = not actions
        names = [item.name for item in session.hand.branches()]
        self._quiet = True
        self.other.param.update(options=[NO_KEPT_PLAN, *names], value=NO_KEPT_PLAN)
        self._quiet = False
        self.show_selected()

    def show_selected(self) -> None:
        """Show what the selected action did, and what branching there means."""
        hand = self.session.hand
        steps, action_count = hand.plans_after_actions(), len(hand.actions)
        if self.at == 0:
            sentence: Any = (
                "The unsharded program."
                if action_count
                else "Nothing yet. Select a colour or a conflict, and shard it on the right."
            )
        else:
            sent = collective_changes(steps[self.at - 1].sent, steps[self.at].sent)
            sentence = join(h("code", steps[self.at].action), ": ", sent_text(sent.items()))
        self._detail.object = quiet(
            sentence, style="max-height: 58px; overflow: auto; margin: 4px 0"
        )
        go_on = f"go on from {self.at}"
        self.branch.name = "Keep a copy" if self.at == action_count else f"Keep, {go_on}"

    def pair(self) -> tuple[PlanAfterAction, PlanAfterAction] | None:
        """The plan before and after the selected action."""
        steps = self.session.hand.plans_after_actions()
        return (steps[max(self.at - 1, 0)], steps[self.at]) if self.at < len(steps) else None

    def _cost_words(self, steps: tuple[PlanAfterAction, ...]) -> Safe:
        best = self.session.hand.best_searched()
        rows = costs_rows(steps[-1], steps[0], None if best is None else best.cost)
        headings = ["", "by hand", "unsharded", "best found"]
        table_rows = [
            h("tr", h("th", name), *[h("td", cell or "–") for cell in cells])
            for name, *cells in rows
        ]
        note = (
            ""
            if best is not None
            else h("p", "No search has been run on this mesh yet.", cls="quiet one")
        )
        title = h("h2", "plan by hand ", ESTIMATED)
        table = h(
            "table", h("tr", *[h("th", heading) for heading in headings]), *table_rows, cls="costs"
        )
        return join(title, table, note)

    def pick(self, row: int) -> None:
        """Select an action by the number of its row."""
        if row < len(self.table.value):
            self.at = row
            self.table.selection = [row]
            self.show_selected()

    def _branch(self) -> None:
        action_count = len(self.session.hand.actions)
        self.session.hand.branch(
            str(self.kept_name.value_input or self.kept_name.value or ""),
            None if self.at == action_count else self.at,
        )
        self.kept_name.value = ""

    def _go_on(self, name: str) -> None:
        if not self._quiet and name and name != NO_KEPT_PLAN:
            self.session.hand.go_on_from(name)


COSTS = assets.sheet("costs")

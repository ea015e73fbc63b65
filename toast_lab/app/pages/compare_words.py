"""The right side of the page Use: the selected plan in words, and what can be done with it."""

from __future__ import annotations

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.pages.compare_run import Verbs, outcome_words
from toast_lab.app.plan_facts import Lookup, ranked
from toast_lab.app.plan_pane import PlanPane
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import line_text
from toast_lab.views.markup import Safe, h, quiet
from toast_lab.written.choices import Choices, saves
from toast_lab.written.screen import spec_code
from toast_lab.written.written_plan import WrittenPlan


class PlanSide(look.Pane):
    """What can be done with the plan, its panel, its rules and constraints, and what was found.

    Rules and constraints are there once somebody has asked for them.
    """

    def __init__(self, session: Session, save: Saver) -> None:
        super().__init__()
        self._session = session
        self._item: PlanItem | None = None
        self._choices = Lookup(ranked)
        #: the plan whose choices are still to be shown
        self._ranked: ShardingPlan | WrittenPlan | None = None
        self._head = look.text()
        self.verbs = Verbs(session, save)
        self.panel = PlanPane()
        self.size = look.text()
        self.text = look.text(margin=(4, 2))
        self.write = look.button("Find its rules and constraints", self._write)
        csv = csv_button(
            save, lambda: f"rules of {self._item.name}" if self._item else "rules", self._raw
        )
        self._outcome = look.text()
        self.remove = look.button("Remove it from the table", self._remove)
        self.view = look.side(
            self._head,
            self.verbs,
            self.panel,
            heading(self.size, csv),
            self.write,
            self.text,
            self._outcome,
            self.remove,
            width=340,
        )
        look.watch(session.exports, self._show_job, "changes")
        self.show_plan(None)

    def _write(self) -> None:
        if self._item is not None:
            self._session.plans.start_writing(self._item.name)

    def _remove(self) -> None:
        if self._item is not None:
            self._session.remove_plan(self._item.name)

    def _show_job(self) -> None:
        self.write.disabled = self._session.exports.busy

    def _raw(self) -> object:
        import pandas as pd

        item, rows = self._item, list[tuple[str, str, str, str]]()
        written = None if item is None else self._session.plans.written(item)
        if written is not None:
            rows = [
                ("rule", rule.words, rule.pattern, spec_code(rule.spec)) for rule in written.rules
            ]
            rows += [
                ("constraint", site.where, site.target, spec_code(spec))
                for site, spec in written.constraints
            ]
        columns = ["what", "role or line", "pattern or variable", "spec"]
        return pd.DataFrame(rows, columns=columns)

    def show_plan(self, item: PlanItem | None) -> None:
        """Show a plan; with None, ask for one."""
        self._item = item
        self.verbs.show_plan(item)
        self.panel.show_plan(item, self._session.plans.items)
        self.remove.disabled = item is None or item.name == "unsharded"
        if item is None:
            self._head.object = quiet("Select a plan.")
            self._outcome.object = self.size.object = self.text.object = ""
            self.write.visible = False
            return
        self._head.object = h("h2", item.name)
        self._outcome.object = outcome_words(item, self._session.plans.kept.get(item.name, ()))
        written = self._session.plans.written(item)
        size = "not written yet" if written is None else str(written.size)
        self.size.object = h("p", h("b", "Rules and constraints: "), size, cls="one")
        self.write.visible = written is None
        self._show_job()
        self.text.object = ""
        self._ranked = item.plan if written is None else written
        self.tick()

    def tick(self) -> None:
        """Take the panel, and the choices with what each saves, once they are worked out."""
        self.panel.tick()
        if self._item is None or self._ranked is None:
            return
        rows = self._choices.get(self._ranked, self._item.problem)
        if rows is not None:
            self.text.object = quiet(rows) if isinstance(rows, str) else _choice_list(rows)
            self._ranked = None


def _choice_list(rows: Choices) -> Safe:
    """Rules and constraints, or actions and sides, each with what it saves."""
    lines = [
        h(
            "li",
            h("code", row.text),
            h("span", f" {line_text(row.where)}" if row.where else "", cls="quiet"),
            h("div", saves(row), cls="quiet"),
        )
        for row in rows
    ]
    return h("ul", *lines, cls="log") if lines else quiet("It has no choices: nothing is cut.")

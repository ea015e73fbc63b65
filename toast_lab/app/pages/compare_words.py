"""The selected plan in the words of the model: what is split, where, along which axis."""

from __future__ import annotations

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.sharding.plan_rules import argument_rules, constraint_places
from toast_lab.sharding.plan_text import describe
from toast_lab.views.markup import h, one_line


class PlanWords:
    """The rules and constraints that a person would have to write to get this plan."""

    title = "Words"

    def __init__(self, session: Session, save: Saver) -> None:
        self._item: PlanItem | None = None
        self._words = look.text(margin=(5, 0, 0, 2))
        self.text = look.text(margin=(4, 2))
        csv = csv_button(
            save,
            lambda: f"rules of {self._item.name}" if self._item else "rules",
            self._raw,
            session.notices.say,
        )
        self.view = look.filled_column(
            heading(self._words, csv), look.filled_column(self.text, scroll=True)
        )

    def _raw(self) -> object:
        import pandas as pd

        columns = ["what", "role or line", "values", "exception"]
        if self._item is None:
            return pd.DataFrame([], columns=columns)
        program, sharding = self._item.plan.program, self._item.plan.sharding
        names = program.value_name
        rows = [
            ("argument", rule.role, ", ".join(names[i] for i in rule.arguments), rule.exception)
            for rule in argument_rules(program, sharding)
        ]
        rows += [
            ("place", place.line, ", ".join(names[i] for i in place.values), place.exception)
            for place in constraint_places(program, sharding)
        ]
        return pd.DataFrame(rows, columns=columns)

    def refresh(self, item: PlanItem | None) -> None:
        """Describe the selected plan."""
        self._item = item
        if item is None:
            return
        summary, *lines = describe(item.plan).splitlines()
        self._words.object = one_line(f"{item.name}: {summary}")
        self.text.object = h("pre", "\n".join(lines) or "No rules or constraints are needed.")

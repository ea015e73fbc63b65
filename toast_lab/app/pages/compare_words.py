"""The selected plan in words: its panel, and its rules and constraints."""

from __future__ import annotations

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.plan_facts import Lookup, ranked
from toast_lab.app.plan_pane import PlanPane
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.markup import h, one_line
from toast_lab.written.screen import spec_code
from toast_lab.written.written_plan import WrittenPlan


class PlanWords:
    """The plan's panel and, once they are found, the rules and constraints that write it."""

    title = "Words"

    def __init__(self, session: Session, save: Saver) -> None:
        self._session = session
        self._item: PlanItem | None = None
        self._choices = Lookup(ranked)
        #: the plan whose choices are still to be shown
        self._ranked: ShardingPlan | WrittenPlan | None = None
        self._words = look.text(margin=(5, 0, 0, 2))
        self.panel = PlanPane()
        self.text = look.text(margin=(4, 2))
        self.write = look.button(
            "Find its rules and constraints", self._write, button_type="primary"
        )
        csv = csv_button(
            save,
            lambda: f"rules of {self._item.name}" if self._item else "rules",
            self._raw,
            session.notices.say,
        )
        self.view = look.filled_column(
            heading(self._words, csv),
            look.filled_column(self.panel, self.write, self.text, scroll=True),
        )
        look.watch(session.exports, self._show_job, "changes")

    def _write(self) -> None:
        if self._item is not None:
            self._session.plans.start_writing(self._item.name)

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
                ("constraint", site.where, site.name or "return", spec_code(spec))
                for site, spec in written.constraints
            ]
        columns = ["what", "role or line", "pattern or variable", "spec"]
        return pd.DataFrame(rows, columns=columns)

    def refresh(self, item: PlanItem | None) -> None:
        """Show the selected plan."""
        self._item = item
        self.panel.show_plan(item, self._session.plans.items)
        if item is None:
            return
        written = self._session.plans.written(item)
        summary, *lines = ["not written yet"] if written is None else str(written).splitlines()
        self._words.object = one_line(f"{item.name}: {summary}")
        self._text = "\n".join(lines) or ("" if written is None else "Nothing has to be written.")
        self.write.visible = written is None
        self._show_job()
        self.text.object = h("pre", self._text)
        self._ranked = item.plan if written is None else written
        self.tick()

    def tick(self) -> None:
        """Take the panel, and what each choice saves below the plan, once they are worked out."""
        self.panel.tick()
        if self._item is None or self._ranked is None:
            return
        rows = self._choices.get(self._ranked, self._item.problem)
        if rows is not None:
            self.text.object = h("pre", f"{self._text}\n\n{rows}".lstrip())
            self._ranked = None

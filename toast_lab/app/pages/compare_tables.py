"""The ops of the selected plan, with what each takes."""

from __future__ import annotations

from typing import Any

from toast_lab.app import look
from toast_lab.app.items import NO_COST, PlanItem
from toast_lab.app.saver import SMALL, Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.explain.acting_rules import OpRules
from toast_lab.text import line_text
from toast_lab.views.markup import one_line, seconds_text
from toast_lab.views.plan_tables import MAX_OPS, ops_frame, shown_effects, shown_ops

RULES_HEIGHT = 103


class Ops:
    """Every op and collective of the selected plan, with its share of the step time.

    Below them, if somebody asks, the rules of the price that act on the selected op.
    """

    title = "Ops"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session = session
        self._item: PlanItem | None = None
        self._op: int | None = None  #: the op whose names alone are selected
        self._words = look.text(margin=(5, 0, 0, 2))
        self.table = look.table(
            shown_ops(ops_frame(NO_COST)).frame,
            min_height=120,
            configuration={"columnDefaults": {"headerSort": True, "minWidth": 60}},
        )
        self.table.formatters = {
            column: {"type": "plaintext"} for column in ("op", "value", "line", "price")
        }
        look.on_row(self.table, self._pick)
        csv = csv_button(
            save, lambda: f"ops of {self._item.name}" if self._item else "ops", self._raw
        )
        self._ask = look.button(
            "Which rules set its price?",
            self._ask_for_rules,
            width=160,
            height=26,
            margin=(2, 4),
            description="select an op, then see its price without each rule",
            stylesheets=[look.BUTTON + SMALL],
        )
        self._rules_words = look.text(margin=(5, 0, 0, 2))
        self.rules = look.table(
            shown_effects((), 0.0),
            height=RULES_HEIGHT,
            selectable=False,
            widths={"what it says": 560},
        )
        self._answer = look.column(
            heading(self._rules_words), self.rules, sizing_mode="stretch_width"
        )
        look.watch(session.questions, self._show_rules, "rules")
        look.watch(session.selection, self._show_rules, "names")
        look.watch(session.work, self._show_busy, "changes")
        self.view = look.filled_column(
            heading(self._words, self._ask, csv), self.table, self._answer
        )
        self._show_rules()

    def _raw(self) -> Any:
        return ops_frame(self._item.cost if self._item is not None else NO_COST)

    def refresh(self, item: PlanItem | None) -> None:
        """Show the ops of a plan."""
        self._item = item
        self._show_rules()
        if item is None:
            return
        frame = self._frame = ops_frame(item.cost)
        more = f", the {MAX_OPS:,} longest are shown" if len(frame) > MAX_OPS else ""
        summary = (
            f"{item.name}, estimated: {len(frame):,} ops and collectives that take time{more}. "
            "Headings sort."
        )
        self._words.object = one_line(summary)
        shown = shown_ops(frame)
        self.table.param.update(titles=shown.titles, value=shown.frame)
        self._mark_selected()

    def _mark_selected(self) -> None:
        """Mark a row of the selected op, also on a page that was loaded anew."""
        ops, op = self._frame["op"].head(MAX_OPS).tolist(), self._op
        if not any(ops[row] == op for row in self.table.selection if row < len(ops)):
            self.table.selection = [ops.index(op)] if op in ops else []

    def _pick(self, row: int) -> None:
        if self._item is not None and row < len(self._frame):
            self.session.selection.select_op(int(self._frame["op"][row]))

    def _selected_op(self) -> int | None:
        """The op whose names alone are selected."""
        selected = self.session.selection.ops if self._item is not None else []
        # Arguments have names, too, and no price
        is_op = len(selected) == 1 and selected[0] in self.session.loaded.analysis.program.ops()
        return selected[0] if is_op else None

    def _ask_for_rules(self) -> None:
        if self._item is not None and self._op is not None:
            self.session.questions.ask_for_rules(self._item)

    def _rules_so_far(self) -> OpRules | None:
        if self._item is None or self._op is None:
            return None
        return self.session.questions.rules_of(self._item, self._op)

    def _show_busy(self) -> None:
        """Offer the question while no job runs, until it is answered."""
        is_answered = self._rules_so_far() is not None
        self._ask.disabled = self._op is None or is_answered or self.session.work.busy

    def _show_rules(self) -> None:
        """Show which rules act on the selected op, once it was asked."""
        self._op = self._selected_op()
        self._show_busy()
        rules = self._rules_so_far()
        self._answer.visible = rules is not None
        if rules is not None:
            words = (
                f"{rules.kind} of {line_text(rules.where)}, op {rules.op}: "
                f"{seconds_text(rules.time_s)} with what is moved for it"
            )
            self._rules_words.object = one_line(
                f"{words}. Without one rule:" if rules.effects else f"{words}; no rule changes it."
            )
            self.rules.value = shown_effects(rules.effects, rules.time_s)
            self.rules.visible = bool(rules.effects)

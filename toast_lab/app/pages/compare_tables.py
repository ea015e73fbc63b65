"""The ops of the selected plan, with what each takes."""

from __future__ import annotations

from typing import Any

from toast_lab.app import look
from toast_lab.app.items import NO_COST, PlanItem
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.views.markup import one_line
from toast_lab.views.plan_tables import MAX_OPS, ops_frame, shown_ops


class Ops:
    """Every op and collective of the selected plan, with its share of the step time."""

    title = "Ops"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session = session
        self._item: PlanItem | None = None
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
        self.view = look.filled_column(heading(self._words, csv), self.table)

    def _raw(self) -> Any:
        return ops_frame(self._item.cost if self._item is not None else NO_COST)

    def refresh(self, item: PlanItem | None) -> None:
        """Show the ops of a plan."""
        self._item = item
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

    def _pick(self, row: int) -> None:
        if self._item is not None and row < len(self._frame):
            self.session.selection.select_op(int(self._frame["op"][row]))

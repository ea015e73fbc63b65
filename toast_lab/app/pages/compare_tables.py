"""Two tables: every op of the selected plan, and the executions that the store has kept."""

from __future__ import annotations

from typing import Any

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.compare.comparison_store import COLUMNS, ComparisonStore
from toast_lab.compare.result import UNSHARDED
from toast_lab.errors import ToastError
from toast_lab.views.compare_table import bytes_text, seconds_text, spread_text
from toast_lab.views.markup import h, one_line
from toast_lab.views.plan_tables import MAX_OPS, ops_frame, shown_ops

MAX_RUNS = 200


class Ops:
    """Every op and collective of the selected plan, with its share of the step time."""

    title = "Ops"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session = session
        self._item: PlanItem | None = None
        self._words = look.text(margin=(5, 0, 0, 2))
        self.table = look.table(
            shown_ops(ops_frame(_EmptyTables)).frame,
            min_height=120,
            configuration={"columnDefaults": {"headerSort": True, "minWidth": 60}},
        )
        self.table.formatters = {
            column: {"type": "plaintext"} for column in ("op", "value", "line", "price")
        }
        look.on_row(self.table, self._pick)
        csv = csv_button(
            save,
            lambda: f"ops of {self._item.name}" if self._item else "ops",
            self._raw,
            session.notices.say,
        )
        self.view = look.filled_column(heading(self._words, csv), self.table)

    def _raw(self) -> Any:
        return ops_frame(self._item.cost if self._item is not None else _EmptyTables)

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


class _EmptyTables:
    time_s, ops, collectives = 1.0, (), ()


class Runs:
    """The store's executions of this model, also those of earlier days and the command line."""

    title = "Runs"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session = session
        self._stored: list[dict[str, Any]] = []
        self._words = look.text(margin=(5, 0, 0, 2))
        self.table = look.table(_runs([]), selectable=False, min_height=120)
        csv = csv_button(save, lambda: "kept runs", self._raw, session.notices.say)
        self.view = look.filled_column(heading(self._words, csv), self.table)

    def _raw(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self._stored, columns=list(COLUMNS))

    def refresh(self, _: PlanItem | None) -> None:
        """Read the store and show its rows."""
        summary = "No plan has been executed yet. Executions are kept permanently."
        self._stored = []
        try:
            if ComparisonStore.default_path().exists() and self.session.loaded.model is not None:
                with ComparisonStore(read_only=True) as store:
                    self._stored = store.rows(self.session.loaded.model.name, MAX_RUNS)
        except ToastError as error:
            summary = str(error)
        if self._stored:
            summary = (
                f"The last {len(self._stored)} kept rows of {self.session.loaded.model.name}, the "
                "newest first."
            )
        self._words.object = h(
            "p",
            summary,
            cls="quiet one",
            title=f"{summary} {ComparisonStore.default_path()}",
        )
        self.table.value = _runs(self._stored)


def _run_name(row: dict[str, Any]) -> str:
    """The name of the plan of a row; it says on how many devices the unsharded program ran."""
    if row["name"] == UNSHARDED:
        return "unsharded, on one device"
    count = int(row["n_devices"] or 1)
    if row["name"] == "unsharded" and count > 1:
        return f"unsharded, whole on each of {count} devices"
    return str(row["name"])


def _runs(rows: list[dict[str, Any]]) -> Any:
    import pandas as pd

    def agrees(row: dict[str, Any]) -> str:
        return (
            "–"
            if row["passed"] is None
            else (f"{'yes' if row['passed'] else 'NO'}, {row['max_relative_error'] or 0:.1e}")
        )

    return pd.DataFrame(
        [
            (
                row["id"],
                row["time_utc"][:19].replace("T", " "),
                _run_name(row),
                row["status"],
                seconds_text(row["median_s"]),
                spread_text(row["spread_s"]),
                bytes_text(row["peak_bytes"]),
                agrees(row),
                row["mesh"] or "–",
                row["devices"],
                row["device_kind"],
            )
            for row in rows
        ],
        columns=[
            "row",
            "time (UTC)",
            "plan",
            "status",
            "step",
            "spread",
            "compiled peak",
            "agrees",
            "mesh",
            "on",
            "device",
        ],
    )

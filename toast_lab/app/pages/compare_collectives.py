"""Collectives of the selected plan.

Priced and compiled ones side by side, in sums by kind and axes and one by one, with the reason for
each.
"""

from __future__ import annotations

from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import NO_COST, PlanItem
from toast_lab.app.pending import Pending
from toast_lab.app.plan_store import ANSWERS
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.explain.why import Change, CollectiveReason
from toast_lab.runtime.diff import diff_compiled
from toast_lab.views.markup import (
    ESTIMATED,
    Facts,
    Safe,
    bytes_text,
    facts,
    h,
    join,
    one_line,
    quiet,
    seconds_text,
)
from toast_lab.views.plan_tables import (
    SUM_GROUPS,
    SUM_TITLES,
    collective_rows,
    collective_sums,
    shown_collectives,
    shown_sums,
)

MAX_ROWS = 400
ALL_ROWS = {"renderVertical": "basic"}
HINT = (
    "Select a collective, or a kind for its longest one, to see what caused it, what undoing that "
    "costs, and the cheapest change that removes it."
)


class Collectives:
    """Two tables of collectives, and the answer to why the selected one is there."""

    title = "Collectives"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session = session
        self._item: PlanItem | None = None
        self._rows = collective_rows(NO_COST, None)
        self._pending_match, self._asked = Pending(), Pending()
        self._words = look.text(margin=(5, 0, 0, 2))
        self.sums = look.table(
            shown_sums(collective_sums(self._rows, False)),
            height=112,
            selectable=False,
            groups=SUM_GROUPS,
            titles=SUM_TITLES,
        )
        self.table = look.table(
            shown_collectives(self._rows),
            min_height=90,
            configuration=ALL_ROWS,
            titles={"its bytes": "bytes"},
            groups={
                "estimated": ["collective", "axes", "time", "line", "bytes", "value"],
                "compiled": ["compiled", "its bytes", "status", "why they differ"],
            },
        )
        look.on_row(self.table, self.ask)
        look.on_row(self.sums, self.ask_of_kind)
        self.answer = look.text(quiet(HINT), margin=(0, 6))
        sums_button = csv_button(save, lambda: self._file("sums"), self._sums)
        rows_button = csv_button(save, lambda: self._file("collectives"), lambda: self._rows)
        answer_column = pn.Column(
            self.answer,
            width=300,  # leaves the tables room for bytes at 1280 px
            sizing_mode="stretch_height",
            scroll=True,
            margin=(4, 0, 0, 6),
            stylesheets=[":host { border-left: 1px solid var(--tl-line, #dfe5ec); }"],
        )
        tables = look.filled_column(
            heading(self._words, sums_button),
            self.sums,
            heading(
                look.text(quiet("One by one, the longest first"), margin=(5, 0, 0, 2)), rows_button
            ),
            self.table,
        )
        self.view = look.filled_row(tables, answer_column)

    def _file(self, table: str) -> str:
        return f"{table} of {self._item.name}" if self._item is not None else table

    def _sums(self) -> Any:
        is_compiled = self._item is not None and self._item.compiler_result is not None
        return collective_sums(self._rows, is_compiled)

    def refresh(self, item: PlanItem | None) -> None:
        """Show the collectives of a plan; a thread matches them with the compiled ones."""
        previous_item, self._item = self._item, item
        if item is None:
            return
        if (
            previous_item is None
            or (previous_item.name, previous_item.plan.key) != (item.name, item.plan.key)
            or previous_item.problem.analysis is not item.problem.analysis
        ):
            self._asked.drop()
            self.answer.object = quiet(HINT)
        self._pending_match.drop()
        if item.compiler_result is None:
            summary = (
                f"{item.name}: estimated only. Compile or execute the plan to see what a compiler "
                "makes of it."
            )
            self._show(collective_rows(item.cost, None), summary)
            return
        self._words.object = h("p", "Matching priced and compiled collectives …", cls="quiet one")
        self._pending_match.start(
            item, ANSWERS.submit(diff_compiled, item.problem, item.plan, item.compiler_result)
        )

    def tick(self) -> None:
        """Process the results of threads; called at each tick of the page."""
        matched, item = self._pending_match.done(), self._item
        if matched is not None and item is not None and matched.subject is item:
            with self.session.notices.guarded():
                where = (
                    getattr(item.compiler_result, "topology", "") or item.compiler_result.devices
                )
                matching = matched.future.result()
                count = len(matching.different)
                summary = (
                    f"{item.name}, compiled for {where}: {count} of {len(matching.rows)} differ "
                    "from the estimate"
                )
                summary += f", {len(matching.unexplained)} for no known reason." if count else "."
                if matching.machines:
                    summary += f" The estimate is for another machine: {matching.machines}."
                self._show(collective_rows(item.cost, matching.tidy()), summary)
        answered = self._asked.done()
        if answered is not None:
            with self.session.notices.guarded():
                self.answer.object = join(*(_reason(reason) for reason in answered.future.result()))

    def _show(self, rows: Any, summary: str) -> None:
        # The costliest come first; those that only the compiler has come last
        rows = rows.sort_values("predicted_s", ascending=False, kind="stable", ignore_index=True)
        self._rows = rows
        if len(rows) > MAX_ROWS:
            summary += f" The longest {MAX_ROWS:,} of {len(rows):,} are shown."
        self._words.object = one_line(summary)
        self.sums.value = shown_sums(self._sums())
        self.table.selection = []
        self.table.value = shown_collectives(rows.head(MAX_ROWS))

    def ask(self, row: int) -> None:
        """Ask why the collective of a row is there, and select its op on all pages."""
        if self._item is None or row >= len(self._rows):
            return
        row_shown = self._rows.iloc[row]
        self.table.selection = [row]
        if int(row_shown["op"]) >= 0:
            self.session.selection.select_op(int(row_shown["op"]))

        if int(row_shown["number"]) < 0:
            reason = row_shown["reason"] or "no reason is known"
            self.answer.object = join(
                h("h2", "not priced"),
                h("p", f"The compiler added this {row_shown['kind']}: {reason}."),
            )
            return
        future = self.session.plans.ask_why(self._item.name, int(row_shown["number"]))
        if future is not None:
            self.answer.object = quiet("Looking for the cause …")
            self._asked.start(self._item, future)

    def ask_of_kind(self, row: int) -> None:
        """Ask why the longest collective of a row's kind and axes is there."""
        sums = self._sums()
        if row >= len(sums):
            return
        sum_row = sums.iloc[row]
        for kind, axes in (("kind", "axes"), ("compiled_kind", "compiled_axes")):
            is_match = (self._rows[kind] == sum_row["kind"]) & (self._rows[axes] == sum_row["axes"])
            if is_match.any():
                self.ask(int(is_match.to_numpy().argmax()))
                return


def _change(change: Change) -> Safe:
    sign = "+" if change.more_time_s >= 0 else "−"
    memory = "+" if change.more_peak_bytes >= 0 else "−"
    prices = (
        f"{sign}{seconds_text(abs(change.more_time_s))} a step, "
        f"{memory}{bytes_text(abs(change.more_peak_bytes))}"
    )
    remains = "" if change.removes else ", but the collective stays"
    return h(
        "li",
        h("b", change.text),
        f": {prices}{'' if change.fits else ', does not fit'}{remains}",
    )


def _reason(reason: CollectiveReason) -> Safe:
    collective = reason.collective
    rows: Facts = [
        ("at", f"{reason.op_kind}, {reason.place}"),
        ("because", reason.because),
        ("from", ", ".join(reason.causes) or "no action: the op cannot be split"),
    ]
    if reason.conflict:
        rows.append(("conflict", reason.conflict))
    elements: list[Any] = [
        h("h2", "why"),
        h(
            "p",
            h("b", f"{collective.kind} {{{','.join(collective.axes)}}}"),
            f" of {collective.value}, {bytes_text(collective.local_bytes)}, "
            f"{seconds_text(collective.time_s)} by {collective.source} ",
            ESTIMATED,
        ),
        facts(rows),
    ]
    if reason.undoing:
        elements += [
            h("h2", "undoing the cause"),
            h("ul", *[_change(change) for change in reason.undoing], cls="log"),
        ]
    elements.append(h("h2", "cheapest change that removes it"))
    elements.append(
        h("ul", _change(reason.cheapest), cls="log")
        if reason.cheapest
        else quiet("No change that was tried removes it.")
    )
    return join(*elements)

"""Collectives of the selected plan.

Priced beside compiled, by kind and axes and one by one, and why each is there.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.markup import Safe, bytes_text, facts, h, join, seconds_text
from toast_lab.app.running import ANSWERS
from toast_lab.app.saver import Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.explain.why import Change, Reason
from toast_lab.runtime.diff import diff_compiled
from toast_lab.views.plan_tables import (
    SUM_GROUPS,
    SUM_TITLES,
    collective_rows,
    collective_sums,
    shown_collectives,
    shown_sums,
)

MAX_ROWS = 400
ALL_ROWS = {"columnDefaults": {"headerSort": False, "minWidth": 20}, "renderVertical": "basic"}
HINT = (
    "Select a collective: what caused it, what undoing that costs, and the cheapest change "
    "that removes it."
)


class Collectives:
    """Two tables and the answer to "why"."""

    title = "Collectives"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session = session
        self._item: PlanItem | None = None
        self._rows = collective_rows(_Empty, None)
        self._matching: tuple[PlanItem, Future[Any]] | None = None
        self._asked: tuple[str, int, Future[list[Reason]]] | None = None
        self._words = look.text(margin=(5, 0, 0, 2))
        self.sums = look.table(
            shown_sums(collective_sums(self._rows, False)),
            height=112,
            sizing_mode="stretch_width",
            selectable=False,
            groups=SUM_GROUPS,
            titles=SUM_TITLES,
        )
        self.table = look.table(
            shown_collectives(self._rows),
            sizing_mode="stretch_both",
            min_height=90,
            configuration=ALL_ROWS,
            titles={"its bytes": "bytes"},
            groups={
                "estimated": ["collective", "axes", "value", "line", "bytes", "time"],
                "compiled": ["compiled", "its bytes", "status", "why they differ"],
            },
        )
        self.table.on_click(lambda e: self.ask(int(e.row)))
        self.answer = look.text(h("p", HINT, cls="quiet"), margin=(0, 6))
        sums = csv_button(save, lambda: self._file("sums"), lambda: self._sums(), session.say)
        rows = csv_button(save, lambda: self._file("collectives"), lambda: self._rows, session.say)
        why = pn.Column(
            self.answer,
            width=264,
            sizing_mode="stretch_height",
            scroll=True,
            margin=0,
            stylesheets=[":host { border-left: 1px solid var(--tl-line, #dfe5ec); }"],
        )
        left = pn.Column(self.table, sizing_mode="stretch_both", margin=0)
        self.view = pn.Column(
            heading(self._words, sums),
            self.sums,
            heading(look.text(h("p", "One by one", cls="quiet"), margin=(5, 0, 0, 2)), rows),
            pn.Row(left, why, sizing_mode="stretch_both", margin=0),
            sizing_mode="stretch_both",
            margin=0,
        )

    def _file(self, what: str) -> str:
        return f"{what} of {self._item.name}" if self._item is not None else what

    def _sums(self) -> Any:
        return collective_sums(self._rows, self._item is not None and self._item.made is not None)

    def refresh(self, item: PlanItem | None) -> None:
        """Show the collectives of a plan; matching them with compiled ones is done in a thread."""
        before, self._item = self._item, item
        if item is None:
            return
        if before is None or before.name != item.name or before.plan.key != item.plan.key:
            self._asked = None
            self.answer.object = h("p", HINT, cls="quiet")
        self._matching = None
        if item.made is None:
            words = (
                f"{item.name}: estimated only. Compile or execute the plan to see what a "
                "compiler makes of it."
            )
            self._show(collective_rows(item.cost, None), words)
            return
        self._words.object = h("p", "Matching priced and compiled collectives …", cls="quiet one")
        self._matching = (item, ANSWERS.submit(diff_compiled, item.problem, item.plan, item.made))

    def tick(self) -> None:
        """Take in what threads have found; called ten times a second."""
        if self._matching is not None and self._matching[1].done():
            item, future = self._matching
            self._matching = None
            if item is self._item:
                with self.session.guarded():
                    where = getattr(item.made, "topology", "") or item.made.devices
                    found = future.result()
                    n = len(found.different)
                    words = (
                        f"{item.name}, compiled for {where}: {n} of {len(found.rows)} differ "
                        "from the estimate"
                    )
                    words += f", {len(found.unexplained)} for no known reason." if n else "."
                    if found.machines:
                        words += f" The estimate is of another machine: {found.machines}."
                    self._show(collective_rows(item.cost, found.tidy()), words)
        if self._asked is not None and self._asked[2].done():
            _, _, reasons = self._asked
            self._asked = None
            with self.session.guarded():
                self.answer.object = join([_reason(r) for r in reasons.result()])

    def _show(self, rows: Any, words: str) -> None:
        self._rows = rows
        if len(rows) > MAX_ROWS:
            words += f" The first {MAX_ROWS:,} of {len(rows):,} are shown."
        self._words.object = h("p", words, cls="quiet one", title=words)
        self.sums.value = shown_sums(self._sums())
        self.table.selection = []
        self.table.value = shown_collectives(rows.head(MAX_ROWS))

    def ask(self, row: int) -> None:
        """Ask why the collective of a row is there; selects its op everywhere."""
        if self._item is None or row >= len(self._rows):
            return
        found = self._rows.iloc[row]
        self.table.selection = [row]
        if int(found["op"]) >= 0:
            self.session.select(tuple(self._item.plan.program.factors(int(found["op"]))))
        if int(found["number"]) < 0:
            reason = found["reason"] or "no reason is known"
            self.answer.object = join(
                [
                    h("h2", "not priced"),
                    h("p", f"The compiler added this {found['kind']}: {reason}."),
                ]
            )
            return
        future = self.session.ask_why(self._item.name, int(found["number"]))
        if future is not None:
            self.answer.object = h("p", "Looking for the cause …", cls="quiet")
            self._asked = (self._item.name, row, future)


class _Empty:
    collectives = ()


def _change(c: Change) -> Safe:
    sign = "+" if c.more_time_s >= 0 else "−"
    memory = "+" if c.more_peak_bytes >= 0 else "−"
    words = (
        f"{sign}{seconds_text(abs(c.more_time_s))} a step, "
        f"{memory}{bytes_text(abs(c.more_peak_bytes))}"
    )
    left = "" if c.removes else ", but the collective stays"
    return h("li", h("b", c.text), f": {words}{'' if c.fits else ', does not fit'}{left}")


def _reason(r: Reason) -> Safe:
    c = r.collective
    rows: list[tuple[str, object]] = [
        ("at", f"{r.op_kind}, {r.place}"),
        ("because", r.because),
        ("from", ", ".join(r.causes) or "no action: the op cannot be split"),
    ]
    if r.conflict:
        rows.append(("conflict", r.conflict))
    parts: list[Any] = [
        h("h2", "why"),
        h(
            "p",
            h("b", f"{c.kind} {{{','.join(c.axes)}}}"),
            f" of {c.value}, {bytes_text(c.local_bytes)}, {seconds_text(c.time_s)} ",
            h("span", "estimated", cls="tag estimated"),
        ),
        facts(rows),
    ]
    if r.undoing:
        parts += [
            h("h2", "undoing the cause"),
            h("ul", *[_change(u) for u in r.undoing], cls="log"),
        ]
    parts.append(h("h2", "cheapest change that removes it"))
    parts.append(
        h("ul", _change(r.cheapest), cls="log")
        if r.cheapest
        else h("p", "Nothing that was tried removes it.", cls="quiet")
    )
    return join(parts)

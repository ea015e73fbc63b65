"""Plans A and B side by side: their device-local programs, and the changes between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.pair_pane import pair_pane
from toast_lab.app.pending import Pending
from toast_lab.app.plan_store import ANSWERS
from toast_lab.app.saver import ONE_LINE, Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.explain.difference import Difference, difference
from toast_lab.lowering.listing import listing_lines
from toast_lab.sharding.plan import spec_text
from toast_lab.text import line_text
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.markup import h, one_line, text
from toast_lab.views.side_by_side import Pair, differing, side_by_side

MAX_LINES_UNFOLDED = 1200  #: above this number of lines, equal ones are hidden at first
MAX_SHOWN = 6000


class _ListingPairs(NamedTuple):
    pairs: list[Pair]
    #: None if the plans are for different meshes or machines, whose numbers cannot be compared
    change: Difference | None


class SideBySide:
    """The listings of A and B, differences marked, and the tensors and collectives that change."""

    title = "A | B"

    def __init__(self, session: Session, save: Saver) -> None:
        self.session, self.save = session, save
        common: dict[str, Any] = {
            "options": [],
            "width": 174,
            "height": 30,
            "sizing_mode": "fixed",
            "margin": (0, 6, 0, 0),
            "stylesheets": [look.INPUT],
        }
        self.a = pn.widgets.Select(**common, description="plan A, left")
        self.b = pn.widgets.Select(**common, description="plan B, right")
        self.content = look.switch(
            options=["Listings", "What changes"],
            value="Listings",
            height=28,
            width=186,
            margin=(0, 6, 0, 0),
            stylesheets=[look.BUTTON + ONE_LINE],
        )
        self.short = pn.widgets.Checkbox(
            name="differences only", margin=(5, 4), width=140, stylesheets=[look.INPUT]
        )
        self._words = look.text(margin=(2, 2))
        self._heads = [look.text(margin=(0, 6)), look.text(margin=(0, 6))]
        self.pane = pair_pane()
        look.watch_value(self.pane, self._picked, "picked")
        self.changes = look.table(_changes(None), selectable=False, min_height=80)
        csv = csv_button(save, lambda: f"from {self.a.value} to {self.b.value}", self._raw)
        self._listing = look.filled_column(look.row(*self._heads, height=20), self.pane)
        self._table = look.filled_column(heading(look.text(), csv), self.changes)
        self._table.visible = False
        bar = look.row(self.a, self.b, self.content, self.short, margin=(4, 0, 2, 0), height=32)
        self.view = look.filled_column(bar, self._words, self._listing, self._table)
        self._quiet = False
        self._shown: tuple[Any, ...] = ()
        self._pending_listings = Pending()
        self._listing_pairs: _ListingPairs | None = None
        self._where: tuple[Any, list[str]] = (None, [])
        for widget in (self.a, self.b):
            look.watch(widget, lambda: None if self._quiet else self._make(), "value")
        look.watch(self.content, self._which, "value")
        look.watch(self.short, lambda: None if self._quiet else self._show(), "value")
        session.choices.keep("A | B, content", self.content)
        session.choices.keep("A | B, differences", self.short)

    def offer(self, selected: PlanItem | None) -> None:
        """Update the choices of plans; B follows the selected row."""
        names = [item.name for item in self.session.plans.items]
        self._quiet = True
        chosen = self.a.value if self.a.value in names else (names[0] if names else None)
        self.a.param.update(options=names, value=chosen)
        self.b.param.update(options=names, value=selected.name if selected is not None else chosen)
        self._quiet = False

    def refresh(self, selected: PlanItem | None) -> None:
        """Show the chosen plans."""
        self.offer(selected)
        self._make()

    def _make(self) -> None:
        a, b = (self.session.plans.named(str(widget.value)) for widget in (self.a, self.b))
        if a is None or b is None:
            return
        shown = tuple((item.name, item.plan.key, id(item.plan), item.problem) for item in (a, b))
        if shown == self._shown:
            return
        self._shown = shown
        for head, side, item in zip(self._heads, "AB", (a, b), strict=True):
            head.object = h(
                "p",
                h("b", f"{side}  "),
                text(f"{item.name}, device-local"),
                cls="one",
                title=item.name,
            )
        program = self.session.loaded.analysis.program
        if self._where[0] is not program:
            self._where = (program, program.source_lines())
        self._words.object = h("p", "Writing the listings …", cls="quiet one")
        future = ANSWERS.submit(_make, a, b, self._where[1])
        self._pending_listings.start(shown, future)
        if program.n_ops < 500:
            future.exception(timeout=5)
        self.tick()

    def tick(self) -> None:
        """Process the result of a thread; called at each tick of the page."""
        done = self._pending_listings.done()
        if done is None or done.subject != self._shown:
            return
        with self.session.notices.guarded():
            self._listing_pairs = done.future.result()
            self._quiet = True
            self.short.value = len(self._listing_pairs.pairs) > MAX_LINES_UNFOLDED
            self._quiet = False
            self._show()

    def _show(self) -> None:
        listing_pairs = self._listing_pairs
        if listing_pairs is None:
            return
        rows: list[Pair | int] = (
            differing(listing_pairs.pairs) if self.short.value else list(listing_pairs.pairs)
        )
        differing_count = sum(pair.differs for pair in listing_pairs.pairs)
        summary = f"{differing_count:,} of {len(listing_pairs.pairs):,} lines differ"
        if len(rows) > MAX_SHOWN:
            summary += f"; the first {MAX_SHOWN:,} rows are shown"
        change = listing_pairs.change
        if change is not None:
            summary += (
                f" · step {seconds_text(change.before.time_s)} → "
                f"{seconds_text(change.after.time_s)} · peak "
                f"{bytes_text(change.before.peak_bytes)} → {bytes_text(change.after.peak_bytes)}, "
                f"estimated · {len(change.collectives)} kinds of collectives and "
                f"{len(change.tensors)} tensors change"
            )
        else:
            summary += " · on different meshes or machines"
        self._words.object = one_line(summary)
        self.pane.fill(rows[:MAX_SHOWN])
        self.changes.value = _changes(change)

    def _which(self) -> None:
        listing = self.content.value == "Listings"
        self._listing.visible = self.short.visible = listing
        self._table.visible = not listing

    def _raw(self) -> Any:
        return _changes(self._listing_pairs.change if self._listing_pairs is not None else None)

    def _picked(self, picked: list[int]) -> None:
        """Select the names of the line's op on all pages."""
        if picked:
            self.session.selection.select_op(picked[0])

    def mark(self) -> None:
        """Mark the lines of the selected names."""
        self.pane.chosen = self.session.selection.ops


def _make(a: PlanItem, b: PlanItem, where: list[str]) -> _ListingPairs:
    pairs = side_by_side(listing_lines(a.problem, a.plan), listing_lines(b.problem, b.plan), where)
    alike = a.problem.mesh == b.problem.mesh and a.problem.machine == b.problem.machine
    return _ListingPairs(pairs, difference(a.problem, a.plan, b.plan) if alike else None)


def _changes(difference: Difference | None) -> Any:
    """The collectives and tensors that change, as one table."""
    import pandas as pd

    rows = []
    if difference is not None:
        rows = [
            (
                f"{row.kind} {{{','.join(row.axes)}}}",
                line_text(row.where),
                str(row.before),
                str(row.after),
                seconds_text(row.before_time_s),
                seconds_text(row.after_time_s),
            )
            for row in difference.collectives
        ]
        rows += [
            (
                row.value + (f" ×{row.places}" if row.places > 1 else ""),
                line_text(row.where),
                spec_text(row.before),
                spec_text(row.after),
                bytes_text(row.before_bytes),
                bytes_text(row.after_bytes),
            )
            for row in difference.tensors
        ]
    return pd.DataFrame(
        rows, columns=["collective or tensor", "line", "in A", "in B", "costs in A", "costs in B"]
    )

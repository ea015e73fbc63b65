"""The plan panel of the report, on a page."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.pending import Pending
from toast_lab.report.plan_panel import CSS, best_of, plan_panel

_THREAD = concurrent.futures.ThreadPoolExecutor(1, "plan panel")


class PlanPane(look.Pane):
    """Shows one plan, against the best of the others; a thread works it out."""

    def __init__(self) -> None:
        super().__init__()
        self.view = look.text(stylesheets=[look.TEXT, CSS], margin=(4, 0))
        self._pending = Pending()
        self._subject: tuple[Any, ...] = ()

    def show_plan(self, item: PlanItem | None, items: Sequence[PlanItem]) -> None:
        """Show a plan of a page that has ``items``."""
        if item is None:
            self._subject, self.view.object = (), ""
            return
        others = [
            other for other in items if other.name != item.name and other.problem is item.problem
        ]
        best = best_of(others)
        subject = (item.plan, item.cost, best and best.cost)
        if [*map(id, subject)] == [*map(id, self._subject)]:
            return
        self._subject = subject
        future = _THREAD.submit(plan_panel, item.problem, item.plan, item.cost, best=best)
        self._pending.start(subject, future)
        if pn.state.curdoc is None:
            concurrent.futures.wait([future])
        self.tick()

    def tick(self) -> None:
        """Take what the thread has worked out; called at each tick of the page."""
        done = self._pending.done()
        if done is not None and done.subject is self._subject:
            self.view.object = done.future.result()

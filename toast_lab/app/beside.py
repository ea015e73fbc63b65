"""What the search would do, beside the plan by hand.

Shows time, memory, the actions that differ, and the search's next one.
"""

from __future__ import annotations

from typing import Any

from toast_lab.app import assets, look
from toast_lab.app.markup import bytes_text, h, quiet, seconds_text
from toast_lab.app.session import Session


class BesidePane(look.Pane):
    """Two buttons and the search's actions, each marked as taken by hand or not."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._head = look.text()
        self._list = look.text(stylesheets=[look.TEXT + LIST])
        fixed: dict[str, Any] = {"sizing_mode": "fixed", "height": 30, "margin": (4, 0, 0, 6)}
        self.ask = look.button("Ask the search", session.hand.ask_search, width=124, **fixed)
        self.next = look.button("Take its next step", self._take, width=140, **fixed)
        self.view = look.filled_column(
            look.row(self._head, self.ask, self.next), self._list, scroll=True
        )

    def refresh(self) -> None:
        """Show the best plan of a search on this problem beside the plan by hand."""
        session = self.session
        if session.loaded.problem is None:
            return
        job = session.work.job
        searching = job is not None and job.kind == "search" and job.running
        self.ask.disabled = session.work.busy
        self.ask.name = (
            f"searching, {job.elapsed_s:.0f} s"
            if searching and job is not None
            else ("Ask the search")
        )
        item = session.hand.adviser()
        following = None if item is None else session.hand.next_of(item)
        self.next.disabled = following is None
        if item is None:
            self._head.object = quiet(
                "What would a search do? Ask it: a few seconds, beside the page."
            )
            self._list.object = ""
            return
        have = session.hand.actions
        mine = session.hand.taken()[-1]
        rows: list[Any] = []
        for text in item.plan.actions:
            mark, note = (
                ("✓", " by hand too")
                if text in have
                else ("→", " next")
                if text == following
                else ("+", "")
            )
            rows.append(_line(mark, text, note))
        rows += [
            _line("–", text, " by hand only") for text in have if text not in item.plan.actions
        ]
        ratio = mine.time_s / item.cost.time_s if item.cost.time_s else 1.0
        words = (
            "as fast as"
            if 0.995 < ratio < 1.005
            else f"{ratio:.2f}× as fast as"
            if ratio > 1
            else ("slower than")
        )
        verdict = (
            f"{seconds_text(item.cost.time_s)}, {bytes_text(item.cost.peak_bytes)}: {words} by hand"
        )
        self._head.object = h(
            "p", h("b", item.name), f": {verdict}", title=f"{item.name}: {verdict}"
        )
        self._list.object = h("ul", *rows, cls="differ")

    def _take(self) -> None:
        item = self.session.hand.adviser()
        if item is not None:
            self.session.hand.take_next(item)


def _line(mark: str, text: str, note: str) -> Any:
    return h(
        "li", h("span", mark, cls="mark"), h("code", text), h("span", note, cls="quiet"), title=text
    )


LIST = assets.sheet("beside")

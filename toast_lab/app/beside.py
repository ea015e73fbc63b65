"""What the search would do, beside the plan by hand: time, memory, the actions that differ, and its next one."""

from __future__ import annotations

from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.markup import bytes_text, h, join, seconds_text
from toast_lab.app.session import Session


class BesidePane(pn.viewable.Viewer):
    """Two buttons and the search's actions, each marked as taken by hand or not."""

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self._words = look.text()
        self.ask = look.button(
            "Search", description="a search of a few seconds for the best actions; it runs beside the page"
        )
        self.ask.on_click(lambda _: session.ask_search())
        self.next = look.button(
            "Take its next step", description="the first of its actions that the plan by hand lacks"
        )
        self.next.on_click(lambda _: self._take())
        self.view = pn.Column(
            look.text(h("h2", "what the search would do")),
            self._words,
            pn.Row(self.ask, pn.Spacer(width=6), self.next, sizing_mode="stretch_width", margin=0),
            sizing_mode="stretch_width",
            margin=0,
        )

    def refresh(self) -> None:
        """Show the best plan of a search on this problem beside the plan by hand."""
        session = self.session
        if session.problem is None:
            return
        job = session.job
        searching = job is not None and job.kind == "search" and job.running
        self.ask.disabled = session.busy
        self.ask.name = f"searching, {job.elapsed_s:.0f} s" if searching and job is not None else "Search"
        item = session.adviser()
        following = None if item is None else session.next_of(item)
        self.next.disabled = following is None
        if item is None:
            self._words.object = h("p", "No search has been run on this mesh and machine yet.", cls="quiet")
            return
        have = session.manual_actions
        mine = session.taken()[-1]
        rows: list[Any] = []
        for text in item.plan.actions:
            mark, note = ("✓", "") if text in have else ("→", " next") if text == following else ("+", "")
            rows.append(h("li", h("span", mark, cls="mark"), h("code", text), h("span", note, cls="quiet"), title=text))
        rows += [
            h("li", h("span", "–", cls="mark"), h("code", text), h("span", " by hand only", cls="quiet"), title=text)
            for text in have
            if text not in item.plan.actions
        ]
        ratio = mine.time_s / item.cost.time_s if item.cost.time_s else 1.0
        words = "as fast as" if 0.995 < ratio < 1.005 else f"{ratio:.2f}× as fast as" if ratio > 1 else "slower than"
        said = f"{seconds_text(item.cost.time_s)}, {bytes_text(item.cost.peak_bytes)}: {words} by hand"
        self._words.object = join(
            [h("p", h("b", item.name), f": {said}", title=item.name), h("ul", *rows, cls="differ", style=LIST)]
        )

    def _take(self) -> None:
        item = self.session.adviser()
        if item is not None:
            self.session.take_next(item)

    def __panel__(self) -> Any:
        return self.view


LIST = "list-style: none; margin: 0 0 6px; padding: 0; max-height: 132px; overflow: auto; overflow-wrap: anywhere"

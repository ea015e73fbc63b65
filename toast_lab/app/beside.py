"""The plan of a search beside the plan by hand.

It shows time, memory, the actions that differ, and the next action of the searched plan.
"""

from __future__ import annotations

from typing import Any

from toast_lab.app import assets, look
from toast_lab.app.plan_words import step_words
from toast_lab.app.session import Session
from toast_lab.views.markup import cost_text, h, quiet


class BesidePane(look.Pane):
    """Two buttons and the actions of the searched plan, each marked as taken by hand or not."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._head = look.text()
        self._list = look.text(stylesheets=[look.TEXT + LIST])
        fixed: dict[str, Any] = {"height": 30, "margin": (4, 0, 0, 6)}
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

        self.ask.disabled = session.work.busy
        searching = session.work.runs("search")
        self.ask.name = (
            f"searching, {session.work.job.elapsed_s:.0f} s" if searching else "Ask the search"
        )
        item = session.hand.adviser()
        next_action = None if item is None else session.hand.next_of(item)
        self.next.disabled = next_action is None
        if item is None:
            self._head.object = quiet(
                "What would a search do? Ask it: it takes a few seconds, in the background."
            )
            self._list.object = ""
            return
        by_hand_step, by_hand = session.hand.plans_after_actions()[-1], session.hand.actions
        signs = {action: ("✓", " by hand too") for action in by_hand} | {
            next_action: ("→", " next")
        }
        rows = [_line(action, *signs.get(action, ("+", ""))) for action in item.plan.actions]
        rows += [_line(step_words(text), "…", " after them") for text in item.plan.refinements]
        rows += [
            _line(action, "–", " by hand only")
            for action in by_hand
            if action not in item.plan.actions
        ]
        ratio = by_hand_step.time_s / item.cost.time_s if item.cost.time_s else 1.0
        if 0.995 < ratio < 1.005:
            comparison = "as fast as"
        else:
            comparison = f"{ratio:.2f}× as fast as" if ratio > 1 else "slower than"
        verdict = f"{cost_text(item.cost)}: {comparison} by hand"
        self._head.object = h(
            "p", h("b", item.name), f": {verdict}", title=f"{item.name}: {verdict}"
        )
        self._list.object = h("ul", *rows, cls="differ")

    def _take(self) -> None:
        item = self.session.hand.adviser()
        if item is not None:
            self.session.hand.take_next(item)


def _line(action: str, mark: str, note: str) -> Any:
    return h(
        "li",
        h("span", mark, cls="mark"),
        h("code", action),
        h("span", note, cls="quiet"),
        title=action,
    )


LIST = assets.sheet("beside")

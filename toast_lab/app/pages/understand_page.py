"""Step 2: the dimension graph and the conflict board, two views with one inspector."""

from __future__ import annotations

from typing import Any

from toast_lab.app import look
from toast_lab.app.pages.graph_page import GraphPage
from toast_lab.app.pages.hand_page import HandPage
from toast_lab.app.session import Session

VIEWS = {"Graph": "graph", "Conflict board": "hand"}


class UnderstandPage:
    """What to show on the left, the graph or the board in the centre, the selection on the right.

    Attributes:
        by_hand: the board with the views below it; None until it is first looked at.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.graph = GraphPage(session)
        self.by_hand: HandPage | None = None
        self.left, self.right = self.graph.left, self.graph.right
        self.switch = look.switch(
            options=VIEWS,
            value="graph",
            width=220,
            height=28,
            sizing_mode="fixed",
            margin=(0, 10, 4, 0),
            stylesheets=[look.SLIM_BUTTON],
        )
        look.watch_value(self.switch, lambda step: setattr(session, "step", step))
        self._heads = look.column(align="center")
        self._board = look.withhold(look.filled_column(visible=False), self._make_board)
        self.centre = look.filled_column(
            look.row(self.switch, self._heads, height=32), self.graph.centre, self._board
        )
        look.watch(session, self._show, "step")
        self._show()

    def _make_board(self) -> list[Any]:
        self.by_hand = HandPage(self.session)
        return [self.by_hand.centre]

    def _show(self) -> None:
        step = self.session.step
        if step not in VIEWS.values():
            return
        self.switch.value = step
        self.graph.centre.visible = step == "graph"
        self._board.visible = step == "hand"
        self._heads.objects = [
            self.by_hand.board.head
            if step == "hand" and self.by_hand is not None
            else self.graph.head
        ]

    def tick(self) -> None:
        """Process the results of threads; called at each tick of the page."""
        self.graph.tick()
        if self.by_hand is not None:
            self.by_hand.tick()

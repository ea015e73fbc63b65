"""Step 2: the dimension graph and the conflict board, two views with one inspector."""

from __future__ import annotations

import contextlib

import panel as pn

from toast_lab.app import look
from toast_lab.app.pages.graph_page import GraphPage
from toast_lab.app.pages.hand_page import HandPage
from toast_lab.app.session import Session

VIEWS = {"Graph": "graph", "Conflict board": "hand"}


class UnderstandPage:
    """Settings on the left, the graph or the board in the centre, the selection on the right."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.graph = GraphPage(session)
        self.board: HandPage | None = None
        self.left, self.right = self.graph.left, self.graph.right
        self.switch = look.switch(
            options=VIEWS,
            width=220,
            height=28,
            margin=(0, 10, 4, 0),
            stylesheets=[look.SLIM_BUTTON],
        )
        look.watch_value(self.switch, self._to_view)
        self._board_head = look.column(align="center", visible=False)
        self._board = look.filled_column(visible=False)
        self.centre = look.filled_column(
            look.row(self.switch, self.graph.head, self._board_head, height=32),
            self.graph.centre,
            self._board,
        )
        look.watch(session, self._show, "step")
        self._show()

    def make_board(self) -> HandPage:
        """Make the second view, which is not there from the start."""
        self.board = HandPage(self.session)
        self._board_head.objects = [self.board.board.head]
        self._board.objects = [self.board.centre]
        self._show()
        return self.board

    def _to_view(self, step: str) -> None:
        # In one message, so that the browser lays out the page only once; but a board that has yet
        # to be made is sent as it is made
        has_view = step != "hand" or self.board is not None
        with pn.io.unlocked() if has_view else contextlib.nullcontext():
            self.session.step = step

    def _show(self) -> None:
        step = self.session.step
        if step not in VIEWS.values():
            step = self.switch.value
        is_board = step == "hand" and self.board is not None
        self.switch.value = step
        self.graph.centre.visible, self._board.visible = not is_board, is_board
        self.graph.head.visible, self._board_head.visible = not is_board, is_board
        self.graph.inspector.legend.visible = not is_board

    def tick(self) -> None:
        """Process the results of threads; called at each tick of the page."""
        self.graph.tick()

"""The five pages, one of them in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.pages.compare_page import ComparePage
from toast_lab.app.pages.graph_page import GraphPage
from toast_lab.app.pages.hand_page import HandPage
from toast_lab.app.pages.load_page import LoadPage
from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.session import Session

#: by which ``static/layout_once.js`` knows the stack
TAG = "page stack"


class PageStack(look.Pane):
    """Makes the pages of a session, each on its first visit, and shows one.

    They are not made ahead: what the server says of a page that the browser is still building may
    be lost, and a page that nobody waits for is built while other things go on.

    Attributes:
        by_step: the pages so far.
        shown: the step whose page is in front; empty before the first.
    """

    def __init__(self, session: Session, *, offered: str = "", refusal: str = "") -> None:
        super().__init__()
        self.by_step: dict[str, Any] = {}
        self.shown = ""
        self._bodies: dict[str, pn.Row] = {}
        self._makers: dict[str, Callable[[], Any]] = {
            "load": lambda: LoadPage(session, offered, refusal),
            "graph": lambda: GraphPage(session),
            "hand": lambda: HandPage(session),
            "search": lambda: SearchPage(session),
            "compare": lambda: ComparePage(session),
        }
        self.view = look.filled_column(stylesheets=[look.GROWING], tags=[TAG])

    def to_front(self, step: str) -> None:
        """Bring the page of a step to the front."""
        self.shown = step
        if step not in self.by_step:
            self._make(step)
        # One message, for which the browser lays out the page once
        with pn.io.unlocked():
            for name, body in self._bodies.items():
                body.visible = name == step

    def _make(self, step: str) -> None:
        page = self.by_step[step] = self._makers[step]()
        centre = pn.Column(
            page.centre, sizing_mode="stretch_both", margin=(0, 8), stylesheets=[look.MIDDLE]
        )
        body = self._bodies[step] = look.filled_row(
            page.left, centre, page.right, stylesheets=[look.BODY]
        )
        self.view.append(body)

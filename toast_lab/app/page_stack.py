"""The five pages, one of them in front.

A page is made when it is first visited, or ahead of that while its visitor rests: server and
browser need half a second each for one, and a click should not wait for them.  Some pages wait with
what changes until they are shown; they, too, are brought up to date while nobody does anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.pages.compare_page import ComparePage
from toast_lab.app.pages.graph_page import GraphPage
from toast_lab.app.pages.hand_page import HandPage
from toast_lab.app.pages.load_page import LoadPage
from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.session import STEPS, Session

#: by which ``static/layout_once.js`` knows the stack
TAG = "page stack"
#: without anything new, before the first page is made ahead, and between two of them: a visitor who
#: is about to click should not find the browser at work on a page that is not looked at
REST_S = 1.0
#: of a server's time that such pages may take, however many sessions it has
SHARE = 0.25


class _Turn:
    """When the server may next make a page that nobody has asked for; one for all sessions."""

    free_at_s = 0.0

    def is_free(self) -> bool:
        return time.monotonic() >= self.free_at_s

    def took(self, seconds: float) -> None:
        self.free_at_s = time.monotonic() + seconds * (1.0 / SHARE - 1.0)


_TURN = _Turn()


class PageStack(look.Pane):
    """Makes the pages of a session and shows one.

    Attributes:
        by_step: the pages so far.
        shown: the step whose page is in front; empty before the first.
    """

    def __init__(self, session: Session, *, offered: str = "", refusal: str = "") -> None:
        super().__init__()
        self.session = session
        self.by_step: dict[str, Any] = {}
        self.shown = ""
        self._bodies: dict[str, pn.Row] = {}
        self._stirred_at_s = time.monotonic()
        self._makers: dict[str, Callable[[], Any]] = {
            "load": lambda: LoadPage(session, offered, refusal),
            "graph": lambda: GraphPage(session),
            "hand": lambda: HandPage(session),
            "search": lambda: SearchPage(session),
            "compare": lambda: ComparePage(session),
        }
        self.view = look.filled_column(stylesheets=[look.GROWING], tags=[TAG])
        look.watch(session, self.stir, "step")
        look.watch(session.loaded, self.stir, "analysis", "problem")
        look.watch(session.work, self.stir, "changes")
        look.watch(session.selection, self.stir, "names", "conflicts")
        look.watch(session.plans, self.stir, "items")

    def to_front(self, step: str) -> None:
        """Bring the page of a step to the front."""
        self.shown = step
        if step not in self.by_step:
            self._make(step)
        # One message, for which the browser lays out the page once
        with pn.io.unlocked():
            for name, body in self._bodies.items():
                body.visible = name == step

    def missing(self) -> Iterator[str]:
        """The steps that have no page yet, those that come next first."""
        after = STEPS.index(self.shown) if self.shown else 0
        return (step for step in (*STEPS[after:], *STEPS[:after]) if step not in self.by_step)

    def stir(self) -> None:
        """Something happens: pages that nobody has asked for wait."""
        self._stirred_at_s = time.monotonic()

    def work_ahead(self) -> None:
        """Make a page that was not visited yet, or bring a hidden one up to date.

        Only if the session is at rest, one page at a time.
        """
        session = self.session
        if (
            pn.state.curdoc is None
            or session.loaded.problem is None
            or session.work.busy
            or session.exports.busy
            or time.monotonic() - self._stirred_at_s < REST_S
            or not _TURN.is_free()
        ):
            return
        began_s = time.monotonic()
        step = next(self.missing(), None)
        stale = (page for page in self.by_step.values() if getattr(page, "stale", False))
        if step is not None:
            self._make(step)
        elif (page := next(stale, None)) is not None:
            page.refresh()
        else:
            return
        _TURN.took(time.monotonic() - began_s)
        self.stir()

    def _make(self, step: str) -> None:
        page = self.by_step[step] = self._makers[step]()
        centre = pn.Column(
            page.centre, sizing_mode="stretch_both", margin=(0, 8), stylesheets=[look.MIDDLE]
        )
        body = self._bodies[step] = look.filled_row(
            page.left, centre, page.right, stylesheets=[look.BODY], visible=step == self.shown
        )
        self.view.append(body)

"""The pages, one of them in front.

A page is made when it is first visited, or ahead of that while the user is idle: server and browser
each need a third of a second for it, and a click should not wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import panel as pn

from toast_lab.app import look
from toast_lab.app.pages.advise_page import AdvisePage
from toast_lab.app.pages.compare_page import ComparePage
from toast_lab.app.pages.load_page import LoadPage
from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.pages.understand_page import UnderstandPage
from toast_lab.app.session import Session


class PageEntry(NamedTuple):
    """A page: what it is called, how it is made, and its further views."""

    title: str
    #: makes the page of a session; it has what stands ``left``, in the ``centre`` and ``right``
    #: (None: nothing), and a ``tick`` if it has something to do ever again
    make: Callable[..., Any]
    #: further steps of it by name, with what makes each; None: the page itself has it as a view
    views: Mapping[str, Callable[..., Any] | None] = MappingProxyType({})


#: All pages by step. The header, the keys 1 to 9, links and what is made ahead follow this table.
PAGES: dict[str, PageEntry] = {
    "load": PageEntry("Load", LoadPage, views={"advise": AdvisePage}),
    # The conflict board, on which one plans by hand, is a view of the page with the graph
    "graph": PageEntry("Understand", UnderstandPage, views={"hand": None}),
    "search": PageEntry("Search", SearchPage),
    "compare": PageEntry("Use", ComparePage),
}


def steps() -> tuple[str, ...]:
    """What a link can open, in order: each page, and then its further views."""
    return tuple(step for page, entry in PAGES.items() for step in (page, *entry.views))


def page_of(step: str) -> str:
    """The page that shows a step."""
    return next(page for page, entry in PAGES.items() if step in (page, *entry.views))


def _is_aside(step: str) -> bool:
    """Does the step stand beside its page, on one of its own? Fewer visitors come there."""
    return PAGES[page_of(step)].views.get(step) is not None


#: the mark by which ``static/layout_once.js`` recognises the stack
STACK_TAG = "page stack"
#: share of a server's time for making pages ahead, however many sessions it has
AHEAD_SHARE = 0.25


class _Turn:
    """When the server may next make a page ahead of its first visit; shared by all sessions."""

    free_at_s = 0.0

    def is_free(self) -> bool:
        return time.monotonic() >= self.free_at_s

    def took(self, seconds: float) -> None:
        self.free_at_s = time.monotonic() + seconds / AHEAD_SHARE


_TURN = _Turn()


class PageStack(look.Pane):
    """Makes the pages of a session and shows one.

    Attributes:
        by_step: the pages made so far, the conflict board among them.
        shown: the step that is in front; empty before the first.
    """

    def __init__(self, session: Session, *, offered: str = "", refusal: str = "") -> None:
        super().__init__()
        self.session = session
        self.by_step: dict[str, Any] = {}
        self.shown = ""
        self._bodies: dict[str, pn.Row] = {}
        self._given = {"load": (offered, refusal)}
        self.view = look.filled_column(stylesheets=[look.GROWING], tags=[STACK_TAG])

    def to_front(self, step: str) -> None:
        """Bring the page of a step to the front."""
        self.shown = step
        self.make(step)
        in_front = step if step in self._bodies else page_of(step)
        for name, body in self._bodies.items():
            body.visible = name == in_front

    @property
    def has_time(self) -> bool:
        """Is there a page left to make ahead of its first visit, and nothing else to do?"""
        session = self.session
        return (
            len(self.by_step) < len(steps())
            and session.loaded.problem is not None
            and not session.loading
            and not session.work.busy
            and not session.exports.busy
            and _TURN.is_free()
        )

    def make_ahead(self) -> None:
        """Make the next page in order that has not been made yet, if there is time."""
        if not self.has_time:
            return
        began_s = time.monotonic()
        known = steps()
        current = known.index(self.shown) if self.shown else 0
        order = (*known[current:], *known[:current])
        self.make(min((step for step in order if step not in self.by_step), key=_is_aside))
        _TURN.took(time.monotonic() - began_s)

    def make(self, step: str) -> None:
        """Make the page of a step, unless it has been made."""
        if step in self.by_step:
            return
        entry = PAGES[page_of(step)]
        make_page = entry.views[step] if step in entry.views else entry.make
        if make_page is None:
            self.make("graph")
            self.by_step[step] = self.by_step["graph"].make_board()
            return
        page = self.by_step[step] = make_page(self.session, *self._given.get(step, ()))
        left = [page.left] if page.left is not None else []
        right = [page.right] if page.right is not None else []
        centre = pn.Column(
            page.centre,
            sizing_mode="stretch_both",
            margin=(0, 8, 0, 8 * len(left)),
            stylesheets=[look.MIDDLE],
        )
        # Hidden until it is built: the page before it would be above it meanwhile, and then every
        # button would move under the pointer
        body = self._bodies[step] = look.filled_row(
            *left,
            centre,
            *right,
            stylesheets=[look.BODY if left else look.BODY_OF_ONE],
            visible=False,
        )
        self.view.append(body)

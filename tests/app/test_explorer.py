"""The explorer as a whole, without a browser."""

from __future__ import annotations

from typing import Any

import pytest

pn = pytest.importorskip("panel")

from bokeh.document import Document  # noqa: E402
from bokeh.document.events import ModelChangedEvent  # noqa: E402
from bokeh.document.models import DocumentModelManager  # noqa: E402

from toast_lab.app import keys  # noqa: E402
from toast_lab.app.explorer import DOING, Explorer  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.app.tour_strip import TARGETS  # noqa: E402
from toast_lab.jobs.job import Registry  # noqa: E402

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


def test_a_click_that_crosses_what_the_server_says_ends_with_both_on_one_step(
    jobs: Registry,
) -> None:
    """The server changes the step while another is clicked: the browser is told the final one."""
    session = Session(jobs=jobs)
    explorer = Explorer(session)
    document = Document()
    explorer.__panel__().server_doc(document)
    events: list[Any] = []
    document.on_change(lambda event: events.append(event))
    session.step = "search"
    ((model, _),) = explorer.nav._models.values()
    assert model.active == 2
    events.clear()
    model.active = 3  # the browser's own change, which the server then confirms
    assert session.step == "compare"
    steps = [
        event.new
        for event in events
        if isinstance(event, ModelChangedEvent) and event.model is model and event.attr == "active"
    ]
    assert steps == [3, 3]


def test_what_the_tour_points_at_is_on_its_page(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("xxt")
    explorer = Explorer(session)
    for page, _ in TARGETS.values():
        if page:
            explorer.pages.make(page)
    for page, way in TARGETS.values():
        assert explorer.part(page, way) is not None
    assert explorer.part("compare", "right.verbs.execute").name == "Execute"


def test_the_first_click_on_a_conflict_does_not_walk_over_the_whole_page(
    jobs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bokeh walks over it whenever a model is added; with that, two dozen clicks queue up."""
    session = Session(jobs=jobs)
    session.load("attention")
    session.step = "hand"
    document = Document()
    explorer = Explorer(session)
    explorer.__panel__().server_doc(document)
    walks: list[Any] = []
    walk = DocumentModelManager.recompute
    monkeypatch.setattr(
        DocumentModelManager, "recompute", lambda self: (walks.append(self), walk(self))
    )
    keys.perform("next_conflict", explorer)
    assert session.selection.conflicts == (0,)
    assert not walks
    session.step = "graph"  # a new figure, for which it does walk over everything
    assert walks


def test_the_header_has_words_for_every_kind_of_job() -> None:
    session = Session(jobs=Registry())
    handled = {kind for work in (session.work, session.exports) for kind in work._handlers}
    assert "why not" in handled
    assert handled <= DOING.keys()

"""What the page of a search shows, without a browser."""

from __future__ import annotations

import pytest

pytest.importorskip("panel")

from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.session import Session
from toast_lab.jobs.job import Registry

# Panel warns of what version 2 will call its buttons
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.mark.parametrize("elsewhere", ["another view", "another page"])
def test_curves_take_in_what_came_while_nobody_looked(jobs: Registry, elsewhere: str) -> None:
    session = Session(jobs=jobs)
    session.load("mlp")
    session.step = "search"
    page = SearchPage(session)
    if elsewhere == "another view":
        page.view.value = "tree"
    else:
        session.step = "graph"
    session.searches.param.update(seconds=None, evaluations=20)
    session.searches.start()
    while session.work.busy:
        if points := session.tick():
            page.feed(points)
    came = [point.simulation for point in session.searches.points]
    assert came
    assert list(page.curves.source.data["simulation"]) == []
    session.step, page.view.value = "search", "curves"
    page.tick()
    assert list(page.curves.source.data["simulation"]) == came


def test_what_waited_for_its_beat_is_drawn_when_the_search_is_over(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("mlp")
    session.step = "search"
    page = SearchPage(session)
    session.searches.param.update(seconds=None, evaluations=20)
    session.searches.start()
    while session.work.busy:
        page._beat.due(0.0, now_s=1e9)  # the next picture is due long after the end
        if points := session.tick():
            page.feed(points)
    page.tick()
    came = [point.simulation for point in session.searches.points]
    assert came
    assert list(page.curves.source.data["simulation"]) == came


def test_views_that_nobody_looked_at_are_not_on_the_page(jobs: Registry) -> None:
    """They would be built and sent with it, three times what the first view takes."""
    session = Session(jobs=jobs)
    session.load("mlp")
    session.step = "search"
    page = SearchPage(session)
    others = {"tree": page.tree, "race": page.race, "confirm": page.confirm}
    assert not any(pane.centre in page.centre.objects for pane in others.values())
    assert page.confirm.curve is None
    for name, pane in others.items():
        page.view.value = name
        assert pane.centre in page.centre.objects
        assert pane.right in page.right.objects
        shown = [part for part in page.centre.objects[2:] if part.visible]
        assert shown == [pane.centre]
    assert page.race.left in page.left.objects
    assert page.confirm.curve is not None
    page.view.value = "curves"
    page.view.value = "confirm"
    assert page.centre.objects.count(page.confirm.centre) == 1

"""What the search page shows, without a browser."""

from __future__ import annotations

import pytest

pytest.importorskip("panel")

from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.session import Session
from toast_lab.jobs.job import Registry
from toast_lab.views.markup import bytes_text, seconds_text

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


def drawn(page: SearchPage) -> list[int]:
    """The numbers of the simulations that the curves show."""
    assert page.curves.curves is not None
    return list(page.curves.curves.source.data["simulation"])


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
    assert page.curves.curves is None
    session.step, page.view.value = "search", "curves"
    page.tick()
    assert drawn(page) == came


def test_what_waited_for_its_beat_is_drawn_when_the_search_is_over(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("mlp")
    session.step = "search"
    page = SearchPage(session)
    session.searches.param.update(seconds=None, evaluations=20)
    session.searches.start()
    while session.work.busy:
        page.curves._beat.due(0.0, now_s=1e9)  # the next redraw is due long after the end
        if points := session.tick():
            page.feed(points)
    page.tick()
    came = [point.simulation for point in session.searches.points]
    assert came
    assert drawn(page) == came


def test_before_the_first_simulation_the_page_tells_what_is_to_be_beaten(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    page = SearchPage(session)
    (waiting,) = page.curves.centre.objects
    assert "Load a model" in waiting.object
    session.load("mlp")
    unsharded_s, unsharded_bytes = session.loaded.problem.baseline
    for number in (seconds_text(unsharded_s), bytes_text(unsharded_bytes), "C(s) = <b>1</b>"):
        assert number in waiting.object
    assert page.trajectories.centre not in page.curves.centre.objects

    session.step = "search"
    page.controls.step_now()
    while not session.searches.points:
        if points := session.tick():
            page.feed(points)
    assert drawn(page) == [1]
    assert page.trajectories.centre in page.curves.centre.objects
    assert waiting not in page.curves.centre.objects
    session.work.cancel()
    while session.work.busy:
        session.tick()

    session.load("attention")
    assert page.curves.centre.objects == [waiting]
    assert page.curves.curves is None


def test_views_that_nobody_looked_at_are_not_made(jobs: Registry) -> None:
    """Building and sending them with the page would take three times as long as the first view."""
    session = Session(jobs=jobs)
    session.load("mlp")
    session.step = "search"
    page = SearchPage(session)
    session.set_problem(mesh="data=2")
    page.refresh()
    assert list(page.panes) == ["curves"]
    for name in ("tree", "race", "confirm"):
        page.view.value = name
        pane = page.panes[name]
        assert pane.centre in page.centre.objects
        assert pane.right in page.right.objects
        shown = [part for part in page.centre.objects[2:] if part.visible]
        assert shown == [pane.centre]
    assert page.race.left in page.left.objects
    assert page.confirm.curve is not None
    page.view.value = "curves"
    page.view.value = "confirm"
    assert page.centre.objects.count(page.confirm.centre) == 1

"""Pages that are made before they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

import toast_lab as tl
from toast_lab.app import page_stack
from toast_lab.app.explorer import Explorer
from toast_lab.app.page_stack import PageStack
from toast_lab.app.session import STEPS, Session
from toast_lab.conflicts.analysis import analyse
from toast_lab.jobs.job import Registry

# Panel warns of what version 2 will call its buttons
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.fixture
def session(jobs: Registry) -> Session:
    session = Session(jobs)
    session.take(analyse(tl.load("mlp")))
    session.set_problem(mesh="data=2,model=2")
    return session


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A page is open on which nothing happens, of a server that has time."""
    monkeypatch.setattr(page_stack, "REST_S", 0.0)
    monkeypatch.setattr(page_stack, "_TURN", page_stack._Turn())
    monkeypatch.setattr(page_stack, "SHARE", 1.0)
    with set_curdoc(Document()):
        yield


@pytest.mark.usefixtures("at_rest")
def test_a_page_at_a_time_those_first_that_come_next(session: Session) -> None:
    stack = PageStack(session)
    stack.to_front("hand")
    for count in range(2, len(STEPS) + 1):
        stack.work_ahead()
        assert len(stack.by_step) == count
    assert list(stack.by_step) == ["hand", "search", "compare", "load", "graph"]
    stack.work_ahead()
    assert len(stack.view) == len(STEPS), "there is nothing left to make"
    assert [body.visible for body in stack.view] == [True, False, False, False, False]


@pytest.mark.usefixtures("at_rest")
def test_a_page_that_was_made_ahead_shows_what_one_that_was_visited_does(
    session: Session,
) -> None:
    """The table of colours and the listing of the page by hand are filled before it is seen."""
    stack = PageStack(session)
    stack.to_front("graph")
    stack.work_ahead()
    page = stack.by_step["hand"]
    filled, lines = page.colours.value.copy(), list(page._shown)
    assert len(filled)
    assert lines
    session.step = "hand"
    stack.to_front("hand")
    assert filled.equals(page.colours.value)
    assert lines == list(page._shown)


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("step", ["hand", "compare"])
def test_a_hidden_page_follows_what_happens_once_there_is_time(session: Session, step: str) -> None:
    stack = PageStack(session)
    for each in STEPS:
        stack.to_front(each)
    stack.to_front("load")
    session.hand.take([f"{session.loaded.analysis.groups[0].name}->data"])
    page = stack.by_step[step]
    assert page.stale
    for _ in STEPS:
        stack.work_ahead()
    assert not page.stale
    shown = page.history.table.value["action"] if step == "hand" else page.table.value["plan"]
    assert len(shown) == 2


@pytest.mark.usefixtures("at_rest")
def test_nothing_is_made_ahead_beside_a_job_or_before_there_is_a_model(
    jobs: Registry, session: Session
) -> None:
    empty = PageStack(Session(jobs))
    empty.to_front("load")
    empty.work_ahead()
    assert list(empty.by_step) == ["load"]

    stack = PageStack(session)
    stack.to_front("load")
    session.searches.start()
    stack.work_ahead()
    assert list(stack.by_step) == ["load"]


@pytest.mark.usefixtures("at_rest")
def test_whoever_does_something_is_left_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer = Explorer(session)
    monkeypatch.setattr(page_stack, "REST_S", 60.0)
    explorer.pages._stirred_at_s = time.monotonic() - 61.0
    session.selection.select((0,))
    explorer.pages.work_ahead()
    assert list(explorer.pages.by_step) == [session.step]
    explorer.pages._stirred_at_s = time.monotonic() - 61.0
    explorer.pages.work_ahead()
    assert len(explorer.pages.by_step) == 2


@pytest.mark.usefixtures("at_rest")
def test_sessions_share_what_a_server_has_for_pages_that_nobody_asked_for(
    jobs: Registry, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_stack, "SHARE", 1e-3)
    other = Session(jobs)
    other.take(session.loaded.analysis, session.loaded.problem)
    first, second = PageStack(session), PageStack(other)
    for stack in (first, second):
        stack.to_front("load")
        stack.work_ahead()
    assert (len(first.by_step), len(second.by_step)) == (2, 1)


def test_without_a_page_nothing_is_made_ahead(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_stack, "REST_S", 0.0)
    stack = PageStack(session)
    stack.to_front("load")
    stack.work_ahead()
    assert list(stack.by_step) == ["load"]

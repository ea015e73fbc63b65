"""Pages of the explorer are made before they are visited."""

from __future__ import annotations

import pytest

import toast_lab as tl
from toast_lab.app import page_stack
from toast_lab.app.explorer import Explorer
from toast_lab.app.page_stack import PageStack, steps
from toast_lab.app.session import Session
from toast_lab.conflicts.analysis import analyse
from toast_lab.jobs.job import Registry

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.fixture
def session(jobs: Registry) -> Session:
    session = Session(jobs)
    session.take(analyse(tl.load("mlp")))
    session.set_problem(mesh="data=2,model=2")
    return session


@pytest.fixture(autouse=True)
def turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server make pages ahead without pauses, and forget those made before."""
    monkeypatch.setattr(page_stack, "_TURN", page_stack._Turn())
    monkeypatch.setattr(page_stack, "AHEAD_SHARE", 1e9)


def test_a_page_at_a_time_those_first_that_come_next(session: Session) -> None:
    stack = PageStack(session)
    stack.to_front("hand")
    for count in range(3, len(steps()) + 1):
        assert stack.has_time
        stack.make_ahead()
        assert len(stack.by_step) == count
    assert list(stack.by_step) == ["graph", "hand", "search", "compare", "load", "advise"]
    assert not stack.has_time
    stack.make_ahead()
    assert [body.visible for body in stack.view] == [True, False, False, False, False]


def test_a_page_that_was_made_ahead_shows_what_one_that_was_visited_does(
    session: Session,
) -> None:
    """The listing below the conflict board is written before it is shown."""
    stack = PageStack(session)
    stack.to_front("graph")
    stack.make_ahead()
    page = stack.by_step["hand"]
    lines = list(page._shown)
    assert lines
    session.step = "hand"
    stack.to_front("hand")
    assert lines == list(page._shown)


def test_a_hidden_graph_is_drawn_anew_once_it_is_shown(session: Session) -> None:
    stack = PageStack(session)
    stack.to_front("load")
    stack.make_ahead()
    page = stack.by_step["graph"].graph
    assert page.plot is not None
    session.take(analyse(tl.load("attention")))
    assert page.plot is None
    session.step = "graph"
    assert page.plot.layout.note == "31 of 31 names"


def test_nothing_is_made_ahead_beside_a_job_or_before_there_is_a_model(
    jobs: Registry, session: Session
) -> None:
    empty = PageStack(Session(jobs))
    empty.to_front("load")
    empty.make_ahead()
    assert list(empty.by_step) == ["load"]

    stack = PageStack(session)
    stack.to_front("load")
    session.searches.start()
    stack.make_ahead()
    assert list(stack.by_step) == ["load"]


def test_the_browser_is_asked_for_a_rest_once_and_again_when_there_is_more(
    session: Session,
) -> None:
    explorer = Explorer(session)
    shell = explorer.shell
    for count in range(1, len(steps())):
        explorer.tick()
        explorer.tick()
        assert shell.awaited_rest == count
        assert len(explorer.pages.by_step) == count
        shell.rested = count
    explorer.tick()
    assert shell.awaited_rest == len(steps()) - 1, "all pages are there"
    assert len(explorer.pages.by_step) == len(steps())


def test_sessions_share_what_a_server_has_for_pages_that_nobody_asked_for(
    jobs: Registry, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_stack, "AHEAD_SHARE", 1e-3)
    other = Session(jobs)
    other.take(session.loaded.analysis, session.loaded.problem)
    first, second = PageStack(session), PageStack(other)
    for stack in (first, second):
        stack.to_front("load")
        stack.make_ahead()
    assert (len(first.by_step), len(second.by_step)) == (2, 1)

"""Models loaded in a child process: the order in which pages, prices and listings appear."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

import toast_lab as tl
from toast_lab.app import explorer as explorer_module
from toast_lab.app.explorer import Explorer
from toast_lab.app.page_stack import PageStack
from toast_lab.app.pages.graph_page import GraphPage
from toast_lab.app.pages.hand_page import HandPage
from toast_lab.app.pages.load_page import LoadPage
from toast_lab.app.session import Session
from toast_lab.conflicts.analysis import analyse
from toast_lab.jobs.job import Registry

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

LIMIT_S = 60.0


@pytest.fixture
def session(jobs: Registry) -> Session:
    return Session(jobs)


@pytest.fixture
def turns(session: Session) -> list[Callable[[], None]]:
    """The calls that the session has put off until the browser has received the changes so far."""
    put_off: list[Callable[[], None]] = []
    session.next_turn = put_off.append
    return put_off


def load(session: Session, reached: list[str]) -> None:
    """Load a transformer in a child process, by a link to the conflict board."""
    sizes = {"layers": 3, "sequence": 32, "vocab": 64}
    session.load(
        "transformer", sizes, then=lambda loaded: reached.append(loaded.step), leads_to="hand"
    )


def wait(session: Session) -> None:
    """Wait until the child process has ended and its result has been taken in."""
    end_s = time.monotonic() + LIMIT_S
    while session.loading and time.monotonic() < end_s:
        session.tick()
        time.sleep(0.02)
    assert session.loaded.analysis is not None, session.notices.messages


def test_a_page_shows_what_needs_no_price_first(
    session: Session, turns: list[Callable[[], None]]
) -> None:
    reached: list[str] = []
    by_hand, loading = HandPage(session), LoadPage(session)
    load(session, reached)
    assert session.leads_to == "hand"
    wait(session)
    assert (session.leads_to, session.step) == ("", "hand")
    assert by_hand._wait_words.visible
    assert not session.plans.is_priced
    assert (len(by_hand.history.table.value), reached) == (0, [])
    for turn in turns:
        turn()
    assert session.plans.is_priced
    assert by_hand.history.table.value["action"].tolist() == ["unsharded"]
    assert reached == ["hand"]
    assert loading._drawn is None, "nobody has looked at the page that the link led away from"
    session.step = "load"
    assert loading._drawn is session.loaded.analysis


def test_a_case_is_priced_on_its_own_mesh_and_nothing_else_stands_meanwhile(
    session: Session, turns: list[Callable[[], None]]
) -> None:
    session.load("attention")
    session.step = "hand"
    page = HandPage(session)
    assert page.upper.visible
    session.load("transformer", {"layers": 3, "sequence": 32, "vocab": 64}, mesh="data=2,model=4")
    wait(session)
    assert str(session.loaded.problem.mesh) == "data=2,model=4"
    assert not page.upper.visible
    assert not page.lower.visible
    assert "Pricing" in str(page._wait_words.object)
    turns.pop()()
    assert page.upper.visible
    assert page.lower.visible
    assert not page._wait_words.visible


def test_a_model_whose_link_leads_to_the_board_is_drawn_with_the_graph(session: Session) -> None:
    session.load("attention")
    page = GraphPage(session)
    load(session, [])
    wait(session)
    assert (session.step, page.plot) == ("hand", None)
    session.step = "graph"
    assert page.plot is not None
    assert len(page.plot.layout.node_of) == session.loaded.analysis.names.n


def test_another_model_meanwhile_gets_nothing_of_the_first(
    session: Session, turns: list[Callable[[], None]]
) -> None:
    reached: list[str] = []
    load(session, reached)
    wait(session)
    session.load("mlp")
    items = session.plans.items
    for turn in turns:
        turn()
    assert (reached, session.plans.items) == ([], items)


def test_the_model_that_is_chosen_last_is_the_one_that_is_shown(session: Session) -> None:
    reached: list[str] = []
    page = LoadPage(session)
    load(session, reached)
    loading = session.work.job
    page.tick()
    session.load("mlp")
    assert session.loading == ""
    assert session.loaded.model.name == "mlp"
    assert loading.finished.wait(LIMIT_S)
    session.tick()
    assert (session.loaded.model.name, reached) == ("mlp", [])
    load(session, reached)
    load(session, reached)
    wait(session)
    assert (session.loaded.model.name, reached) == ("transformer", ["hand"])


def test_whoever_went_on_stays_there(session: Session) -> None:
    load(session, [])
    session.step = "search"
    wait(session)
    assert session.step == "search"


def test_the_page_that_a_link_leads_to_is_made_while_its_model_is_loaded(session: Session) -> None:
    explorer = Explorer(session)
    load(session, [])
    assert list(explorer.pages.by_step) == ["load"]
    explorer.tick()
    assert list(explorer.pages.by_step) == ["load", "graph", "hand"]
    assert explorer.pages.shown == "load"
    session.cancel()


def test_making_a_page_again_changes_nothing(session: Session) -> None:
    stack = PageStack(session)
    stack.make("hand")
    page = stack.by_step["hand"]
    stack.make("hand")
    assert stack.by_step["hand"] is page
    assert len(stack.view) == 1


@pytest.mark.parametrize("rests", [False, True])
def test_a_large_program_is_listed_once_somebody_looks_or_rests(
    session: Session, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    monkeypatch.setattr(explorer_module, "MANY_OPS", 1)
    explorer = Explorer(session)
    session.step = "hand"  # where the drawer with the listing is closed
    with set_curdoc(Document()):
        session.take(analyse(tl.load("mlp")))
        for _ in range(10):
            explorer.tick()
            time.sleep(0.02)
        assert explorer.listing.packed == "[]"
        if rests:
            explorer.shell.rested = explorer.shell.awaited_rest
        else:
            explorer.toggle_drawer(opened=True)
        end_s = time.monotonic() + LIMIT_S
        while explorer.listing.packed == "[]" and time.monotonic() < end_s:
            explorer.tick()
            time.sleep(0.02)
    assert "matmul" in explorer.listing.packed

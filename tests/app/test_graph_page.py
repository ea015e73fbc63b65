"""The graph page's buttons for one more action, without a browser."""

from __future__ import annotations

import jax
import pytest

pn = pytest.importorskip("panel")

from toast_lab.app.pages.graph_page import GraphPage  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.conflicts.analysis import analyse  # noqa: E402
from toast_lab.frontends import from_jax  # noqa: E402
from toast_lab.jobs.job import Registry  # noqa: E402

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


def page_of(size: int) -> GraphPage:
    model = from_jax(lambda x: x + x, jax.ShapeDtypeStruct((size,), "float32"))
    page = GraphPage(Session(jobs=Registry()))
    page.session.loaded.param.update(model=model, analysis=analyse(model))
    page.session.set_problem(mesh="data=2,model=2")
    page.session.selection.select(names=[0])
    page.inspector.show_actions()
    return page


def test_buttons_say_what_there_is_and_shard_the_colour_that_they_say() -> None:
    page = page_of(8)
    session, buttons = page.session, page.inspector.actions.list
    assert [row[0] for row in buttons.rows] == ["data", "model"]
    group = session.selection.group
    buttons._handle_msg([group, "data", 0, 1])
    assert session.hand.actions == ("batch->data",)
    assert [row[0] for row in buttons.rows] == ["model"]


def test_a_click_on_a_button_of_a_colour_that_is_no_longer_selected_shards_nothing() -> None:
    session = Session(jobs=Registry())
    session.load("mlp")
    page = GraphPage(session)
    first, second = (
        session.loaded.analysis.colours[session.loaded.analysis.colour_name.index(c)].names
        for c in ("B", "U")
    )
    session.selection.select(tuple(map(int, first)))
    late = [page.inspector.actions.list.group, *page.inspector.actions.list.rows[0][:2], 1]
    session.selection.select(tuple(map(int, second)))
    assert page.inspector.actions.list.group != late[0]
    page.inspector.actions.list._handle_msg(late)
    assert session.hand.actions == ()
    assert "Another colour was selected" in session.notices.messages[-1].text


def test_why_there_is_no_button_follows_the_mesh() -> None:
    page = page_of(7)
    assert "data=2,model=2" in page.inspector.actions.notes.object
    page.session.set_problem(mesh="data=4,model=2")
    page.inspector.show_actions()
    assert "data=4,model=2" in page.inspector.actions.notes.object

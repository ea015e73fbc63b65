"""The graph page's buttons for one more action, without a browser."""

from __future__ import annotations

import jax
import pytest

pn = pytest.importorskip("panel")

from toast_lab.app.jobs import Registry  # noqa: E402
from toast_lab.app.pages.graph import GraphPage  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.conflicts.analysis import analyse_program  # noqa: E402
from toast_lab.frontends import from_jax  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # how Panel 2 will call buttons


def page_of(size: int) -> GraphPage:
    model = from_jax(lambda x: x + x, jax.ShapeDtypeStruct((size,), "float32"))
    page = GraphPage(Session(jobs=Registry()))
    page.session.param.update(model=model, analysis=analyse_program(model.program))
    page.session.set_problem(mesh="data=2,model=2")
    page.session.select(names=[0])
    page.inspector.show_actions()
    return page


def test_buttons_stay_while_they_say_the_same_and_are_made_anew_when_not() -> None:
    page = page_of(8)
    before = list(page.inspector.actions.objects)
    assert any(isinstance(o, pn.widgets.Button) for o in before)
    page.inspector.show_actions()
    assert [a is b for a, b in zip(page.inspector.actions.objects, before, strict=True)] == [True] * len(before)
    page.session.add_action("data")
    page.inspector.show_actions()
    assert not set(map(id, page.inspector.actions.objects)) & set(map(id, before))


def test_why_there_is_no_button_follows_the_mesh() -> None:
    page = page_of(7)
    assert "data=2,model=2" in page.inspector.actions.objects[-1].object
    page.session.set_problem(mesh="data=4,model=2")
    page.inspector.show_actions()
    assert "data=4,model=2" in page.inspector.actions.objects[-1].object

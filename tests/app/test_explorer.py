"""The page as a whole, without a browser."""

from __future__ import annotations

from typing import Any

import pytest

pn = pytest.importorskip("panel")

from bokeh.document import Document  # noqa: E402
from bokeh.document.events import ModelChangedEvent  # noqa: E402

from toast_lab.app.explorer import Explorer  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.jobs.job import Registry  # noqa: E402

# Panel warns of what version 2 will call its buttons
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


def test_a_click_that_crosses_what_the_server_says_ends_with_both_on_one_step(
    jobs: Registry,
) -> None:
    """The server went to a step; the browser, where another was pressed meanwhile, hears of it."""
    session = Session(jobs=jobs)
    explorer = Explorer(session)
    document = Document()
    explorer.__panel__().server_doc(document)
    told: list[Any] = []
    document.on_change(lambda event: told.append(event))
    session.step = "hand"
    ((model, _),) = explorer.nav._models.values()
    assert model.active == 2
    told.clear()
    model.active = 3  # the browser's own change, and then what it is told
    assert session.step == "search"
    said = [
        event.new
        for event in told
        if isinstance(event, ModelChangedEvent) and event.model is model and event.attr == "active"
    ]
    assert said == [3, 3]

"""A new page of the explorer is its class and an entry in ``PAGES``: a toy of one.

The third and last place is the import contract "Inside app/pages" of ``pyproject.toml``.
"""

from __future__ import annotations

import pytest

import toast_lab as tl
from toast_lab.app import keys, look, page_stack
from toast_lab.app.explorer import Explorer
from toast_lab.app.page_stack import PAGES, PageEntry
from toast_lab.app.session import Session
from toast_lab.conflicts.analysis import analyse
from toast_lab.jobs.job import Registry
from toast_lab.views.markup import h

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


class ColoursPage:
    """Shows how many colours the program has."""

    left = right = None

    def __init__(self, session: Session) -> None:
        self.session = session
        self.centre = look.text()
        look.watch(session.loaded, self.show, "analysis")
        self.show()

    def show(self) -> None:
        analysis = self.session.loaded.analysis
        count = 0 if analysis is None else len(analysis.colours)
        self.centre.object = h("p", f"{count} colours")


@pytest.fixture
def explorer(jobs: Registry, monkeypatch: pytest.MonkeyPatch) -> Explorer:
    monkeypatch.setitem(page_stack.PAGES, "colours", PageEntry("Colours", ColoursPage))
    session = Session(jobs)
    session.take(analyse(tl.load("mlp")))
    session.set_problem(mesh="data=2,model=2")
    return Explorer(session)


def test_it_is_in_the_header_and_shows_what_it_is_for(explorer: Explorer) -> None:
    number = len(PAGES)
    assert list(explorer.nav.options)[-1] == f"{number}  Colours"
    explorer.nav.value = "colours"
    assert explorer.session.step == explorer.pages.shown == "colours"
    page = explorer.page("colours")
    assert f"{len(analyse(tl.load('mlp')).colours)} colours" in str(page.centre.object)
    explorer.session.take(analyse(tl.load("attention")))
    assert f"{len(analyse(tl.load('attention')).colours)} colours" in str(page.centre.object)
    explorer.tick()  # it has nothing to do


def test_it_has_a_key_and_links_lead_to_it(explorer: Explorer) -> None:
    number = str(len(PAGES))
    (command,) = [row[0] for row in explorer.shell.commands if number in row[1]]
    keys.perform(command, explorer)
    assert explorer.pages.shown == "colours"
    explorer.session.step = "load"
    explorer.shell.arrived = ["?model=mlp&step=colours", 1]
    assert explorer.session.step == "colours"


def test_it_is_made_ahead_like_the_others(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_stack, "_TURN", page_stack._Turn())
    monkeypatch.setattr(page_stack, "AHEAD_SHARE", 1e9)
    while explorer.pages.has_time:
        explorer.pages.make_ahead()
    assert isinstance(explorer.pages.by_step["colours"], ColoursPage)

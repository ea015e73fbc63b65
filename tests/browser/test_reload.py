"""A page that is loaded anew shows what it showed, in every state of the explorer."""

from __future__ import annotations

import functools
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_states import ATTENTION, GNS, SLOW, STATES, Subject, button, fill, go, row

pytestmark = pytest.mark.browser

VISIBLE_TEXT = Path(__file__).with_name("visible_text.js").read_text()
PATIENCE_S, MOVING_S, LOOKS, LOOKS_MS = 25, 4, 12, 300
ENDLESS = "tests.browser.endless:make"
#: moves by itself, or is counted in seconds
CLOCKS = re.compile(r"\d+ s\b|\d+\.\d s\b")
#: numbers, which a search betters, and stages, which last some seconds
MOVES = re.compile(r"^[\d.,]+( \S+)?$|some s")
STEPS_OF_PAGES = {1: "load", 2: "(graph|hand)", 3: "search", 4: "compare"}
NAMES = [state.name for state in STATES]
#: names begin with the page
LAST_OF_PAGES = [
    [*names][-1] for _, names in groupby(NAMES, lambda name: name.replace(",", "").split()[0])
]


def seen(page: Page) -> list[str]:
    """What can be read on a page now."""
    return [CLOCKS.sub("some s", line) for line in page.evaluate(VISIBLE_TEXT)]


def standing(page: Page, patience_s: float) -> Counter[str]:
    """What stands on a page for some looks, of which it has had time to come to rest.

    Details of a page, such as the cheapest changes of a plan, come seconds after it.
    """
    page.mouse.move(1, 1)
    end = time.monotonic() + patience_s
    looks = [Counter(seen(page))]
    while looks[-LOOKS:] != [looks[-1]] * LOOKS and time.monotonic() < end:
        page.wait_for_timeout(LOOKS_MS)
        looks.append(Counter(seen(page)))
    return functools.reduce(operator.and_, looks[-LOOKS:])


def lost(page: Page, state: str, *, moves: bool = False) -> str:
    """Load a page anew; gives what differs then, empty if nothing does.

    Lines are compared without their order: a page that changed has the bars of its tabs elsewhere
    among its elements than one that is drawn at once, and looks the same. A page that ``moves`` is
    compared in what stands still on it: numbers and stages may only seem to, on a busy machine.
    """
    before = standing(page, MOVING_S if moves else PATIENCE_S)
    if moves:
        before = Counter(text for text in before.elements() if not MOVES.search(text))
    page.reload(timeout=SLOW)
    end = time.monotonic() + PATIENCE_S
    while True:
        page.wait_for_timeout(LOOKS_MS)
        after = Counter(seen(page))
        gone, new = before - after, Counter[str]() if moves else after - before
        if not gone and not new:
            return ""
        if time.monotonic() > end:
            return f"{state}: gone {[*gone.elements()]}, new {[*new.elements()]}"


@pytest.mark.parametrize(
    "reloaded",
    [
        # 9 of 26 states, each of which rests before and after
        pytest.param(LAST_OF_PAGES, id="last of each page", marks=pytest.mark.slow),
        pytest.param(NAMES, id="each", marks=pytest.mark.slow),
    ],
)
def test_a_state_is_the_same_after_a_reload(
    served: Callable[..., str], strict_page: Page, reloaded: Collection[str]
) -> None:
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(ATTENTION.link(served()))
    differences = []
    for state in STATES:
        state.reach(page, ATTENTION)
        if state.name in reloaded:
            differences.append(lost(page, state.name))
    assert not any(differences), "\n".join(filter(None, differences))


def _idle(page: Page) -> None:
    go(page, 2)
    expect(page.get_by_text(re.compile(r"^\d+ nodes")).first).to_be_visible(timeout=SLOW)


def _load(page: Page) -> None:
    page.get_by_role("button", name=re.compile(f"^{ENDLESS}")).click()


def _search(page: Page) -> None:
    go(page, 3)
    page.get_by_label("method", exact=True).select_option("beam")
    fill(page, "options", "patience=1000000000")
    fill(page, "seconds", "3600")
    button(page, "Run the search").click()
    expect(page.get_by_text("actions of the best plan").first).to_be_visible(timeout=SLOW)


def _pause(page: Page) -> None:
    _search(page)
    button(page, "Pause").click()


def _race(page: Page) -> None:
    go(page, 3)
    button(page, "Race").click()
    for method in ("mcts", "beam", "exhaustive"):  # which leaves random to begin
        page.get_by_label(method, exact=True).locator("visible=true").first.click()
    fill(page, "seconds each", "3600")
    button(page, "Run the race").click()
    expect(page.get_by_text("best so far", exact=True)).to_be_visible(timeout=SLOW)


def _execute(page: Page, repeats: str = "1000") -> None:
    go(page, 4)
    row(page, "unsharded").click()
    button(page, "settings").click()
    fill(page, "repeats", repeats)
    button(page, "Execute").click()


def _executed(page: Page) -> None:
    _execute(page, "2")
    expect(page.get_by_text(re.compile("executed on cpu:8")).first).to_be_visible(timeout=SLOW)


class Activity(NamedTuple):
    """What goes on while pages are loaded anew, until it is cancelled.

    Attributes:
        begin: begins it on its page.
        said: what the header says of it.
        page: the number of its page, which it moves.
        subject: the program at work.
    """

    begin: Callable[[Page], None]
    said: str
    page: int
    subject: Subject = ATTENTION


ACTIVITIES = {
    "idle": Activity(_idle, "no job is running", 0),
    "loading": Activity(_load, "loading, some s", 1),
    "searching": Activity(_search, "searching, some s", 3),
    "paused": Activity(_pause, "paused, some s", 0),
    "racing": Activity(_race, "racing, some s", 3, GNS),
    "executing": Activity(_execute, "executing, some s", 4),
    "executed": Activity(_executed, "no job is running", 0),
}


@pytest.mark.parametrize(
    "pages", [(), pytest.param((1, 2, 3, 4), id="each page", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "name",
    [
        # What moves may come to rest between two looks
        pytest.param(name, marks=[pytest.mark.slow] if ACTIVITIES[name].page else [])
        for name in ACTIVITIES
    ],
)
def test_whatever_goes_on_is_there_after_a_reload(
    served: Callable[..., str], page: Page, name: str, pages: tuple[int, ...]
) -> None:
    activity = ACTIVITIES[name]

    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(activity.subject.link(served(ENDLESS)))
    names = page.get_by_text(re.compile(activity.subject.names)).filter(visible=True)
    expect(names.first).to_be_visible(timeout=SLOW)
    activity.begin(page)
    expect(
        page.get_by_text(re.compile(activity.said.replace("some s", r"\d+ s"))).first
    ).to_be_visible(timeout=SLOW)
    differences = [lost(page, name, moves=activity.page > 0)]
    for number in pages:
        go(page, number)
        # A page that is not built yet leaves the one before in front
        expect(page).to_have_url(re.compile(f"step={STEPS_OF_PAGES[number]}"), timeout=SLOW)
        differences.append(lost(page, f"{name}, page {number}", moves=number == activity.page))
    assert not any(differences), "\n".join(filter(None, differences))
    assert activity.said in seen(page)
    cancel = button(page, "Cancel")
    if cancel.is_enabled():
        cancel.click()
        expect(page.get_by_text("no job is running").first).to_be_visible(timeout=SLOW)


def test_a_model_that_is_loading_arrives_after_a_reload(
    served: Callable[..., str], page: Page
) -> None:
    page.goto(ATTENTION.link(served()))
    expect(page.get_by_text(ATTENTION.names).filter(visible=True)).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name=re.compile("^mlp")).click()
    expect(page.get_by_text("Loaded mlp").first).to_be_visible(timeout=SLOW)
    differences = [lost(page, "another model")]
    page.get_by_role("button", name=re.compile("^gns")).click()
    expect(page.get_by_text("loading gns").first).to_be_visible(timeout=SLOW)
    page.reload()
    expect(page.get_by_text("Loaded gns").first).to_be_visible(timeout=SLOW)
    differences.append(lost(page, "a large model"))
    assert not any(differences), "\n".join(filter(None, differences))

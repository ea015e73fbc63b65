"""A page that is loaded anew shows what it showed, in every state of the explorer."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_states import ATTENTION, SLOW, STATES, button, go, row

pytestmark = pytest.mark.browser

VISIBLE_TEXT = Path(__file__).with_name("visible_text.js").read_text()
PATIENCE_S, LOOKS_MS = 25, 500
#: moves by itself, or is counted in seconds
CLOCKS = re.compile(r"\d+ s\b|\d+\.\d s\b")
NAMES = [state.name for state in STATES]
#: names begin with the page
LAST_OF_PAGES = [
    [*names][-1] for _, names in groupby(NAMES, lambda name: name.replace(",", "").split()[0])
]


def seen(page: Page) -> list[str]:
    """What can be read on a page now."""
    return [CLOCKS.sub("some s", line) for line in page.evaluate(VISIBLE_TEXT)]


def at_rest(page: Page) -> list[str]:
    """What can be read on a page once it stands still."""
    page.mouse.move(1, 1)
    end = time.monotonic() + PATIENCE_S
    looks = [seen(page)]
    while looks[-4:] != [looks[-1]] * 4 and time.monotonic() < end:
        page.wait_for_timeout(LOOKS_MS)
        looks.append(seen(page))
    return looks[-1]


def lost(page: Page, state: str) -> str:
    """Load a page anew; gives what differs then, empty if nothing does.

    Lines are compared without their order: a page that changed has the bars of its tabs elsewhere
    among its elements than one that is drawn at once, and looks the same.
    """
    before = sorted(at_rest(page))
    page.reload(timeout=SLOW)
    end = time.monotonic() + PATIENCE_S
    after: list[str] = []
    while after != before and time.monotonic() < end:
        page.wait_for_timeout(LOOKS_MS)
        after = sorted(seen(page))
    difference = difflib.unified_diff(before, after, state, f"{state}, reloaded", lineterm="", n=1)
    return "\n".join([*difference][:40])


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


@pytest.mark.slow
def test_a_job_and_its_page_are_the_same_after_a_reload(
    served: Callable[..., str], page: Page
) -> None:
    page.goto(ATTENTION.link(served()))
    expect(page.get_by_text(ATTENTION.names).filter(visible=True)).to_be_visible(timeout=SLOW)
    differences = []

    go(page, 3)
    button(page, "Step").click()
    paused = page.get_by_text(re.compile(r"^paused, \d+ s")).first
    expect(paused).to_be_visible(timeout=SLOW)
    differences.append(lost(page, "a paused search"))
    button(page, "Go on").click()
    expect(page.get_by_text(re.compile(r"^searching, \d+ s")).first).to_be_visible(timeout=SLOW)
    page.reload()
    expect(button(page, "Stop and keep the best")).to_be_enabled(timeout=SLOW)
    button(page, "Stop and keep the best").click()
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first).to_be_visible(timeout=SLOW)

    button(page, "Race").click()
    expect(button(page, "Run the race")).to_be_enabled(timeout=SLOW)
    button(page, "Run the race").click()
    expect(page.get_by_text(re.compile(r"^racing, \d+ s")).first).to_be_visible(timeout=SLOW)
    page.reload()
    expect(button(page, "Hold after this")).to_be_enabled(timeout=SLOW)
    button(page, "Stop and keep").click()
    expect(page.get_by_text(re.compile("^The race is over")).first).to_be_visible(timeout=SLOW)
    differences.append(lost(page, "a race that was stopped"))

    go(page, 4)
    row(page, "mcts (seed 0)").click()
    button(page, "Execute the selected plan").click()
    expect(page.get_by_text(re.compile(r"^executing, \d+ s")).first).to_be_visible(timeout=SLOW)
    page.reload()
    expect(page.get_by_text(re.compile("executed on cpu:8")).first).to_be_visible(timeout=SLOW)
    differences.append(lost(page, "an executed plan"))
    assert not any(differences), "\n".join(filter(None, differences))


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

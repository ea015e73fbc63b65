"""The guided tour in the browser: by Next and "Do it for me", by hand, and by its index."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_explorer import go
from toast_lab.app.tour.step import Step
from toast_lab.app.tour.tour import BY_KEY, CHAPTERS, STEPS

pytestmark = pytest.mark.browser

SLOW = 120_000
#: most lines of a step's text on a screen of 1280 pixels, alone and beside a box of code
MOST_LINES, BESIDE_CODE = 5, 7
FOLLOWED = [s for s in STEPS if s.key != "transformer.race"]  # in which three methods take a while


@pytest.fixture
def page(served: Callable[..., str], strict_page: Page) -> Page:
    strict_page.set_viewport_size({"width": 1280, "height": 720})
    strict_page.set_default_timeout(SLOW)
    expect.set_options(timeout=SLOW)
    strict_page.goto(served())
    expect(strict_page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible()
    return strict_page


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def on(page: Page, key: str) -> None:
    """Wait until a step is shown: its title, its place in the paper and its text."""
    step = BY_KEY[key]
    expect(page.locator(".title", has_text=step.title)).to_be_visible()
    expect(page.locator(".tag", has_text=step.paper).first).to_be_visible()
    expect(page.locator(".words p").first).not_to_contain_text("One moment")


def jump(page: Page, figure: str) -> None:
    """Go to the step of a figure by the index of figures."""
    press(page, "Figures")
    row = page.locator(".tabulator-row", has=page.get_by_role("gridcell", name=figure, exact=True))
    row.locator("visible=true").click()


def outlined(page: Page) -> int:
    """The number of visible parts of the page that have an outline."""
    return page.evaluate(
        """() => {
          let n = 0
          const walk = (root) => { for (const el of root.querySelectorAll('*')) {
            const style = getComputedStyle(el)
            const wide = style.outlineStyle === 'solid' && style.outlineWidth === '3px'
            if (wide && el.getBoundingClientRect().height > 20) n++
            if (el.shadowRoot) walk(el.shadowRoot)
          } }
          walk(document)
          return n
        }"""
    )


def wait_for_outlines(page: Page, where: str, *, gone: bool = False) -> None:
    """Wait until a part is outlined, or none is: a step's buttons may vanish before its outline."""
    deadline = time.monotonic() + SLOW / 1000
    while bool(outlined(page)) is gone:
        assert time.monotonic() < deadline, where
        page.wait_for_timeout(100)


def lines(page: Page) -> float:
    """The number of lines of the step's text."""
    return page.locator(".words p").first.evaluate(
        "p => Math.round(p.clientHeight / parseFloat(getComputedStyle(p).lineHeight))"
    )


def follow(page: Page, steps: Sequence[Step]) -> None:
    """Do what each step asks for, and go to the next."""
    for step in steps:
        on(page, step.key)
        if step in FOLLOWED and (step.task is not None or step.quiz is not None):
            press(page, "Do it for me")
            expect(page.get_by_role("button", name="✓ done")).to_be_visible()
            expect(page.locator(".said")).to_be_visible()
        wait_for_outlines(page, step.key)
        assert lines(page) <= (MOST_LINES if step.code is None else BESIDE_CODE), step.key
        press(page, "Finish" if step is STEPS[-1] else "Next →")


@pytest.mark.slow
def test_the_tour_is_followed_to_its_end(page: Page) -> None:
    page.get_by_role("button", name="Learn in five minutes").click()
    follow(page, STEPS)
    expect(page.get_by_role("button", name="Leave", exact=True)).not_to_be_visible()
    wait_for_outlines(page, "after the tour", gone=True)


def test_a_chapter_and_the_end_of_the_tour_are_followed(page: Page) -> None:
    press(page, "Tour")
    on(page, STEPS[0].key)
    jump(page, "listing in section 2.2")
    follow(page, CHAPTERS[2].steps)
    on(page, CHAPTERS[3].steps[0].key)
    jump(page, "Figure 10")
    follow(page, STEPS[-2:])
    expect(page.get_by_role("button", name="Leave", exact=True)).not_to_be_visible()
    wait_for_outlines(page, "after the tour", gone=True)


def test_the_plan_runs_by_its_button(page: Page) -> None:
    press(page, "Tour")
    on(page, STEPS[0].key)
    jump(page, "Figure 10")
    on(page, "transformer.scaling")
    press(page, "Next →")
    on(page, "transformer.end")
    press(page, "Execute")
    expect(page.get_by_role("button", name="✓ done")).to_be_visible()
    expect(page.locator(".said")).to_contain_text("its results agree with the unsharded")


def test_what_is_done_by_hand_is_recognised_and_whoever_strays_is_brought_back(page: Page) -> None:
    press(page, "Tour")
    on(page, STEPS[0].key)
    jump(page, "Figure 2b")
    on(page, "mlp.batch")
    expect(page.get_by_text("6 lines, 0 collectives")).to_be_visible()
    page.locator(".tabulator-row", has=page.get_by_role("gridcell", name="B", exact=True)).locator(
        "visible=true"
    ).click()
    expect(page.get_by_role("heading", name=re.compile("shard B on"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^b: ")).click()
    expect(page.get_by_role("button", name="✓ done")).to_be_visible()
    expect(page.locator(".said")).to_contain_text("[2048{b}, 512]")
    page.get_by_role("button", name=re.compile("4.*Use")).click()
    expect(page.locator(".away")).to_contain_text("another page")
    press(page, "Take me there")
    expect(page.locator(".ask")).to_contain_text("Put colour B on axis b")
    press(page, "← Back")
    on(page, "mlp.colours")
    press(page, "X")
    expect(page.locator(".words .away")).to_contain_text("Not X")
    press(page, "U")
    expect(page.locator(".said")).to_contain_text("U of z [B, U]")
    press(page, "Leave")
    expect(page.get_by_role("button", name="Leave", exact=True)).not_to_be_visible()


def test_a_wrong_answer_moves_nothing(page: Page) -> None:
    press(page, "Tour")
    on(page, STEPS[0].key)
    jump(page, "Figure 4c")
    on(page, "mlp.colours")
    buttons = [page.get_by_role("button", name=name, exact=True) for name in ("X", "U", "Next →")]
    below = page.get_by_role("button", name="Reset view", exact=True).locator("visible=true").first
    places = [button.bounding_box() for button in (*buttons, below)]
    buttons[0].click()
    expect(page.locator(".words .away")).to_contain_text("Not X")
    page.wait_for_timeout(300)
    assert [button.bounding_box() for button in (*buttons, below)] == places


def test_a_quick_click_never_shards_the_colour_that_was_selected_before(page: Page) -> None:
    go(page, "2 Understand")
    page.get_by_role("button", name="Conflict board").click()
    expect(page.get_by_text("13 lines, 0 collectives")).to_be_visible()
    rows = page.locator(
        ".tabulator-row", has=page.get_by_role("gridcell", name=re.compile("^(S|D)$"))
    )
    rows.locator("visible=true").nth(1).click()
    expect(page.get_by_role("heading", name=re.compile("shard D on"))).to_be_visible()
    # the page draws the buttons after their heading
    expect(page.get_by_role("button", name=re.compile("^data: ")).first).to_be_visible()
    page.evaluate(
        """() => {
          const all = []
          const walk = (root) => { for (const el of root.querySelectorAll('*')) {
            if (el.getBoundingClientRect().height) all.push(el)
            if (el.shadowRoot) walk(el.shadowRoot)
          } }
          walk(document)
          const line = all.find((el) => el.classList.contains('row')\
 && el.textContent.startsWith('v : '))
          const button = all.find((el) => el.tagName === 'BUTTON'\
 && el.textContent.startsWith('data: '))
          line.click()
          button.click()
        }"""
    )
    expect(page.get_by_text("nothing was sharded").first).to_be_visible()
    expect(page.locator("ol.chain li", has_text="D->data")).to_have_count(0)

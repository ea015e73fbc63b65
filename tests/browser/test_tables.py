"""No table cell is cut without a tooltip, and no page is wider than the window."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

SLOW = 90_000
ANSWERS = (
    "Time & memory",
    "Where time goes",
    "Timeline",
    "Ops",
    "Where memory goes",
    "A | B",
    "Collectives",
)
#: by how many pixels the page is wider than the window, and which texts are cut in its tables
LAYOUT = """() => {
  const cut = []
  const walk = (root) => { for (const cell of root.querySelectorAll('*')) {
    if (cell.shadowRoot) walk(cell.shadowRoot)
    if (!cell.matches('.tabulator-cell:not(.empty), .tabulator-col-title')) continue
    const text = cell.textContent.trim()
    const seen = text && cell.getClientRects().length && cell.clientWidth
    if (seen && !cell.title && cell.scrollWidth > cell.clientWidth + 1) cut.push(text)
  } }
  walk(document)
  return [document.documentElement.scrollWidth - window.innerWidth, cut]
}"""
# Tabulator creates a table some time after the request; this is the delay of a loaded machine.
HOLD_TABLES = """
const later = window.setTimeout.bind(window)
window.setTimeout = (act, wait, ...words) =>
  later(act, String(act).includes('_create()') ? 1500 : wait, ...words)
"""
#: for each page, a heading that no other page has
HEADINGS = {
    "load": "gallery",
    "graph": "nothing selected",
    "search": "The search will be drawn here",
    "compare": "price",
}
#: letters; longer texts are wider than the widest column, so they are cut there and have a tooltip
LONG = 40


def assert_nothing_cut(page: Page, where: str) -> None:
    """Check the page at both window sizes, after it has had time to settle."""
    for width, height in ((900, 900), (1280, 720)):
        page.set_viewport_size({"width": width, "height": height})
        excess: Any = None
        for _ in range(120):
            page.wait_for_timeout(250)
            too_wide, cut = page.evaluate(LAYOUT)
            excess = too_wide, [text for text in cut if len(text) < LONG]
            if excess == (0, []):
                break
        assert excess == (0, []), (where, width, excess)


def test_no_page_cuts_a_number_or_scrolls_sideways(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(f"{served()}/?model=transformer&mesh=data=4,model=2&step=load")
    expect(page.get_by_text("of 3,040 names").first).to_be_visible(timeout=SLOW)
    for number, (name, heading) in enumerate(HEADINGS.items(), 1):
        page.locator("button").filter(has_text=re.compile(rf"^\s*{number}\s")).first.click()
        # The page before has tables too, and disappears once this one is drawn
        expect(page.get_by_role("heading", name=heading)).to_be_visible(timeout=SLOW)
        if name == "graph":
            assert_nothing_cut(page, name)
            page.get_by_role("button", name="Conflict board").click()
            page.get_by_text("Plan by hand", exact=True).click()
            page.locator(
                ".tabulator-row:visible", has=page.get_by_role("gridcell", name="batch")
            ).first.click()
            page.get_by_role("button", name=re.compile("^data: ")).first.click()
            expect(page.locator(".status")).to_contain_text("batch->data", timeout=SLOW)
        if name == "compare":
            page.get_by_role("button", name="Add data parallel").click()
            expect(
                page.locator(".tabulator-row:visible", has_text="data parallel").first
            ).to_be_visible(timeout=SLOW)
        assert_nothing_cut(page, name)
    for answer in ANSWERS:
        page.get_by_role("button", name=answer, exact=True).click()
        page.wait_for_timeout(500)
        assert_nothing_cut(page, answer)


def test_columns_may_change_before_a_table_is_drawn(
    served: Callable[..., str], strict_page: Page
) -> None:
    """A plan with a longer name widens columns; a different breakdown has different columns."""
    page = strict_page
    page.add_init_script(HOLD_TABLES)
    page.goto(f"{served()}/?step=compare")
    page.get_by_role("button", name="Add data parallel").click(timeout=SLOW)
    page.get_by_role("button", name="Where time goes").click()
    page.get_by_role("button", name="by mesh axis").click()
    expect(page.get_by_role("gridcell", name=re.compile("^over data")).first).to_be_visible(
        timeout=SLOW
    )
    assert_nothing_cut(page, "breakdown")
    page.keyboard.press("b")
    for heading in ("data", "model"):
        expect(
            page.get_by_role("columnheader", name=heading).locator("visible=true").first
        ).to_be_visible(timeout=SLOW)

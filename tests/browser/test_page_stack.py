"""A click that brings a page to the front costs the browser one layout of that page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

SLOW = 90_000
#: Counts how often the root of the page goes over all of its parts.
COUNT = """() => {
  const root = Object.values(Bokeh.index).find((view) => view.update_layout)
  const update = root.update_layout.bind(root)
  window.layouts = 0
  root.update_layout = () => { window.layouts += 1; update() }
}"""
#: How many pages a layout goes through, and how many there are.
PAGES = """() => {
  const root = Object.values(Bokeh.index).find((view) => view.update_layout)
  const stack = root.child_views.find((view) => view.model.tags.includes('page stack'))
  return [stack.layoutable_views.length, stack.child_views.length]
}"""


def test_a_page_that_comes_to_the_front_is_laid_out_once_and_hidden_ones_are_not(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(f"{served()}/?model=mlp&step=graph")
    expect(page.get_by_text("Loaded mlp").filter(visible=True).first).to_be_visible(timeout=SLOW)
    search, load = (
        page.get_by_role("button", name=re.compile(rf"^\d\s+{name}")) for name in ("Search", "Load")
    )
    run = page.get_by_role("button", name="Run the search")
    search.click()
    expect(run).to_be_visible(timeout=SLOW)
    load.click()
    expect(page.get_by_role("button", name="Learn in five minutes")).to_be_visible(timeout=SLOW)
    page.wait_for_timeout(2000)
    page.evaluate(COUNT)
    search.click()
    expect(run).to_be_visible(timeout=SLOW)
    page.wait_for_timeout(1000)
    assert page.evaluate("window.layouts") == 1
    assert page.evaluate(PAGES) == [1, 3]

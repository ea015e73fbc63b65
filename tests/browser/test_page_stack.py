"""The first visit of a page finds it there, and costs the browser one layout of that page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

SLOW = 90_000
MODELS = "Bokeh.documents[0].all_models.size"
#: More would be a page of its own: each has at least 160.
FEW_MODELS = 20
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


def test_pages_are_made_while_nobody_does_anything_and_a_click_brings_one_with_one_layout(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(f"{served()}/?model=mlp&step=graph")
    expect(page.get_by_text("Loaded mlp").filter(visible=True).first).to_be_visible(timeout=SLOW)
    # Whoever rests long enough has all pages
    page.wait_for_function(f"({PAGES})()[1] === 5", timeout=SLOW)
    page.wait_for_timeout(1000)
    before = page.evaluate(MODELS)
    page.evaluate(COUNT)
    page.get_by_role("button", name=re.compile(r"^\d\s+Search")).click()
    expect(page.get_by_role("button", name="Run the search")).to_be_visible()
    page.wait_for_timeout(1000)
    assert page.evaluate("window.layouts") == 1
    assert page.evaluate(PAGES) == [1, 5]
    assert page.evaluate(MODELS) - before < FEW_MODELS

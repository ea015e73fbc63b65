"""Pages are made before they are visited, so a visit costs the browser one layout."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.held_imports import hold_imports, release_imports

pytestmark = pytest.mark.browser

SLOW = 90_000
MODELS = "Bokeh.documents[0].all_models.size"
#: More would be a whole page: each has at least 90 models.
FEW_MODELS = 20
#: Counts how often the root of the page lays out all of its parts.
COUNT = """() => {
  const root = Object.values(Bokeh.index).find((view) => view.update_layout)
  const update = root.update_layout.bind(root)
  window.layouts = 0
  root.update_layout = () => { window.layouts += 1; update() }
}"""
#: The number of pages that a layout visits, and the number of pages made.
PAGES = """() => {
  const root = Object.values(Bokeh.index).find((view) => view.update_layout)
  const stack = root.child_views.find((view) => view.model.tags.includes('page stack'))
  return [stack.layoutable_views.length, stack.child_views.length]
}"""
#: Whether the server has asked the page to report when its user is idle.
IS_ASKED = """() => Bokeh.documents[0]?.all_models &&
  [...Bokeh.documents[0].all_models].some((model) => model.attributes.awaited_rest > 0)
"""
#: Makes each text of a new page slow to build. Records how many layouts are under construction
#: when a message arrives from the server, and when it is applied.
SLOW_BUILDS = """() => {
  const text = Bokeh.Models.get('panel.models.markup.HTML').prototype.default_view.prototype
  const begin = text.lazy_initialize
  text.lazy_initialize = async function () {
    await new Promise((resolve) => setTimeout(resolve, 30))
    return begin.call(this)
  }
  const layout = Object.getPrototypeOf(Bokeh.Models.get('Column').prototype.default_view.prototype)
  let building = 0
  const build = layout.build_child_views
  layout.build_child_views = async function () {
    building += 1
    try { return await build.call(this) } finally { building -= 1 }
  }
  const page = Bokeh.documents[0]
  window.arrived = []
  window.applied = []
  const [take, apply] = [page.apply_json_patch.bind(page), page._apply_json_patch.bind(page)]
  page.apply_json_patch = (...message) => { window.arrived.push(building); return take(...message) }
  page._apply_json_patch = (...message) => { window.applied.push(building); apply(...message) }
}"""


def step_button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=re.compile(rf"^\d\s+{name}"))


def wait_for_model(page: Page) -> None:
    expect(page.get_by_text("Loaded mlp").filter(visible=True).first).to_be_visible(timeout=SLOW)


def test_pages_are_made_while_their_visitor_rests_and_a_click_brings_one_with_one_layout(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(f"{served()}/?model=mlp&step=graph")
    wait_for_model(page)
    # On a loaded machine the server makes pages at long intervals, shared among sessions
    page.wait_for_function(f"({PAGES})()[1] === 5", timeout=3 * SLOW)
    page.wait_for_timeout(1000)
    before = page.evaluate(MODELS)
    page.evaluate(COUNT)
    step_button(page, "Search").click()
    expect(page.get_by_role("button", name="Run the search")).to_be_visible(timeout=SLOW)
    page.wait_for_timeout(1000)
    assert page.evaluate("window.layouts") == 1
    assert page.evaluate(PAGES) == [1, 5]
    assert page.evaluate(MODELS) - before < FEW_MODELS


def test_whoever_moves_the_pointer_does_not_rest(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(f"{served()}/?model=mlp&step=graph")
    expect(step_button(page, "Search")).to_be_visible(timeout=SLOW)
    for i in range(30):
        page.mouse.move(300 + 10 * i, 300)
        page.wait_for_timeout(100)
    assert page.evaluate(PAGES) == [1, 1]
    page.wait_for_function(f"({PAGES})()[1] > 1", timeout=SLOW)


def test_a_rest_that_is_asked_for_before_the_page_can_hear_it_is_told(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    # Panel draws its components with its own module, which it imports last. By then it considers
    # the page drawn, and the server sends its messages.
    hold_imports(page, "view.render_fn")
    page.goto(f"{served()}/?model=mlp&step=graph")
    page.wait_for_function(IS_ASKED, timeout=SLOW)
    release_imports(page)
    page.wait_for_function(f"({PAGES})()[1] > 1", timeout=SLOW)


def test_what_the_server_says_waits_while_the_browser_builds(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(f"{served()}/?model=mlp&step=graph")
    wait_for_model(page)
    page.evaluate(SLOW_BUILDS)
    page.get_by_role("button", name="Conflict board").click()
    for name in ("Search", "Use"):
        step_button(page, name).click()
    expect(page.get_by_role("button", name="Add data parallel")).to_be_visible(timeout=SLOW)
    page.wait_for_function("window.applied.length === window.arrived.length", timeout=SLOW)
    arrived, applied = page.evaluate("[window.arrived, window.applied]")
    assert max(arrived) > 0, "nothing came while a page was being built"
    assert max(applied) == 0

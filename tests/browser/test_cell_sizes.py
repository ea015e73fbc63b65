"""Views in notebook cells are as high as their content, and listings are monospaced."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

import toast_lab as tl
from tests.browser.test_explorer import bokeh, wait_for_bokeh

pytestmark = [
    pytest.mark.browser,
    # Panel warns about parameters that version 2 renames; the pages are made in this process
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

SLOW = 90_000
#: like JupyterLab's style sheet for HTML outputs
LAB = "body { font: 13px sans-serif } pre, code { font-family: inherit; white-space: pre-wrap }"


@pytest.mark.parametrize("with_prices", [False, True])
def test_the_frame_of_the_conflicts_is_not_mostly_white(with_prices: bool, page: Page) -> None:
    analysis = tl.analyse(tl.load("crossed"))
    shown: Any = tl.Problem(analysis, {"data": 4, "model": 2}) if with_prices else analysis
    view = tl.views.conflicts(shown)
    try:
        page.set_viewport_size({"width": 1200, "height": view.height})
        page.goto(view.url)
        last = page.locator(".listing .row").locator("visible=true").last
        expect(last).to_be_visible(timeout=SLOW)
        expect(page.locator(".tabulator-row").first).to_be_visible(timeout=SLOW)
        box = last.bounding_box()
        assert box is not None
        below = view.height - (box["y"] + box["height"])
        assert 0 <= below < 0.45 * view.height, f"{below:.0f} px of {view.height} are white"
    finally:
        view.close()


#: pixels that a figure has beyond the end of its title, or of that of its colour bar
BESIDE_TITLE = """(() => {
  const bar = plot.model.below.find((part) => part.type === 'ColorBar')
  const { text, text_font: font, text_font_size: size, text_font_style: style } = bar
    ? { text: bar.title, text_font: bar.title_text_font, text_font_size: bar.title_text_font_size,
        text_font_style: bar.title_text_font_style }
    : plot.model.title
  const context = document.createElement('canvas').getContext('2d')
  context.font = `${style} ${size} ${font}`
  return plot.bbox.width - plot.frame.bbox.left - context.measureText(text).width
})()"""


def test_nothing_is_cut_off_in_a_cell_on_a_small_screen(page: Page) -> None:
    """A cell of JupyterLab has 826 pixels on a screen of 1280."""
    analysis = tl.analyse(tl.load("transformer", layers=1))
    problem = tl.Problem(analysis, {"data": 4, "model": 2}, "tpu-v5e")
    result = tl.search(problem, "random", budget=tl.Budget(evaluations=20))
    views = [tl.views.search(result), tl.views.tree(result, problem), tl.views.colours(analysis)]
    try:
        search, tree, colours = views
        page.set_viewport_size({"width": 826, "height": 700})
        for view, names in (
            (search, ("curve cost", "curve time", "curve memory")),
            (tree, ("search tree",)),
        ):
            page.goto(view.url)
            for name in names:
                wait_for_bokeh(page, name, "plot ? plot.model.renderers.length > 0 : false", True)
                assert bokeh(page, name, BESIDE_TITLE) >= 0, name
        card = page.locator(".bk-panel-models-layout-Column").first.bounding_box()
        assert card is not None
        for name in ("Zoom in", "Up one level", "Whole tree"):
            button = page.get_by_role("button", name=name)
            box = button.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= card["x"] + card["width"], name
            assert button.evaluate("button => button.scrollHeight <= button.clientHeight"), name
        page.goto(colours.url)
        table = page.locator(".tabulator-tableholder").first
        expect(page.locator(".tabulator-row").first).to_be_visible(timeout=SLOW)
        assert table.evaluate("table => table.scrollWidth - table.clientWidth") <= 0
    finally:
        for view in views:
            view.close()


def test_a_static_listing_has_a_font_of_one_width(page: Page) -> None:
    view = tl.views.listing(tl.analyse(tl.load("attention")))
    page.set_content(f"<style>{LAB}</style>{view.to_html()}")
    widths = page.locator("pre").evaluate(
        """(pre) => ['iiiiiiiiii', 'mmmmmmmmmm'].map((text) => {
          const span = document.createElement('span')
          span.textContent = text
          pre.append(span)
          return span.getBoundingClientRect().width
        })"""
    )
    assert widths[0] == pytest.approx(widths[1])


def test_the_frames_of_plans_have_the_charts_of_the_explorer(page: Page) -> None:
    problem = tl.Problem(tl.analyse(tl.load("attention")), {"data": 4, "model": 2})
    plans: dict[str, Any] = {
        "unsharded": tl.replicated(problem),
        "rows": tl.Plan.from_actions(problem, ["S->data"]),
    }
    for view, name in (
        (tl.views.compare(plans, problem), "cost breakdown"),
        (tl.views.memory(plans, problem), "memory timelines"),
    ):
        try:
            page.set_viewport_size({"width": 960, "height": view.height})
            page.goto(view.url)
            expect(page.locator(".tabulator-row").first).to_be_visible(timeout=SLOW)
            wait_for_bokeh(page, name, "plot ? plot.model.renderers.length > 0 : false", True)
            width, height = bokeh(page, name, "[plot.frame.bbox.width, plot.frame.bbox.height]")
            assert height > 100, name
            assert width > 300, name
        finally:
            view.close()

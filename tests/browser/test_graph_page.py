"""The graph page in the browser, as a person uses it.

The tests cover levels, folds, hops, search, filters, hues, and selections shown in all views.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_explorer import bokeh, go, pixel, wait_for_bokeh
from toast_lab.models.registry import WORTHWHILE_SIZES

pytestmark = pytest.mark.browser

SLOW = 90_000
GRAPH = "dimension graph"
LANE_HEADINGS = "Object.fromEntries(plot.model.above[0].major_label_overrides)"
SELECTED = "plot.model.renderers.find((r) => r.name === '{}').data_source.selected.indices"


@pytest.fixture
def attention(served: Callable[..., str], strict_page: Page) -> Page:
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    go(page, "Understand")
    drawn(page, 31)
    return page


@pytest.fixture
def transformer(served: Callable[..., str], strict_page: Page) -> Page:
    page = strict_page
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name=re.compile("^transformer")).click()
    expect(page.get_by_text("Loaded transformer").first).to_be_visible(timeout=SLOW)
    go(page, "Understand")
    drawn(page, 34)
    return page


def drawn(page: Page, nodes: int) -> None:
    """Wait until this page's graph has ``nodes`` markers.

    The graph of the first page has been removed by then.
    """
    expect(page.get_by_text(f"{nodes:,} nodes")).to_be_visible(timeout=SLOW)
    page.wait_for_function(
        """(nodes) => {
          const all = []
          const walk = (v) => { all.push(v); for (const c of (v.child_views || [])) walk(c) }
          for (const root of Object.values(Bokeh.index)) walk(root)
          const seen = all.filter((v) => v.model.name === 'dimension graph'\
 && v.el.getBoundingClientRect().width > 0)
          const source = (v) => v.model.renderers.find((r) => r.name === 'names').data_source
          return seen.length === 1 && seen[0].model.inner_height > 20\
 && source(seen[0]).get_length() === nodes
        }""",
        arg=nodes,
        timeout=SLOW,
    )


def selected(page: Page, source: str, count: int) -> None:
    """Wait until ``count`` markers or red lines are selected in the graph."""
    for _ in range(200):
        if len(bokeh(page, GRAPH, SELECTED.format(source))) == count:
            return
        page.wait_for_timeout(100)
    assert bokeh(page, GRAPH, SELECTED.format(source)) == f"{count} of them"


def row(page: Page, text: str) -> Locator:
    return page.locator(".tabulator-row", has_text=text).locator("visible=true").first


def taken(page: Page) -> Locator:
    """The actions of the plan by hand."""
    return page.locator("ol.chain li").locator("visible=true")


def line(page: Page, text: str) -> Locator:
    return page.locator(".listing .row", has_text=text).locator("visible=true").first


def toggle(page: Page, label: str) -> None:
    """Check or uncheck a box."""
    page.get_by_role("checkbox", name=label).locator("visible=true").click()


def span(page: Page) -> float:
    return float(bokeh(page, GRAPH, "plot.model.y_range.start - plot.model.y_range.end"))


def test_a_colour_is_renamed_in_place_and_keeps_its_name(attention: Page) -> None:
    page = attention
    page.set_viewport_size({"width": 1280, "height": 720})
    rename = page.get_by_role("button", name="rename").locator("visible=true")
    expect(rename).to_have_count(0)  # nothing is selected
    row(page, "H1").click()
    selected(page, "names", 6)

    def begin(name: str) -> Locator:
        rename.click()
        return page.get_by_label(f"new name of {name}").locator("visible=true")

    # A name that cannot be stays in the field, and Esc gives it up
    field = begin("H1")
    expect(field).to_be_focused()
    field.fill("S")
    field.press("Enter")
    expect(page.get_by_role("alert").locator("visible=true")).to_have_text(
        "another colour is called S"
    )
    expect(field).to_have_value("S")
    field.press("Escape")
    expect(row(page, "H1")).to_be_visible()
    # Enter renames it, in the picture, the table, the listing and the address
    field = begin("H1")
    field.fill("keys")
    field.press("Enter")
    expect(page.get_by_text("Colour H1 is called keys now").first).to_be_visible(timeout=SLOW)
    expect(page.locator(".tabulator-selected", has_text="keys").first).to_be_visible()
    expect(line(page, "keys")).to_be_visible()
    expect(page).to_have_url(re.compile("colours=H1=keys"))
    selected(page, "names", 6)
    wait_for_bokeh(page, GRAPH, f"JSON.stringify({LANE_HEADINGS}).includes('keys')", True)
    page.get_by_role("button", name=re.compile("^data: ")).locator("visible=true").click()
    expect(page.get_by_text("manual plan: keys->data").first).to_be_visible()
    # It lasts on the next page, after a reload, and in a link that is opened by somebody else
    go(page, "Conflict board")
    expect(taken(page)).to_have_text("keys->data")
    expect(page).to_have_url(re.compile("step=hand.*act=keys-(>|%3E)data"))
    page.reload()
    expect(taken(page)).to_have_text("keys->data", timeout=SLOW)
    page.goto(re.sub("&state=[^&]*", "", page.url))
    expect(taken(page)).to_have_text("keys->data", timeout=SLOW)


def test_a_selection_is_shown_everywhere(attention: Page) -> None:
    page = attention
    # graph -> listing, colour table, text
    page.mouse.click(*pixel(page, "names", 0))
    expect(page.locator(".listing .row.on").locator("visible=true")).to_contain_text("x : [")
    expect(
        page.locator(".tabulator-selected", has_text="S").locator("visible=true")
    ).to_be_visible()
    sizes = WORTHWHILE_SIZES["attention"]
    shape = [sizes["sequence"], sizes["d_model"]]
    expect(page.get_by_text(f"x dim 0 of {shape}")).to_be_visible()
    # listing -> graph
    line(page, "div(a, c)").click()
    selected(page, "names", 2)
    expect(page.get_by_text("attention.py:27").locator("visible=true").first).to_be_visible()
    # colour table -> graph and listing
    row(page, "H1").click()
    selected(page, "names", 6)
    expect(page.locator(".listing .row.on").locator("visible=true")).to_have_count(6)
    # conflict table -> graph, the chain as text and in the graph, the source line
    page.get_by_text("Conflicts", exact=True).click()
    row(page, "a in reduce").click()
    selected(page, "conflicts", 1)
    selected(page, "names", 2)
    expect(page.get_by_text("why both dims have one colour")).to_be_visible()
    chain = bokeh(
        page, GRAPH, "plot.model.renderers.find((r) => r.name === 'chain').data_source.get_length()"
    )
    assert chain == 7  # eight names in a row
    page.get_by_text("Source", exact=True).click()
    expect(page.locator(".source .row.on")).to_contain_text("b = jnp.sum(a, axis=0)")
    # a line of the source -> graph, and its conflict is marked in the table
    page.locator(".source .row", has_text="a = k @ qt").click()
    selected(page, "names", 3)
    page.get_by_text("Conflicts", exact=True).click()
    expect(
        page.locator(".tabulator-selected", has_text="attention.py:24").locator("visible=true")
    ).to_be_visible()
    # and the board of the next page shows the set first
    go(page, "Conflict board")
    expect(page.get_by_text(re.compile("^set 0, side 0 . side 1 on: a"))).to_be_visible(
        timeout=SLOW
    )


def test_the_line_of_a_conflict_is_in_view_when_its_source_is_opened(attention: Page) -> None:
    """This holds although the conflict was selected while the source was hidden."""
    page = attention
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row:visible", has_text="attention.py").first.click()
    expect(page.get_by_text("Why both dims have one colour")).to_be_visible(timeout=SLOW)
    page.get_by_text("Source", exact=True).click()
    chosen = page.locator(".source .row.on", has_text="a = k @ qt")
    expect(chosen).to_be_in_viewport(timeout=SLOW)


def test_hover_cards_the_legend_and_the_view(attention: Page) -> None:
    page = attention
    legend = page.locator("details", has_text="legend").locator("visible=true")
    for words in (
        "a marker is one dimension name",
        "a red dashed line",
        "an outline is a compatibility set",
        "×18",
    ):
        expect(legend).to_contain_text(words)
    x, y = pixel(page, "names", 0)
    page.mouse.move(x + 60, y)
    page.mouse.move(x, y)
    card = page.locator(".bk-Tooltip, .bk-tooltip").locator("visible=true").first
    expect(card).to_contain_text("S#0")
    expect(card).to_contain_text(f"size: {WORTHWHILE_SIZES['attention']['sequence']}")
    line(page, "wv : [").click()
    before = span(page)
    page.get_by_role("button", name="Zoom to selection").click()
    page.wait_for_timeout(500)
    assert span(page) < before / 2
    page.get_by_role("button", name="Reset view").click()
    page.wait_for_timeout(500)
    assert span(page) == pytest.approx(before, rel=0.2)


def test_search_finds_by_text_and_by_pattern_and_says_what_is_wrong(attention: Page) -> None:
    page = attention
    field = page.get_by_label("find a value, op, function or colour")
    field.fill("reduce")
    field.press("Enter")
    expect(page.get_by_text("2 names", exact=True).locator("visible=true").first).to_be_visible()
    selected(page, "names", 2)
    toggle(page, "as a regular expression")
    field.fill("^(div|transpose")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(
        "is not a regular expression: missing ), unterminated subpattern"
    )
    field.fill("= (div|transpose)[(]")
    field.press("Enter")
    expect(page.get_by_text("4 names", exact=True).locator("visible=true").first).to_be_visible(
        timeout=SLOW
    )
    selected(page, "names", 4)
    field.fill("nowhere")
    field.press("Enter")
    expect(page.get_by_text('Nothing is called "nowhere"')).to_be_visible(timeout=SLOW)


def test_levels_folds_filters_and_hops(transformer: Page) -> None:
    page = transformer
    level = page.get_by_label("level")
    level.select_option("functions, layers folded")
    drawn(page, 69)
    page.get_by_role("button", name="Unfold all rows", exact=True).click()
    drawn(page, 151)  # one row for each time that the code ran
    page.get_by_role("button", name="Fold all rows", exact=True).click()
    drawn(page, 69)
    # a single row, by a double click on its marker
    rows = bokeh(
        page, GRAPH, "plot.model.renderers.find((r) => r.name === 'names').data_source.data.row"
    )
    page.mouse.dblclick(*pixel(page, "names", rows.index("attention ×2")))
    expect(page.get_by_text("75 nodes")).to_be_hidden(timeout=SLOW)
    expect(page.get_by_role("button", name=re.compile("^Fold"))).to_be_enabled()
    page.get_by_role("button", name=re.compile("^Fold")).click()
    drawn(page, 69)

    # filters: a colour, a function, conflicts only
    page.get_by_label("only these colours").select_option("batch")
    expect(page.get_by_text("only batch")).to_be_visible(timeout=SLOW)
    page.get_by_label("only these colours").select_option([])
    page.get_by_label("only these functions").select_option("geglu")
    expect(page.get_by_text("only in geglu")).to_be_visible(timeout=SLOW)
    page.get_by_label("only these functions").select_option([])
    drawn(page, 69)
    toggle(page, "conflicts and their neighbours only")
    expect(page.get_by_text("conflicts and their neighbours only").last).to_be_visible()
    toggle(page, "conflicts and their neighbours only")
    drawn(page, 69)

    # hues for the bytes of the dims, with their key in the legend
    page.get_by_label("hue shows").select_option("bytes that carry it")
    expect(page.get_by_text("the unsharded bytes of all values that have the dim")).to_be_visible(
        timeout=SLOW
    )
    page.get_by_label("hue shows").select_option("mesh axis of a plan")
    expect(page.get_by_label("of the plan")).to_be_visible()
    page.get_by_label("hue shows").select_option("colour")

    # all names, and the neighbours of a conflict
    level.select_option("dimension names")
    drawn(page, 2300)
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row").locator("visible=true").nth(8).click()
    page.get_by_role("button", name="Focus on the selection").click()
    expect(page.get_by_text("within 2 hops of the selection")).to_be_visible(timeout=SLOW)
    slider: Any = page.get_by_role("slider").locator("visible=true").first
    slider.focus()
    slider.press("ArrowRight")
    expect(page.get_by_text("within 3 hops of the selection")).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name="Show everything").click()
    drawn(page, 2300)

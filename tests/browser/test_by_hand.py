"""Sharding by hand in the browser, as a person does it.

The tests flip a side, apply a colour, undo, redo, branch and look at the devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

import toast_lab as tl
from tests.browser.page_states import tab
from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.models.registry import WORTHWHILE_SIZES
from toast_lab.plan_verbs import Plan
from toast_lab.views.compare_table import seconds_text

pytestmark = pytest.mark.browser

SLOW = 90_000
MESH = {"data": 4, "model": 2}


@pytest.fixture
def hand(served: Callable[..., str], strict_page: Page) -> Page:
    strict_page.set_viewport_size({"width": 1280, "height": 720})
    strict_page.goto(served())
    expect(strict_page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(
        timeout=SLOW
    )
    to_board(strict_page)
    expect(strict_page.get_by_text("13 lines, 0 collectives")).to_be_visible(timeout=SLOW)
    return strict_page


def to_board(page: Page) -> None:
    page.get_by_role("button", name=re.compile("Understand")).click()
    page.get_by_role("button", name="Conflict board").click()


def row(page: Page, text: str) -> Locator:
    return page.locator(".tabulator-row", has_text=text).locator("visible=true").first


def colour(page: Page, name: str) -> Locator:
    return page.locator(
        ".tabulator-row", has=page.get_by_role("gridcell", name=name, exact=True)
    ).locator("visible=true")


def cost(page: Page, name: str) -> Locator:
    """The number for the plan by hand in one row of the table of costs."""
    return (
        page.locator("table.costs tr", has=page.get_by_role("rowheader", name=name, exact=True))
        .locator("td")
        .first
    )


def test_a_reload_shows_the_page_as_it_was(hand: Page) -> None:
    page = hand
    page.reload()
    expect(page.get_by_text("13 lines, 0 collectives")).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("Nothing is sharded yet.")).to_be_visible()


def test_flipping_a_side_changes_listing_collectives_and_costs(hand: Page) -> None:
    page, problem = hand, Problem(analysed("attention", **WORTHWHILE_SIZES["attention"]), MESH)
    costs = {o.action: o for d in tl.conflicts(problem).disputes for o in d.options}
    row(page, "0: dim 0").click()
    expect(page.locator(".listing .row.on").locator("visible=true").first).to_be_visible()
    for side in (0, 1):
        page.get_by_role("button", name=re.compile(f"^side {side}")).first.click()
        option = costs[f"S@{side}->data"]
        price = page.get_by_text(re.compile("unsharded speed"))
        expect(price).to_contain_text(seconds_text(option.time_s))
        n = sum(option.collectives.values())
        expect(page.get_by_text(re.compile(rf"lines, {n} collectives; .* are new"))).to_be_visible()
        expect(row(page, f"{side}: dim {side}")).to_contain_text("●")
        for kind in option.collectives:
            expect(
                page.locator(".listing .row", has_text=f"{kind} {{data}}")
                .locator("visible=true")
                .first
            ).to_be_visible()
    expect(row(page, "0: dim 0")).not_to_contain_text("●")


def test_a_name_in_conflict_selects_its_set_and_a_set_its_names_in_the_graph(hand: Page) -> None:
    page = hand
    page.locator(".listing .row", has_text="reduce").locator("visible=true").first.click()
    expect(page.get_by_text(re.compile("^set 0, side 0 . side 1 on: a"))).to_be_visible()
    expect(page.locator(".tabulator-row.tabulator-selected", has_text="0: dim 0")).to_be_visible()
    row(page, "1: dim 1").click()
    page.get_by_role("button", name=re.compile("Graph")).click()
    expect(page.get_by_role("heading", name=re.compile("conflict .and 4 more"))).to_be_visible(
        timeout=SLOW
    )


def test_actions_are_undone_redone_branched_and_compared(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name=re.compile("^mlp")).click()
    expect(page.get_by_text("Loaded mlp").first).to_be_visible(timeout=SLOW)
    to_board(page)
    expect(
        page.get_by_text("this program has no", exact=False).or_(
            page.get_by_text("nothing to settle")
        )
    ).to_be_visible(timeout=SLOW)
    problem = Problem(analysed("mlp", **WORTHWHILE_SIZES["mlp"]), MESH)
    names = {g.name: g for g in problem.analysis.groups if g.n_names > 1}
    batch, hidden = _batch_and_inner(problem)
    assert batch in names
    tab(page, "Plan by hand")
    colour(page, batch).click()
    expect(page.get_by_role("heading", name=re.compile(f"shard {batch} on"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^data: ")).click()
    expect(row(page, f"{batch}->data")).to_be_visible()
    expect(cost(page, "their number")).to_have_text("0")
    colour(page, hidden).click()
    expect(page.get_by_role("heading", name=re.compile(f"shard {hidden} on"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^model: ")).click()
    expect(row(page, f"{hidden}->model")).to_contain_text("+1 AR")
    expect(cost(page, "their number")).to_have_text("1")
    tab(page, "One device's listing")
    expect(
        page.locator(".listing .row", has_text="all_reduce {model}").locator("visible=true")
    ).to_be_visible()

    page.get_by_role("button", name="Undo").click()
    page.mouse.move(0, 0)  # its tooltip would cover the button beside it
    expect(page.locator(".listing .row", has_text="all_reduce")).to_have_count(0)
    tab(page, "Plan by hand")
    expect(cost(page, "their number")).to_have_text("0")
    page.get_by_role("button", name="Redo").click()
    expect(cost(page, "their number")).to_have_text("1")
    expect(row(page, f"{hidden}->model")).to_be_visible()

    row(page, f"{batch}->data").click()
    page.get_by_placeholder("its name").fill("both")
    page.get_by_role("button", name="Keep, go on from 1").click()
    expect(page.get_by_text(re.compile("^Kept both: ")).first).to_be_visible()
    expect(cost(page, "their number")).to_have_text("0")
    expect(page.locator(".tabulator-row", has_text=f"{hidden}->model")).to_have_count(0)
    page.get_by_role("button", name=re.compile("Compare with other plans")).click()
    for name in ("unsharded", "manual", "both"):
        expect(row(page, name)).to_be_visible(timeout=SLOW)
    expect(row(page, "both")).to_contain_text("1 AR")


def _batch_and_inner(problem: Problem) -> tuple[str, str]:
    """Find a colour that needs no collective on data, and one with one all_reduce on model."""
    from toast_lab.cost.problem import price

    groups = [g.name for g in problem.analysis.groups if g.shardable and g.n_names > 1]
    for batch in groups:
        for inner in groups:
            try:
                plan = Plan.from_actions(problem, [(batch, "data"), (inner, "model")])
                first = Plan.from_actions(problem, [(batch, "data")])
            except tl.ToastError:
                continue
            kinds = [c.kind for c in price(problem, plan).collectives]
            if not price(problem, first).collectives and kinds == ["all_reduce"] and batch != inner:
                return batch, inner
    raise AssertionError("the mlp has no such plan")


def test_tiles_show_the_part_of_every_device(hand: Page) -> None:
    page, problem = hand, Problem(analysed("attention", **WORTHWHILE_SIZES["attention"]), MESH)
    row(page, "0: dim 0").click()
    page.get_by_role("button", name=re.compile("^side 1")).first.click()
    expect(row(page, "1: dim 1")).to_contain_text("●")
    page.get_by_text("Devices", exact=True).click()
    plan = Plan.from_actions(problem, ["S@1->data"])
    program = problem.analysis.program
    a = program.value_name.index("a")
    assert plan.value_specs()[a] == ((), ("data",)), "or the numbers below are others"
    n = program.dims(a)[0]
    part = n // MESH["data"]
    expect(
        page.get_by_text(f"dim 0 of {n}: whole; dim 1 of {n}: {MESH['data']} parts (data)")
    ).to_be_visible()
    cells = page.locator(".tabulator-row", has=page.get_by_role("gridcell", name=f"{n - part}:{n}"))
    expect(cells).to_have_count(MESH["model"])
    expect(cells.last).to_contain_text(f"0:{n}")
    page.wait_for_timeout(300)
    drawn = page.evaluate(
        """() => {
          const all = []
          const walk = (v) => { all.push(v); for (const c of (v.child_views || [])) walk(c) }
          for (const root of Object.values(Bokeh.index)) walk(root)
          const plot = all.find((v) => v.model.name === 'device tiles'\
 && v.el.getBoundingClientRect().width > 0)
          const d = plot.model.renderers.find((r) => r.name === 'held').data_source.data
          return {part: Array.from(d.part),\
 wide: Array.from(d.held_right).map((r, i) => r - d.held_left[i])}
        }"""
    )
    assert drawn["part"] == [f"0:{n}, {part * (i // 2)}:{part * (i // 2) + part}" for i in range(8)]
    assert drawn["wide"] == pytest.approx([0.22] * 8)


def test_the_words_of_a_checkbox_tick_it_and_are_its_name(hand: Page) -> None:
    """When the checkbox hides the whole listing, a note says so, and it is not cut off."""
    page, words = hand, "collectives and changes only"
    expect(page.get_by_role("checkbox", name=words)).not_to_be_checked()
    page.get_by_text(words).locator("visible=true").click()
    expect(page.get_by_role("checkbox", name=words)).to_be_checked()
    note = page.get_by_text("13 lines, 0 collectives, no changes: nothing to show")
    expect(note).to_be_visible()
    assert note.evaluate("(el) => el.scrollWidth <= el.clientWidth"), "cut"

"""The search page in the browser: the search tree, the scrubber and a race."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import Troubles
from tests.browser.test_explorer import SLOW, bokeh, go, wait_for_bokeh

pytestmark = pytest.mark.browser

#: Delays scripts that react to a change by ``lateMs``, as in a busy browser.
LATE_SCRIPTS = """() => {
  const script = Bokeh.Models.get('CustomJS').prototype
  const execute = script.execute
  script.execute = async function (...change) {
    if (window.lateMs) await new Promise((resolve) => setTimeout(resolve, window.lateMs))
    return execute.apply(this, change)
  }
}"""
#: Whether a row ends above the lower edge of its table, so that no part of it is cut off.
IS_WHOLE = """(row) => {
  const table = row.closest('.tabulator-tableholder')
  return row.getBoundingClientRect().bottom <= table.getBoundingClientRect().bottom
}"""
#: Collects the heights at which a button is seen, frame by frame, as `window.heights`.
HEIGHTS = """(words) => {
  const find = (root) => [...root.querySelectorAll('*')].flatMap((element) =>
    [element, ...(element.shadowRoot ? find(element.shadowRoot) : [])])
  window.heights = new Set()
  const look = () => {
    for (const element of find(document)) {
      const isMeant = element.tagName === 'BUTTON' && element.textContent.trim() === words
      if (isMeant && element.getClientRects().length) {
        window.heights.add(Math.round(element.getBoundingClientRect().y))
      }
    }
    requestAnimationFrame(look)
  }
  look()
}"""


@pytest.fixture(scope="module")
def search_link(served: Callable[..., str], kept_context: BrowserContext) -> str:
    """The address of a short search that each test of this file opens on its own page.

    It is started by clicks on a first page; its job number alone is enough to find it again.
    """
    url = served()
    page = kept_context.new_page()
    troubles = Troubles(page)
    page.goto(url)
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    go(page, "3 Search")
    page.get_by_label("method", exact=True).select_option("beam")
    page.get_by_role("button", name="Run the search").click()
    expect(page.get_by_text(re.compile(r"^beam \(seed 0\): ")).first).to_be_visible(timeout=SLOW)
    page.wait_for_url(re.compile("job="))
    job = re.search(r"job=([^&]+)", page.url)
    assert job
    page.close()
    assert not troubles.found, "\n".join(troubles.found)
    return f"{url}/?step=search&job={job.group(1)}"


@pytest.fixture
def searched(search_link: str, strict_page: Page) -> Page:
    """The search page, showing the search of ``search_link``."""
    page = strict_page
    page.goto(search_link)
    expect(page.get_by_text(re.compile(r"^beam \(seed 0\): ")).first).to_be_visible(timeout=SLOW)
    # Charts are drawn last; until then the page is busy
    wait_for_bokeh(page, "curve cost", "plot?.has_finished()", True)
    return page


def test_each_action_of_the_best_plan_says_what_it_saves(searched: Page) -> None:
    lines = searched.locator("ol.chain li").locator("visible=true")
    saved = re.compile(r"->\w+ +(saves|costs) [\d.]+ .s \(-?[\d.]+% of")
    expect(lines.first).to_contain_text(saved)


def block(page: Page, row: int) -> tuple[float, float]:
    """The centre of a block of the search tree on the screen."""
    return tuple(
        bokeh(
            page,
            "search tree",
            f"""(() => {{
              const d = plot.model.renderers.find((r) => r.name === 'blocks').data_source.data
              const box = plot.canvas_view.el.getBoundingClientRect()
              const mid = (a, b) => (d[a][{row}] + d[b][{row}]) / 2
              return [box.left + plot.frame.x_scale.compute(mid('left', 'right')),
                      box.top + plot.frame.y_scale.compute(mid('top', 'bottom'))]
            }})()""",
        )
    )


COLUMN = "Array.from(plot.model.renderers.find((r) => r.name === 'blocks').data_source.data['{}'])"


def column(page: Page, name: str) -> list[Any]:
    return list(bokeh(page, "search tree", COLUMN.format(name)))


def plan(page: Page) -> Locator:
    """The actions listed on the right, each with the program's cost after it."""
    return page.locator("ol.chain li").locator("visible=true")


def starts(action: str) -> re.Pattern[str]:
    return re.compile(f"^{re.escape(action)}  C ")


def rows(page: Page) -> Locator:
    return page.locator(".tabulator-row").locator("visible=true")


def simulations(page: Page) -> int:
    """The number of simulations that the page shows."""
    words = (
        page.get_by_text(re.compile(r"^\s*[\d,]+ simulations$"))
        .locator("visible=true")
        .first.inner_text()
    )
    return int(words.split()[0].replace(",", ""))


def until(page: Page, first: str) -> None:
    """Wait until an action is the first block of the tree."""
    for _ in range(300):
        if column(page, "action")[0] == first:
            return
        page.wait_for_timeout(100)
    assert column(page, "action")[0] == first


def test_the_tree_is_looked_into_and_its_plan_is_taken_away(searched: Page) -> None:
    page = searched
    page.get_by_role("button", name="Tree", exact=True).click()
    expect(page.get_by_role("heading", name="selected step")).to_be_visible()
    page.wait_for_timeout(500)
    actions = column(page, "action")
    assert actions[0] == "unsharded"
    assert len(actions) > 5
    assert sum("more" in a for a in actions) >= 1

    # a click shows the step, and its plan is priced
    page.mouse.click(*block(page, 1))
    expect(plan(page)).to_have_text([starts(actions[1])])
    expect(page.get_by_text("peak memory", exact=True).locator("visible=true")).to_be_visible()
    expect(page.get_by_text(f"actions at {actions[1]} (")).to_be_visible()

    # a second click makes it the root; "Up one level" leads back
    page.wait_for_timeout(600)
    page.mouse.click(*block(page, 1))
    expect(page.get_by_text(f"unsharded › {actions[1]}").first).to_be_visible()
    until(page, actions[1])
    page.get_by_role("button", name="Up one level").click()
    until(page, "unsharded")

    # the table of the same actions selects as well, and sorts
    root = page.get_by_text("actions at unsharded")
    page.wait_for_timeout(800)
    page.mouse.click(*block(page, 0))
    expect(root).to_be_visible()
    page.wait_for_timeout(1200)
    row = page.locator(".tabulator-row", has_text=actions[2]).locator("visible=true").first
    row.click()
    expect(plan(page)).to_have_text([starts(actions[2])])

    page.get_by_role("button", name="Compare this plan").click()
    expect(page.locator(".tabulator-row", has_text="beam step").first).to_be_visible()
    go(page, "3 Search")
    page.get_by_role("button", name="Go on by hand in the graph").click()
    expect(page.get_by_text(f"manual plan: {actions[2]}").first).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("plan by hand"))).to_be_visible()


def test_the_scrubber_shows_an_earlier_best(searched: Page) -> None:
    page = searched
    now = page.locator("dl.facts").locator("visible=true").first.inner_text()
    slider = page.locator(".noUi-handle").locator("visible=true").first
    slider.focus()
    page.keyboard.press("Home")
    expect(page.get_by_text("simulation 1, best plan from simulation 1")).to_be_visible()
    then = page.locator("dl.facts").locator("visible=true").first.inner_text()
    assert re.search(r"best step\n(.*), 1.00× unsharded speed\n(?s:.*)\nunsharded\n\1,", then), then
    expect(page.get_by_text("none: unsharded is the best so far")).to_be_visible()
    page.get_by_role("button", name="Tree", exact=True).click()
    expect(page.get_by_text("1, 1 ended here")).to_be_visible()
    wait_for_bokeh(page, "search tree", COLUMN.format("action"), ["unsharded"])
    page.get_by_role("button", name="Live").click()
    page.get_by_role("button", name="Curves", exact=True).click()
    expect(page.get_by_text("simulation 1, best plan from simulation 1")).to_have_count(0)
    expect(page.locator("dl.facts").locator("visible=true").first).to_have_text(
        now, use_inner_text=True
    )


def test_a_race_of_two_shows_two_curves_and_a_table(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    go(page, "3 Search")
    page.get_by_role("button", name="Race", exact=True).click()
    page.get_by_label("mcts", exact=True).uncheck()
    seconds = page.get_by_label("seconds each")
    seconds.fill("1")
    seconds.press("Enter")
    page.get_by_role("button", name="Run the race").click()
    expect(page.get_by_text(re.compile("^The race is over: ")).first).to_be_visible(timeout=SLOW)
    for method in ("beam", "random"):
        expect(
            page.locator(".tabulator-row", has_text=method).locator("visible=true").first
        ).to_contain_text("yes")
    lines = bokeh(
        page,
        "race curves",
        """plot.model.renderers.filter((r) => r.name === 'beam' || r.name === 'random').map((r) =>
           [r.data_source.get_length(), r.glyph.line_color.value,\
 JSON.stringify(r.glyph.line_dash.value)])""",
    )
    assert len(lines) == 2
    assert all(line[0] >= 2 for line in lines)
    assert lines[0][1] != lines[1][1]
    assert lines[0][2] != lines[1][2]
    page.get_by_role("button", name="Compare the plans of the race").click()
    expect(page.locator(".tabulator-row", has_text="beam (race, seed 0)").first).to_be_visible()
    expect(page.locator(".tabulator-row", has_text="random (race, seed 0)").first).to_be_visible()


def test_a_table_that_changed_while_it_was_hidden_shows_its_rows(searched: Page) -> None:
    page = searched
    page.evaluate(LATE_SCRIPTS)
    go(page, "4 Use")
    page.get_by_text("Collectives", exact=True).filter(visible=True).first.click()
    lines = page.locator(".tabulator-row", has_text="attention.py").locator("visible=true")
    expect(lines.first).to_be_visible(timeout=SLOW)
    go(page, "3 Search")
    page.get_by_role("button", name="Race", exact=True).click()
    seconds = page.get_by_label("seconds each")
    seconds.fill("1")
    seconds.press("Enter")
    for late_ms in (0, 500):
        go(page, "3 Search")
        page.get_by_role("button", name="Run the race").click()
        compare = page.get_by_role("button", name="Compare the plans of the race")
        expect(compare).to_be_disabled()
        expect(compare).to_be_enabled(timeout=SLOW)
        page.evaluate(f"window.lateMs = {late_ms}")
        compare.click()
        raced = page.locator(".tabulator-row:visible", has_text="(race, seed 0)")
        expect(raced).to_have_count(3)
        for plan in raced.all():  # the table has grown with its rows
            assert plan.evaluate(IS_WHOLE)
        expect(lines.first).to_be_visible(timeout=SLOW)


def test_a_search_is_started_without_scrolling(searched: Page) -> None:
    page = searched
    page.set_viewport_size({"width": 1280, "height": 720})
    for name in ("Run the search", "Pause", "Stop and keep the best", "Compare with other plans →"):
        expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1.0)


def test_the_button_to_run_never_moves_under_the_pointer(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    page.evaluate(HEIGHTS, "Run the search")
    go(page, "3 Search")
    for method, words in (("beam", "The best few plans"), ("mcts", "Monte-Carlo tree search")):
        page.get_by_label("method", exact=True).select_option(method)
        expect(page.get_by_text(words).filter(visible=True).first).to_be_visible()
        page.wait_for_timeout(300)
    heights = page.evaluate("[...window.heights]")
    assert len(heights) == 1, heights


def test_a_plan_that_was_found_is_told_in_words(searched: Page) -> None:
    said = searched.locator(".plan-panel dd", has_text=re.compile(r"over (data|model)"))
    expect(said.locator("visible=true").first).to_be_visible()
    more = searched.get_by_text("Its rules and constraints: page 4, Use.")
    expect(more.locator("visible=true").first).to_be_visible()


def test_a_round_is_stepped_and_a_stopped_search_goes_on(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    go(page, "3 Search")
    expect(page.get_by_role("button", name="Resume")).to_be_disabled()
    page.get_by_role("button", name="Round", exact=True).click()
    expect(page.get_by_role("button", name="Go on")).to_be_enabled(timeout=SLOW)
    facts = page.locator("dl.facts").locator("visible=true").first
    expect(facts).to_contain_text("paused", timeout=SLOW)
    count = re.search(r"simulations\s*([\d,]+)", facts.inner_text())
    assert count is not None
    round_size = int(count[1].replace(",", ""))
    assert round_size >= 100
    # The slider may lag
    expect(page.get_by_text(re.compile(rf"^\s*{count[1]} simulations$")).first).to_be_visible(
        timeout=SLOW
    )
    page.wait_for_timeout(1000)
    assert simulations(page) == round_size  # it stands still
    page.get_by_role("button", name="Stop and keep the best").click()
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first).to_be_visible(timeout=SLOW)
    page.get_by_label("plans", exact=True).fill("10")  # far fewer than in the round before
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\) #2: ")).first).to_be_visible(timeout=SLOW)
    assert simulations(page) > round_size
    first = "plot.model.renderers[0].data_source.data.simulation[0]"
    wait_for_bokeh(page, "curve cost", first, 1)  # the curve also has the earlier simulations


def test_actions_have_priors_and_scores_and_sort(searched: Page) -> None:
    page = searched
    page.get_by_role("button", name="Tree", exact=True).click()
    head = page.locator(".tabulator-col").locator("visible=true")
    for title in ("N", "Q, mean C(s)", "prior P", "UCT"):
        expect(head.filter(has_text=re.compile(f"^{re.escape(title)}$"))).to_be_visible()

    def shown(field: str) -> list[float]:
        cells = (
            page.locator(f".tabulator-cell[tabulator-field='{field}']")
            .locator("visible=true")
            .all_inner_texts()
        )
        return [float(c.replace(",", "")) for c in cells]

    expect(rows(page).nth(3)).to_be_visible()
    visits = shown("N")
    assert visits == sorted(visits, reverse=True)
    assert all(0 < p <= 1 for p in shown("prior P"))
    head.filter(has_text=re.compile("^UCT$")).click()
    for _ in range(300):
        if shown("N") != visits:
            break
        page.wait_for_timeout(100)
    assert shown("N") != visits
    assert shown("UCT") == sorted(shown("UCT"))


def test_a_trajectory_is_looked_at(searched: Page) -> None:
    page = searched
    page.get_by_role("button", name="Best trajectories").click()
    best = page.locator("dl.facts dd").locator("visible=true").nth(2).inner_text()
    expect(rows(page).first).to_contain_text(best.rstrip("0"))  # the table shows no trailing zeros
    page.get_by_role("button", name="Last trajectories").click()
    expect(rows(page).first).to_contain_text(f"{simulations(page)}")
    actions = rows(page).first.locator(".tabulator-cell:not(.empty)").last.inner_text().split(" › ")
    rows(page).first.click()
    expect(
        page.get_by_role("heading", name=re.compile(f"trajectory {simulations(page):,}"))
    ).to_be_visible()
    expect(plan(page)).to_have_text([starts(a) for a in actions])
    page.get_by_role("button", name="Show it in the tree").click()
    expect(page.get_by_role("heading", name="selected step")).to_be_visible()
    expect(plan(page)).to_have_text([starts(a) for a in actions])


def test_settings_are_checked_while_they_are_typed(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(served() + "/?step=search")
    run = page.get_by_role("button", name="Run the search")
    expect(run).to_be_enabled(timeout=SLOW)
    for label, wrong, message, right in (
        ("options", "exploraton=1", 'did you mean "exploration"', "exploration=1"),
        ("seconds", "soon", "'soon' is not a number; give one from 0.5 to 86,400 seconds", "5"),
        ("seed", "1.5", "'1.5' is not a whole number", "1"),
        ("memory limit, GiB", "8 gallons", "'8 gallons' is not a memory size", "8 GiB"),
    ):
        field = page.get_by_label(label, exact=True).locator("visible=true")
        field.fill(wrong)  # Enter is not pressed: typing is enough
        expect(page.get_by_role("alert").filter(has_text=message)).to_be_visible()
        expect(run).to_be_disabled()
        field.fill(right)
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(run).to_be_enabled()


def test_a_search_is_found_again_by_its_job_alone(searched: Page) -> None:
    page = searched
    page.get_by_role("button", name="Tree", exact=True).click()
    expect(page.get_by_role("heading", name="selected step")).to_be_visible()
    wait_for_bokeh(page, "search tree", f"{COLUMN.format('action')}.length > 5", True)

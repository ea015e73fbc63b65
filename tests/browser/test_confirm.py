"""A person confirms a search on attached devices, reads a written plan and executes it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_explorer import SLOW, wait_for_bokeh

pytestmark = pytest.mark.browser

LENGTH = (
    "plot.model.renderers.find((r) => r.name === '{}').data_source.data.time_s"
    ".filter((t) => t > 0).length"
)


# Records what the page says and draws every 50 ms: a short execution may be over before a test
# that looks for one text after another has seen them all.
WATCH = """() => {
  window.moments = []
  const texts = (node) => [...(node.shadowRoot ? [node.shadowRoot] : []), ...node.childNodes]
    .flatMap((n) => n.nodeType === 3 ? [n.textContent.trim()]
      : ['STYLE', 'SCRIPT'].includes(n.tagName) ? [] : texts(n))
  const drawn = (name) => {
    let points = 0
    for (const model of Bokeh.documents[0].all_models) {
      if (model.name === name && model.data_source) {
        points += [...model.data_source.data.time_s].filter((t) => t > 0).length
      }
    }
    return points
  }
  setInterval(() => window.moments.push({
    text: texts(document.body).filter((t) => t).join(' '),
    priced: drawn('priced'), clock: drawn('clock')}), 50)
}"""
#: On a loaded machine the first plan may have been executed before the page says so.
DOING = r"Round 1: executing plan (\d) of at most \d+ for cpu:8, priced \S+ \S+, \d+ s"


def tag(page: Page, words: str) -> None:
    """Wait until the page shows this status of the best plan."""
    shown = page.locator(".tag").locator("visible=true").filter(has_text=re.compile(f"^{words}$"))
    expect(shown.first).to_be_visible(timeout=SLOW)


def test_a_search_is_confirmed_by_attached_devices_read_and_executed(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 720})
    # Large enough that its execution is visible
    sizes = "batch=512&inputs=512&hidden=8192&outputs=512"
    page.goto(served() + f"/?model=mlp&{sizes}&machine=cpu&mesh=data=4,model=2&step=search")
    run = page.get_by_role("button", name="Run the search")
    expect(run).to_be_enabled(timeout=SLOW)

    # Possible judges: the problem's machine first, and reasons for those that cannot judge
    judge = page.get_by_label("confirm with")
    options = judge.locator("option").all_inner_texts()
    assert options[:2] == ["no judge: plans are only priced", "8 virtual CPU devices, executed"]
    page.get_by_text(re.compile("not available here, and why")).click()
    expect(page.get_by_text("no GPU is attached to this machine").first).to_be_visible()
    judge.select_option(label="8 virtual CPU devices, executed")
    page.get_by_label("plans at most").fill("2")
    page.get_by_label("seconds", exact=True).fill("6")
    page.evaluate(WATCH)
    page.get_by_role("button", name="Run and confirm").click()

    # The priced curve, which plan is executed and for how long, then the clock's curve beside it
    page.wait_for_function(f"window.moments.some((m) => /{DOING}/.test(m.text))", timeout=SLOW)
    page.wait_for_function("window.moments.at(-1)?.clock", timeout=SLOW)
    moments = page.evaluate("window.moments")
    meanwhile = [(m, doing[1]) for m in moments if (doing := re.search(DOING, m["text"]))]
    assert meanwhile  # what anybody gets for nothing is executed before the first search
    first = [moment for moment, plan in meanwhile if plan == "1"]
    assert [moment["clock"] for moment in first] == [0] * len(first)

    # The page is reloaded meanwhile, and goes on
    page.wait_for_url(re.compile("job="))
    job = re.search(r"job=([^&]+)", page.url)
    assert job
    page.goto(f"{served()}/?step=search&job={job.group(1)}")
    expect(page.get_by_text("In the comparison now:").first).to_be_visible(timeout=SLOW)
    tag(page, r"(judged, not )?confirmed")

    # Written plans come first: what each further rule or constraint buys, and one in words
    buys = page.get_by_text(re.compile("what each further rule or constraint buys")).first
    expect(buys).to_be_visible()
    expect(page.get_by_text(re.compile("within 5% of the best", re.I)).first).to_be_visible()
    words = page.locator("pre").locator("visible=true").first
    expect(words).to_contain_text("unsharded")
    chosen = page.locator(".tabulator-row.tabulator-selected").locator("visible=true")
    expect(chosen).to_have_count(1)

    page.locator(".bk-tab", has_text="Curve and verdicts").locator("visible=true").click()
    for name in ("priced", "clock", "judged"):
        wait_for_bokeh(page, "confirmed curve", f"{LENGTH.format(name)} >= 1", True)
    # Only execution can tell which of the two is quicker
    word = re.compile("confirmed|best judged")
    expect(page.locator(".tabulator-row:visible", has_text=word)).to_have_count(1)

    page.get_by_role("button", name="Compare & execute").click()
    execute = page.get_by_role("button", name="Execute", exact=True)
    expect(execute).to_be_enabled()
    execute.click()
    expect(page.get_by_text(re.compile(r"executed on cpu:8")).first).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("agrees with unsharded").first).to_be_visible()


def test_a_judge_of_another_machine_and_one_that_is_stopped(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(served() + "/?model=mlp&machine=tpu-v5e&mesh=data=4,model=2&step=search")
    expect(page.get_by_role("button", name="Run the search")).to_be_enabled(timeout=SLOW)
    page.get_by_label("confirm with").select_option(
        label="8 virtual CPU devices, executed (another machine)"
    )
    warning = page.get_by_text(re.compile("the clock and the price are of different machines"))
    expect(warning.first).to_be_visible()
    page.get_by_label("seconds", exact=True).fill("6")
    page.get_by_role("button", name="Run and confirm").click()
    tag(page, "judged, not confirmed")
    ratio = page.locator(".tabulator-row:visible .tabulator-cell[tabulator-field='ratio']").first
    expect(ratio).to_have_text("–")
    if page.get_by_role("button", name="Cancel").is_enabled():
        page.keyboard.press("Escape")
    expect(page.get_by_text("In the comparison now:").first).to_be_visible(timeout=SLOW)
    tag(page, "judged, not confirmed")

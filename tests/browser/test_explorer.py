"""The path of a new user through the explorer, from the gallery to executed plans."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from toast_lab.models.registry import WORTHWHILE_SIZES

pytestmark = pytest.mark.browser

SMALL = {
    "layers": "1",
    "d_model": "64",
    "hidden": "128",
    "heads": "4",
    "key_size": "16",
    "vocab": "256",
    "sequence": "32",
}
SLOW = 90_000


def go(page: Page, step: str) -> None:
    page.get_by_role("button", name=re.compile(step)).click()


def bokeh(page: Page, name: str, code: str) -> Any:
    """Evaluate ``code`` with ``plot``, the view of the visible figure called ``name``."""
    return page.evaluate(
        """([name, code]) => {
          const all = []
          const walk = (v) => { all.push(v); for (const c of (v.child_views || [])) walk(c) }
          for (const root of Object.values(Bokeh.index)) walk(root)
          const plot = all.find((v) => v.model.name === name\
 && v.el.getBoundingClientRect().width > 0)
          return new Function('plot', 'return ' + code)(plot)
        }""",
        [name, code],
    )


def pixel(page: Page, source: str, index: int) -> tuple[float, float]:
    """The screen position of a marker, or the middle of a red line, once it stands still."""
    end = time.monotonic() + SLOW / 1000
    spot = _spot(page, source, index)
    while True:
        page.wait_for_timeout(300)
        before, spot = spot, _spot(page, source, index)
        if spot == before:
            return spot
        assert time.monotonic() < end, f"{source} {index} moves on"


def _spot(page: Page, source: str, index: int) -> tuple[float, float]:
    return tuple(
        bokeh(
            page,
            "dimension graph",
            f"""(() => {{
              const r = plot.model.renderers.find((r) => r.name === '{source}')
              const d = r.data_source.data
              const mid = (v) => Array.isArray(v) || ArrayBuffer.isView(v)\
 ? (v[0] + v[v.length - 1]) / 2 : v
              const x = mid((d.x ?? d.xs)[{index}]), y = mid((d.y ?? d.ys)[{index}])
              const box = plot.canvas_view.el.getBoundingClientRect()
              return [box.left + plot.frame.x_scale.compute(x),\
 box.top + plot.frame.y_scale.compute(y)]
            }})()""",
        )
    )


def wait_for_bokeh(page: Page, name: str, code: str, expected: Any) -> None:
    """Wait until ``bokeh`` gives a value: changes of figures arrive some time after the texts."""
    end = time.monotonic() + SLOW / 1000
    while (value := bokeh(page, name, code)) != expected:
        assert time.monotonic() < end, f"{name}: {code} stays {value}, not {expected}"
        page.wait_for_timeout(100)


@pytest.fixture
def explorer(served: Callable[..., str], strict_page: Page) -> Page:
    strict_page.goto(served())
    expect(strict_page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(
        timeout=SLOW
    )
    return strict_page


@pytest.mark.timing
def test_the_first_screen_takes_at_most_five_times_as_long_as_a_bare_page(
    served: Callable[..., str], strict_page: Page
) -> None:
    """The unit is the smallest Panel page, since seconds depend on the machine."""
    bare = Path(__file__).with_name("bare_page.py")
    panel = [sys.executable, "-m", "panel", "serve", str(bare), "--port", "{port}"]
    screens = {
        "bare": (f"{served(command=panel)}/bare_page", "bare"),
        "explorer": (served(), "31 of 31 names"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in screens}
    for turn in range(4):
        for name, (url, text) in screens.items():
            began = time.monotonic()
            strict_page.goto(url)
            expect(strict_page.get_by_text(text)).to_be_visible(timeout=SLOW)
            strict_page.locator("canvas").first.wait_for()
            if turn:  # the first turn fills the browser's cache of the libraries
                seconds[name].append(time.monotonic() - began)
    ratio = min(seconds["explorer"]) / min(seconds["bare"])
    print(f"{ratio:.2f} times a bare page", seconds)
    assert ratio < 5


def test_a_new_user_finds_shards_searches_and_compares(explorer: Page) -> None:
    page = explorer
    page.get_by_role("button", name=re.compile("^transformer")).click()
    expect(page.get_by_text("Loaded transformer").first).to_be_visible(timeout=SLOW)
    for name, value in SMALL.items():
        field = page.get_by_label(name, exact=True)
        field.fill(value)
        field.press("Enter")
    page.get_by_role("button", name="Load with these sizes").click()
    expect(page.get_by_text("1,281 of 1,690 names").filter(visible=True)).to_be_visible(
        timeout=SLOW
    )

    # the graph: a large program starts with its colours; a conflict is picked in the table
    go(page, "Understand")
    expect(page.get_by_text("34 nodes")).to_be_visible(timeout=SLOW)
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row", has_text="scores_1").locator("visible=true").first.click()
    expect(page.get_by_text("28 conflicts settled by one bit")).to_be_visible()
    page.get_by_role("button", name="Focus on the selection").click()
    expect(page.get_by_text("within 2 hops of the selection")).to_be_visible()
    page.get_by_role("button", name=re.compile("^side 1: ")).last.click()
    expect(page.get_by_text("manual plan: sequence@1->model").first).to_be_visible()

    # the search: points come in, it pauses on request, and goes on
    go(page, "3 Search")
    page.get_by_label("machine").select_option("cpu")
    plans = page.get_by_label("plans", exact=True)
    plans.fill("1000")  # enough to see them come; a search takes half a minute to end by itself
    plans.press("Enter")
    page.get_by_role("button", name="Step").click()
    expect(page.get_by_text("1 simulations", exact=True).first).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name="Step").click()
    expect(page.get_by_text("2 simulations", exact=True).first).to_be_visible(timeout=SLOW)
    wait_for_bokeh(page, "curve time", "plot.model.renderers[0].data_source.get_length()", 2)
    page.get_by_role("button", name="Go on").click()
    page.wait_for_function("() => true")
    counts = [2]
    end = time.monotonic() + SLOW / 1000
    while counts[-1] <= 20 and time.monotonic() < end:
        time.sleep(0.2)
        counts.append(bokeh(page, "curve time", "plot.model.renderers[0].data_source.get_length()"))
    assert counts[-1] > 20  # points come in while it runs; a benchmark measures how many a second
    assert counts == sorted(counts)
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first).to_be_visible(timeout=SLOW)

    # the comparison: data parallelism and the best plan, estimated and executed
    go(page, "4.*Use")
    page.get_by_role("button", name="Add data parallel").click()
    row = page.locator(".tabulator-row", has_text="data parallel").first
    expect(row).to_be_visible()
    page.get_by_role("button", name="Execute", exact=True).click()
    expect(page.get_by_text("data parallel: executed on cpu:8.").first).to_be_visible(timeout=SLOW)
    expect(row).to_contain_text("cpu:8")
    best = page.locator(".tabulator-row", has_text="mcts (seed 0)").first
    best.click()
    page.get_by_role("button", name="Execute", exact=True).click()
    expect(page.get_by_text("mcts (seed 0): executed on cpu:8.").first).to_be_visible(timeout=SLOW)
    expect(best).to_contain_text("cpu:8")
    expect(page.get_by_text(re.compile("relative to unsharded")).first).to_be_visible()
    page.get_by_text("A | B", exact=True).click()
    expect(page.get_by_text(re.compile("mcts .seed 0., device-local")).first).to_be_visible(
        timeout=SLOW
    )


COUNT_MESSAGES = """
  window.messages = 0
  const post = MessagePort.prototype.postMessage
  MessagePort.prototype.postMessage = function (...words) {
    ++messages
    return post.apply(this, words)
  }
"""


def test_tables_that_wait_or_were_taken_away_leave_the_processor_alone(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.add_init_script(COUNT_MESSAGES)
    page.goto(served())
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    # Other tables replace these
    page.get_by_role("button", name=re.compile("^mlp")).click()
    expect(page.get_by_text("Loaded mlp").first).to_be_visible(timeout=SLOW)
    go(page, "3 Search")
    expect(page.get_by_role("button", name="Run the search")).to_be_visible(timeout=SLOW)
    page.wait_for_timeout(1000)
    # At most a thousand, unless tables poll with messages for the end of a wait
    assert page.evaluate("messages") < 10_000


def test_clicks_on_the_canvas_select_names_and_conflicts_and_the_listing_follows(
    explorer: Page,
) -> None:
    page = explorer
    go(page, "Understand")
    expect(page.get_by_text("31 nodes")).to_be_visible()
    page.mouse.click(*pixel(page, "names", 0))
    sizes = WORTHWHILE_SIZES["attention"]
    n, d_model = sizes["sequence"], sizes["d_model"]
    expect(page.get_by_text(f"x dim 0 of [{n}, {d_model}]")).to_be_visible()
    expect(page.locator(".listing .row.on").filter(visible=True)).to_contain_text("x : [")
    page.wait_for_timeout(600)  # otherwise both clicks count as a double click
    page.mouse.click(*pixel(page, "conflicts", 1))
    expect(page.get_by_text(f"a [{n}, {n}], dims 0 and 1, as used in")).to_be_visible()
    expect(page.locator(".listing .row.on").filter(visible=True)).to_contain_text("reduce")
    page.locator(".listing .row", has_text="div(a, c)").filter(visible=True).click()
    expect(page.get_by_role("heading", name=re.compile("2 names"))).to_be_visible()
    chosen = bokeh(
        page,
        "dimension graph",
        "plot.model.renderers.find((r) => r.name === 'names').data_source.selected.indices.length",
    )
    assert chosen == 2


def test_a_click_between_the_red_lines_of_a_set_selects_the_set(explorer: Page) -> None:
    page = explorer
    go(page, "Understand")
    expect(page.get_by_text("31 nodes")).to_be_visible()
    (x, above), (_, below) = pixel(page, "conflicts", 1), pixel(page, "conflicts", 2)
    page.mouse.click(x, (above + below) / 2)
    expect(page.get_by_role("heading", name="conflict (and 4 more)")).to_be_visible()
    chosen = "plot.model.renderers.find((r) => r.name === '{}').data_source.selected.indices.length"
    wait_for_bokeh(page, "dimension graph", chosen.format("names"), 10)
    wait_for_bokeh(page, "dimension graph", chosen.format("conflicts"), 5)


def test_wrong_input_is_a_message_and_everything_stays(explorer: Page) -> None:
    page = explorer
    go(page, "3 Search")
    mesh = page.get_by_label(re.compile("^mesh"))
    mesh.fill("banana")
    mesh.press("Enter")
    expect(page.get_by_text("cannot read the mesh 'banana'").first).to_be_visible()
    expect(mesh).to_have_value("banana")  # so that it can be corrected and need not be typed again
    expect(page.get_by_role("button", name="Run the search")).to_be_disabled()
    expect(page.get_by_text("on data=4,model=2 of").first).to_be_visible()
    go(page, "4.*Use")
    page.get_by_role("button", name="Type a plan").click()
    page.get_by_label(re.compile("^actions")).fill("Z->data")
    page.get_by_role("button", name="Add typed plan").click()
    expect(page.get_by_text("no colour is called 'Z'").first).to_be_visible()
    expect(page.locator(".tabulator-row", has_text="unsharded").first).to_be_visible()


def test_a_reload_keeps_what_was_done(explorer: Page) -> None:
    page = explorer
    go(page, "4.*Use")
    page.get_by_role("button", name="Add data parallel").click()
    expect(page.locator(".tabulator-row", has_text="data parallel").first).to_be_visible()
    page.wait_for_url(re.compile("step=compare"))
    page.reload()
    expect(page.locator(".tabulator-row", has_text="data parallel").first).to_be_visible(
        timeout=SLOW
    )


def test_two_pages_do_not_see_each_other(served: Callable[..., str], explorer: Page) -> None:
    go(explorer, "4.*Use")
    explorer.get_by_role("button", name="Add data parallel").click()
    expect(explorer.locator(".tabulator-row", has_text="data parallel").first).to_be_visible()
    other = explorer.context.new_page()
    other.goto(served() + "/?step=compare")
    expect(other.locator(".tabulator-row", has_text="unsharded").first).to_be_visible(timeout=SLOW)
    assert other.locator(".tabulator-row", has_text="data parallel").count() == 0
    other.close()


def test_a_narrow_window_stacks_the_panes(explorer: Page) -> None:
    page = explorer
    page.set_viewport_size({"width": 900, "height": 800})
    go(page, "Understand")
    expect(page.get_by_text("31 nodes")).to_be_visible()
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 900
    for part in (
        page.get_by_role("button", name="Focus on the selection"),
        page.locator("canvas").locator("visible=true").first,
    ):
        part.scroll_into_view_if_needed()
        box = part.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 900
    covered = page.evaluate(
        """() => {
          const inner = (e) => [e, ...(e.shadowRoot ? deep(e.shadowRoot) : [])]
          const deep = (root) => [...root.querySelectorAll('*')].flatMap(inner)
          const canvas = deep(document).find((e) => e.tagName === 'CANVAS'\
 && e.getBoundingClientRect().width)
          const box = canvas.getBoundingClientRect()
          let at = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2)
          while (at && at.shadowRoot) {
            const inner = at.shadowRoot.elementFromPoint(box.left + box.width / 2,\
 box.top + box.height / 2)
            if (!inner || inner === at) break
            at = inner
          }
          return box.height < 300 || !at || !/canvas|events/i.test(at.tagName + at.className)
        }"""
    )
    assert not covered, "the graph is cut off or lies under something else"


def test_coverage_and_divisibility_stand_below_the_graph(explorer: Page) -> None:
    explorer.get_by_role("button", name=re.compile("^attention")).click()
    expect(
        explorer.get_by_text(
            "Every axis of data=4,model=2 divides every size; every argument can be cut."
        ).first
    ).to_be_visible()
    explorer.get_by_text("Coverage (0)").click()
    expect(explorer.get_by_text("Every op can be split along every dim.")).to_be_visible()
    explorer.get_by_label("key").fill("6")
    explorer.get_by_role("button", name="Load with these sizes").click()
    expect(explorer.get_by_text("Sizes (1)")).to_be_visible(timeout=SLOW)
    explorer.get_by_text("Sizes (1)").click()
    expect(
        explorer.get_by_role("gridcell", name="data=4: pad to 8, or an axis of 2")
    ).to_be_visible()
    expect(explorer.get_by_text("H1 = 6 on data=4: pad to 8, or an axis of 2")).to_be_visible()

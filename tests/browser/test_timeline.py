"""The timeline of a compiled step leads a person from a bar to the source line behind it."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.scheduled import KEPT, compiled_for
from tests.browser.test_compare_page import ask, row
from tests.browser.test_explorer import SLOW, bokeh, go
from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import data_parallel
from toast_lab.text import line_text
from toast_lab.views.compare_table import seconds_text

pytestmark = pytest.mark.browser

# The compiled program has the sizes of the model, not those of the gallery


@functools.cache
def problem() -> Problem:
    return Problem(analysed("attention"), {"data": 4, "model": 2})


@functools.cache
def plan() -> Plan:
    return Plan.from_actions(problem(), data_parallel(problem()))


#: the op and the exposed time of each collective that has exposed time
EXPOSED = """(() => {
  const bars = plot.model.renderers.find((r) => r.name === 'collective').data_source.data
  return [...bars.op].map((op, i) => [op, bars.exposed[i]]).filter(([_, s]) => s !== '–')
})()"""
#: The screen position of the centre of the compiled bar of an op.
PLACE = """(() => {
  const box = plot.canvas_view.el.getBoundingClientRect(), { x_scale, y_scale } = plot.frame
  const bars = plot.model.renderers.find((r) => r.name === 'collective').data_source.data
  const i = [...bars.op].findIndex((op, j) => op === OP && bars.side[j] === 'compiled')
  const x = x_scale.compute((bars.left[i] + bars.right[i]) / 2)
  return [box.left + x, box.top + y_scale.compute((bars.bottom[i] + bars.top[i]) / 2)]
})()"""


def test_the_longest_exposed_collective_leads_to_its_line(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 720})
    url = served(command=[sys.executable, "-m", "tests.browser.scheduled", "{port}"])
    page.goto(f"{url}/?model=attention")
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    go(page, "4.*Use")
    page.get_by_role("button", name="Add data parallel").click()
    expect(row(page, "data parallel")).to_be_visible(timeout=SLOW)
    ask(page, "Where time goes")
    ask(page, "Timeline")
    expect(page.get_by_text("compile it to see the compiler's schedule above")).to_be_visible(
        timeout=SLOW
    )
    compile_while_a_field_changes(page)

    schedule = compiled_for(plan()).schedule
    assert schedule is not None
    longest = max(schedule.events, key=lambda event: event.exposed_s)
    line = line_text(longest.source)
    expect(page.get_by_text(f"compiled {seconds_text(schedule.time_s)}")).to_be_visible(
        timeout=SLOW
    )
    first = page.locator(".tabulator-row:visible", has_text=line).first
    expect(first).to_contain_text(seconds_text(longest.exposed_s))
    expect(first).to_contain_text(longest.kind)
    drawn = bokeh(page, "lanes", EXPOSED)
    assert [longest.op, seconds_text(longest.exposed_s)] in drawn

    x, y = bokeh(page, "lanes", PLACE.replace("OP", str(longest.op)))
    page.mouse.click(x, y)
    expect(page.get_by_text(f"Selected: {line}: compiled {longest.kind} takes")).to_be_visible(
        timeout=SLOW
    )
    page.get_by_role("button", name="Show", exact=True).click()
    # The headings move while the section opens
    expect(page.get_by_role("button", name="Hide", exact=True)).to_be_visible(timeout=SLOW)
    page.get_by_text("Source", exact=True).filter(visible=True).first.click()
    number = line.rpartition(":")[2]
    expect(
        page.get_by_role("option", name=re.compile(rf"^{number}\b"), selected=True)
    ).to_be_visible(timeout=SLOW)


def compile_while_a_field_changes(page: Page) -> None:
    """Change a field and click before the server has processed the change.

    Panel handles such a click outside the document's lock.
    """
    page.get_by_role("button", name="settings", exact=True).click()
    expect(page.get_by_label("execute on", exact=True)).to_be_visible()
    field = page.get_by_label("execute on", exact=True).element_handle()
    button = page.get_by_role("button", name="Compile", exact=True).element_handle()
    page.evaluate(
        """([field, button]) => {
          field.selectedIndex = 1
          field.dispatchEvent(new Event('change'))
          button.click()
        }""",
        [field, button],
    )


def test_the_kept_result_is_of_the_plan_that_the_page_makes() -> None:
    kept = json.loads(KEPT.read_text())
    assert kept["program"] == plan().program.digest()
    assert kept["schedule"]["time_s"] > 0

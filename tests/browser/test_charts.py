"""Charts show hostile names as text, never run them, in hover cards and legends too."""

from __future__ import annotations

import re
from typing import Any

import holoviews as hv
import pytest
from bokeh.embed import file_html
from bokeh.resources import Resources
from playwright.sync_api import Page, expect

import toast_lab as tl
from tests.browser.evil import EVIL
from tests.browser.test_explorer import SLOW, bokeh
from tests.helpers import analysed
from toast_lab.views.plot_style import LOG_TICKS

pytestmark = pytest.mark.browser

PARTS = ("bokeh", "bokeh-gl", "bokeh-widgets", "bokeh-tables", "bokeh-mathjax")
RESOURCES = Resources(mode="inline", components=list(PARTS))  # extensions' would be fetched


def page_of(chart: Any) -> str:
    """The HTML of a page with nothing but a chart.

    Bokeh also links the files of every extension imported in this process; they are removed.
    """
    text = file_html(hv.render(chart, "bokeh"), RESOURCES, "charts")
    return re.sub(r"<(link|script)[^>]*https?://[^>]*>", "", text)


def middle(page: Page, figure: str, x: str, y: str) -> tuple[float, float]:
    """The position on the screen of the first row of the first renderer that has plans."""
    place: list[float] = bokeh(
        page,
        figure,
        f"""(() => {{
          const box = plot.canvas_view.el.getBoundingClientRect()
          const {{ x_scale, y_scale }} = plot.frame
          const columns = plot.model.renderers.map((r) => r.data_source?.data)
          const data = columns.find((d) => d && d.plan && d.plan.length)
          return [box.left + x_scale.compute({x}), box.top + y_scale.compute({y})]
        }})()""",
    )
    return place[0], place[1]


def test_names_in_hover_cards_are_text(strict_page: Page) -> None:
    problem = tl.Problem(analysed("attention"), {"data": 4, "model": 2})
    plans: dict[str, Any] = {EVIL: tl.Plan.from_actions(problem, ["S->data"])}
    charts = {
        "time against memory": (
            tl.charts.time_memory(plans, problem),
            "data.memory[0]",
            "data.time[0]",
        ),
        "cost breakdown": (
            tl.charts.breakdown(plans, problem),
            "(data.left[0] + data.right[0]) / 2",
            "(data.bottom[0] + data.top[0]) / 2",
        ),
    }
    for name, (chart, x, y) in charts.items():
        strict_page.goto("about:blank")
        strict_page.set_content(page_of(chart))
        strict_page.wait_for_function("window.Bokeh?.documents?.length === 1", timeout=SLOW)
        strict_page.wait_for_timeout(500)
        across, down = middle(strict_page, name, x, y)
        strict_page.mouse.move(across - 3, down)
        strict_page.mouse.move(across, down)
        card = strict_page.locator(".bk-tooltip-row-value", has_text="<img src=x")
        expect(card.first).to_be_visible()
        assert strict_page.title() == "charts"
        assert not strict_page.locator("img[src=x]").count()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (8.5, 10.5, [8.5, 9, 9.5, 10, 10.5]),
        (0.24, 1.1, [0.3, 0.4, 0.5, 0.7, 1]),
        (250, 12000, [500, 1000, 2000, 5000, 10000]),
        (0.05, 5e4, [0.1, 1, 10, 100, 1000, 10000]),
        (0, 1, []),
    ],
)
def test_numbers_beside_a_logarithmic_axis_are_spread_over_all_of_it(
    page: Page, low: float, high: float, ticks: list[float]
) -> None:
    """Bokeh's own ticks would be 5000 and 10000 alone where plans take 300 to 10000 ms."""
    shown_ticks = page.evaluate(
        "([code, start, end]) => new Function('cb_data', code)({ start, end })",
        [LOG_TICKS, low, high],
    )
    assert shown_ticks == ticks

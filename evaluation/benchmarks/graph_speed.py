"""How fast the graph page is, measured in headless Chromium.

Run it as ``python -m evaluation benchmarks graph_speed``.

Two times are measured. *First picture*: from choosing the page until the folded graph has been
drawn and takes clicks (the program is analysed already). *Selection*: from a mouse press on the
canvas, or a click on a line of the listing, until the graph is painted with the selection and the
listing has marked its lines. Both ends are read from ``performance.now()`` of the page: the
beginning in a listener of the event that runs before all others, the end after Bokeh's paint of
the figure whose selected markers have changed or in a MutationObserver of the listing, whichever is
later, plus the frame that shows them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.serving import launch_arguments, serving

SIZES = {"d_model": 64, "hidden": 128, "heads": 4, "key_size": 16, "vocab": 256, "sequence": 32}
MODELS = ("names_100", "names_1000", "names_10000", "t2b_training")
CLICKS = 8
FIRST_TARGET_S, SELECT_TARGET_MS = 3.0, 150.0

WATCH = """() => {
  const deep = (root, test) => {
    for (const el of root.querySelectorAll('*')) {
      if (test(el)) return el
      if (el.shadowRoot) { const found = deep(el.shadowRoot, test); if (found) return found }
    }
    return null
  }
  const views = []
  const walk = (v) => { views.push(v); for (const c of (v.child_views || [])) walk(c) }
  for (const root of Object.values(Bokeh.index)) walk(root)
  const plot = views.find((v) => v.model.name === 'dimension graph' && v.model.tags.includes('page')
    && v.el.getBoundingClientRect().width > 0)
  const listing = deep(document, (el) => el.classList.contains('listing')\
 && el.getBoundingClientRect().width > 0)
  const names = plot.model.renderers.find((r) => r.name === 'names').data_source
  const w = { plot, listing, names, began: 0, painted: 0, marked: 0, shown: 0, paints: [] }
  const done = () => {
    if (w.painted && w.marked && !w.shown) requestAnimationFrame(() =>\
 { w.shown = performance.now() })
  }
  const paint = plot.paint.bind(plot)
  plot.paint = (...rest) => {
    const t = performance.now(), out = paint(...rest), now = performance.now()
    w.paints.push(now - t)
    if (!w.painted && names.selected.indices.length) { w.painted = now; done() }
    return out
  }
  new MutationObserver(() => {
    if (!w.marked && listing.querySelector('.row.on')) { w.marked = performance.now(); done() }
  }).observe(listing, { subtree: true, childList: true, attributes: true,\
 attributeFilter: ['class'] })
  const start = () => { w.began = performance.now(); w.painted = w.marked = w.shown = 0 }
  document.addEventListener('pointerdown', start, true)
  window.graphWatch = w
}"""
CLEARED = (
    "() => !graphWatch.names.selected.indices.length && "
    "!graphWatch.listing.querySelector('.row.on')"
)


def transformer(layers: int, mode: str) -> Any:
    """A small Transformer with a given number of layers."""
    from toast_lab.models import registry

    return registry.make("transformer", layers=layers, mode=mode, **SIZES)


def names_100() -> Any:
    """A program with some hundred names."""
    return transformer(1, "forward")


def names_1000() -> Any:
    """A program with some thousand names."""
    return transformer(1, "train")


def names_10000() -> Any:
    """A program with some ten thousand names."""
    return transformer(10, "train")


def t2b_training() -> Any:
    """A training step of the paper's T2B."""
    from toast_lab.models import registry

    return registry.make("t2b", mode="train")


def opened(browser: Browser, url: str) -> Page:
    """Open a page and wait until the model is loaded."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(url)
    page.get_by_text(re.compile("^Loaded (?!attention)")).first.wait_for(timeout=60_000)
    return page


def first_picture_s(page: Page) -> float:
    """Seconds from choosing the page until its graph is painted."""
    began = page.evaluate("performance.now()")
    page.get_by_role("button", name=re.compile("Understand")).click()
    page.wait_for_function(
        """() => {
          const all = []
          const walk = (v) => { all.push(v); for (const c of (v.child_views || [])) walk(c) }
          for (const root of Object.values(Bokeh.index)) walk(root)
          return all.some((v) => v.model.name === 'dimension graph' && v.model.tags.includes('page')
    && v.el.getBoundingClientRect().width > 0
            && v.frame.bbox.width > 0 && v.model.inner_height > 50)
        }""",
        timeout=60_000,
        polling=10,
    )
    return (
        page.evaluate("new Promise((go) => requestAnimationFrame(() => go(performance.now())))")
        - began
    ) / 1e3


def marker(page: Page, index: int) -> tuple[float, float]:
    """Screen position of the ``index``-th marker in view."""
    place = page.wait_for_function(
        """(wanted) => {
          const { plot, names } = window.graphWatch
          const box = plot.canvas_view.el.getBoundingClientRect()
          const f = plot.frame.bbox
          const seen = []
          for (let i = 0; i < names.data.x.length; i++) {
            const x = plot.frame.x_scale.compute(names.data.x[i]),\
 y = plot.frame.y_scale.compute(names.data.y[i])
            if (x > f.left + 5 && x < f.right - 5 && y > f.top + 8\
 && y < f.bottom - 8) seen.push([x, y])
          }
          if (!seen.length) return null
          const [x, y] = seen[wanted % seen.length]
          return [box.left + x, box.top + y]
        }""",
        arg=index,
    )
    return tuple(place.json_value())


def clear(page: Page) -> None:
    """Click on an empty place, so that nothing is selected."""
    page.wait_for_timeout(400)  # otherwise two clicks count as a double click
    page.mouse.click(
        *page.evaluate(
            """() => {
          const { plot } = window.graphWatch, box = plot.canvas_view.el.getBoundingClientRect(),\
 f = plot.frame.bbox
          return [box.left + f.left + 2, box.top + f.bottom - 3]
        }"""
        )
    )
    page.wait_for_function(CLEARED, timeout=30_000)
    page.wait_for_timeout(400)


def latency_ms(page: Page) -> tuple[float, float, float]:
    """Milliseconds from the last click to three moments.

    They are: both show the selection, the graph is painted, and the listing is marked.
    """
    page.wait_for_function("() => graphWatch.shown > 0", timeout=30_000, polling=20)
    return tuple(
        page.evaluate("['shown', 'painted', 'marked'].map((k) => graphWatch[k] - graphWatch.began)")
    )


def from_graph_ms(page: Page) -> list[tuple[float, float, float]]:
    """Times of selections made by a press on a marker."""
    found = []
    for i in range(CLICKS):
        clear(page)
        page.mouse.click(*marker(page, 7 * i + 3))
        found.append(latency_ms(page))
    return found


def from_listing_ms(page: Page) -> list[tuple[float, float, float]]:
    """Times of selections made by a click in the listing."""
    found = []
    for i in range(CLICKS):
        clear(page)
        # Rows that have markers
        rows = page.locator(".listing .row").filter(has_text=re.compile("batch|d_model|sequence"))
        rows.locator("visible=true").nth(2 + i % 5).click()
        found.append(latency_ms(page))
    return found


def show_names(page: Page) -> None:
    """Show every name as a marker of its own, all of them in view."""
    page.get_by_label("level").select_option("dimension names")
    page.wait_for_function(
        """() => {
          const all = []
          const walk = (v) => { all.push(v); for (const c of (v.child_views || [])) walk(c) }
          for (const root of Object.values(Bokeh.index)) walk(root)
          const plot = all.find((v) => v.model.name === 'dimension graph'\
 && v.model.tags.includes('page')
    && v.el.getBoundingClientRect().width > 0)
          return plot && plot.model.tags.includes('names') && plot.frame\
 && plot.frame.bbox.height > 50
            && plot.model.inner_height > 50
        }""",
        timeout=60_000,
    )
    page.wait_for_timeout(1500)


def median(rows: list[tuple[float, float, float]], column: int) -> float:
    """The median of one of the three times."""
    return statistics.median(row[column] for row in rows)


def said(rows: list[tuple[float, float, float]]) -> str:
    """Text: median and maximum of the whole time, and medians of its two parts."""
    worst = max(row[0] for row in rows)
    return (
        f"{median(rows, 0):>7.0f}, {worst:>4.0f} ({median(rows, 1):>4.0f}, {median(rows, 2):>4.0f})"
    ).rjust(28)


def main(arguments: list[str]) -> int:
    """Print the table; gives exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation benchmarks graph_speed", description=__doc__
    )
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL")
    models = parser.parse_args(arguments).models
    missed = 0
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ms: median, worst (graph "
        "painted, listing marked)"
    )
    head = f"{'model':<14} {'nodes':>8} {'first s':>8}  {'level':<8}"
    print(f"{head} {'press on the graph':>28} {'click in the listing':>28}")
    with sync_playwright() as p:
        browser = p.chromium.launch(**launch_arguments())
        for model in models or MODELS:
            with serving(f"evaluation.benchmarks.graph_speed:{model}") as url:
                page = opened(browser, url)
                first = first_picture_s(page)
                page.wait_for_timeout(1000)
                for level in ("start", "names"):
                    if level == "names":
                        show_names(page)
                    page.evaluate(WATCH)
                    count = page.evaluate("graphWatch.names.get_length()")
                    graph, listing = from_graph_ms(page), from_listing_ms(page)
                    first_text = f"{first:.2f}" if level == "start" else ""
                    name = model if level == "start" else ""
                    print(
                        f"{name:<14} {count:>8,} {first_text:>8}  {level:<8} {said(graph)} "
                        f"{said(listing)}",
                        flush=True,
                    )
                    missed += sum(median(rows, 0) > SELECT_TARGET_MS for rows in (graph, listing))
                missed += first > FIRST_TARGET_S
                page.close()
        browser.close()
    return int(missed > 0)

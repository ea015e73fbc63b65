"""How fast the explorer is in Chromium: ``python -m evaluation benchmarks explorer_speed``.

``--parts first_paint,graph,curves`` chooses parts, ``--json FILE`` writes the measurements with
machine, versions and command. Run it on an otherwise idle machine.

*first_paint*: seconds from ``goto`` on a warm server to the first contentful paint, to the moment
when the gallery's buttons are drawn, and to the answer to an immediate click on one of them; with
an empty browser cache and with a filled one.

*graph*: with t2b's training step analysed, seconds from the click on page 2 until the folded
graph's nodes have reached their places, and from a click on a node to its answer in the inspector.

*pages*: seconds from the click on a step to the last visible change: elements, texts, positions,
and the end of Bokeh's drawing. Each step is visited for the first time in a new session, and then
again, for a small program and for t2b's training step; and for the first time by a visitor who
never rests, for whom no page is made ahead (*hurried*).

*offers*: t2b's training step is loaded by a link to the conflict board. Seconds run from the moment
when the page says that it is loaded, through a click on the colour of the batch, to the first
offers with their prices; a second time runs from opening the link.

*curves*: the same search of t2b's training step (method, seed and number of plans) with no page
attached, with a page that shows its curves, and with a page that shows its tree, in turns. The
speed is simulations a second over the last two thirds of the search, which are the same work in
all three cases (a search finds more and more results computed already, and is up to twice as fast
at its end); by then the page has been built. The loss is one minus the ratio of two neighbouring
runs. ``whole_loss`` is the loss of the whole search, which includes the opening of the page.
Updates a second are the changes of data that the browser received, over the time from the first
to the last. CPU seconds that the search, the server and the browser took once the page was there
are given as well (Linux); on a machine with other work they say more than the loss.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.serving import free_port, launch_arguments
from toast_lab.app.pace import SLOWEST_S

SIZE: Any = {"width": 1440, "height": 900}
PAINT_TARGET_S, VISIT_TARGET_S, GRAPH_TARGET_S, LOSS_TARGET = 1.5, 0.5, 3.0, 0.05
OFFERS_TARGET_S = 1.0
STEPS = ("Understand", "Conflict board", "Graph", "Search", "Use")
STABLE_MS = 400  #: a marker that has not moved for this long has reached its place
SETTLE_MS = 3000  #: time within which all changes after a click have appeared
UPDATES_TARGET = 0.9 / SLOWEST_S  #: updates a second of a search that has run for half a minute
PLANS = 120_000  #: budget of each search of the part "curves"
OPENING = 1 / 3  #: share of the simulations during which the page is opened; they do not count
WAIT_MS = 120_000

PLOT = """(name) => {
  const views = []
  const walk = (v) => { views.push(v); for (const c of (v.child_views || [])) walk(c) }
  for (const root of Object.values(Bokeh.index)) walk(root)
  // The page that loads shows a small dimension graph, too
  const fits = (model) => model.name === name
    && (name !== 'dimension graph' || model.tags.includes('page'))
  return views.find((v) => fits(v.model) && v.el.getBoundingClientRect().width > 0)
}"""
#: Script that records when the gallery's button appears; it runs before all others.
BUTTON = """
window.seen = null
const deep = (root) => {
  for (const el of root.querySelectorAll('*')) {
    if (el.tagName === 'BUTTON' && /^mlp/.test(el.textContent)\
 && el.getBoundingClientRect().width > 0) return el
    if (el.shadowRoot) { const found = deep(el.shadowRoot); if (found) return found }
  }
  return null
}
const look = () => {
  if (document.body && deep(document)) { window.seen = performance.now() }\
 else { requestAnimationFrame(look) }
}
requestAnimationFrame(look)
"""
#: Script that counts the changes of a figure's first data source.
COUNT = f"""(name) => {{
  const plot = ({PLOT})(name)
  if (!plot) return false
  const source = plot.model.renderers[0].data_source
  if (window.counted && window.counted.source === source) return true
  const counted = {{ source, at: [] }}
  const note = () => {{ if (source.get_length()) counted.at.push(performance.now()) }}
  source.streaming.connect(note)
  source.properties.data.change.connect(note)
  window.counted = counted
  return true
}}"""
#: Script that records the last visible change after each press of a button.
SETTLE = """
window.settled = null
const sum = (root, found) => {
  for (const el of root.querySelectorAll('*')) {
    const box = el.getBoundingClientRect()
    if (!box.width || !box.height) continue
    found.n += 1
    found.places += box.x + 3 * box.y + 5 * box.width + 7 * box.height
    if (!el.firstElementChild) found.letters += (el.textContent || '').length
    if (el.shadowRoot) sum(el.shadowRoot, found)
  }
  return found
}
// What is made ahead, for another visit, is no change of this one.
const parts = (view) => !view.model.tags.includes('page stack') ? [view]
  : view.child_views.filter((page) => page.model.visible)
const seen = () => {
  const { n, places, letters } = sum(document, { n: 0, places: 0, letters: 0 })
  const roots = Object.values(Bokeh.index)
  const shown = roots.flatMap((root) => root.child_views ?? [root]).flatMap(parts)
  return [n, places, letters, shown.every((view) => view.has_finished())].join()
}
addEventListener('pointerdown', () => {
  const now = { began: performance.now(), last: null, seen: seen(), changes: 0 }
  window.settled = now
  const look = () => {
    if (window.settled !== now) return
    const next = seen()
    if (next !== now.seen) { now.seen = next; now.last = performance.now(); now.changes += 1 }
    setTimeout(look, 25)
  }
  look()
}, true)
"""

#: Script that never lets the pointer rest.
MOVES = "setInterval(() => window.dispatchEvent(new Event('pointermove')), 200)"

Row = dict[str, Any]


@contextlib.contextmanager
def serving(model: str | None = None) -> Iterator[str]:
    """Serve the explorer from a thread of this process, so that jobs can be started without a page.

    It gives the server's address.
    """
    import asyncio

    from toast_lab.app.app_server import page, prepare, warm

    warm(model)
    for name in ("bokeh", "tornado", "asyncio"):
        # Pages are closed while messages are being sent to them
        logging.getLogger(name).setLevel(logging.CRITICAL)
    port = free_port()
    ready = threading.Event()
    kept: dict[str, Any] = {}

    def work() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        server = kept["server"] = prepare(page("127.0.0.1", model), port, "127.0.0.1")
        server.start()
        ready.set()
        server.io_loop.start()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server = kept["server"]
        server.io_loop.add_callback(server.io_loop.stop)
        thread.join(10)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch_arguments())
        yield browser
        browser.close()


# -- first paint -----------------------------------------------------------------------------------
def first_paint(repeats: int) -> list[Row]:
    """Measure "first_paint"; gives a row with an empty cache and one with a filled cache."""
    rows: list[Row] = []
    with serving() as url, chromium() as browser:
        # This visit warms up the server
        _visit(browser.new_context(viewport=SIZE).new_page(), url)
        for cache in ("empty", "filled"):
            found = []
            context = browser.new_context(viewport=SIZE)
            for _ in range(repeats):
                if cache == "empty":
                    context.close()
                    context = browser.new_context(viewport=SIZE)
                elif not found:
                    _visit(context.new_page(), url)
                found.append(_visit(context.new_page(), url))
            context.close()
            row: Row = {"cache": cache, "n": repeats}
            for key in found[0]:
                values = [f[key] for f in found]
                row[key] = statistics.median(values)
                if key.endswith("_s"):
                    row[f"{key}_max"] = max(values)
            rows.append(row)
    return rows


def _visit(page: Page, url: str) -> Row:
    page.add_init_script(BUTTON)
    began = time.monotonic()
    page.goto(url, wait_until="commit")
    page.wait_for_function("window.seen !== null", timeout=WAIT_MS)
    page.get_by_role("button", name=re.compile("^mlp")).click()
    page.get_by_text(re.compile("^Loaded mlp")).first.wait_for(timeout=WAIT_MS)
    answered_s = time.monotonic() - began
    found = page.evaluate("""() => {
      const all = performance.getEntriesByType('resource'),\
 nav = performance.getEntriesByType('navigation')[0]
      return {
        document_s: nav.responseStart / 1e3,
        first_contentful_paint_s: performance\
.getEntriesByName('first-contentful-paint')[0].startTime / 1e3,
        buttons_s: window.seen / 1e3,
        requests: all.length + 1,
        transferred_kb: (all.reduce((n, r) => n + r.transferSize, 0) + nav.transferSize) / 1e3,
        decoded_kb: (all.reduce((n, r) => n + r.decodedBodySize, 0) + nav.decodedBodySize) / 1e3,
      }
    }""")
    page.close()
    return {**found, "answered_s": answered_s}


# -- graph -----------------------------------------------------------------------------------------
def graph(repeats: int) -> list[Row]:
    """Measure "graph": the folded graph of t2b's training step, which is analysed already."""
    painted, answered, nodes = [], [], 0
    with serving("t2b") as url, chromium() as browser:
        for _ in range(repeats):
            page = browser.new_page(viewport=SIZE)
            page.goto(url)
            page.get_by_text(re.compile("^Loaded t2b")).first.wait_for(timeout=WAIT_MS)
            page.wait_for_timeout(1500)
            began = time.monotonic()
            page.get_by_role("button", name=re.compile("Understand")).click()
            spot = page.wait_for_function(
                f"""() => {{
                  const plot = ({PLOT})('dimension graph')
                  const drawn = plot && plot.model.renderers.find((r) => r.name === 'names')
                  if (!drawn || !drawn.data_source.get_length()\
 || !plot.frame.bbox.width) return null
                  const d = drawn.data_source.data,\
 box = plot.canvas_view.el.getBoundingClientRect()
                  for (let i = 0; i < d.x.length; i++) {{
                    const x = box.left + plot.frame.x_scale.compute(d.x[i])
                    const y = box.top + plot.frame.y_scale.compute(d.y[i])
                    if (x <= box.left || y <= box.top || x >= box.right || y >= box.bottom) continue
                    // A figure is fitted to its place once it is shown
                    const spot = [x, y, d.x.length].join()
                    if (window.spot !== spot) window.spotAt = performance.now()
                    window.spot = spot
                    const still = performance.now() - window.spotAt
                    return still > {STABLE_MS} ? [x, y, d.x.length, still] : null
                  }}
                  return null
                }}""",
                timeout=WAIT_MS,
            ).json_value()
            painted.append(time.monotonic() - began - spot[3] / 1e3)
            nodes = int(spot[2])
            clicked = time.monotonic()
            page.mouse.click(spot[0], spot[1])
            page.wait_for_function(
                f"""() => ({PLOT})('dimension graph').model.renderers.find((r) =>\
 r.name === 'names')
                          .data_source.selected.indices.length > 0""",
                timeout=WAIT_MS,
            )
            page.get_by_role("heading", name=re.compile("nothing selected")).wait_for(
                state="hidden", timeout=WAIT_MS
            )
            answered.append(time.monotonic() - clicked)
            page.close()
    return [
        {
            "model": "t2b training",
            "nodes": nodes,
            "n": repeats,
            "nodes_drawn_s": statistics.median(painted),
            "nodes_drawn_s_max": max(painted),
            "click_answered_s": statistics.median(answered),
            "click_answered_s_max": max(answered),
        }
    ]


# -- offers ----------------------------------------------------------------------------------------
def offers(repeats: int) -> list[Row]:
    """Measure "offers": t2b's training step on the conflict board, in new sessions."""
    rows_s, offers_s, opened_s = [], [], []
    with serving() as url, chromium() as browser:
        for _ in range(repeats):
            page = browser.new_page(viewport=SIZE)
            began = time.monotonic()
            page.goto(f"{url}?model=t2b&step=hand")
            _seen(page, "div.status", "^Loaded t2b")
            loaded = time.monotonic()
            _seen(page, ".tabulator-row", r"^\d*\W*batch")
            rows_s.append(time.monotonic() - loaded)
            row = page.locator(".tabulator-row", has_text="batch").filter(visible=True)
            row.first.click()  # Playwright clicks once it stands still
            _seen(page, "button", r"(data|model): .*\d (ms|s), ")
            offers_s.append(time.monotonic() - loaded)
            opened_s.append(time.monotonic() - began)
            page.close()
    found: Row = {"model": "t2b training", "n": repeats}
    for key, values in (("rows_s", rows_s), ("offers_s", offers_s), ("from_link_s", opened_s)):
        found |= {key: statistics.median(values), f"{key}_max": max(values)}
    return [found]


def _seen(page: Page, selector: str, text: str) -> None:
    """Wait for the frame that shows an element with this text."""
    page.wait_for_function(
        f"""() => {{
          const text = new RegExp({json.dumps(text)})
          const search = (root) => {{
            for (const el of root.querySelectorAll('*')) {{
              if (el.matches('{selector}') && text.test(el.textContent.trim())) {{
                if (el.getBoundingClientRect().width > 0) return true
              }}
              if (el.shadowRoot && search(el.shadowRoot)) return true
            }}
            return false
          }}
          return document.body && search(document)
        }}""",
        timeout=WAIT_MS,
        polling="raf",
    )


# -- pages -----------------------------------------------------------------------------------------
def pages(repeats: int) -> list[Row]:
    """Measure "pages"; gives a row for each program and step, with the first and second visit."""
    rows: list[Row] = []
    with chromium() as browser:
        for model in ("attention", "t2b"):
            with serving(model) as url:
                turns = [_visits(browser, url, model, turn) for turn in range(repeats)]
                hurried = [
                    _visits(browser, url, model, turn, rests=False)[0] for turn in range(repeats)
                ]
            for step in STEPS:
                first, again = ([turn[visit][step] for turn in turns] for visit in (0, 1))
                rows.append(
                    {
                        "model": model,
                        "page": step,
                        "n": repeats,
                        "first_s": statistics.median(first),
                        "first_s_max": max(first),
                        "again_s": statistics.median(again),
                        "again_s_max": max(again),
                        "hurried_s": statistics.median(turn[step] for turn in hurried),
                    }
                )
    return rows


def _visits(
    browser: Browser, url: str, model: str, turn: int, *, rests: bool = True
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the first and of the second visit of each step.

    For a visitor who never ``rests``, no page is made ahead. Pauses differ from turn to turn: with
    equal ones, the same click would come each time while a page is made ahead.
    """
    pauses = random.Random(turn)
    page = browser.new_page(viewport=SIZE)
    page.add_init_script(SETTLE)
    if not rests:
        page.add_init_script(MOVES)
    page.goto(url)
    page.get_by_text(re.compile(f"^Loaded {model}")).first.wait_for(timeout=WAIT_MS)
    page.wait_for_timeout(3000)
    visits: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for visit in visits:
        for step in STEPS:
            page.get_by_role("button", name=re.compile(rf"^(\d\s+)?{step}$")).click()
            page.wait_for_timeout(SETTLE_MS + pauses.uniform(0, SETTLE_MS))
            settled = page.evaluate("window.settled")
            assert settled["last"] is not None, f"nothing happened on the way to {step}"
            visit[step] = (settled["last"] - settled["began"]) / 1e3
    page.close()
    return visits


# -- curves ----------------------------------------------------------------------------------------
def curves(repeats: int, plans: int = PLANS) -> list[Row]:
    """Measure "curves": a search without a page, and with one that shows its curves or its tree.

    The search runs with a thread for every core, which it then shares with server and browser, and
    with one thread.
    """
    from toast_lab.app.session import Session

    rows: list[Row] = []
    with serving() as url, chromium() as browser:
        session = Session()
        session.searches.param.update(seconds=None, evaluations=plans)
        session.load("t2b")
        while session.work.busy:
            session.tick()
            time.sleep(0.1)
        for threads in (os.cpu_count() or 1, 1):
            # The search makes nothing but trajectories until its end.
            session.searches.options = {"refine": 0, "restarts": 10**6, "threads": threads}
            whole, _ = _search(session)  # this run warms up the machine
            opening = int(OPENING * whole.simulations)
            rows += _watched(session, browser, url, repeats, threads, opening)
    return rows


def _watched(
    session: Any, browser: Browser, url: str, repeats: int, threads: int, opening: int
) -> list[Row]:
    """A row for no page, curves and tree, measured in turns after ``opening`` simulations."""
    modes = ("no page", "curves", "tree")
    rate: dict[str, list[float]] = {m: [] for m in modes}
    whole_rate: dict[str, list[float]] = {m: [] for m in modes}
    updates: dict[str, list[float]] = {m: [] for m in modes}
    cores: dict[str, list[dict[str, float]]] = {m: [] for m in modes}
    for turn in range(repeats):
        for mode in modes if turn % 2 == 0 else reversed(modes):
            page = None if mode == "no page" else browser.new_page(viewport=SIZE)
            found, changes = _search(
                session, lambda job, page=page, mode=mode: _watch(page, url, job, mode), opening
            )
            rate[mode].append(found.rate_per_s)
            whole_rate[mode].append(found.simulations / found.elapsed_s)
            cores[mode].append(found.cpu_s)
            if page is not None:
                updates[mode].append(changes)
                page.close()
                time.sleep(1.0)
    rows: list[Row] = []
    for mode in modes:
        losses, whole_losses = (
            [1 - a / b for a, b in zip(rates[mode], rates["no page"], strict=True)]
            for rates in (rate, whole_rate)
        )
        rows.append(
            {
                "page": mode,
                "threads": threads,
                "n": repeats,
                "per_s": statistics.median(rate[mode]),
                "per_s_min": min(rate[mode]),
                "per_s_max": max(rate[mode]),
                "loss": statistics.median(losses),
                "loss_min": min(losses),
                "loss_max": max(losses),
                "whole_loss": statistics.median(whole_losses),
                "updates_per_s": statistics.median(updates[mode]) if updates[mode] else None,
                **{
                    f"{who}_cpu_s": statistics.median(c[who] for c in cores[mode])
                    for who in cores[mode][0]
                },
            }
        )
    return rows


class Found(NamedTuple):
    """The speed of one search, and the CPU time that it, the server and the browser took."""

    simulations: int
    elapsed_s: float
    rate_per_s: float  #: simulations a second after the opening
    cpu_s: dict[str, float]  #: CPU seconds of "search", "server" and "browser" after the opening


def _search(
    session: Any,
    watch: Callable[[Any], Callable[[], float] | None] | None = None,
    opening: int = 0,
) -> tuple[Found, float]:
    """Run the session's search to its end, and measure it after ``opening`` simulations.

    Gives the measurements, and the updates a second that the page received.
    """
    session.searches.start()
    job = session.work.job
    finish = watch(job) if watch is not None else None
    late = job.mirror.n - opening
    assert opening == 0 or late <= 0, f"the page was there {late:,} simulations late: more plans"
    while job.running and job.mirror.n < opening:
        time.sleep(0.02)
    assert job.running, "the search was over before it could be looked at: more plans"
    before, shown_n, shown_s = cpu_s(), job.mirror.n, time.monotonic()
    after = dict(before)
    while job.running:
        after |= cpu_s()  # each call costs a few milliseconds
        job.finished.wait(1.0)
    rate_per_s = (job.mirror.n - shown_n) / (time.monotonic() - shown_s)
    spent_s = dict.fromkeys(("search", "server", "browser"), 0.0)
    for key, seconds in after.items():
        spent_s[key[0]] += seconds - before.get(key, 0.0)
    changes = finish() if finish is not None else 0.0
    while session.work.busy:
        session.tick()
    assert job.result is not None, job.message
    found = Found(job.mirror.n, job.result.elapsed_s, rate_per_s, spent_s)
    return found, changes


def cpu_s() -> dict[tuple[str, int], float]:
    """CPU seconds of this process and its descendants, by (kind of process, pid)."""
    parents: dict[int, int] = {}
    cpu_s_by_process: dict[tuple[str, int], float] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            spent[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for pid, seconds in spent.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            with contextlib.suppress(OSError):
                command_line = (Path("/proc") / str(pid) / "cmdline").read_bytes()
                if not command_line:
                    continue  # the process has ended, and its kind is no longer known
                kind = (
                    "browser"
                    if b"chrom" in command_line
                    else "search"
                    if b"isolate" in command_line
                    else "server"
                )
                cpu_s_by_process[kind if pid != above else "server", pid] = seconds
    return cpu_s_by_process


def _watch(page: Page | None, url: str, job: Any, mode: str) -> Callable[[], float] | None:
    if page is None:
        return None
    page.goto(f"{url}?step=search&job={job.id}")
    if mode == "tree":
        page.get_by_role("button", name="Tree", exact=True).click()
    name = "search tree" if mode == "tree" else "curve cost"
    page.wait_for_function(COUNT, arg=name, timeout=WAIT_MS)

    def finish() -> float:
        page.wait_for_timeout(500)
        at = page.evaluate("window.counted.at")
        return (len(at) - 1) / (at[-1] - at[0]) * 1e3 if len(at) > 1 else 0.0

    return finish


# -- report ----------------------------------------------------------------------------------------
PARTS: dict[str, tuple[Callable[[int], list[Row]], int]] = {
    "first_paint": (first_paint, 9),
    "graph": (graph, 5),
    "pages": (pages, 3),
    "offers": (offers, 7),
    "curves": (curves, 3),
}


def missed(part: str, rows: list[Row]) -> list[str]:
    """Sentences about the targets that were missed."""
    misses = []
    for row in rows:
        if part == "first_paint":
            for key in ("first_contentful_paint_s", "buttons_s"):
                if row[key] > PAINT_TARGET_S:
                    misses.append(
                        f"{key}, {row['cache']} cache: {row[key]:.2f} s (target {PAINT_TARGET_S})"
                    )
        elif part == "graph" and row["click_answered_s"] > GRAPH_TARGET_S:
            misses.append(
                f"graph of {row['model']}: {row['click_answered_s']:.2f} s (target "
                f"{GRAPH_TARGET_S})"
            )
        elif part == "offers" and row["offers_s"] > OFFERS_TARGET_S:
            misses.append(f"offers: {row['offers_s']:.2f} s (target {OFFERS_TARGET_S})")
        elif part == "pages" and row["first_s"] > VISIT_TARGET_S:
            misses.append(
                f"{row['page']} of {row['model']}: {row['first_s']:.2f} s (target {VISIT_TARGET_S})"
            )
        elif part == "curves" and row["page"] != "no page":
            if row["loss"] > LOSS_TARGET:
                page_text = f"{row['page']}, {row['threads']} threads"
                misses.append(
                    f"{page_text}: the search loses {row['loss']:.1%} (target {LOSS_TARGET:.0%})"
                )
            if row["page"] == "curves" and row["updates_per_s"] < UPDATES_TARGET:
                misses.append(
                    f"curves: {row['updates_per_s']:.1f} updates a second (target "
                    f"{UPDATES_TARGET:g})"
                )
    return misses


def setting() -> Row:
    """Machine, versions and command, on which the numbers depend."""
    versions = {
        p: importlib.metadata.version(p)
        for p in ("panel", "bokeh", "jax", "numpy", "numba", "playwright")
    }
    with chromium() as browser:
        versions["chromium"] = browser.version
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": versions,
        "load_before": os.getloadavg()[0],
        "command": "python -m evaluation " + " ".join(sys.argv[1:]),
    }


def show(rows: list[Row]) -> None:
    """Print rows as a table."""
    texts = [[_cell(k, v) for k, v in row.items()] for row in rows]
    heads = list(rows[0])
    widths = [max(len(heads[i]), *(len(t[i]) for t in texts)) for i in range(len(heads))]
    for line in (heads, *texts):
        print("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)))


def _cell(key: str, value: Any) -> str:
    if key.startswith("loss"):
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else "-" if value is None else str(value)


def _run(parts: list[str], repeats: int | None, file: Path | None) -> list[str]:
    about, result, wrong = setting(), {}, []
    print(
        f"{about['machine']}, Python {about['python']}, load {about['load_before']:.1f}, "
        f"{about['versions']}"
    )
    for part in parts:
        measure, usual = PARTS[part]
        print(f"\n{part}")
        result[part] = rows = measure(repeats or usual)
        show(rows)
        wrong += missed(part, rows)
    if file is not None:
        file.write_text(json.dumps({**about, "parts": result}, indent=1) + "\n")
    return wrong


def main(arguments: list[str]) -> int:
    """Run the chosen parts; gives exit status 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation benchmarks explorer_speed", description=__doc__
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--repeats", type=int, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    options = parser.parse_args(arguments)
    unknown = [p for p in options.parts.split(",") if p not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    wrong = _run(options.parts.split(","), options.repeats, options.json)
    for line in wrong:
        print(f"MISSED  {line}")
    return 1 if wrong else 0

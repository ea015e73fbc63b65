"""The page Use in the browser, as a person uses it.

Two plans are predicted, compiled and executed; the tests check figures, messages and files.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import functools
import io
import os
import re
import signal
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect

import toast_lab as tl
from tests.browser.test_explorer import SLOW, bokeh, go
from tests.helpers import analysed
from tests.processes import workers
from toast_lab.cost.problem import Problem
from toast_lab.models.registry import WORTHWHILE_SIZES
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import data_parallel
from toast_lab.views.compare_table import bytes_text, counts_text, seconds_text
from toast_lab.views.plan_tables import ops_frame, shown_ops
from toast_lab.views.time_memory import front
from toast_lab.written.traits import plan_words

pytestmark = pytest.mark.browser


@functools.cache
def problem() -> Problem:
    return Problem(analysed("attention", **WORTHWHILE_SIZES["attention"]), {"data": 4, "model": 2})


@functools.cache
def plan() -> Plan:
    return Plan.from_actions(problem(), data_parallel(problem()))


@pytest.fixture
def compared(served: Callable[..., str], strict_page: Page) -> Page:
    return with_data_parallel(strict_page, served())


@pytest.fixture
def quick(served: Callable[..., str], strict_page: Page) -> Page:
    """The page with sizes so small that a step on this machine takes hardly any time."""
    sizes = {"sequence": 64, "d_model": 32, "key": 16, "value": 16}
    return with_data_parallel(strict_page, f"{served()}/?model=attention&{urlencode(sizes)}")


@pytest.fixture
def slower(served: Callable[..., str], strict_page: Page) -> Page:
    """The page with sizes that a run takes seconds for, so that its progress can be seen."""
    sizes = {"sequence": 2048, "d_model": 256}
    return with_data_parallel(strict_page, f"{served()}/?model=attention&{urlencode(sizes)}")


@contextlib.contextmanager
def workers_killed() -> Iterator[None]:
    """Kill every worker of this process, as soon as it starts.

    In a thread of its own: a step is over within a second or two, and a slow browser can keep
    its caller waiting for longer than that.
    """
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            for pid in workers(os.getpid()):
                with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def with_data_parallel(page: Page, url: str) -> Page:
    """Open the page Use with two plans."""
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(url)
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    go(page, "4.*Use")
    page.get_by_role("button", name="Add data parallel").click()
    expect(row(page, "data parallel")).to_be_visible(timeout=SLOW)
    return page


def row(page: Page, text: str) -> Locator:
    """The first visible table row with a text; the table of plans is the first table."""
    return page.locator(".tabulator-row", has_text=text).locator("visible=true").first


def ask(page: Page, question: str) -> None:
    """Have the picture answer a question, or show another view of the answer."""
    page.get_by_role("button", name=question, exact=True).filter(visible=True).first.click()


def saved(page: Page, button: Locator) -> tuple[str, bytes]:
    """The name and content of the file that a button downloads."""
    with page.expect_download(timeout=SLOW) as download:
        button.click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def expect_data(page: Page, figure: str, renderer: str, column: str, expected: list[float]) -> None:
    """Wait until a column of a drawn figure has the expected values.

    Figures are redrawn when plans change.
    """
    code = f"""(() => {{
      const found = plot && plot.model.renderers.find((r) => r.name === '{renderer}')
      return found ? [...found.data_source.data.{column}] : null
    }})()"""
    end = time.monotonic() + 30
    while time.monotonic() < end and bokeh(page, figure, code) != pytest.approx(expected):
        page.wait_for_timeout(100)
    assert bokeh(page, figure, code) == pytest.approx(expected)


def test_pictures_listing_and_tables_say_what_the_api_says(compared: Page) -> None:
    page, cost = compared, tl.price(problem(), plan())
    whole = tl.price(problem(), Plan.from_actions(problem(), []))
    kinds = counts_text(Counter(c.kind for c in cost.collectives))
    plan_row = row(page, "data parallel")
    for words in (
        seconds_text(cost.time_s),
        bytes_text(cost.peak_bytes),
        f"{bytes_text(cost.memory_limit_bytes - cost.peak_bytes)} free",
        kinds,
    ):
        expect(plan_row).to_contain_text(words)

    peaks = [whole.peak_bytes / 2**20, cost.peak_bytes / 2**20]
    expect_data(page, "time against memory", "estimated", "memory", peaks)
    expect_data(
        page, "time against memory", "estimated", "time", [whole.time_s * 1e6, cost.time_s * 1e6]
    )
    csv_button = page.get_by_role("button", name="CSV").locator("visible=true").nth(1)
    points = list(csv.DictReader(io.StringIO(saved(page, csv_button)[1].decode())))
    on_front = front([(plan_cost.time_s, plan_cost.peak_bytes) for plan_cost in (whole, cost)])
    assert [point["on_front"] == "True" for point in points] == [i in on_front for i in (0, 1)]

    ask(page, "Where time goes")
    expect(page.get_by_role("gridcell", name="together").first).to_be_visible(timeout=SLOW)
    gathered = sum(c.time_s for c in cost.collectives if c.kind == "all_gather")
    ends = [cost.compute_s * 1e6, (cost.compute_s + gathered) * 1e6]
    for column, end in zip(("left", "right"), ends, strict=True):
        expect_data(page, "cost breakdown", "all_gather", column, [end])
    expect_data(page, "cost breakdown", "all_reduce", "right", [cost.time_s * 1e6])
    page.get_by_role("button", name="by mesh axis").click()
    expect(page.get_by_role("gridcell", name=re.compile("^over data")).first).to_be_visible()

    ask(page, "Where memory goes")
    expect(page.get_by_text("In memory where data parallel peaks")).to_be_visible(timeout=SLOW)
    # A step has two corners; an op begins at the first of them
    begins = "memory.filter((_, i) => i % 2 === 0)"
    expect_data(
        page, "memory timelines", "data parallel", begins, [b / 2**20 for b in cost.timeline_bytes]
    )
    first = cost.at_peak[0]
    expect(
        page.get_by_role("gridcell", name=first.value, exact=True).locator("visible=true").first
    ).to_be_visible()
    panel = page.locator(".plan-panel").locator("visible=true").last
    for trait in plan_words(problem(), plan()):
        expect(panel).to_contain_text(trait.text, ignore_case=True)

    row(page, "unsharded").click()
    expect(page.get_by_text("In memory where unsharded peaks")).to_be_visible()
    row(page, "data parallel").click()

    ask(page, "A | B")
    expect(page.get_by_text("data parallel, device-local")).to_be_visible(timeout=SLOW)
    pair = page.locator(".pair", has_text="all_gather").first
    expect(pair.locator(".cell.missing")).to_have_count(1)
    expect(pair.locator(".cell.differs .sends")).to_have_text("all_gather")
    program = problem().analysis.program
    shape = list(program.dims(program.value_name.index("wq")))
    same = page.locator(".pair", has_text=f"wq : {shape} = argument")
    expect(same.locator(".differs")).to_have_count(0)

    ask(page, "Where time goes")
    ask(page, "Ops")
    page.get_by_role("columnheader", name=re.compile("^time, ")).click()
    page.get_by_role("columnheader", name=re.compile("^time, ")).click()
    longest = shown_ops(ops_frame(cost)).frame.iloc[0]
    first = page.get_by_role("gridcell", name=longest["op"], exact=True).locator("visible=true")
    expect(page.locator(".tabulator-row:visible", has=first).first).to_contain_text(
        f"{longest['share']:.3g}"
    )

    unchecked = page.get_by_role("gridcell", name="☐ ■").first
    for _ in range(4):  # a click on a row that is being redrawn is lost
        page.get_by_role("gridcell", name="☑ ■").first.click()
        # A second click would take a slow first one back
        with contextlib.suppress(AssertionError):
            expect(unchecked).to_be_visible()
            break
    expect(unchecked).to_be_visible()
    ask(page, "Time & memory")
    expect_data(page, "time against memory", "estimated", "memory", peaks[:1])


def test_a_compiled_plan_stands_beside_its_price_and_why_is_answered(compared: Page) -> None:
    page = compared
    # Where a compiler for TPUs is installed, that is the first choice
    target = page.get_by_label("compile for", exact=True).locator("visible=true")
    target.select_option("8 virtual CPU devices")
    page.get_by_role("button", name="Compile", exact=True).click()
    expect(page.get_by_text(re.compile("^data parallel: compiled for cpu:8")).first).to_be_visible(
        timeout=SLOW
    )
    ask(page, "Collectives")
    expect(
        page.get_by_text(re.compile("data parallel, compiled for cpu:8: . of . differ"))
    ).to_be_visible(timeout=SLOW)
    sums = page.locator(".tabulator-row", has_text="all_reduce").locator("visible=true").first
    expect(sums).to_contain_text("1×")
    kinds = counts_text(Counter(c.kind for c in tl.price(problem(), plan()).collectives))
    expect(row(page, "data parallel")).to_contain_text(kinds + kinds)

    reason = tl.why(
        problem(),
        plan(),
        next(c for c in tl.price(problem(), plan()).collectives if c.kind == "all_reduce"),
    )[0]
    page.locator(".tabulator-row", has_text="equal").locator("visible=true").first.click()
    expect(page.get_by_text(reason.because)).to_be_visible(timeout=SLOW)
    expect(page.get_by_text(reason.undoing[0].text).first).to_be_visible()
    assert reason.cheapest is not None
    expect(page.get_by_text(reason.cheapest.text).last).to_be_visible()


def test_plans_are_executed_in_turns_and_a_killed_or_cancelled_run_leaves_what_there_was(
    slower: Page,
) -> None:
    page = slower
    plan_row = row(page, "data parallel")
    page.get_by_role("button", name="Execute 2 checked").click()
    expect(
        page.get_by_text(re.compile(r"executing 2 plans in turns on cpu: .*%, \d+ s"))
    ).to_be_visible(timeout=SLOW)
    done = page.get_by_text(
        re.compile(r"^unsharded, data parallel: executed on cpu:8\. Kept as rows \d")
    ).first
    expect(done).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("agrees with unsharded")).to_be_visible()
    expect(
        page.get_by_text("5 rounds of 2 steps for each plan, in a changing order")
    ).to_be_visible()
    expect(plan_row).to_contain_text("cpu:8")
    measured = plan_row.inner_text()
    row(page, "unsharded").click()
    expect(page.get_by_text(re.compile("one device, cpu:1")).locator("visible=true")).to_have_count(
        1, timeout=SLOW
    )
    plan_row.click()

    with workers_killed():
        page.get_by_role("button", name="Execute", exact=True).click()
        expect(page.get_by_text(re.compile("^data parallel: crashed")).first).to_be_visible(
            timeout=SLOW
        )
    expect(page.get_by_text("Earlier measurements are kept.").first).to_be_visible()
    assert plan_row.inner_text() == measured

    page.get_by_role("button", name="Execute", exact=True).click()
    expect(page.get_by_text(re.compile("executing data parallel on cpu: "))).to_be_visible(
        timeout=SLOW
    )
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile("cancelled")).first).to_be_visible(timeout=SLOW)
    expect(page.get_by_role("button", name="Execute", exact=True)).to_be_enabled(timeout=SLOW)
    assert plan_row.inner_text() == measured


def test_plans_tables_and_figures_are_saved_as_files(compared: Page, tmp_path: Path) -> None:
    page = compared

    def exported(kind: str) -> tuple[str, str]:
        page.get_by_label("export as").select_option(kind)
        name, content = saved(page, page.get_by_role("button", name="Export", exact=True))
        return name, content.decode()

    name, text = exported("PartitionSpecs")
    assert name == "data_parallel_specs.py"
    specs: dict[str, object] = {}
    exec(compile(text, name, "exec"), specs)
    assert specs["ARGUMENTS"] == {
        path: specs["P"](*[a[0] if len(a) == 1 else a or None for a in spec])  # type: ignore[operator]
        for path, spec in plan().argument_specs().items()
    }
    name, text = exported("Plan (JSON)")
    (tmp_path / name).write_text(text)
    loaded = tl.Plan.load(tmp_path / name, problem())
    assert (loaded.op_factor == plan().op_factor).all()
    assert not loaded.notes
    name, text = exported("Python with JAX alone")
    assert name == "data_parallel_sharding.py"
    assert "def shard(" in text
    ast.parse(text)
    expect(
        page.get_by_text(re.compile(r"\d rules? and \d constraints?, [+-].* C\(s\)")).first
    ).to_be_visible()

    csv_button = page.get_by_role("button", name="CSV").locator("visible=true")
    name, content = saved(page, csv_button.first)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert [r["plan"] for r in rows] == ["unsharded", "data parallel"]
    assert float(rows[1]["time_s"]) == tl.price(problem(), plan()).time_s
    assert rows[1]["measured_s"] == ""

    name, content = saved(page, page.get_by_label("time against memory: save as PNG"))
    assert (name, content[:8]) == ("time_against_memory.png", b"\x89PNG\r\n\x1a\n")
    name, content = saved(page, page.get_by_label("time against memory: save as SVG"))
    root = ET.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "data parallel" in "".join(root.itertext())


#: Records every 50 ms which buttons of the page are enabled, and all of its text.
NOTE = """() => {
  const all = function* (root) {
    for (const element of root.querySelectorAll('*')) {
      yield element
      if (element.shadowRoot) yield* all(element.shadowRoot)
    }
  }
  window.noted = []
  const look = () => {
    const note = { pressed: {}, texts: '' }
    for (const element of all(document)) {
      if (element.getClientRects().length === 0) continue
      if (element.tagName === 'BUTTON') note.pressed[element.textContent.trim()] = !element.disabled
      else if (!element.firstElementChild) note.texts += element.textContent + '\\n'
    }
    window.noted.push(note)
    setTimeout(look, 50)
  }
  look()
}"""


def test_an_export_leaves_the_other_buttons_alone(quick: Page) -> None:
    """While an export runs, the plan can be compiled and executed, however short the export is."""
    page = quick
    export, execute, compile_ = "Export", "Execute", "Compile"
    page.get_by_label("export as").select_option("Python with JAX alone")
    page.evaluate(NOTE)
    with page.expect_download(timeout=SLOW) as download:
        page.get_by_role("button", name=export, exact=True).click()
        page.get_by_role("button", name=execute, exact=True).click()
    assert download.value.suggested_filename == "data_parallel_sharding.py"
    # Whichever ends last has the last message
    expect(row(page, "data parallel")).to_contain_text("cpu:8", timeout=SLOW)
    notes = page.evaluate("window.noted")
    exporting = [note for note in notes if not note["pressed"][export]]
    assert any("exporting data parallel: python: " in note["texts"] for note in exporting)
    executing = "executing data parallel on cpu: "
    assert any(
        executing in note["texts"] or (note["pressed"][execute] and note["pressed"][compile_])
        for note in exporting
    )
    assert any(executing in note["texts"] for note in notes)


def test_an_export_that_cannot_be_made_is_a_message(compared: Page) -> None:
    page = compared
    page.get_by_label("export as").select_option("Axis rules for flax")
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page.locator(".status.error, .status.good").first).to_contain_text(
        re.compile("rules|names"), timeout=SLOW
    )
    page.get_by_role("button", name="settings", exact=True).click()
    page.get_by_label("execute on").select_option("attached TPUs")
    page.get_by_role("button", name="Execute", exact=True).click()
    expect(page.locator(".status.error")).to_be_visible(timeout=SLOW)
    expect(row(page, "data parallel")).to_be_visible()

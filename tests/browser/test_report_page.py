"""Reports work when opened from the disk, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import toast_lab as tl
from tests.helpers import analysed, small_transformer
from tests.report.evil_report import EVIL, evil_report

DRAWN = 60_000
#: for each model, the problem's analysis, its mesh, and the actions of the plan
PROBLEMS: dict[str, Any] = {
    "mlp": (lambda: analysed("mlp"), {"data": 2, "model": 2}, ["B->data"]),
    "attention": (lambda: analysed("attention"), {"data": 2, "model": 2}, ["S@1->data"]),
    "training step": (
        lambda: small_transformer(layers=2),
        {"data": 2, "model": 2},
        ["batch->data", "heads->model", "hidden->model", "sequence@1->model"],
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports by model, in a folder with no other files."""
    folder = tmp_path_factory.mktemp("reports")
    paths = {}
    for name, (analyse, mesh, actions) in PROBLEMS.items():
        problem = tl.Problem(analyse(), mesh)
        plan = tl.Plan.from_actions(problem, actions)
        paths[name] = folder / f"{name}.html"
        tl.report(problem, {"ours": plan, "whole": tl.replicated(problem)}, paths[name], kept=False)
    return paths


@pytest.fixture
def cut_off(browser: Browser) -> Iterator[Page]:
    """A page of a browser without network access.

    Requests for anything but files, exceptions and console warnings fail the test.
    """
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 720})
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(f"exception: {error.message}"))
    page.on(
        "console",
        lambda message: message.type in ("error", "warning") and troubles.append(message.text),
    )
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("file:", "data:", "blob:"))
            or troubles.append(f"asks for {request.url}")
        ),
    )
    yield page
    context.close()
    assert not troubles, "\n".join(troubles)


def opened(page: Page, path: Path) -> Page:
    page.goto(path.as_uri())
    for name in ("graph", "price", "timeline", "memory"):
        expect(page.locator(f"[data-figure={name}][data-drawn]")).to_be_attached(timeout=DRAWN)
    return page


def graph(page: Page, code: str) -> Any:
    """Evaluate a JavaScript expression in which ``named(name)`` is a Bokeh model of the page."""
    return page.evaluate(
        """(code) => {
          const named = (name) => Bokeh.documents[0].get_model_by_name(name)
          return new Function('named', `return ${code}`)(named)
        }""",
        code,
    )


@pytest.mark.parametrize("name", [*PROBLEMS])
def test_it_opens_from_the_disk_with_graph_conflict_and_timeline(
    cut_off: Page, reports: dict[str, Path], name: str
) -> None:
    page = opened(cut_off, reports[name])
    expect(page.get_by_role("heading", name="Summary")).to_be_visible()
    for figure in ("graph", "timeline"):
        canvas = page.locator(f"[data-figure={figure}] canvas").first
        canvas.scroll_into_view_if_needed()
        expect(canvas).to_be_visible()
    assert graph(page, "named('names').data_source.get_length()") > 3
    if name == "mlp":
        expect(page.get_by_text("every dim can be cut independently")).to_be_visible()
        return
    row = page.locator("tr[data-pick^=conflict]").nth(1)
    row.click()
    inspector = page.locator("#inspector")
    place = {"attention": "b = jnp.sum(a, axis=0)", "training step": "jnp.einsum("}[name]
    expect(inspector.locator("pre")).to_contain_text(place)
    expect(inspector).to_contain_text("Why both dims have one colour")
    expect(row).to_have_attribute("aria-current", "true")
    assert len(graph(page, "named('names').data_source.selected.indices")) >= 2
    assert len(graph(page, "named('conflicts').data_source.selected.indices")) >= 1
    assert len(graph(page, "named('chain').data_source.data.xs")) >= 2
    expect(page.locator(".listing [aria-selected=true]").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(inspector.locator("pre")).to_have_count(0)
    assert graph(page, "named('names').data_source.selected.indices") == []


def marker_on_screen(page: Page, title: str) -> tuple[int, float, float]:
    """The marker of a name: its index, and its position in the window."""
    return tuple(
        page.evaluate(
            """(wanted) => {
              const view = Bokeh.index.roots.find((root) =>
                root.model.name === 'dimension graph')
              const { x, y, title } =
                Bokeh.documents[0].get_model_by_name('names').data_source.data
              const marker = title.indexOf(wanted)
              const box = view.el.getBoundingClientRect()
              return [marker, box.left + view.frame.x_scale.compute(x[marker]),
                      box.top + view.frame.y_scale.compute(y[marker])]
            }""",
            title,
        )
    )


def test_a_click_in_the_graph_shows_the_name_everywhere(
    cut_off: Page, reports: dict[str, Path]
) -> None:
    page = opened(cut_off, reports["attention"])
    page.locator("[data-figure=graph]").scroll_into_view_if_needed()
    marker, *place = marker_on_screen(page, "S#7")
    page.mouse.click(*place)
    expect(page.locator("#facts")).to_contain_text("this plan cuts it over")
    for label in ("size", "defines", "uses", "line"):
        expect(page.locator("#facts dt").get_by_text(label, exact=True)).to_be_attached()
    expect(page.locator("#facts pre")).to_have_text("b = jnp.sum(a, axis=0)")
    assert graph(page, "named('names').data_source.selected.indices") == [marker]
    page.get_by_role("button", name="Show in the program").click()
    expect(page.locator(".listing .on").first).to_be_in_viewport()


def test_a_click_inside_an_outline_shows_all_conflicts_of_the_set(
    cut_off: Page, reports: dict[str, Path]
) -> None:
    page = opened(cut_off, reports["attention"])
    page.locator("[data-figure=graph]").scroll_into_view_if_needed()
    # Red lines join side 0 to side 1; the centre of these four markers lies between two lines
    corners = [marker_on_screen(page, title)[1:] for title in ("S#7", "S#8", "S#9", "S#10")]
    page.mouse.click(*(sum(values) / 4 for values in zip(*corners, strict=True)))
    expect(page.locator("tr[data-pick^=conflict][aria-current=true]")).to_have_count(5)
    assert len(graph(page, "named('conflicts').data_source.selected.indices")) == 5
    assert len(graph(page, "named('names').data_source.selected.indices")) == 10


def test_a_line_of_the_program_is_found_in_graph_and_timeline(
    cut_off: Page, reports: dict[str, Path]
) -> None:
    page = opened(cut_off, reports["training step"])
    line = page.locator(".listing [role=option]").filter(has_text="all_reduce").first
    line.click()
    expect(line).to_have_attribute("aria-selected", "true")
    expect(page.locator("#facts")).to_contain_text("all_reduce")
    marked = "Bokeh.documents[2].get_model_by_name('marked').data_source.get_length()"
    assert page.evaluate(marked) >= 1
    assert graph(page, "named('names').data_source.selected.indices.length") >= 1


def test_it_can_be_used_with_the_keyboard_alone(cut_off: Page, reports: dict[str, Path]) -> None:
    page = opened(cut_off, reports["attention"])
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the report")).to_be_focused()
    first = page.locator("tr[data-pick='conflict 0']")
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("tr[data-pick='conflict 1']")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#facts pre")).to_contain_text("b = jnp.sum(a, axis=0)")
    stops = page.locator(".pickable").evaluate_all(
        "(all) => all.map((list) => list.querySelectorAll('[data-pick][tabindex=\"0\"]').length)"
    )
    assert set(stops) == {1}, "each list is one stop of the tab key"
    unnamed = page.locator("button, a, summary, [role=region], [role=img]").evaluate_all(
        "(all) => all.filter((e) => !(e.textContent.trim() || e.ariaLabel)).length"
    )
    assert unnamed == 0
    assert page.locator("h1").count() == 1


def test_the_markers_can_show_what_the_plan_cuts(cut_off: Page, reports: dict[str, Path]) -> None:
    page = opened(cut_off, reports["attention"])
    texts = "[...new Set(named('names').data_source.data.text)]"
    assert "data" not in graph(page, texts)
    page.get_by_role("button", name="what this plan cuts").click()
    assert set(graph(page, texts)) == {"", "data"}
    expect(page.get_by_role("button", name="what this plan cuts")).to_have_attribute(
        "aria-pressed", "true"
    )


def test_the_plan_can_be_saved_from_the_page(
    cut_off: Page, reports: dict[str, Path], tmp_path: Path
) -> None:
    page = opened(cut_off, reports["attention"])
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this plan as a file").click()
    download.value.save_as(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["actions"] == ["S@1->data"]


@pytest.mark.parametrize("width", [1280, 900, 400])
def test_nothing_is_wider_than_the_page(
    cut_off: Page, reports: dict[str, Path], width: int
) -> None:
    cut_off.set_viewport_size({"width": width, "height": 800})
    page = opened(cut_off, reports["training step"])
    page.locator("tr[data-pick^=conflict]").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_nothing_of_the_users_code_is_run(cut_off: Page, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    evil_report(tmp_path).save(path)
    page = opened(cut_off, path)
    for row in page.locator("[data-pick]").all()[:40]:
        row.evaluate("(row) => row.click()")
        expect(page.locator("#facts h3").first).to_be_attached()
    page.locator("tr[data-pick='conflict 0']").click()
    expect(page.locator("#facts pre")).to_contain_text(EVIL)
    assert page.locator("img").count() == 0
    assert page.title() != "pwned"
    expect(page).to_have_title(re.compile(re.escape(EVIL)))

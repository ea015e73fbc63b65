"""The documentation's site works in a browser, also when opened from the disk.

Its search box finds public names, and names can be selected in the graphs of the tutorials.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.docs.building import LACKING, built

pytestmark = pytest.mark.skipif(bool(LACKING), reason="needs the extra docs")
SLOW = 60_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory)


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("place", ["disk", "server"])
@pytest.mark.parametrize("start", ["index.html", "reference/search.html"])
def test_the_search_box_leads_to_a_public_name(
    browser: Browser, site: Path, request: pytest.FixtureRequest, place: str, start: str
) -> None:
    base = site.as_uri() if place == "disk" else request.getfixturevalue("served")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    foreign: list[str] = []
    page.on("request", lambda asked: asked.url.startswith(base) or foreign.append(asked.url))
    try:
        page.goto(f"{base}/{start}")
        first = page.locator(".md-search-result__link", has_text="tl.diff_compiled").first
        for _ in range(20):  # text typed before the search is ready is lost
            page.get_by_placeholder("Search").fill("")
            page.get_by_placeholder("Search").press_sequentially("diff_compiled")
            with contextlib.suppress(AssertionError):
                expect(first).to_be_visible(timeout=SLOW / 20)
                break
        expect(first).to_be_visible()
        first.click()
        expect(page.get_by_role("heading", name="tl.diff_compiled").first).to_be_visible(
            timeout=SLOW
        )
    finally:
        page.close()
    assert not [url for url in foreign if not url.startswith(("data:", "blob:", "about:"))]


@pytest.mark.parametrize(
    "tutorial", ["00_toast_from_nothing", "01_names_and_conflicts", "03_search_and_rivals"]
)
def test_a_graph_in_a_tutorial_is_interactive_from_the_disk(
    browser: Browser, site: Path, tutorial: str
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto((site / "tutorials" / f"{tutorial}.html").as_uri())
        page.locator("iframe.interactive").scroll_into_view_if_needed()
        frame = page.frame_locator("iframe.interactive")
        expect(frame.get_by_role("heading", name="Dimension graph")).to_be_visible(timeout=SLOW)
        expect(frame.locator("[data-figure=graph] canvas").first).to_be_visible(timeout=SLOW)
        conflict = frame.locator("tr[data-pick^=conflict]").first
        conflict.click()
        expect(frame.locator("#facts")).to_contain_text("this plan cuts", timeout=SLOW)
    finally:
        context.close()
    assert not errors

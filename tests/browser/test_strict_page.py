"""The page fixtures fail when they should: a check that cannot fail is worse than none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.conftest import ServerLogs, Troubles, forget

PAGES = {
    "clean": "<p>ready</p>",
    "console": "<p>ready</p><script>console.error('oh no')</script>",
    "exception": "<p>ready</p><script>null.x</script>",
    "foreign": "<p>ready</p><img src='http://192.0.2.1/a.gif'>",
    "socket": "<p>ready</p><script>new WebSocket('ws://192.0.2.1/ws')</script>",
    "missing": "<p>ready</p><script src='/not-there.js'></script>",
}


@pytest.fixture(scope="module")
def site(served: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("site")
    icon = '<link rel="icon" href="data:,">'
    for name, body in PAGES.items():
        (folder / f"{name}.html").write_text(f"<!doctype html><title>{name}</title>{icon}{body}")
    server = [
        sys.executable,
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(folder),
    ]
    return served(command=[*server, "{port}"])


def test_clean_page_passes(strict_page: Page, site: str) -> None:
    strict_page.goto(f"{site}/clean.html")
    strict_page.get_by_text("ready").wait_for()


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("console", "console error: oh no"),
        ("exception", "exception: "),
        ("foreign", "request leaves 127.0.0.1: http://192.0.2.1/a.gif"),
        ("socket", "request leaves 127.0.0.1: ws://192.0.2.1/ws"),
        ("missing", "404"),
    ],
)
def test_troubles_are_found(page: Page, site: str, name: str, trouble: str) -> None:
    troubles = Troubles(page)
    page.goto(f"{site}/{name}.html", wait_until="load")
    page.get_by_text("ready").wait_for()
    assert any(trouble in message for message in troubles.found), troubles.found


def test_what_a_server_tells_is_looked_at_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("TOAST Lab on http://127.0.0.1:5006 (stop with Ctrl-C)\n")
    logs = ServerLogs()
    logs.watch(log)
    assert not logs.news()
    with log.open("a") as file:
        file.write("BokehUserWarning: reference already known 'p1001'\n")
    assert "p1001" in "".join(logs.news())
    assert not logs.news()


def test_the_browser_itself_stops_what_leaves(page: Page, site: str) -> None:
    with page.expect_event("requestfailed", lambda r: "192.0.2.1" in r.url) as caught:
        page.goto(f"{site}/foreign.html")
    assert caught.value.failure == "net::ERR_NAME_NOT_RESOLVED"


def test_a_test_finds_nothing_that_another_has_stored(
    kept_context: BrowserContext, site: str
) -> None:
    page = kept_context.new_page()
    page.goto(f"{site}/clean.html")
    page.evaluate("localStorage.setItem('theme', 'dark'); document.cookie = 'name=value'")
    forget(kept_context)
    assert page.is_closed()
    page = kept_context.new_page()
    page.goto(f"{site}/clean.html")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.close()


def test_equal_calls_share_a_server(served: Callable[..., str], site: str) -> None:
    other = served(command=[sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}"])
    equal = served(command=[sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}"])
    assert equal == other != site

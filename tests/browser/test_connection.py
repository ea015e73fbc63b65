"""A page says that its server does not answer, and comes back with it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.serving import free_port, serving
from tests.processes import direct_children

pytestmark = pytest.mark.browser

SLOW = 120_000
SAID_MS = 3_000
#: keeps the sockets of a page where a test can close them
KEEP_SOCKETS = """
  const Plain = window.WebSocket
  window.sockets = []
  window.WebSocket = class extends Plain {
    constructor(...args) { super(...args); window.sockets.push(this) }
  }
"""


def opened(page: Page, url: str, text: str) -> None:
    page.goto(url)
    expect(page.get_by_text(text).locator("visible=true").first).to_be_visible(timeout=SLOW)
    expect(page).to_have_url(re.compile("state="), timeout=SLOW)


def test_a_dead_server_is_said_and_the_page_comes_back_with_it(page: Page) -> None:
    port = free_port()
    with serving(port=port) as url:
        opened(page, f"{url}/?step=graph", "31 nodes")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server does not answer", timeout=SAID_MS)
    with serving(port=port):
        expect(alert).to_be_hidden(timeout=SLOW)
        expect(page.locator(".bk-btn.bk-active", has_text="Graph")).to_be_visible(timeout=SLOW)
        page.get_by_text("Log", exact=True).click()
        expect(page.get_by_text("The server has started anew").first).to_be_visible(timeout=SLOW)


def test_a_server_that_stands_still_is_said_after_a_click_which_is_done_later(page: Page) -> None:
    port = free_port()
    with serving(port=port) as url:
        opened(page, f"{url}/?step=graph", "31 nodes")
        (server,) = (
            child
            for child in direct_children(os.getpid())
            if str(port) in Path(f"/proc/{child}/cmdline").read_text()
        )
        alert = page.get_by_role("alert")
        os.kill(server, signal.SIGSTOP)
        try:
            page.get_by_role("button", name="Conflict board").click()
            working = page.get_by_role("status").filter(has_text="Conflict board …")
            expect(working).to_be_visible(timeout=SAID_MS)
            expect(alert).to_contain_text("waits until it does", timeout=SAID_MS)
        finally:
            os.kill(server, signal.SIGCONT)
        expect(alert).to_be_hidden(timeout=SLOW)
        expect(working).to_be_hidden(timeout=SLOW)
        expect(page.get_by_text("Conflict board")).to_be_visible(timeout=SLOW)


def test_a_connection_that_ends_loses_nothing(served: Callable[..., str], page: Page) -> None:
    # Not a strict page: Bokeh tries to send on the closed socket, which the console reports
    page.add_init_script(KEEP_SOCKETS)
    opened(page, served() + "/?step=compare", "Add data parallel")
    page.get_by_role("button", name="Add data parallel").click()
    row = page.locator(".tabulator-row", has_text="data parallel").first
    expect(row).to_be_visible(timeout=SLOW)
    page.evaluate("window.before = true; window.sockets.forEach((socket) => socket.close())")
    page.wait_for_function("window.before === undefined", timeout=SLOW)
    expect(row).to_be_visible(timeout=SLOW)

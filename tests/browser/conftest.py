"""Fixtures that drive the explorer in the system's Chromium.

A page test takes `served` (start the explorer, get its URL) and `strict_page` (a page whose console
errors, exceptions and requests to other hosts fail the test). Wait for visible text, never for
idleness.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect

from tests.browser.serving import free_port, launch_arguments, wait_until_answers

LOCAL_SCHEMES = {"about", "blob", "data"}
# Panel's table restores its scroll position one frame later, and raises an exception if the table
# has been removed by then.
PANEL_TABLE = ("reading 'rowManager'", "panel.min.js")

# Another test worker may occupy the other core.
expect.set_options(timeout=30_000)


def is_local(url: str) -> bool:
    """Whether a request stays on this machine (or needs no network at all)."""
    parts = urlsplit(url)
    return parts.scheme in LOCAL_SCHEMES or parts.hostname == "127.0.0.1"


class Troubles:
    """Collects the errors of a page that its user would not see."""

    def __init__(self, page: Page) -> None:
        self.found: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", self._exception)
        # Requests are watched because only they show where a redirect leads. The browser itself
        # blocks them (`serving.FLAGS`): a route would too, but it disables the HTTP cache.
        page.on("request", lambda request: self._leaves(request.url))
        page.on("websocket", lambda socket: self._leaves(socket.url))

    def _exception(self, error: Error) -> None:
        words = f"{error.message}\n{error.stack or ''}"
        if not all(part in words for part in PANEL_TABLE):
            self.found.append(f"exception: {words}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            place = message.location.get("url", "")
            self.found.append(f"console error: {message.text} ({place})")

    def _leaves(self, url: str) -> None:
        if not is_local(url):
            self.found.append(f"request leaves 127.0.0.1: {url}")


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    """The arguments with which every test's browser is launched."""
    return launch_arguments()


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    """The screen size that the explorer is laid out for."""
    return {**browser_context_args, "viewport": {"width": 1440, "height": 900}}


@pytest.fixture(scope="session")
def kept_context(
    browser: Browser, browser_context_args: dict[str, Any]
) -> Iterator[BrowserContext]:
    """One browser context for all tests of a worker.

    A new context for each test would start with an empty cache, and the explorer's libraries
    would be compressed, sent, read and compiled for every page. Its window stays open, too: each
    test's page is a tab in it, since opening a window takes half a second of a core.
    """
    context = browser.new_context(**browser_context_args)
    context.new_page()
    yield context
    context.close()


@pytest.fixture
def context(kept_context: BrowserContext) -> Iterator[BrowserContext]:
    """The kept context, which is reset after each test, except for its cache."""
    yield kept_context
    forget(kept_context)


def forget(context: BrowserContext) -> None:
    """Close all pages of a context but the first, which keeps its window open.

    Its storage, cookies and permissions are cleared; its cache stays.
    """
    for page in context.pages[1:]:
        page.close()
    stored = context.storage_state()["origins"]
    if stored:
        page = context.new_page()
        session = context.new_cdp_session(page)
        for origin in stored:
            session.send(
                "Storage.clearDataForOrigin",
                {"origin": origin["origin"], "storageTypes": "local_storage,indexeddb"},
            )
        page.close()
    context.clear_cookies()
    context.clear_permissions()


class ServerLogs:
    """Watches the terminal output of our servers for warnings and errors."""

    def __init__(self) -> None:
        self.read: dict[Path, int] = {}

    def watch(self, log: Path) -> None:
        """Watch this log as well, from its beginning."""
        self.read[log] = 0

    def news(self) -> list[str]:
        """The new output of each log in which something went wrong, as a list of messages."""
        messages = []
        for log, start in self.read.items():
            content = log.read_bytes()
            self.read[log] = len(content)
            text = content[start:].decode(errors="replace")
            if re.search(r"Traceback|Warning|WARNING|ERROR|CRITICAL", text):
                messages.append(f"the server's terminal: {text[-4000:]}")
        return messages


@pytest.fixture(scope="session")
def server_logs() -> ServerLogs:
    """The terminal output of the explorer's servers that `served` has started."""
    return ServerLogs()


@pytest.fixture
def strict_page(page: Page, server_logs: ServerLogs) -> Iterator[Page]:
    """A page that fails its test at the end if `Troubles` has found anything.

    Warnings and errors in a server's terminal fail it, too.
    """
    server_logs.news()
    troubles = Troubles(page)
    yield page
    # A closed page sends no more events, so the collection is now complete.
    page.close()
    troubles.found += server_logs.news()
    assert not troubles.found, "\n".join(troubles.found)


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory, server_logs: ServerLogs
) -> Iterator[Callable[..., str]]:
    """Give `served(*arguments, env=None, seconds=300)`: start `toast-lab serve` and return its URL.

    Equal calls share one server for the whole run, since a start costs seconds. To serve something
    else, pass the command: `served(command=[sys.executable, "-m", "http.server", "{port}"])`.
    """
    running: dict[Any, tuple[str, subprocess.Popen[bytes]]] = {}
    # Results of what a page executes are kept, but not in the user's files
    runs = tmp_path_factory.mktemp("runs") / "runs.sqlite"

    def start(
        *arguments: str,
        env: dict[str, str] | None = None,
        seconds: float = 300,
        command: list[str] | None = None,
    ) -> str:
        key = (arguments, tuple(sorted((env or {}).items())), tuple(command or ()))
        if key in running and running[key][1].poll() is None:
            return running[key][0]
        port = free_port()
        words = command or [
            sys.executable,
            "-m",
            "toast_lab.cli",
            "serve",
            "--port",
            "{port}",
            *arguments,
        ]
        log = tmp_path_factory.mktemp("served") / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [word.format(port=port) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TOAST_LAB_RUNS": str(runs), **(env or {})},
            )
        url = f"http://127.0.0.1:{port}"
        running[key] = (url, process)
        wait_until_answers(url, process, log, seconds)
        if any(word.startswith(("toast_lab", "tests")) for word in words):
            server_logs.watch(log)
        return url

    yield start
    for _, process in running.values():
        process.terminate()
    for _, process in running.values():
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A page must not load files by URL, run names as scripts, or talk to other hosts."""

from __future__ import annotations

import re
import socket
import sys
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.serving import free_port

pytestmark = pytest.mark.browser

SLOW = 90_000
SERVE = [sys.executable, "-m", "toast_lab.cli", "serve", "--port", "{port}"]


def listening(port: int) -> set[str]:
    """The addresses on which this machine listens at ``port``, in the kernel's notation."""
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for line in list(lines)[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    addresses.add(local.rpartition(":")[0])
    return addresses


def handshake(url: str, origin: str | None, host: str | None = None) -> int:
    """The HTTP status of a websocket handshake."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    lines = [
        "GET /ws HTTP/1.1",
        f"Host: {host or parts.netloc}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: bokeh, x",
    ]
    if origin:
        lines.append(f"Origin: {origin}")
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as link:
        link.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return int(link.recv(64).split()[1])


def test_it_listens_on_loopback_only(served: Callable[..., str]) -> None:
    port = urlsplit(served()).port
    assert port
    assert listening(port) == {"0100007F"}


def test_foreign_origins_are_refused(served: Callable[..., str]) -> None:
    url = served()
    assert handshake(url, "http://evil.example") == 403
    assert handshake(url, "http://127.0.0.1:1") == 403
    assert handshake(url, None) == 403
    assert handshake(url, url.replace("127.0.0.1", "localhost")) == 101
    assert handshake(url, url) == 101


def test_a_rebound_host_gets_no_page(served: Callable[..., str]) -> None:
    request = urllib.request.Request(served(), headers={"Host": "evil.example"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as caught:
        direct.open(request, timeout=30)
    assert caught.value.code == 403


@pytest.mark.parametrize(
    "query",
    [
        "model=/tmp/x.py",
        "load=os:system",
        "model=tests.browser.evil:make",
        "args=tests.browser.evil:make",
        "state=../../etc",
        "step=evil",
    ],
)
def test_no_url_parameter_loads_or_runs_anything(
    served: Callable[..., str], strict_page: Page, query: str
) -> None:
    strict_page.goto(f"{served()}/?{query}")
    expect(strict_page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(
        timeout=SLOW
    )
    expect(strict_page.locator(".status")).to_contain_text(
        re.compile("Loaded attention|Ignored in the address|The server has started anew")
    )
    expect(strict_page.locator(".model")).to_have_text("attention")
    assert strict_page.get_by_text("Loaded evil").count() == 0


def test_an_open_address_offers_built_in_models_only_and_says_why(
    served: Callable[..., str], strict_page: Page
) -> None:
    strict_page.goto(served(command=[*SERVE, "--address", "0.0.0.0"]))
    expect(strict_page.get_by_text("only built-in models are offered")).to_be_visible(timeout=SLOW)


def test_an_open_address_refuses_to_start_with_code() -> None:
    import subprocess

    words = [word.format(port=free_port()) for word in SERVE]
    done = subprocess.run(
        [*words, "--address", "0.0.0.0", "tests.browser.evil:make"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "only built-in models are offered" in done.stderr


def test_names_of_user_code_are_shown_and_never_run(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(served(command=[*SERVE, "tests.browser.evil:make"]))
    expect(page.get_by_text(re.compile("Loaded img_src_x")).first).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("<img src=x onerror").first).to_be_visible()
    page.get_by_role("button", name=re.compile("Understand")).click()
    page.locator(".listing .row", has_text="tanh").filter(visible=True).click()
    expect(page.get_by_role("heading", name=re.compile("2 names"))).to_be_visible()
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row", has_text="%3").locator("visible=true").first.click()
    expect(page.get_by_text("why both dims have one colour")).to_be_visible()
    page.get_by_role("button", name=re.compile("^side")).first.click()
    expect(page.get_by_text(re.compile("^manual plan: <img")).first).to_be_visible(timeout=SLOW)
    page.get_by_label(re.compile("^find")).fill("<img src=x onerror=1>")
    page.get_by_label(re.compile("^find")).press("Enter")
    page.get_by_role("button", name=re.compile("4.*Use")).click()
    page.get_by_role("button", name="Add data parallel").click()
    expect(page.locator(".tabulator-row", has_text="data parallel").first).to_be_visible()
    page.get_by_role("button", name="Type a plan").click()
    page.get_by_label(re.compile("^name of that plan")).fill("<img src=x onerror=document.title=1>")
    page.get_by_label(re.compile("^actions")).fill("<img src=x onerror=document.title=1>->data")
    page.get_by_role("button", name="Add typed plan").click()
    expect(page.get_by_text("no colour is called '<img").first).to_be_visible()
    for name in ("Where time goes", "Ops", "Where memory goes", "A | B", "Collectives"):
        page.get_by_role("button", name=name, exact=True).filter(visible=True).first.click()
        page.wait_for_timeout(200)
    page.get_by_text("Log", exact=True).click()
    page.get_by_role("button", name="Show").click()
    page.wait_for_timeout(500)
    assert re.fullmatch(r"img_src_x\w* · TOAST Lab", page.title())
    assert page.locator("img[src=x]").count() == 0

"""Which requests the server accepts.

It serves pages under its own and the allowed host names and websockets of these pages, no others.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from toast_lab.app.app_server import greeting, hosts, own_model, read_origin, serve
from toast_lab.errors import InvalidInput, RunFailed

SERVER = """
import sys, panel as pn
from toast_lab.app import app_server
app_server.start(lambda: pn.pane.Str("hello"), int(sys.argv[1]), sys.argv[2],\
 origins=tuple(sys.argv[3:]))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(
    at: str, port: int, host: str, origin: str | None = None, *, websocket: bool = False
) -> int:
    """The HTTP status of a request, or of a websocket's handshake, with these headers."""
    lines = [f"GET {'/ws' if websocket else '/'} HTTP/1.1", f"Host: {host}"]
    if websocket:
        lines += [
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: bokeh, x"]
    else:
        lines.append("Connection: close")
    lines += [f"Origin: {origin}"] if origin else []
    with socket.create_connection((at, port), timeout=30) as link:
        link.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return int(link.recv(64).split()[1])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server on all interfaces that allows two more origins.

    They are lab.test at its port, and secure.test behind https.
    """
    number = free_port()
    words = [
        sys.executable,
        "-c",
        SERVER,
        str(number),
        "0.0.0.0",
        f"lab.test:{number}",
        "secure.test:443",
    ]
    with subprocess.Popen(words) as process:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    ask("127.0.0.1", number, f"127.0.0.1:{number}")
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
            yield number
        finally:
            process.kill()


def test_a_name_that_was_allowed_is_served_wherever_it_is_asked_for(port: int) -> None:
    for at in ("127.0.0.1", "127.0.0.2"):
        assert ask(at, port, f"lab.test:{port}") == 200
        assert ask(at, port, f"LAB.test:{port}") == 200
        assert ask(at, port, f"lab.test:{port}", f"http://lab.test:{port}", websocket=True) == 101
        assert ask(at, port, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", websocket=True) == 101
    assert ask("127.0.0.2", port, "secure.test") == 200
    assert ask("127.0.0.2", port, "secure.test", "https://secure.test", websocket=True) == 101


def test_every_other_name_and_origin_is_refused(port: int) -> None:
    for host in (
        "evil.test",
        f"evil.test:{port}",
        "lab.test",
        "lab.test:1",
        f"127.0.0.2:{port}",
        f"xlab.test:{port}",
    ):
        assert ask("127.0.0.2", port, host) == 403
        assert ask("127.0.0.2", port, host, f"http://lab.test:{port}", websocket=True) == 403
    origins = (
        None,
        "null",
        "http://evil.test",
        f"http://evil.test:{port}",
        "http://lab.test",
        "http://lab.test:1",
        f"http://lab.test:{port}.evil.test",
        "http://secure.test",
        "lab.test",
        f"http://127.0.0.2:{port}",
    )
    for origin in origins:
        assert ask("127.0.0.2", port, f"lab.test:{port}", origin, websocket=True) == 403, origin


def test_an_own_address_is_served_and_a_wildcard_is_no_name() -> None:
    assert hosts("127.0.0.2", 80)[0] == "127.0.0.2:80"
    assert hosts("::1", 80)[0] == "[::1]:80"
    for address in ("0.0.0.0", "::", ""):
        assert hosts(address, 80) == ["127.0.0.1:80", "localhost:80"]


def test_the_greeting_says_which_address_works() -> None:
    assert greeting("127.0.0.1", 5006) == "TOAST Lab on http://127.0.0.1:5006 (stop with Ctrl-C)"
    alone = greeting("0.0.0.0", 5006)
    assert "http://127.0.0.1:5006" in alone
    assert "pages open on this machine only" in alone
    assert f"--allow-origin {socket.gethostname()}:5006" in alone
    assert "also as lab.test:5006" in greeting("0.0.0.0", 5006, ("lab.test:5006",))


def test_a_foreign_name_on_a_loopback_address_takes_own_models_away() -> None:
    assert own_model("127.0.0.1", "m:make", ("localhost:8888",)) == ("m:make", "")
    offered, why = own_model("127.0.0.1", "m:make", ("lab.test:80",))
    assert offered == ""
    assert "Served on 127.0.0.1, lab.test:80" in why


@pytest.mark.parametrize(
    "text",
    ["*", "lab.test", "http://lab.test:80", "lab.test:0", "lab.test:99999", "*:80", "", "a b:1"],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not HOST:PORT"):
        read_origin(text)


def test_a_port_in_use_is_refused_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        with pytest.raises(RunFailed, match=f"port {number} .* is in use.*--port"):
            serve(port=number)
    assert capsys.readouterr().out == ""

"""Frames in a notebook.

They show pages of one small server inside the kernel, or a static picture without a kernel.

Everything comes from this machine; rendered in the notebook's own page, Panel would fetch its
scripts from a content delivery network. The server has its own thread, so that frames respond
while a cell runs. A cell's output holds a static picture, and a script that puts the frame in its
place if the server answers: a saved notebook that is opened without its kernel, or on a page that
runs no scripts, shows the picture.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from toast_lab.app import app_server, assets
from toast_lab.errors import RunFailed
from toast_lab.views.markup import Safe, h, join

START_S = 60.0
ALIVE = "/alive"

_PAGES: dict[str, Callable[[], Any]] = {}  # by a key that cannot be guessed
_LOCK = threading.Lock()
_SERVER: FrameServer | None = None


class FrameServer:
    """The server of this process. Made by ``add``."""

    def __init__(self) -> None:
        self.port = 0
        self._error: BaseException | None = None
        self._ready = threading.Event()
        # Not in the server's thread, which would import them while a cell imports them, too
        app_server.import_for_pages()
        threading.Thread(target=self._run, name="toast-lab frames", daemon=True).start()
        if not self._ready.wait(START_S):
            raise RunFailed(f"the server of the views did not start within {START_S:g} s")
        if self._error is not None:
            raise RunFailed(
                f"the server of the views did not start: {self._error}"
            ) from self._error

    def _run(self) -> None:
        try:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            server = self._prepared()
            server.start()
        except BaseException as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        loop.run_forever()

    def _prepared(self) -> Any:
        from tornado.routing import PathMatches, Rule
        from tornado.web import RequestHandler

        class Alive(RequestHandler):
            """Is the page still there? A notebook on another port asks before it shows a frame."""

            def get(self) -> None:
                self.set_header("Access-Control-Allow-Origin", "*")
                self.set_status(204 if self.get_query_argument("frame", "") in _PAGES else 404)

        for attempt in range(5):
            self.port = free_port()
            try:
                server = app_server.prepare(_page, self.port, "127.0.0.1")
            except OSError:  # another process took the port meanwhile
                if attempt == 4:
                    raise
                continue
            # After the rule that refuses foreign names.
            server._tornado.default_router.rules.insert(1, Rule(PathMatches(ALIVE), Alive))
            return server
        raise AssertionError


def _page() -> Any:
    """Make the page for a visitor: the one whose key is in the query."""
    import panel as pn

    fields = (
        parse_qs((pn.state.location.search or "").lstrip("?"))
        if pn.state.location is not None
        else {}
    )
    make = _PAGES.get(fields.get("frame", [""])[-1])
    if make is None:
        return pn.pane.Str("This view has ended.")
    return make()


def add(make: Callable[[], Any]) -> str:
    """Serve to each visitor what ``make`` returns; gives the URL.

    Raises:
        RunFailed: the server does not start.
    """
    global _SERVER
    with _LOCK:
        if _SERVER is None:
            _SERVER = FrameServer()
        key = secrets.token_urlsafe(16)
        _PAGES[key] = make
        return f"http://127.0.0.1:{_SERVER.port}/?frame={key}"


def remove(url: str) -> None:
    """Stop serving a page; frames that show it say so when they load again."""
    _PAGES.pop(url.rpartition("=")[2], None)


def free_port() -> int:
    """A port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def html(url: str, height: int, title: str, static: Safe) -> str:
    """The output of a cell.

    It holds the static picture, and the script that replaces it with the frame if the server
    answers.
    """
    name = "toast-lab-" + secrets.token_hex(6)
    static_box = h("div", static, id=name, cls="toast-lab-view")
    frame = {
        "id": name,
        "alive": url.replace("/?", f"{ALIVE}?"),
        "src": url,
        "title": title,
        "height": str(height),
    }
    # A title that contains the end tag of a script must not end ours
    script_argument = json.dumps(frame).replace("<", "\\u003c")
    return join(static_box, Safe(f"<script>({assets.script('frame')})({script_argument})</script>"))

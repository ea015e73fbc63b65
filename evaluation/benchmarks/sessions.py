"""How fast one server answers two dozen sessions of the explorer.

Seconds from a click to its answer are measured on an idle server and while one session searches.

The clients speak the websocket protocol themselves, without a browser, so that only the server is
measured. A click is a key of the table of commands; it is answered once the server has
acknowledged it and the first change that it made has arrived. Every client pauses between its
clicks, as a person does.
"""

from __future__ import annotations

import asyncio
import html
import json
import random
import re
import statistics
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.browser.serving import serving

CLIENTS = 24
CLICKS = 12  #: number of clicks of each client in each phase
THINK_S = (1.0, 3.0)
SETTLED_WITHIN_S = 180.0
KEYS = ("next_conflict", "graph", "next_conflict", "hand", "next_conflict", "previous_conflict")
MEDIAN_S, P95_S, P95_SEARCHING_S = 0.1, 0.5, 0.8  #: targets


class Answer(NamedTuple):
    """A click and the seconds until its answer."""

    key: str
    seconds: float


class Client:
    """A client with one session of the explorer."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.socket: WebSocketClientConnection | None = None
        self.shell = ""  #: id of the Bokeh model that receives keys
        self.sent = 0
        self.told = False  #: has a change arrived since the last message?
        self.first_s = 0.0  #: seconds until the document had arrived
        self.quiet_messages = 0  #: number of messages that came while the client rested
        self._arrived: asyncio.Queue[tuple[dict[str, Any], str]] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Fetch the page and its document, as a browser does."""
        began = time.perf_counter()
        page = await asyncio.to_thread(_get, f"{self.url}/?model={self.model}&step=graph")
        token = re.search(r'"token":"([^"]+)"', html.unescape(page))
        assert token is not None, page[:2000]
        request = HTTPRequest(
            self.url.replace("http", "ws", 1) + "/ws",
            headers={"Origin": self.url},
            request_timeout=120,
        )
        self.socket = await websocket_connect(
            request, subprotocols=["bokeh", token.group(1)], max_message_size=2**28
        )
        self._reader = asyncio.create_task(self._read())
        await self._arrived.get()  # ACK
        reply = await self._ask("PULL-DOC-REQ", {})
        self.shell = _find_shell(json.loads(reply))
        self.first_s = time.perf_counter() - began
        ready = {"type": "event", "name": "document_ready", "values": {"type": "map"}}
        await self._ask(
            "PATCH-DOC",
            {"events": [{"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": ready}]},
        )

    async def _read(self) -> None:
        """Queue (header, content) of every message; buffers are skipped."""
        assert self.socket is not None
        while True:
            parts = []
            for _ in range(3):
                part = await self.socket.read_message()
                if not isinstance(part, str):
                    return  # the server hung up
                parts.append(part)
            header = json.loads(parts[0])
            for _ in range(2 * int(header.get("num_buffers", 0))):
                await self.socket.read_message()
            self._arrived.put_nowait((header, parts[2]))

    async def _ask(self, kind: str, content: dict[str, Any]) -> str:
        """Send a message and wait for its answer."""
        assert self.socket is not None
        self.sent += 1
        self.told = False
        number = f"{id(self)}-{self.sent}"
        for part in ({"msgid": number, "msgtype": kind}, {}, content):
            await self.socket.write_message(json.dumps(part))
        while True:
            header, text = await asyncio.wait_for(self._arrived.get(), 120)
            if header.get("reqid") == number:
                assert header["msgtype"] != "ERROR", text[:2000]
                return text
            self.told |= header["msgtype"] == "PATCH-DOC"

    async def press(self, key: str) -> Answer:
        """Press a key."""
        began = time.perf_counter()
        while not self._arrived.empty():
            self._arrived.get_nowait()
        change = {
            "kind": "ModelChanged",
            "model": {"id": self.shell},
            "attr": "command",
            "new": [key, self.sent],
        }
        await self._ask("PATCH-DOC", {"events": [change]})
        while not self.told:  # if Panel gathers changes, the acknowledgement comes first
            header, _ = await asyncio.wait_for(self._arrived.get(), 120)
            self.told = header["msgtype"] == "PATCH-DOC"
        return Answer(key, time.perf_counter() - began)

    async def rest(self, seconds: float) -> None:
        """Count the messages that the server sends unasked in ``seconds`` seconds."""
        while not self._arrived.empty():
            self._arrived.get_nowait()  # answers to the previous click
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            try:
                await asyncio.wait_for(self._arrived.get(), left)
                self.quiet_messages += 1
            except TimeoutError:
                return


def _get(url: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=120) as answer:
        return answer.read().decode()


def _find_shell(document: Any) -> str:
    """Id of the data model of ``Shell``, which is the one with a table of commands."""
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            attributes = node.get("attributes")
            if isinstance(attributes, dict) and "commands" in attributes:
                found.append(str(node["id"]))
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(document)
    assert len(found) == 1, f"{len(found)} models take keys"
    return found[0]


async def _visit(client: Client) -> None:
    for key in ("hand", "graph", "hand"):
        await client.rest(5.0)
        await client.press(key)


async def _settled(clients: list[Client]) -> None:
    """Wait until the server has sent no message to any client for two seconds."""
    end = time.perf_counter() + SETTLED_WITHIN_S
    while time.perf_counter() < end:
        before = sum(c.quiet_messages for c in clients)
        await asyncio.gather(*(c.rest(2.0) for c in clients))
        if sum(c.quiet_messages for c in clients) == before:
            return


async def _use(client: Client, chance: random.Random, clicks: int) -> list[Answer]:
    found = []
    for i in range(clicks):
        await client.rest(chance.uniform(*THINK_S))
        found.append(await client.press(KEYS[i % len(KEYS)]))
    return found


async def measure(url: str, clients: int = CLIENTS, clicks: int = CLICKS) -> dict[str, list[float]]:
    """Seconds of opening, of clicks on an idle server, and of clicks while one session searches.

    Messages a second of idle sessions are counted as well.
    """
    chance = random.Random(0)
    some = [Client(url, "attention") for _ in range(clients)]
    searcher = Client(url, "transformer")
    for client in [*some, searcher]:
        await client.open()
    # Pages are built on the first visit, which does not count as a click
    await asyncio.gather(*(_visit(c) for c in some))
    await _settled(some)
    before = sum(c.quiet_messages for c in some)
    await asyncio.gather(*(c.rest(3.0) for c in some))
    quiet = sum(c.quiet_messages for c in some) - before
    idle = await asyncio.gather(*(_use(c, random.Random(chance.random()), clicks) for c in some))
    await searcher.press("run")
    await searcher.rest(3.0)
    busy = asyncio.create_task(searcher.rest(10_000.0))
    searching = await asyncio.gather(
        *(_use(c, random.Random(chance.random()), clicks) for c in some)
    )
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    return {
        "open": [c.first_s for c in some],
        "idle": [a.seconds for group in idle for a in group],
        "searching": [a.seconds for group in searching for a in group],
        "messages a second of 24 idle sessions": [quiet / 3.0],
    }


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(values, n=20)[-1]


def run() -> list[str]:
    """Print the table; gives the missed targets."""
    with serving() as url:
        found = asyncio.run(measure(url))
    print(f"\n{CLIENTS} sessions of the explorer, {CLICKS} clicks of each, in milliseconds")
    for name in ("open", "idle", "searching"):
        values = found[name]
        print(
            f"{name:>10}: median {1e3 * statistics.median(values):6.0f}, p95 "
            f"{1e3 * p95(values):6.0f}"
        )
    told = found["messages a second of 24 idle sessions"][0]
    print(f"messages a second to {CLIENTS} sessions where nothing happens: {told:.1f}")
    missed = []
    for name, median_s, p95_s in (
        ("idle", MEDIAN_S, P95_S),
        ("searching", 2 * MEDIAN_S, P95_SEARCHING_S),
    ):
        if statistics.median(found[name]) > median_s or p95(found[name]) > p95_s:
            missed.append(f"click to answer, {name}: target median {median_s} s, p95 {p95_s} s")
    return missed

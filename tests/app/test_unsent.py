"""Messages that Panel leaves in its queue are sent with the next tick."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest
from bokeh.document import Document
from panel.io import document
from panel.io.state import set_curdoc

from toast_lab.app import pace, unsent


class SlowSocket:
    """A socket whose writes end only when the test ends them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.writes: list[asyncio.Future[None]] = []

    def write(self, message: str) -> list[asyncio.Future[None]]:
        self.sent.append(message)
        self.writes.append(asyncio.get_running_loop().create_future())
        return self.writes[-1:]


class SlowConnection:
    """A stand-in for the connection of a page, as Panel uses it."""

    def __init__(self) -> None:
        self._socket = SlowSocket()
        self.protocol = self

    def create(self, _: str, events: list[str]) -> str:
        """Make a message of events, here their texts."""
        return " ".join(events)


async def messages_of_a_page(tick: Callable[[], None]) -> list[list[str]]:
    """The messages sent before a tick, after it, and after a second one."""
    page = Document()
    connection: Any = SlowConnection()
    socket: SlowSocket = connection._socket
    schedule: Any = document.schedule_write_events
    schedule(page, [connection], ["first"])
    await asyncio.sleep(0.01)
    # In one turn of the event loop a write ends and another message arrives
    socket.writes[0].set_result(None)
    schedule(page, [connection], ["second"])
    await asyncio.sleep(0.05)
    sent = [[*socket.sent]]
    for _ in range(2):
        with set_curdoc(page):
            tick()
        await asyncio.sleep(0.01)
        sent.append([*socket.sent])
    return sent


@pytest.fixture
def sent_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[list[str]]]:
    """A function that runs ``messages_of_a_page`` in a new event loop."""
    monkeypatch.setitem(
        document.extra_socket_handlers,
        SlowSocket,
        lambda connection, msg: connection._socket.write(msg),
    )

    def run(tick: Callable[[], None]) -> list[list[str]]:
        # A browser test of the same worker may have an event loop running in this thread
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, messages_of_a_page(tick)).result()

    return run


def test_the_next_tick_sends_what_panel_has_left(
    sent_with: Callable[[Callable[[], None]], list[list[str]]],
) -> None:
    assert sent_with(unsent.send) == [["first"], ["first", "second"], ["first", "second"]]


def test_panel_leaves_it_as_long_as_nothing_changes(
    sent_with: Callable[[Callable[[], None]], list[list[str]]],
) -> None:
    """If this fails, Panel has fixed the bug, and ``unsent`` can be removed."""
    assert sent_with(lambda: None) == [["first"]] * 3


def test_a_page_s_tick_sends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(unsent, "send", lambda: calls.append("send"))
    monkeypatch.setattr(pace.PeriodicCallback, "start", lambda self: self.callback())
    pace.ticker(lambda: calls.append("tick"))
    assert calls == ["send", "tick"]

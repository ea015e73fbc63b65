"""A server's log leaves out errors of closed pages, and nothing else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging

import pytest
from bokeh.protocol import Protocol
from bokeh.server.connection import ServerConnection
from bokeh.server.protocol_handler import ProtocolHandler
from tornado.websocket import WebSocketClosedError

from toast_lab.app import server_log


async def fail_unseen(error: Exception) -> None:
    """Let a task fail whose result is never awaited, like Panel's writes to a page."""

    async def fail() -> None:
        raise error

    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    del task
    gc.collect()


@pytest.mark.parametrize(
    ("error", "is_told"), [(WebSocketClosedError(), False), (ValueError("a real one"), True)]
)
def test_a_write_to_a_closed_page_is_not_told(
    caplog: pytest.LogCaptureFixture, error: Exception, is_told: bool
) -> None:
    server_log.pass_over_closed_pages()
    # A browser test of the same worker may have an event loop running in this thread
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, fail_unseen(error)).result()
    logged = [record for record in caplog.records if record.name == "asyncio"]
    assert [record.exc_info is not None and record.exc_info[1] is error for record in logged] == (
        [True] if is_told else []
    )


class Page:
    """A stand-in for a page, with the methods that Bokeh's connection calls."""

    def subscribe(self, connection: ServerConnection) -> None: ...
    def unsubscribe(self, connection: ServerConnection) -> None: ...


def handle_message(page: Page, *, closed: bool) -> None:
    """Let Bokeh handle a message of a page that fails because the page has no session."""
    connection = ServerConnection(Protocol(), None, None, page)
    if closed:
        connection.detach_session()
    message = connection.protocol.create("PULL-DOC-REQ")
    asyncio.run(ProtocolHandler().handle(message, connection))


@pytest.mark.parametrize("closed", [True, False])
def test_a_message_from_a_closed_page_is_not_told(
    caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    server_log.pass_over_closed_pages()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(handle_message, Page(), closed=closed).result()
    messages = [record.getMessage() for record in caplog.records]
    assert [text.startswith("error handling message") for text in messages] == [True] * (not closed)


@pytest.mark.parametrize("logger_name", ["bokeh.server.views.ws", "panel.io.document"])
def test_other_words_of_the_page_s_socket_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, logger_name: str
) -> None:
    server_log.pass_over_closed_pages()
    logger = logging.getLogger(logger_name)
    # Others that ran in this process may have set up logging anew
    logger.disabled = False
    monkeypatch.setattr(logger, "level", logging.WARNING)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    logger._cache.clear()  # type: ignore[attr-defined]
    logger.warning("Failed sending message as connection was closed")
    logger.warning("Failed reading message")
    assert [record.getMessage() for record in caplog.records] == ["Failed reading message"]

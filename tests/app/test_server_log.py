"""The terminal of a server: closed pages are no errors, everything else is told."""

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
    """Let a task fail whose result nobody asks for, as Panel's writes to a page are."""

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
    # A browser of the same worker may have a loop that runs in this thread
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, fail_unseen(error)).result()
    told = [record for record in caplog.records if record.name == "asyncio"]
    assert [record.exc_info is not None and record.exc_info[1] is error for record in told] == (
        [True] if is_told else []
    )


class Page:
    """What Bokeh's connection needs to know of a page."""

    def subscribe(self, connection: ServerConnection) -> None: ...
    def unsubscribe(self, connection: ServerConnection) -> None: ...


def handle_message(page: Page, *, closed: bool) -> None:
    """Let Bokeh handle a message of a page, which the page cannot take in."""
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
    told = [record.getMessage() for record in caplog.records]
    assert [text.startswith("error handling message") for text in told] == [True] * (not closed)


@pytest.mark.parametrize("logger_name", ["bokeh.server.views.ws", "panel.io.document"])
def test_other_words_of_the_page_s_socket_are_told(
    caplog: pytest.LogCaptureFixture, logger_name: str
) -> None:
    server_log.pass_over_closed_pages()
    logger = logging.getLogger(logger_name)
    logger.warning("Failed sending message as connection was closed")
    logger.warning("Failed reading message")
    assert [record.getMessage() for record in caplog.records] == ["Failed reading message"]

"""Filter the log that the terminal of a server shows.

A user may close a tab while a message is on its way to it, or from it. That is no error, but Bokeh,
Panel and asyncio log it as one, some with a traceback of forty lines.
"""

from __future__ import annotations

import logging
import traceback

_LOGGERS = (
    "asyncio",
    "bokeh.server.protocol_handler",
    "bokeh.server.views.ws",
    "panel.io.document",
    "tornado.application",
    "tornado.general",
)
# Bokeh and Panel log the same words
_CLOSED_TEXT = "Failed sending message as connection was closed"


def pass_over_closed_pages() -> None:
    """Keep errors of messages to and from a page that was closed out of this process's log."""
    for name in _LOGGERS:
        # A logger adds the same function only once
        logging.getLogger(name).addFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    is_of_closed_page = error is not None and _is_of_closed_page(error)
    return not is_of_closed_page and not record.getMessage().startswith(_CLOSED_TEXT)


def _is_of_closed_page(error: BaseException) -> bool:
    from tornado.iostream import StreamClosedError
    from tornado.websocket import WebSocketClosedError

    if isinstance(error, WebSocketClosedError | StreamClosedError):
        return True
    # Bokeh handles what a page sent last after it has taken the page's session away
    calls = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__)]
    return calls[-1:] == ["ServerConnection.session"]

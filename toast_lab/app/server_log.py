"""Filter the log that the terminal of a server shows.

A user may close a tab while a message is on its way to it. That is no error, but Bokeh, Panel and
asyncio log it as one, asyncio with a traceback of forty lines.
"""

from __future__ import annotations

import logging

_LOGGERS = (
    "asyncio",
    "bokeh.server.views.ws",
    "panel.io.document",
    "tornado.application",
    "tornado.general",
)
# Bokeh and Panel log the same words
_CLOSED_TEXT = "Failed sending message as connection was closed"


def pass_over_closed_pages() -> None:
    """Keep errors of writing to a page that was closed out of this process's log."""
    for name in _LOGGERS:
        # A logger adds the same function only once
        logging.getLogger(name).addFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    from tornado.iostream import StreamClosedError
    from tornado.websocket import WebSocketClosedError

    error = record.exc_info[1] if record.exc_info else None
    is_of_closed_page = isinstance(error, WebSocketClosedError | StreamClosedError)
    return not is_of_closed_page and not record.getMessage().startswith(_CLOSED_TEXT)

"""What the terminal of a server tells.

Somebody closes a tab while something is on its way to it.  That is no error, but Bokeh, Panel and
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
    """Leave out of this process's log that a page was closed while it was being written to."""
    for name in _LOGGERS:
        # The same function is added once
        logging.getLogger(name).addFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    from tornado.iostream import StreamClosedError
    from tornado.websocket import WebSocketClosedError

    error = record.exc_info[1] if record.exc_info else None
    is_of_closed_page = isinstance(error, WebSocketClosedError | StreamClosedError)
    return not is_of_closed_page and not record.getMessage().startswith(_CLOSED_TEXT)

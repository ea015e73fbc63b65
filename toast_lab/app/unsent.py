"""Messages that Panel leaves unsent.

Messages that cannot be sent at once wait in a queue of their document, and Panel starts a task that
sends the queue. An earlier task, which has been waiting for the socket, may run first: it marks the
queue as sent, and the new task relies on the mark. The message then waits for the next change, and
until the user does something the page shows text that is older than the table below it.
"""

from __future__ import annotations

import panel as pn
from panel.io import document


def send() -> None:
    """Send the messages that the document of this call has left unsent, if any."""
    page = pn.state.curdoc
    # Both names are private to Panel: without them nothing can be done
    queues = getattr(document, "_WRITE_MSGS", {})
    marks = getattr(document, "_WRITE_BLOCK", {})
    if page is not None and page in queues and page not in marks:
        document.schedule_write_events(page, [], [])

"""Messages that Panel leaves unsent.

What cannot be sent at once waits in a queue of its document, and Panel starts a task that sends the
queue.  An earlier task, which has been waiting for the socket, may go on first: it marks the queue
as sent, and the new task goes by the mark.  The message then waits for the next change, and until
somebody does something the page shows words that are older than the table below them.
"""

from __future__ import annotations

import panel as pn
from panel.io import document


def send() -> None:
    """Send what the document of this call has left unsent, if anything."""
    page = pn.state.curdoc
    # Neither is a promise of Panel's: without them there is nothing to be done
    queues = getattr(document, "_WRITE_MSGS", {})
    marks = getattr(document, "_WRITE_BLOCK", {})
    if page is not None and page in queues and page not in marks:
        document.schedule_write_events(page, [], [])

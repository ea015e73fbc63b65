"""Messages to the user, newest last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import param

from toast_lab.app.items import Level, Message
from toast_lab.app.state_part import StatePart
from toast_lab.errors import ToastError

MAX_MESSAGES = 50


class Notices(StatePart):
    """Messages of one page."""

    messages: Any = param.List(default=[])

    def say(self, text: str, level: Level = "info") -> None:
        """Add a message."""
        self.messages = [*self.messages[1 - MAX_MESSAGES :], Message(level, text, time.time())]

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an expected error into a message."""
        try:
            yield
        except (ToastError, ValueError, OverflowError) as error:
            self.say(str(error), "error")

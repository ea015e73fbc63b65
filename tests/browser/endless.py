"""A user's model that never finishes loading; served by the tests."""

from __future__ import annotations

import threading
from typing import Any


def make() -> tuple[Any, ...]:
    threading.Event().wait()
    raise AssertionError

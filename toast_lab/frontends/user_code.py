"""Names of the user's functions and texts for the errors that they raise."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "site-packages/",
    "dist-packages/",
    "/lib/python3",
    "/jax/_src/",
    "/toast_lab/frontends/",
    "<frozen",
    "<string>",
)


def function_name(fn: Any) -> str:
    """Name of a function, a functools.partial, a bound method or a callable object."""
    while hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__


def short(error: BaseException) -> str:
    """Type of an error and the first lines of its message, as one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:3])[:600]


def line_of(frames: Iterable[tuple[str, int]]) -> str:
    """The first line of the user's code among (file, line) pairs, as ``" (file.py:12)"``."""
    for file, number in frames:
        if not any(folder in file for folder in _LIBRARIES):
            return f" ({Path(file).name}:{number})"
    return ""


def line(error: BaseException) -> str:
    """The innermost line of the user's code, as ``" (file.py:12: text)"``, or an empty text."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(folder in frame.filename for folder in _LIBRARIES)
    ]
    if not frames:
        return ""
    frame = frames[-1]
    return f" ({Path(frame.filename).name}:{frame.lineno}: {(frame.line or '').strip()})"

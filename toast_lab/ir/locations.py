"""Reads locations: the lines of the user's code that an op comes from, as the frontends store them.

A location is ``file.py:12 < caller.py:40 < ...``: a line and the lines that call it, innermost
first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from toast_lab.text import file_text, line_text

_TRACING = "toast_lab/frontends/"
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python")
MOST_FRAMES = 6  #: that a location keeps


class SourceFrame(NamedTuple):
    """One frame of a location."""

    file: str
    line: int

    @property
    def text(self) -> str:
        """``models/attention.py:14``, empty if the program gives no line."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def short(self) -> str:
        """``attention.py:14``, empty if the program gives no line."""
        return f"{file_text(self.file)}:{self.line}" if self.file else ""

    @property
    def in_library(self) -> bool:
        """Does its file belong to an installed library?"""
        path = self.file.replace("\\", "/")
        return any(folder in path for folder in _LIBRARIES)


NOWHERE = SourceFrame("", 0)


def joined(lines: Sequence[tuple[str, int]]) -> str:
    """The location of (file, line) pairs, innermost first, of which ``MOST_FRAMES`` are kept.

    A layer of a library can be twenty calls deep. The user's own lines around it are kept in place
    of the outer calls in the library.

    >>> inside = [("/venv/site-packages/flax/linear.py", line) for line in range(20)]
    >>> joined([*inside, ("model.py", 31), ("train.py", 7)]).split(" < ")[3:]
    ['/venv/site-packages/flax/linear.py:3', 'model.py:31', 'train.py:7']
    """
    own = [at for at, (file, line) in enumerate(lines) if not SourceFrame(file, line).in_library]
    kept = dict.fromkeys(range(min(MOST_FRAMES, len(lines))))
    if own and own[0] not in kept:
        kept = dict.fromkeys([*range(MOST_FRAMES - len(own[:2])), *own[:2]])
    return " < ".join(f"{lines[at][0]}:{lines[at][1]}" for at in kept)


@functools.lru_cache(maxsize=65536)
def frames(location: str) -> tuple[SourceFrame, ...]:
    """Frames of a location, innermost first, without those of the tracing itself.

    >>> frames("a.py:3 < b.py:9")
    (SourceFrame(file='a.py', line=3), SourceFrame(file='b.py', line=9))
    """
    user_frames = []
    for frame_text in location.split(" < "):
        file_name, colon, line_number = frame_text.rpartition(":")
        if _TRACING in file_name.replace("\\", "/"):
            # The remaining, outer frames only called the tracer.
            break
        if colon and line_number.isdigit():
            user_frames.append(SourceFrame(file_name, int(line_number)))
    return tuple(user_frames)


@functools.lru_cache(maxsize=65536)
def user_frame(location: str) -> SourceFrame:
    """The innermost frame that is not a library's, else the innermost one."""
    all_frames = frames(location)
    user_frames = (frame for frame in all_frames if not frame.in_library)
    return next(user_frames, all_frames[0] if all_frames else NOWHERE)


def user_line(location: str) -> str:
    """The line of ``user_frame``; the innermost text of a location that has no line.

    >>> user_line("/venv/site-packages/flax/linear.py:422 < model.py:31 < train.py:7")
    'model.py:31'
    >>> user_line("body of the loop")
    'body of the loop'
    """
    return user_frame(location).text or location.split(" < ")[0]


def place_text(location: str, most: int = 3) -> str:
    """The innermost ``most`` lines of the user's code in a location, without folders.

    Lines of libraries stand where there are no others.

    >>> place_text("/venv/site-packages/flax/linear.py:422 < model.py:31 < train.py:7")
    'model.py:31 < train.py:7'
    """
    all_frames = frames(location)
    own_frames = [frame for frame in all_frames if not frame.in_library] or all_frames
    return " < ".join(frame.short for frame in own_frames[:most]) or line_text(location)

"""Source locations for people: the user's own frame, its function and its text.

A location is what the frontends keep: ``file.py:12 < caller.py:40 < ...``, innermost first.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from typing import NamedTuple

from toast_lab import syntax
from toast_lab.ir.program import Program
from toast_lab.text import file_text, in_library

_OURS = "toast_lab/frontends/"


class SourceFrame(NamedTuple):
    """One frame of a location."""

    file: str
    line: int

    @property
    def short(self) -> str:
        """``attention.py:14``, or nothing where the program gives no line."""
        return f"{file_text(self.file)}:{self.line}" if self.file else ""


NOWHERE = SourceFrame("", 0)


@functools.lru_cache(maxsize=65536)
def frames(location: str) -> tuple[SourceFrame, ...]:
    """Frames of a location, innermost first, without those of the tracing itself.

    >>> frames("a.py:3 < b.py:9")
    (Frame(file='a.py', line=3), Frame(file='b.py', line=9))
    """
    user_frames = []
    for frame_text in location.split(" < "):
        file_name, colon, line_text = frame_text.rpartition(":")
        if _OURS in file_name.replace("\\", "/"):
            # everything further out only called the tracer
            break
        if colon and line_text.isdigit():
            user_frames.append(SourceFrame(file_name, int(line_text)))
    return tuple(user_frames)


@functools.lru_cache(maxsize=65536)
def user_frame(location: str) -> SourceFrame:
    """The innermost frame that is not a library's, else the innermost one."""
    all_frames = frames(location)
    user_frames = (frame for frame in all_frames if not _in_library(frame))
    return next(user_frames, all_frames[0] if all_frames else NOWHERE)


def _in_library(frame: SourceFrame) -> bool:
    return in_library(frame.file.replace("\\", "/"))


@functools.lru_cache(maxsize=512)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    try:
        syntax_tree = syntax.parse("\n".join(file_lines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(sorted(_functions_below(syntax_tree, "")))


def _functions_below(node: ast.AST, class_name: str) -> Iterator[tuple[int, int, str]]:
    """First and last line of each function, and its name: of a method with that of its class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{class_name}.{child.name}" if class_name else child.name
            # A layer is called by the name of its class
            name = class_name if class_name and child.name == "__call__" else name
            yield child.lineno, child.end_lineno or child.lineno, name
            yield from _functions_below(child, "")
        else:
            inner = child.name if isinstance(child, ast.ClassDef) else class_name
            yield from _functions_below(child, inner)


@functools.lru_cache(maxsize=65536)
def function_of(frame: SourceFrame) -> str:
    """Name of the function that holds a frame, else its file and line."""
    if _in_library(frame):
        return frame.short
    inside = [name for first, last, name in _functions(frame.file) if first <= frame.line <= last]
    return inside[-1] if inside else frame.short


def is_code(file: str) -> bool:
    """May a file be shown?

    A program that was read from a file can name any file; only Python code and cells are shown.
    """
    return file.endswith(".py") or (file.startswith("<") and file.endswith(">"))


def source_text(frame: SourceFrame) -> str:
    """The line itself, empty if its file cannot be read."""
    return linecache.getline(frame.file, frame.line).strip() if is_code(frame.file) else ""


def file_lines(file: str) -> list[str]:
    """Lines of a file without their ends, none if it cannot be read."""
    return [line.rstrip("\r\n") for line in linecache.getlines(file)] if is_code(file) else []


def ops_of_lines(program: Program) -> dict[str, dict[int, list[int]]]:
    """For every file that the program comes from, the ops of each of its lines."""
    ops_of_line: dict[str, dict[int, list[int]]] = {}
    for op in program.ops():
        frame = op_frame(program, op)
        if frame.file:
            ops_of_line.setdefault(frame.file, {}).setdefault(frame.line, []).append(op)
    return ops_of_line


def op_frame(program: Program, op: int) -> SourceFrame:
    """The user's frame of an op."""
    return user_frame(program.locations[program.location[op]])

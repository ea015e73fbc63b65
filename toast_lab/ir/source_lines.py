"""Looks up the lines that locations name: their function, their text and the ops on each line."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from toast_lab import syntax
from toast_lab.ir.locations import SourceFrame, user_frame
from toast_lab.ir.program import Program


@functools.lru_cache(maxsize=512)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    try:
        syntax_tree = syntax.parse("\n".join(file_lines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(sorted(_functions_below(syntax_tree, "")))


def _functions_below(node: ast.AST, class_name: str) -> Iterator[tuple[int, int, str]]:
    """First line, last line and name of each function; names of methods include their class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{class_name}.{child.name}" if class_name else child.name
            # The ``__call__`` of a layer goes by the name of its class.
            name = class_name if class_name and child.name == "__call__" else name
            yield child.lineno, child.end_lineno or child.lineno, name
            yield from _functions_below(child, "")
        else:
            inner_class = child.name if isinstance(child, ast.ClassDef) else class_name
            yield from _functions_below(child, inner_class)


@functools.lru_cache(maxsize=65536)
def function_of(frame: SourceFrame) -> str:
    """Name of the function that contains the line of a frame, else its file and line."""
    if frame.in_library:
        return frame.short
    inside = [name for first, last, name in _functions(frame.file) if first <= frame.line <= last]
    return inside[-1] if inside else frame.short


def is_code(file: str) -> bool:
    """May the content of a file be shown?

    A program that was read from a file can name any file of this machine; only Python code and
    notebook cells are shown.
    """
    return file.endswith(".py") or (file.startswith("<") and file.endswith(">"))


def source_text(frame: SourceFrame) -> str:
    """The text of the frame's line, empty if its file cannot be read."""
    return linecache.getline(frame.file, frame.line).strip() if is_code(frame.file) else ""


def file_lines(file: str) -> list[str]:
    """Lines of a file without line ends, none if it cannot be read."""
    return [line.rstrip("\r\n") for line in linecache.getlines(file)] if is_code(file) else []


def ops_of_lines(program: Program) -> dict[str, dict[int, list[int]]]:
    """For each source file of the program, the ops of each of its lines."""
    ops_of_line: dict[str, dict[int, list[int]]] = {}
    for op in program.ops():
        frame = op_frame(program, op)
        if frame.file:
            ops_of_line.setdefault(frame.file, {}).setdefault(frame.line, []).append(op)
    return ops_of_line


def op_frame(program: Program, op: int) -> SourceFrame:
    """The innermost frame of an op that is not a library's, see ``user_frame``."""
    return user_frame(program.locations[program.location[op]])

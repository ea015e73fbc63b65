"""The files that locations name: the function and the text of a line, and the ops of each."""

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
    if frame.in_library:
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

"""Python source as a tree, from any thread."""

from __future__ import annotations

import ast

_TRIES = 5


def parse(source: str | bytes) -> ast.Module:
    """``ast.parse``, which may also be called while other threads parse.

    CPython counts the depth of its trees in one place for all threads.  Where another thread
    parses meanwhile, the counts do not come out even, and it gives up a tree that is sound with a
    SystemError: "AST constructor recursion depth mismatch".

    Raises:
        SyntaxError: the source is not Python.
        ValueError: it holds null bytes.
    """
    for _ in range(_TRIES - 1):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)

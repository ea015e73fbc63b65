"""Parses Python source, from any thread."""

from __future__ import annotations

import ast

_TRIES = 5


def parse(source: str | bytes) -> ast.Module:
    """``ast.parse`` that can be called while other threads parse.

    CPython keeps one recursion depth of its AST constructor for all threads. If another thread
    parses at the same time, the count comes out wrong, and CPython rejects a sound tree with a
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

"""Names for intermediate values, taken from the assignments in the user's source.

StableHLO keeps the position of an expression (file, line, columns) but not the variable that it was
assigned to. If the expression is the whole right-hand side of ``k = x @ wk``, this module names its
value ``k``, so that listings read like the user's program.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from pathlib import PurePath
from typing import Any, NamedTuple

from toast_lab import syntax

_FRAME = re.compile(r'"([^"\n]+)":(\d+):(\d+)(?: to (\d*):(\d+))?')


_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "/toast_lab/frontends/")


class SourceRange(NamedTuple):
    """One source range; columns count from 0, and ``end_column`` is exclusive, -1 if unknown."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


def frames(location: str) -> list[SourceRange]:
    """Source ranges in a printed MLIR location, innermost first."""
    return [
        SourceRange(
            file=file,
            line=int(line),
            column=int(column),
            end_line=int(end_line or line),
            end_column=int(end_column or -1),
        )
        for file, line, column, end_line, end_column in _FRAME.findall(location)
    ]


def place(operation: Any) -> str:
    """The user's line of an op, as ``" (model.py:12)"``, else its innermost line.

    Empty if the op has no location.
    """
    ranges = frames(str(operation.location))
    if not ranges:
        return ""
    user_frames = (
        frame
        for frame in ranges
        if not any(folder in frame.file.replace("\\", "/") for folder in _LIBRARIES)
    )
    frame = next(user_frames, ranges[0])
    if frame.file == "-":
        return f" (line {frame.line})"
    return f" ({PurePath(frame.file).name}:{frame.line})"


@functools.lru_cache(maxsize=256)
def _targets(file: str) -> dict[tuple[int, int, int, int], str]:
    try:
        # Notebook cells have no file, but linecache has their text.
        tree = syntax.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    targets = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name) and value.end_lineno and value.end_col_offset:
                span = (value.lineno, value.col_offset, value.end_lineno, value.end_col_offset)
                targets[span] = target.id
    return targets


def variable(frame: SourceRange) -> str:
    """The variable to which exactly this source range is assigned, empty if there is none."""
    targets = _targets(frame.file)
    # Some producers count columns from 1.
    spans = (
        (frame.line, frame.column - base, frame.end_line, frame.end_column - base)
        for base in (0, 1)
    )
    return next((targets[span] for span in spans if span in targets), "")

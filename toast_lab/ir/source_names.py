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
from typing import NamedTuple

from toast_lab import syntax

_FRAME = re.compile(r'"([^"\n]+)":(\d+):(\d+)(?: to (\d*):(\d+))?')


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

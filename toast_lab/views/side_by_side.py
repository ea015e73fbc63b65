"""The device-local programs of two plans next to each other.

Lines of one op stand beside each other.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from toast_lab.lowering.listing import ListingLine

Line = list[ListingLine | None]


class Pair(NamedTuple):
    """A line of A and one of B; an empty text where the other plan has a line more."""

    op: int
    left: str
    right: str
    differs: bool
    left_sends: bool  #: a collective
    right_sends: bool
    where: str


def side_by_side(
    a: Sequence[ListingLine], b: Sequence[ListingLine], where: Sequence[str]
) -> list[Pair]:
    """Both listings, aligned op by op; within an op equal lines meet first.

    Args:
        a: lines of one plan, as ``listing_lines`` gives them.
        b: lines of another plan of the same program.
        where: source line of every op.
    """
    left, right = _by_op(a), _by_op(b)
    found: list[Pair] = []
    for op in sorted(left.keys() | right.keys()):
        found += _pairs(
            op, left.get(op, []), right.get(op, []), where[op] if op < len(where) else ""
        )
    return found


def _by_op(lines: Sequence[ListingLine]) -> dict[int, list[ListingLine]]:
    found: dict[int, list[ListingLine]] = {}
    for line in lines:
        found.setdefault(line.op, []).append(line)
    return found


def _text(line: ListingLine) -> str:
    return "  " * line.depth + line.text


def _pairs(op: int, a: list[ListingLine], b: list[ListingLine], where: str) -> list[Pair]:
    texts = [_text(x) for x in a], [_text(y) for y in b]
    if texts[0] == texts[1]:
        return [
            Pair(op, t, t, False, x.collective, x.collective, where)
            for t, x in zip(texts[0], a, strict=True)
        ]
    found = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        ours: list[ListingLine | None] = list(a[i:j])
        theirs: list[ListingLine | None] = list(b[k:m])
        # What an op computes stands beside what it computes there; its copies come before or after
        # it.
        if tag == "replace" and len(ours) != len(theirs):
            ours, theirs = _meet(ours, theirs)
        for n in range(max(len(ours), len(theirs))):
            x, y = (side[n] if n < len(side) else None for side in (ours, theirs))
            found.append(
                Pair(
                    op,
                    _text(x) if x else "",
                    _text(y) if y else "",
                    tag != "equal",
                    bool(x and x.collective),
                    bool(y and y.collective),
                    where,
                )
            )
    return found


def _meet(a: Line, b: Line) -> tuple[Line, Line]:
    """Fill up the side whose computing line comes earlier, so that the two computing lines meet."""
    at = [
        next((i for i, x in enumerate(side) if x and not x.collective), len(side))
        for side in (a, b)
    ]
    ahead = max(at)
    empty: Line = [None] * ahead
    return [*empty[at[0] :], *a], [*empty[at[1] :], *b]


def differing(pairs: Sequence[Pair], around: int = 1) -> list[Pair | int]:
    """Only the lines that differ, with some around them.

    A number stands for so many equal lines left out.
    """
    keep = [False] * len(pairs)
    for i, p in enumerate(pairs):
        if p.differs:
            for k in range(max(0, i - around), min(len(pairs), i + around + 1)):
                keep[k] = True
    found: list[Pair | int] = []
    for p, kept in zip(pairs, keep, strict=True):
        if kept:
            found.append(p)
        elif found and isinstance(found[-1], int):
            found[-1] += 1
        else:
            found.append(1)
    return found

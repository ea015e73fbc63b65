"""The device-local programs of two plans side by side, with the lines of each op aligned."""

from __future__ import annotations

import difflib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from toast_lab.lowering.listing import ListingLine

Side = list[ListingLine | None]


class Pair(NamedTuple):
    """A line of each plan; the text is empty where only the other plan has a line."""

    op: int
    left: str
    right: str
    differs: bool
    where: str


def side_by_side(
    left_lines: Sequence[ListingLine], right_lines: Sequence[ListingLine], where: Sequence[str]
) -> list[Pair]:
    """Both listings, aligned op by op; within an op, equal lines are matched first.

    Args:
        left_lines: lines of one plan, as ``listing_lines`` gives them.
        right_lines: lines of another plan of the same program.
        where: the source line of every op.
    """
    left, right = _by_op(left_lines), _by_op(right_lines)
    return [
        Pair(op, _text(ours), _text(theirs), differs, where=where[op] if op < len(where) else "")
        for op in sorted(left.keys() | right.keys())
        for differs, ours, theirs in _aligned(left[op], right[op])
    ]


def _by_op(lines: Sequence[ListingLine]) -> dict[int, list[ListingLine]]:
    lines_of: dict[int, list[ListingLine]] = defaultdict(list)
    for line in lines:
        lines_of[line.op].append(line)
    return lines_of


def _text(line: ListingLine | None) -> str:
    return "" if line is None else "  " * line.depth + line.text


def _aligned(
    left: list[ListingLine], right: list[ListingLine]
) -> Iterator[tuple[bool, ListingLine | None, ListingLine | None]]:
    """The lines of one op on both sides: (whether they differ, left, right)."""
    matcher = difflib.SequenceMatcher(
        None, list(map(_text, left)), list(map(_text, right)), autojunk=False
    )
    for tag, left_start, left_stop, right_start, right_stop in matcher.get_opcodes():
        ours: Side = list(left[left_start:left_stop])
        theirs: Side = list(right[right_start:right_stop])
        # The lines that compute the op stand beside each other; collectives come before or after.
        if tag == "replace" and len(ours) != len(theirs):
            ours, theirs = _meet(ours, theirs)
        for our_line, their_line in itertools.zip_longest(ours, theirs):
            yield tag != "equal", our_line, their_line


def _meet(left: Side, right: Side) -> tuple[Side, Side]:
    """Pad the side whose computing line comes earlier, so that the two computing lines align."""
    computing = [
        next((index for index, line in enumerate(side) if line and not line.collective), len(side))
        for side in (left, right)
    ]
    padding: Side = [None] * max(computing)
    return [*padding[computing[0] :], *left], [*padding[computing[1] :], *right]


def differing(pairs: Sequence[Pair], around: int = 1) -> list[Pair | int]:
    """Only the lines that differ, with ``around`` equal ones before and after them.

    A number stands for that many equal lines that are left out.
    """
    shown_lines: list[Pair | int] = []
    for index, pair in enumerate(pairs):
        if any(near.differs for near in pairs[max(0, index - around) : index + around + 1]):
            shown_lines.append(pair)
        elif shown_lines and isinstance(shown_lines[-1], int):
            shown_lines[-1] += 1
        else:
            shown_lines.append(1)
    return shown_lines

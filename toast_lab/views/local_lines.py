"""The device-local listing of a plan in coloured pieces, with its changes since an earlier one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.lowering.listing import ListingLine
from toast_lab.views.graph_rows import where
from toast_lab.views.program_table import Segment

COLLECTIVE = "var(--tl-code, #9a4b00)"
#: prefix of lines that the earlier listing did not have
CHANGED = "▸ "
MAX_LINES = 1500


class LocalLine(NamedTuple):
    """One shown line."""

    op: int
    segments: tuple[Segment, ...]
    where: str
    changed: bool


class LocalLines(NamedTuple):
    """The shown lines of a listing, with a note on it."""

    lines: tuple[LocalLine, ...]
    note: str


def local_lines(
    analysis: Analysis,
    listing: Sequence[ListingLine],
    before: Sequence[ListingLine] = (),
    *,
    short: bool = False,
) -> LocalLines:
    """Choose the lines of a listing to show.

    Args:
        analysis: the analysed program.
        listing: the listing of the plan.
        before: the listing of the previous plan. Lines that it does not have are marked; if it is
            empty, none are.
        short: show only collectives and lines that changed.
    """
    remaining = Counter(line.text for line in before)
    changed = []
    for line in listing:
        remaining[line.text] -= 1
        changed.append(bool(before) and remaining[line.text] < 0)
    gone_count = sum(count for count in remaining.values() if count > 0)
    chosen = [
        (line, is_new)
        for line, is_new in zip(listing, changed, strict=True)
        if not short or line.collective or is_new
    ]
    shown = [
        LocalLine(line.op, _segments(line, is_new, bool(before)), where(analysis, line.op), is_new)
        for line, is_new in chosen[:MAX_LINES]
    ]
    collective_count = sum(1 for line in listing if line.collective)
    note = f"{len(listing):,} lines, {collective_count:,} collectives"
    if before:
        note += f"; {sum(changed):,} lines are new ({CHANGED.strip()}), {gone_count:,} are gone"
    if not chosen and listing:
        note += ", no changes: nothing to show"
    if len(chosen) > MAX_LINES:
        note += f"; the first {MAX_LINES:,} of {len(chosen):,} are shown"
    return LocalLines(tuple(shown), note)


def _segments(line: ListingLine, is_new: bool, marked: bool) -> tuple[Segment, ...]:
    mark = [Segment(CHANGED if is_new else "  ", COLLECTIVE if is_new else "")] if marked else []
    indent = "  " * line.depth
    if not line.name:
        return (*mark, Segment(indent + line.right))
    left = Segment(f"{indent}{line.name} : {line.dims} = ")
    right = Segment(line.right, COLLECTIVE if line.collective else "")
    return (*mark, left, right)

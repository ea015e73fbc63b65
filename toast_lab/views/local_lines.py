"""The device-local listing of a plan in pieces, with what changed since the listing before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.lowering.listing import ListingLine
from toast_lab.views.graph_layout import where
from toast_lab.views.program_table import Segment

COLLECTIVE = "var(--tl-code, #9a4b00)"
CHANGED = "▸ "  #: before lines that the listing before did not have
MAX_LINES = 1500


class LocalLine(NamedTuple):
    """One line that is shown."""

    op: int
    segments: tuple[Segment, ...]
    where: str
    changed: bool


class LocalLines(NamedTuple):
    """What is shown of a listing."""

    lines: tuple[LocalLine, ...]
    note: str


def local_lines(
    analysis: Analysis,
    found: Sequence[ListingLine],
    before: Sequence[ListingLine] = (),
    *,
    short: bool = False,
) -> LocalLines:
    """Lines to show.

    Args:
        analysis: of the program.
        found: the listing.
        before: that of the plan before; lines that it does not have are marked, none if it is
            empty.
        short: only collectives, and ops whose line changed.
    """
    known = Counter(line.text for line in before)
    changed = []
    for line in found:
        known[line.text] -= 1
        changed.append(bool(before) and known[line.text] < 0)
    gone = sum(n for n in known.values() if n > 0)
    picked = [
        (line, new)
        for line, new in zip(found, changed, strict=True)
        if not short or line.collective or new
    ]
    shown = [
        LocalLine(line.op, _segments(line, new, bool(before)), where(analysis, line.op), new)
        for line, new in picked[:MAX_LINES]
    ]
    sent = sum(1 for line in found if line.collective)
    note = f"{len(found):,} lines, {sent:,} collectives"
    if before:
        note += f"; {sum(changed):,} lines are new ({CHANGED.strip()}), {gone:,} are gone"
    if len(picked) > MAX_LINES:
        note += f"; the first {MAX_LINES:,} of {len(picked):,} are shown"
    return LocalLines(tuple(shown), note)


def _segments(line: ListingLine, new: bool, marked: bool) -> tuple[Segment, ...]:
    mark = [Segment(CHANGED if new else "  ", COLLECTIVE if new else "")] if marked else []
    indent = "  " * line.depth
    if not line.name:
        return (*mark, Segment(indent + line.right))
    left = Segment(f"{indent}{line.name} : {line.dims} = ")
    right = Segment(line.right, COLLECTIVE if line.collective else "")
    return (*mark, left, right)

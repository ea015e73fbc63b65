"""Live ranges of a program whose layers repeat, without the layers in the middle.

If the same values are created and die in every layer, the bytes alive at the same place of each
layer grow, or shrink, by the same amount from layer to layer, under every plan that treats layers
alike. So memory peaks in the first or in the last of them, and the places in between can be left
out. All that is alive at the same places then becomes one row with a count. The peak of a deep
network takes as long to find as that of one with a few layers.

Changes at an op are told apart by everything that may decide, together with a plan, how large they
are: a written value by its class and by the result that may take over its memory, with all others
that die at the op; a copy by its use, by the wants of the uses that may share it, and by the order
in which these end. Classes are made by comparing whole rows of numbers, as in ``fold``.

Reference: TOAST section 4.5; the paper does not fold memory. Start reading at ``folded_ranges``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.buffers import NEAR_PRODUCTS, Buffers, Memory
from toast_lab.cost.live_ranges import LiveRanges, deaths, needed_ops
from toast_lab.cost.repeats import inner_turns
from toast_lab.hashing import classes
from toast_lab.ragged import Ragged, gather, row_numbers, row_starts, spans
from toast_lab.sharding.steps import Tables


class _Buffers(NamedTuple):
    """Written values by their classes, in the order of their ends."""

    rows: Buffers
    dying: np.ndarray  #: [D] indices of those that have an heir
    ptr: np.ndarray  #: row starts into ``dying``, a row for each op at which some die
    rival: np.ndarray  #: [B] class of all that die at the op with an heir, or -1
    turn: np.ndarray  #: [B] position among these


class _Work(NamedTuple):
    """Ops that may need work space."""

    op: np.ndarray  #: [W] class of the op
    at: np.ndarray  #: [W] op at which it runs


class _Copies(NamedTuple):
    """Copies that may be brought; the uses that may share each are in rows of ``ptr``."""

    use: np.ndarray  #: [C]
    start: np.ndarray  #: [C]
    last: np.ndarray  #: [C]
    ptr: np.ndarray  #: [C + 1]
    want: np.ndarray  #: [S] ascending
    share_last: np.ndarray  #: [S]
    rank: np.ndarray  #: [S] rank of ``share_last`` in its row, from 1
    kind: np.ndarray  #: [C] class of copies that live equally long under every plan


def folded_ranges(
    tables: Tables,
    memory: Memory,
    ranges: LiveRanges,
    *,
    want: np.ndarray,
    may_bring: np.ndarray,
) -> LiveRanges:
    """Live ranges at the places where memory can peak, a row for all that are alive at the same.

    Args:
        tables: tables of the program op by op.
        memory: the same program's live ranges, in program order, with the classes of its values.
        ranges: the same program's live ranges without folding.
        want: [U] class of each use's want.
        may_bring: [U] bool: may a copy be brought for the use, or only shared?
    """
    n_ops = len(memory.runs_at)
    buffers = _buffers(memory)
    copies = _copies(tables, memory, ranges, wants=want, use=np.flatnonzero(may_bring))
    ops = np.arange(tables.n_arguments, n_ops)
    work = _Work(memory.like_op[ops], memory.runs_at[ops])
    is_place = ~inner_turns(_changes(n_ops, buffers, copies, work))
    if memory.late_op > 0:
        is_place[memory.late_op - 1 : memory.late_op + 1] = True
    place = row_starts(is_place)
    buffer, buffer_times = _distinct_buffers(buffers, place)
    kept = Buffers._make(column[buffer] for column in buffers.rows)
    copy, copy_times = _distinct_copies(copies, place)
    share = gather(copies.ptr, copy)
    working, work_times = _distinct(is_place[work.at], work.op, work.at)
    return LiveRanges(
        place=place,
        n_places=int(place[-1]),
        buffers=kept,
        buffer_death=deaths(kept.end, kept.heir),
        late_op=ranges.late_op,
        results=np.flatnonzero(kept.result),
        buffer_times=buffer_times,
        copy_use=memory.like_use[copies.use[copy]],
        copy_from=copies.start[copy],
        copy_last=copies.last[copy],
        copy_times=copy_times,
        share_ptr=row_starts(np.diff(copies.ptr)[copy]),
        share_want=copies.want[share],
        share_last=copies.share_last[share],
        work_op=work.op[working],
        work_at=work.at[working],
        work_times=work_times,
    )


def _buffers(memory: Memory) -> _Buffers:
    order = np.argsort(memory.buffers.end, kind="stable")
    rows = Buffers._make(column[order] for column in memory.buffers)
    rival, turn = np.full((2, len(order)), -1)
    dying = np.flatnonzero(rows.heir >= 0)
    ptr = row_starts(np.unique(rows.end[dying], return_counts=True)[1])
    rivals = classes(len(ptr) - 1, Ragged(ptr, rows.value[dying]), Ragged(ptr, rows.heir[dying]))
    row = row_numbers(ptr)
    rival[dying] = rivals.label[row]
    turn[dying] = np.arange(len(dying)) - ptr[row]
    return _Buffers(rows, dying, ptr, rival=rival, turn=turn)


def _alike(rows: Buffers) -> tuple[np.ndarray, ...]:
    """Columns that agree for buffers that add the same bytes wherever they are alive."""
    return rows.value, rows.near, rows.result, rows.read_late, rows.written_late


def _copies(
    tables: Tables, memory: Memory, ranges: LiveRanges, *, wants: np.ndarray, use: np.ndarray
) -> _Copies:
    """The copies that some plan brings for ``use``, with the later uses that may share each.

    A use shares the copy of the first earlier use that wants the same, unless that copy was brought
    in a loop or a branch that has ended: see ``steps``. Of the uses that want the same, only the
    one that needs the copy longest matters.
    """
    # The uses of the same value that come after this one
    begin, end = tables.earlier_end[use] + 1, tables.value_use_ptr[tables.use_value[use] + 1]
    copy = np.repeat(np.arange(len(use)), end - begin)
    later_use = tables.value_use[spans(begin, end - begin)]
    may_share = memory.use_op[later_use] < memory.use_until[use][copy]
    copy, later_use = copy[may_share], later_use[may_share]
    own_last = ranges.copy_last[use]
    share_last = needed_ops(memory, later_use, memory.use_op[use][copy])
    outlasts = share_last > own_last[copy]
    copy, want, share_last = copy[outlasts], wants[later_use[outlasts]], share_last[outlasts]
    order = np.lexsort((share_last, want, copy))
    copy, want, share_last = copy[order], want[order], share_last[order]
    is_longest = np.ones(len(order), bool)
    is_longest[:-1] = (copy[1:] != copy[:-1]) | (want[1:] != want[:-1])
    copy, want, share_last = copy[is_longest], want[is_longest], share_last[is_longest]
    ptr = row_starts(np.bincount(copy, minlength=len(use)))
    rank = _ranks(copy, share_last, ptr)

    def near(copies: np.ndarray, last: np.ndarray) -> np.ndarray:
        start = memory.use_op[use[copies]] + 1
        beside = memory.products[last] - memory.products[start]
        passed_bytes = memory.passed_bytes[last] - memory.passed_bytes[start]
        whole_bytes = tables.value_bytes[tables.use_value[use[copies]]]
        return np.asarray((beside <= NEAR_PRODUCTS) & (passed_bytes <= whole_bytes))

    kind = classes(
        len(use),
        memory.like_use[use],
        near(np.arange(len(use)), own_last),
        Ragged(ptr, want),
        Ragged(ptr, rank),
        Ragged(ptr, near(copy, share_last)),
    )
    return _Copies(
        use=use,
        start=memory.use_op[use],
        last=own_last,
        ptr=ptr,
        want=want,
        share_last=share_last,
        rank=rank,
        kind=kind.label,
    )


def _ranks(row: np.ndarray, numbers: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """Rank of each number among the distinct ones of its row, from 1."""
    order = np.lexsort((numbers, row))
    in_row = np.diff(row[order], prepend=-1) == 0
    higher = np.cumsum(~in_row | (np.diff(numbers[order], prepend=-1) != 0))
    rank = np.empty(len(row), np.int64)
    first = ptr[:-1][np.diff(ptr) > 0]  # where rows begin, in this order too
    rank[order] = higher - np.repeat(higher[first] - 1, np.diff(ptr)[np.diff(ptr) > 0])
    return rank


def _changes(n_ops: int, buffers: _Buffers, copies: _Copies, work: _Work) -> np.ndarray:
    """[O + 1] class of the changes at each op, and at the end."""
    rows = buffers.rows
    buffer = classes(len(rows.value), *_alike(rows), buffers.rival, buffers.turn).label
    copy = np.repeat(np.arange(len(copies.use)), np.diff(copies.ptr))
    # For each kind of event: (ops, classes of what changes, which part of that)
    events: list[tuple[Any, ...]] = [
        (rows.start, buffer, 0),
        (rows.end + 1, buffer, 0),
        (rows.end[buffers.dying], buffer[buffers.dying], 0),
        (copies.start, copies.kind, 0),
        (copies.last + 1, copies.kind, 0),
        (copies.share_last + 1, copies.kind[copy], copies.rank),
        (work.at, work.op, 0),
        (work.at + 1, work.op, 0),
    ]
    op, kind, part = (
        np.concatenate([np.broadcast_to(event[column], len(event[0])) for event in events])
        for column in range(3)
    )
    event_kind = np.repeat(np.arange(len(events)), [len(event[0]) for event in events])
    event = classes(len(op), event_kind, kind, part).label
    order = np.lexsort((event, op))
    order = order[op[order] <= n_ops]
    ptr = np.searchsorted(op[order], np.arange(n_ops + 2)).astype(np.int64)
    return classes(n_ops + 1, Ragged(ptr, event[order])).label


def _distinct(is_kept: np.ndarray, *columns: np.ndarray | Ragged) -> tuple[np.ndarray, np.ndarray]:
    """(positions, times): the first of each set of kept rows that agree, and the set's size."""
    position = np.flatnonzero(is_kept)
    alike = classes(
        len(position),
        *(
            column.take(position) if isinstance(column, Ragged) else column[position]
            for column in columns
        ),
    )
    return position[alike.first], alike.sizes


def _distinct_buffers(buffers: _Buffers, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(buffers, times): those that die at one op, each with an heir, stay together."""
    rows, dying, ptr = buffers.rows, buffers.dying, buffers.ptr
    start, end = place[rows.start], place[rows.end + 1]
    is_counted = (start < end) | (rows.read_late >= 0) | rows.result
    alone, times = _distinct((rows.heir < 0) & is_counted, *_alike(rows), start, end)
    matters = np.zeros(len(ptr) - 1, bool)
    matters[row_numbers(ptr)[is_counted[dying]]] = True
    columns = (*_alike(rows), rows.heir, start, place[rows.end], end)
    ops, op_times = _distinct(matters, *(Ragged(ptr, column[dying]) for column in columns))
    together = dying[gather(ptr, ops)]
    return (
        np.concatenate([alone, together]),
        np.concatenate([times, np.repeat(op_times, np.diff(ptr)[ops])]),
    )


def _distinct_copies(copies: _Copies, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    start, end, share_end = (
        place[copies.start],
        place[copies.last + 1],
        place[copies.share_last + 1],
    )
    last = end.copy()
    np.maximum.at(last, np.repeat(np.arange(len(end)), np.diff(copies.ptr)), share_end)
    return _distinct(start < last, copies.kind, start, end, Ragged(copies.ptr, share_end))

"""What is in memory from when to when, as ``lifetimes.live_bytes`` adds it up.

``whole_ranges`` has everything that a program holds by itself, and asks at every op what is alive.
``folded_ranges`` (see there) has what a search needs to know the same peak.

``Memory`` says when each value, use and op of the program is, whatever the plan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.buffers import Memory
from toast_lab.kernels import compiled, helper
from toast_lab.packs import BoolArray, Float64Array, Int32Array, Int64Array, packed


@packed
class LiveRanges(NamedTuple):
    """Things that are in memory for a while, each of which stands for ``times`` alike ones.

    ``B`` written values, ``C`` copies that may be brought to uses, ``W`` ops that may need work
    space, and ``P`` places at which is asked what is alive.  Ops are those of the program; values,
    uses, wants and ops that prices belong to are the folded program's, if it is folded.
    """

    place: Int32Array  #: [O + 2] how many places come before each op
    n_places: int
    buffer_value: Int32Array  #: [B] value that it is like
    buffer_start: Int32Array  #: [B] first op at which it is alive
    buffer_end: Int32Array  #: [B] last op at which it is alive; O: to the end
    #: [B] value like the result that may take its place at its last op if of equal size, or -1
    buffer_heir: Int32Array
    #: [B] number of that op, where one result takes one place; -1 without an heir
    buffer_death: Int32Array
    buffer_near: BoolArray  #: [B] bool: vector memory may do for it, if it is small enough
    buffer_computed: BoolArray  #: [B] bool: no argument
    buffer_result: BoolArray  #: [B] bool: a result that takes no argument's place
    buffer_read_late: Int32Array  #: [B] see ``Memory``; an op that is priced
    buffer_written_late: Int32Array  #: [B]
    late_op: int
    results: Int32Array  #: which of the B are results that take no argument's place
    buffer_times: Float64Array  #: [B]
    copy_use: Int32Array  #: [C] use that it would be brought for
    copy_from: Int32Array  #: [C] op from which on it is in memory
    copy_last: Int32Array  #: [C] last op that needs it for the use itself
    copy_times: Float64Array  #: [C]
    #: [C + 1] row starts into what shares a copy.  Empty rows where the program is not folded:
    #: there every step says whose copy it takes.
    share_ptr: Int64Array
    share_want: Int32Array  #: want of later uses, which share the copy if they want the same
    share_last: Int32Array  #: last op that needs it for these
    work_op: Int32Array  #: [W] op that it is like
    work_at: Int32Array  #: [W] where it runs
    work_times: Float64Array  #: [W]


def whole_ranges(memory: Memory) -> LiveRanges:
    """Everything by itself, at every op."""
    n_ops, n_uses, n_buffers = len(memory.runs_at), len(memory.use_op), len(memory.buffer_value)
    uses = np.arange(n_uses, dtype=np.int32)
    return LiveRanges(
        place=np.arange(n_ops + 2, dtype=np.int32),
        n_places=n_ops + 1,
        buffer_value=memory.buffer_value,
        buffer_start=memory.buffer_start,
        buffer_end=memory.buffer_end,
        buffer_heir=memory.buffer_heir,
        buffer_death=deaths(memory.buffer_end, memory.buffer_heir),
        buffer_near=memory.buffer_near,
        buffer_computed=memory.buffer_computed,
        buffer_result=memory.buffer_result,
        buffer_read_late=memory.buffer_read_late,
        buffer_written_late=memory.buffer_written_late,
        late_op=memory.late_op,
        results=np.flatnonzero(memory.buffer_result).astype(np.int32),
        buffer_times=np.ones(n_buffers),
        copy_use=uses,
        copy_from=memory.use_from,
        copy_last=np.maximum(memory.use_op, needed_ops(memory, uses, memory.use_op)),
        copy_times=np.ones(n_uses),
        share_ptr=np.zeros(n_uses + 1, np.int64),
        share_want=np.zeros(0, np.int32),
        share_last=np.zeros(0, np.int32),
        work_op=np.arange(n_ops, dtype=np.int32),
        work_at=memory.runs_at,
        work_times=np.ones(n_ops),
    )


def deaths(end: np.ndarray, heir: np.ndarray) -> np.ndarray:
    """[B] int32 number of the last op of each buffer among those of buffers with heirs, or -1."""
    number = np.full(len(end), -1, np.int32)
    inherited = heir >= 0
    number[inherited] = np.unique(end[inherited], return_inverse=True)[1]
    return number


@compiled
def needed_ops(memory: Memory, use: Int32Array, brought_at: Int32Array) -> np.ndarray:
    """[n] int32 ``needed_until`` of many uses."""
    last = np.empty(use.shape[0], np.int32)
    for i in range(use.shape[0]):
        last[i] = needed_until(memory, use[i], brought_at[i])
    return last


@helper
def needed_until(memory: Memory, use: int, brought_at: int) -> int:
    """Op until which a use needs a copy made at op ``brought_at``.

    One from outside a loop is read in every round.
    """
    until = memory.runs_at[memory.use_op[use]]
    region = memory.region[memory.use_op[use]]
    while region >= 0:
        if brought_at < memory.region_begin[region] and memory.region_end[region] > until:
            until = memory.region_end[region] - 1
        region = memory.region_parent[region]
    return until

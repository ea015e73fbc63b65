"""Live ranges, as ``lifetimes.live_bytes`` adds them up.

``whole_ranges`` lists everything that a program holds one by one, and counts live bytes at every
op. ``folded_ranges`` (see there) lists what a search needs to find the same peak.

``Memory`` has the live ranges of all values, uses and ops of the program, whatever the plan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.buffers import Buffers, Memory
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Array, Int32Array, Int64Array, packed


@packed
class LiveRanges(NamedTuple):
    """Live ranges of values, copies and work space; each row stands for ``times`` alike ones.

    There are ``B`` written values, ``C`` copies that may be brought to uses, ``W`` ops that may
    need work space, and ``P`` places of the program at which live bytes are counted. Times are
    given as ops of the whole program. Values, uses, wants and ops that have a price are those of
    the folded program, if it is folded.
    """

    place: Int32Array  #: [O + 2] number of places before each op
    n_places: int
    buffers: Buffers
    #: [B] index of the op at which a buffer dies among all at which one with an heir dies: a result
    #: takes over one buffer only; -1 without an heir
    buffer_death: Int32Array
    late_op: int
    results: Int32Array  #: indices of the buffers that are results
    buffer_times: Float64Array  #: [B]
    copy_use: Int32Array  #: [C] use for which it would be brought
    copy_from: Int32Array  #: [C] first op at which it is in memory
    copy_last: Int32Array  #: [C] last op that needs it for the use itself
    copy_times: Float64Array  #: [C]
    #: [C + 1] row starts into ``share_want`` and ``share_last``. Rows are empty if the program is
    #: not folded: there every step says whose copy it takes.
    share_ptr: Int64Array
    share_want: Int32Array  #: want of later uses, which share the copy if they want the same
    share_last: Int32Array  #: last op that needs the copy for these uses
    work_op: Int32Array  #: [W] op that represents it
    work_at: Int32Array  #: [W] op at which it runs
    work_times: Float64Array  #: [W]


def whole_ranges(memory: Memory) -> LiveRanges:
    """Live ranges without folding: each row stands for itself, and every op is a place."""
    n_ops, n_uses, buffers = len(memory.runs_at), len(memory.use_op), memory.buffers
    uses = np.arange(n_uses, dtype=np.int32)
    return LiveRanges(
        place=np.arange(n_ops + 2, dtype=np.int32),
        n_places=n_ops + 1,
        buffers=buffers,
        buffer_death=deaths(buffers.end, buffers.heir),
        late_op=memory.late_op,
        results=np.flatnonzero(buffers.result).astype(np.int32),
        buffer_times=np.ones(len(buffers.value)),
        copy_use=uses,
        copy_from=memory.use_op,
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
    """[B] int32 index of each buffer's last op among those of buffers with heirs, or -1."""
    index = np.full(len(end), -1, np.int32)
    has_heir = heir >= 0
    index[has_heir] = np.unique(end[has_heir], return_inverse=True)[1]
    return index


@compiled
def needed_ops(memory: Memory, use: Int32Array, brought_at: Int32Array) -> np.ndarray:
    """[n] int32 ``needed_until`` for many uses."""
    last = np.empty(use.shape[0], np.int32)
    for i in range(use.shape[0]):
        last[i] = needed_until(memory, use[i], brought_at[i])
    return last


@helper
def needed_until(memory: Memory, use: int, brought_at: int) -> int:
    """Last op at which a use needs a copy made at op ``brought_at``.

    A copy from outside a loop is read in every round.
    """
    until = memory.runs_at[memory.use_op[use]]
    region = memory.region[memory.use_op[use]]
    while region >= 0:
        if brought_at < memory.region_begin[region] and memory.region_end[region] > until:
            until = memory.region_end[region] - 1
        region = memory.region_parent[region]
    return until

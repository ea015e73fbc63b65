"""A lower bound of C(s') for every state s' that further actions may reach from a state s.

Actions only add: the row of an op or a value that has an entry on an axis keeps it. So the entries
that are set in s are known for every s', and an unset entry may become anything that some action
offers. The time of a plan is the sum of the computing times of all ops and the collective times of
all values, and each term depends on little:

* the time to compute an op depends on the op's row alone, which decides its cut, the layout in
  which it leaves its results and the layouts that it wants of its operands, and by these a
  product's tiles. A lower bound of an operand's bytes is the smaller of the bytes of the value and
  those of its copy; a lower bound for the source of a view is the source cut on every axis;
* the time to bring a result from the layout in which its op leaves it to the layout in which the
  value is kept, sums included, depends on the op's row and the value's layout;
* the time to bring a value to a use depends on the value's layout and the row of the use's op,
  unless an earlier use wants the value in the same layout and shares its copy. Such a use counts
  only if an axis that is set in both rows shows that the two uses want different layouts.

On each axis a value is kept as its row says, or as its op leaves it, or whole if the op leaves
partial sums (``steps.kept_layouts_into`` takes moves back); arguments and results of the program
are kept as their row says.

``bound_tables.make_bound`` prices each of these terms, with the evaluator's own kernel, for every
row and layout: one table for each pair (value, class of ops). The entry of a row that is not fully
set is the minimum over its completions that divide. The bound of s is a sum over values: for each
value, the minimum over all layouts allowed in s of the sum of the value's tables. It is at most the
price of s', because the rows and the layout of s' are among those minimised over, every term is at
most its price in s', and each term is counted once.

The minima choose the row of an op separately for each value, as if the op could be cut in several
ways at once. To counter this, some of a row's price is moved between the tables of its class of
ops: if one table gains what another loses, for the same fully set row, the sum for every s' stays
the same, and the bound rises where all tables agree on the best row. ``bound_tables`` does a few
rounds of this (min-sum diffusion).

A lower bound of peak memory counts all written values cut as finely as they may still be, without
any copies, and freed one op early wherever that can happen; values that may lie in vector memory
count only as far as it has no room for them. Hence C = RT + MP >= bound of RT + MP of the least
peak.

References: TOAST section 4.5 for C(s); Werner, A linear programming approach to max-sum problem: a
review, IEEE PAMI 29(7), 2007, for moving prices between tables.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.memory_tiles import tile_padding
from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    BoolArray,
    Float64Array,
    Float64Matrix,
    Int8Matrix,
    Int32Matrix,
    Int64Array,
    Int64Matrix,
    packed,
)
from toast_lab.sharding.steps import LAYOUT_BITS

# Allows for sums that are rounded in another order than the evaluator's.
_ROUNDING = 1.0 - 1e-9


@packed
class Bound(NamedTuple):
    """The tables of a problem.

    The row of a class of ops is encoded by one digit for each axis: 0 if unset, else 1 + candidate.

    There are ``K`` classes of ops, ``L`` of values, ``A`` mesh axes, and ``G`` groups with ``C``
    tables in all. A group is a value of the folded program, or an op without exactly one result.
    """

    n_candidates: Int64Array  #: [K] number of names along which some action splits the class
    candidate: Int64Array  #: [F] index of a name among the candidates of its class, -1: none
    group_ptr: Int64Array  #: [G+1] where the tables of each group start
    n_kept: Int64Array  #: [G] number of layouts that the value may have, (rank + 1) ** A
    radix: Int64Array  #: [G] rank + 1
    group_row: Int64Array  #: [G] row of the value in ``values``, -1: not a value
    group_owner: Int64Array  #: [G] class of the op that makes the value, -1: kept as its row says
    offered: Int64Array  #: [G] bits of (1 + dim) that the value's row may take, bit 0: whole
    natural_ptr: Int64Array  #: [G] where the entries of each group start in ``natural``
    #: bits of (1 + dim) in which the owner leaves the value, by digit; digit 0: all of them
    natural: Int64Array
    table_class: Int64Array  #: [C] class of ops
    table_begin: Int64Array  #: [C] where each table [rows of the class, n_kept] starts in ``table``
    table_want: Int64Array  #: [C] want that must differ from those in ``other``, -1: always counts
    other_ptr: Int64Array  #: [C+1] where the wants of each table start in ``other``
    other: Int64Array  #: wants of earlier uses, whose copies might be shared
    want_class: Int64Array  #: [W] class of ops of each want
    want_ptr: Int64Array  #: [W] where the entries of each want start in ``want_dim``
    want_dim: Int64Array  #: dim that a use wants cut, by digit; -1: none
    table: Float64Array  #: [E] seconds
    rest_s: Float64Array  #: [G+1] least time of all groups from this one on, in any state
    buffer_group: Int64Array  #: [B] group of each written value, -1: kept whole
    buffer_bytes: Float64Array  #: [B] bytes of the whole value
    buffer_start: Int64Array  #: [B] first op at which it is in memory
    buffer_end: Int64Array  #: [B] last op at which it is in memory
    buffer_near: BoolArray  #: [B] may it lie in vector memory?
    dim_begin: Int64Array  #: [B] where the dims of each start in ``dim_size``
    dim_end: Int64Array  #: [B] where they end
    dim_size: Float64Array
    tiled: bool  #: does memory come in tiles, of which a cut value leaves no fewer unfilled?
    n_ops: int
    base_time_s: float
    base_bytes: float
    limit_bytes: float
    near_room_bytes: float  #: size of vector memory
    memory_weight: float
    memory_matters: bool  #: is there a plan that does not fit?


@packed
class BoundScratch(NamedTuple):
    """Arrays that ``lower_bound`` writes to."""

    row: Int64Array  #: [K] encoded row of each class of ops
    allowed: Int64Matrix  #: [G, A] bits of (1 + dim) that the value may have on each axis
    #: [O + 2, 2] bytes that each op allocates less those freed: of values that must lie in main
    #: memory, of values that may lie in vector memory
    change: Float64Matrix


def scratch_of(bound: Bound, n_axes: int) -> BoundScratch:
    """Scratch arrays for one thread."""
    return BoundScratch(
        row=np.zeros(len(bound.n_candidates), np.int64),
        allowed=np.zeros((len(bound.n_kept), n_axes), np.int64),
        change=np.zeros((bound.n_ops + 2, 2)),
    )


@compiled
def lower_bound(
    bound: Bound,
    ops: Int32Matrix,
    values: Int8Matrix,
    axis_size: Int64Array,
    cutoff: float,
    scratch: BoundScratch,
) -> tuple[float, float]:
    """(score, peak bytes) that no state reached by further actions is below.

    Args:
        bound: the tables.
        ops: [K, A] names, as in ``State``.
        values: [L, A] dims, as in ``State``.
        axis_size: [A].
        cutoff: a score; once the bound is above it, the remaining groups are left out.
        scratch: arrays to write to.
    """
    n_axes = axis_size.shape[0]
    for op_class in range(ops.shape[0]):
        row, stride = 0, 1
        for axis in range(n_axes):
            if ops[op_class, axis] >= 0:
                row += stride * (1 + bound.candidate[ops[op_class, axis]])
            stride *= 1 + bound.n_candidates[op_class]
        scratch.row[op_class] = row
    n_groups = bound.n_kept.shape[0]
    for group in range(n_groups):
        value_row, owner = bound.group_row[group], bound.group_owner[group]
        for axis in range(n_axes):
            bits = 1
            if value_row >= 0:
                bits = (
                    1 << (values[value_row, axis] + 1)
                    if values[value_row, axis] >= 0
                    else bound.offered[group]
                )
                if owner >= 0:
                    digit = 1 + bound.candidate[ops[owner, axis]] if ops[owner, axis] >= 0 else 0
                    bits |= bound.natural[bound.natural_ptr[group] + digit]
            scratch.allowed[group, axis] = bits
    penalty, peak = 0.0, 0.0
    if bound.memory_matters:
        scratch.change[:] = 0.0
        for buffer in range(bound.buffer_group.shape[0]):
            group = bound.buffer_group[buffer]
            size = bound.buffer_bytes[buffer]
            layout = 0  # of the axes on which it is decided
            if group >= 0:
                for axis in range(n_axes):
                    bits = scratch.allowed[group, axis]
                    if bits > 1:
                        size /= axis_size[axis]
                        if bits & (bits - 1) == 0:
                            dim = 1
                            while bits >> dim > 1:
                                dim += 1
                            layout |= dim << (LAYOUT_BITS * axis)
            if bound.tiled:
                begin, end = bound.dim_begin[buffer], bound.dim_end[buffer]
                size *= tile_padding(bound.dim_size, begin, end, layout, axis_size)
            near = int(bound.buffer_near[buffer])
            scratch.change[bound.buffer_start[buffer], near] += size
            scratch.change[bound.buffer_end[buffer] + 1, near] -= size
        live_bytes, near_bytes = 0.0, 0.0
        for op in range(scratch.change.shape[0]):
            live_bytes += scratch.change[op, 0]
            near_bytes += scratch.change[op, 1]
            peak = max(peak, live_bytes + max(0.0, near_bytes - bound.near_room_bytes))
        peak *= _ROUNDING
        if peak > bound.limit_bytes and bound.base_bytes > 0.0:
            penalty = bound.memory_weight * (peak - bound.limit_bytes) / bound.base_bytes
    enough_s = (cutoff - penalty) * bound.base_time_s * (1.0 + 1e-9)
    time_s = 0.0
    for group in range(n_groups):
        time_s += _least_s(bound, group, ops, scratch)
        if time_s + bound.rest_s[group + 1] > enough_s:
            time_s += bound.rest_s[group + 1]
            break
    return max(time_s, 0.0) / bound.base_time_s * _ROUNDING + penalty, peak


@helper
def _least_s(bound: Bound, group: int, ops: np.ndarray, scratch: BoundScratch) -> float:
    """The least sum of a group's tables over the layouts in ``scratch.allowed``."""
    n_axes = scratch.allowed.shape[1]
    begin, end = bound.group_ptr[group], bound.group_ptr[group + 1]
    if begin == end:
        return 0.0
    n_kept, radix = bound.n_kept[group], bound.radix[group]
    conditional = end
    while conditional > begin and bound.table_want[conditional - 1] >= 0:  # sorted to the end
        conditional -= 1
    best = np.inf
    for kept in range(n_kept):
        digits, allowed = kept, True
        for axis in range(n_axes):
            if not (scratch.allowed[group, axis] >> (digits % radix)) & 1:
                allowed = False
                break
            digits //= radix
        if allowed:
            total = 0.0
            for table in range(begin, conditional):
                total += bound.table[
                    bound.table_begin[table] + scratch.row[bound.table_class[table]] * n_kept + kept
                ]
            for table in range(conditional, end):
                if total >= best:
                    break
                if _differs(bound, table, ops, n_axes):
                    total += bound.table[
                        bound.table_begin[table]
                        + scratch.row[bound.table_class[table]] * n_kept
                        + kept
                    ]
            best = min(best, total)
    return best


@compiled
def least_of_groups(bound: Bound, ops: Int32Matrix, scratch: BoundScratch) -> np.ndarray:
    """[G] least seconds of each group in any state; ``ops`` are those of the unsharded state."""
    scratch.row[:] = 0
    least = np.zeros(bound.n_kept.shape[0])
    for group in range(least.shape[0]):
        scratch.allowed[group, :] = (
            bound.offered[group]
            if bound.group_owner[group] < 0
            else bound.offered[group] | bound.natural[bound.natural_ptr[group]]
        )
        least[group] = _least_s(bound, group, ops, scratch)
    return least


@helper
def _differs(bound: Bound, table: int, ops: np.ndarray, n_axes: int) -> bool:
    """Is the want of a table's use known to differ from the wants of all earlier uses?"""
    want = bound.table_want[table]
    for index in range(bound.other_ptr[table], bound.other_ptr[table + 1]):
        differs = False
        for axis in range(n_axes):
            name, other_name = (
                ops[bound.want_class[want], axis],
                ops[bound.want_class[bound.other[index]], axis],
            )
            if name >= 0 and other_name >= 0:
                wanted_dim = bound.want_dim[bound.want_ptr[want] + 1 + bound.candidate[name]]
                differs |= (
                    wanted_dim
                    != bound.want_dim[
                        bound.want_ptr[bound.other[index]] + 1 + bound.candidate[other_name]
                    ]
                )
        if not differs:
            return False
    return True

"""A lower bound on C(s') for every state s' that further actions may lead to from a state s.

Actions only add: a row of an op or a value that has something on an axis keeps it.  So what is set
in s is known of every s', and what is not set may become anything that some action offers.  The
time of a plan is a sum over ops of what computing them takes and over values of what their
collectives take, and each term depends on little:

* computing an op depends on its row alone: on the row depend its cut, the layout in which it leaves
  its results and the layouts that it wants of its operands.  A product's tiles are read off those.
  The bytes of a copied operand are bounded from below by the fewer of the copy's and the
  value's own, a view's source by cutting it on every axis;
* bringing a result from how its op leaves it to how the value is kept, sums included, depends on
  the op's row and the value's layout;
* bringing a value to a use depends on the value's layout and the row of the use's op, unless an
  earlier use wants the value in the same layout and shares its copy.  Such a use counts only if it
  is known, on an axis set in both rows, that the two want different layouts.

How a value is kept is, axis by axis, as its row says, or as its op leaves it, or whole where the op
leaves partial sums (``steps.kept_layouts_into`` takes moves back); arguments and results of the
program are kept as their row says.

``bound_tables.make_bound`` prices each of these terms, with the evaluator's own kernel, for every
row and layout: a table for each pair (value, class of ops).  The entry of a row that is not fully
set is the least over its completions that divide. The bound of s is the sum over values of the
least over all layouts allowed in s of the sum of the value's tables.  It is no more than the price
of s', because the rows and the layout of s' are among those minimised over, every term is at most
its price there, and each term is counted once.

The minima choose a row of an op for each value apart, as if the same op could be cut in several
ways at once.  So some of a row's price is moved between the tables of a class of ops: adding to one
table what is taken from another, row by row of fully known rows, leaves the sum for every s' as it
is, and where all tables agree on the best row the bound is higher.  ``bound_tables`` does a few
rounds of this (min-sum diffusion).

Peak memory is bounded from below by all written values cut as finely as they may still be, without
any copies, given away one op early wherever that can happen; of those that vector memory may do
for, only what it has no room for counts.  With this, C = RT + MP >= bound of RT
+ MP of the least peak.

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

# Sums are rounded in another order than the evaluator's.
_ROUNDING = 1.0 - 1e-9


@packed
class Bound(NamedTuple):
    """Tables of a problem.

    A row of a class of ops is written as digits, one an axis: 0 unset, 1 + candidate.

    ``K`` classes of ops, ``L`` of values, ``G`` groups (values of the folded program, and ops whose
    results are not one value) of ``C`` tables in all, ``A`` mesh axes.
    """

    n_candidates: Int64Array  #: [K] names that some action splits the class along
    candidate: Int64Array  #: [F] number of a name among those of its class, -1: none
    group_ptr: Int64Array  #: [G+1] row starts into the tables
    n_kept: Int64Array  #: [G] layouts that the value may have, (rank + 1) ** A
    radix: Int64Array  #: [G] rank + 1
    group_row: Int64Array  #: [G] row of the value in ``values``, -1: not a value
    group_owner: Int64Array  #: [G] class of ops that leaves the value, -1: kept as its row says
    offered: Int64Array  #: [G] bits of (1 + dim) that its row may still become, bit 0: whole
    natural_ptr: Int64Array  #: [G]
    #: bits of (1 + dim) as the class leaves it, by digit; all of them for digit 0
    natural: Int64Array
    table_class: Int64Array  #: [C]
    table_begin: Int64Array  #: [C] row starts into table, [rows of the class, n_kept]
    table_want: Int64Array  #: [C] want that has to differ from ..., -1: always counts
    other_ptr: Int64Array  #: [C+1]
    other: Int64Array  #: ... each of these wants
    want_class: Int64Array  #: [W]
    want_ptr: Int64Array  #: [W]
    want_dim: Int64Array  #: dim on which a use wants a name, by digit
    table: Float64Array  #: [E] seconds
    rest_s: Float64Array  #: [G+1] what the groups from here on take at least in any state
    buffer_group: Int64Array  #: [B] group of each written value, -1: kept whole
    buffer_bytes: Float64Array  #: [B]
    buffer_start: Int64Array  #: [B]
    buffer_end: Int64Array  #: [B]
    buffer_near: BoolArray  #: [B] bool: vector memory may do for it
    dim_begin: Int64Array  #: [B] where in ``dim_size`` the dims of each begin
    dim_end: Int64Array  #: [B] ... and end
    dim_size: Float64Array
    tiled: bool  #: memory comes in tiles, of which cuts leave no fewer unfilled
    n_ops: int
    base_time_s: float
    base_bytes: float
    limit_bytes: float
    near_room_bytes: float  #: of vector memory
    memory_weight: float
    memory_matters: bool  #: may anything fail to fit?


@packed
class BoundScratch(NamedTuple):
    """Arrays that ``lower_bound`` writes to."""

    row: Int64Array  #: [K]
    allowed: Int64Matrix  #: [G, A]
    #: [O + 2, 2] bytes that come and go: of what is in memory, of what vector memory may do for
    change: Float64Matrix


def scratch_of(bound: Bound, n_axes: int) -> BoundScratch:
    """Scratch for one thread."""
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
        bound: tables.
        ops: [K, A] names, as in ``State``.
        values: [L, A] dims.
        axis_size: [A].
        cutoff: a score; once the bound is above it the rest is left out.
        scratch: scratch.
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
            layout = 0  # as far as it is decided
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
    enough = (cutoff - penalty) * bound.base_time_s * (1.0 + 1e-9)
    time_s = 0.0
    for group in range(n_groups):
        time_s += _least_s(bound, group, ops, scratch)
        if time_s + bound.rest_s[group + 1] > enough:
            time_s += bound.rest_s[group + 1]
            break
    return max(time_s, 0.0) / bound.base_time_s * _ROUNDING + penalty, peak


@helper
def _least_s(bound: Bound, group: int, ops: np.ndarray, scratch: BoundScratch) -> float:
    """Least that the tables of a group add up to, over the layouts in ``s.allowed``."""
    n_axes = scratch.allowed.shape[1]
    first, last = bound.group_ptr[group], bound.group_ptr[group + 1]
    if first == last:
        return 0.0
    n_kept, radix = bound.n_kept[group], bound.radix[group]
    sometimes = last
    while sometimes > first and bound.table_want[sometimes - 1] >= 0:  # these come last
        sometimes -= 1
    best = np.inf
    for kept in range(n_kept):
        rest, allowed = kept, True
        for axis in range(n_axes):
            if not (scratch.allowed[group, axis] >> (rest % radix)) & 1:
                allowed = False
                break
            rest //= radix
        if allowed:
            total = 0.0
            for number in range(first, sometimes):
                total += bound.table[
                    bound.table_begin[number]
                    + scratch.row[bound.table_class[number]] * n_kept
                    + kept
                ]
            for number in range(sometimes, last):
                if total >= best:
                    break
                if _differs(bound, number, ops, n_axes):
                    total += bound.table[
                        bound.table_begin[number]
                        + scratch.row[bound.table_class[number]] * n_kept
                        + kept
                    ]
            best = min(best, total)
    return best


@compiled
def least_of_groups(bound: Bound, ops: Int32Matrix, scratch: BoundScratch) -> np.ndarray:
    """[G] seconds that each group takes at least in any state; ``ops`` is the unsharded state's."""
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
def _differs(bound: Bound, number: int, ops: np.ndarray, n_axes: int) -> bool:
    """Is the want of a table's use known to differ from what each earlier use wants?"""
    own = bound.table_want[number]
    for place in range(bound.other_ptr[number], bound.other_ptr[number + 1]):
        differs = False
        for axis in range(n_axes):
            mine, theirs = (
                ops[bound.want_class[own], axis],
                ops[bound.want_class[bound.other[place]], axis],
            )
            if mine >= 0 and theirs >= 0:
                one = bound.want_dim[bound.want_ptr[own] + 1 + bound.candidate[mine]]
                differs |= (
                    one
                    != bound.want_dim[
                        bound.want_ptr[bound.other[place]] + 1 + bound.candidate[theirs]
                    ]
                )
        if not differs:
            return False
    return True

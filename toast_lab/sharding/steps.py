"""What a plan means: device-local steps.

Every reader of a plan - the cost model, the device-local listing, the exporter - goes through ``lower``, so
that they cannot disagree.  For each op in program order:

* each operand goes from its value's axes to its use's axes: axis added = local slice, axis moved between
  dims = all_to_all, axis dropped = all_gather.  The same value brought to the same layout for several uses
  is brought there once, and the copy is kept until its last use (XLA merges identical gathers likewise); a copy made
  inside a loop body or a branch serves that body only;
* the op is computed on local shards;
* each result goes from the op's natural axes to the value's axes; a partial result over a sharded reduction
  factor becomes a reduce_scatter where the value carries that axis, else an all_reduce.  A reduce_scatter
  whose every use gathers it straight back is an all_reduce.

Axes on one dim are always ordered as the mesh orders them, so a layout is a set of (axis, dim) pairs and the
order of actions leaves no trace in it.  Where that order makes shards move (the axes kept on a dim are not the
leading ones before and after a step) a collective_permute stands in the steps.  Values made of constants alone are
recomputed in whatever layout a use wants and cause no steps.

Reference: TOAST section 2.1 (device-local code), Shardy's collectives.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numba
import numpy as np

from toast_lab.ir.program import Program

STEP_KINDS = ("compute", "slice", "reduce_scatter", "all_reduce", "permute", "all_to_all", "all_gather")
COMPUTE, SLICE, REDUCE_SCATTER, ALL_REDUCE, PERMUTE, ALL_TO_ALL, ALL_GATHER = range(len(STEP_KINDS))
LAYOUT_BITS = 5  # a layout packs (dim + 1) per mesh axis into 5 bits: ranks up to 30, axes up to 8


class Tables(NamedTuple):
    """The arrays of a program that lowering needs, as a plain tuple for compiled code."""

    shape_ptr: np.ndarray
    value_bytes: np.ndarray  #: [V] float64, whole value
    value_op: np.ndarray
    value_constant: np.ndarray  #: [V] bool
    value_output: np.ndarray  #: [V] bool
    value_use_ptr: np.ndarray  #: [V+1] row starts into value_use
    value_use: np.ndarray  #: uses of each value
    result_ptr: np.ndarray
    use_ptr: np.ndarray
    use_value: np.ndarray
    use_op: np.ndarray
    use_owner: np.ndarray  #: [U] op whose split decides the use's layout
    value_owner: np.ndarray  #: [V] op whose split decides the layout in which the value is made
    region_end: np.ndarray  #: [O] first op after the innermost loop body or branch that the op is in
    use_dim_ptr: np.ndarray
    use_dim_factor: np.ndarray
    def_dim_factor: np.ndarray
    factor_reduction: np.ndarray  #: [F] bool
    n_arguments: int


class Steps(NamedTuple):
    """Device-local steps, ``S`` rows in execution order, as parallel arrays."""

    kind: np.ndarray  #: [S] index into STEP_KINDS
    op: np.ndarray  #: [S] the op it computes or serves
    value: np.ndarray  #: [S] the value it reads and writes (compute: first result or -1)
    use: np.ndarray  #: [S] the use it serves, -1 when it belongs to the definition
    axes: np.ndarray  #: [S] bit mask of mesh axes
    before: np.ndarray  #: [S] packed layout of its input
    after: np.ndarray  #: [S] packed layout of its output
    in_bytes: np.ndarray  #: [S] float64 local bytes read
    out_bytes: np.ndarray  #: [S] float64 local bytes written
    copy: np.ndarray  #: [U] for each use the row of the last step that made its copy, -1: the value itself
    layout: np.ndarray  #: [V] packed layout of each value as it is kept


@functools.lru_cache(maxsize=8)
def tables(program: Program) -> Tables:
    """Collect the arrays of ``program`` for compiled code."""
    use_op = np.repeat(np.arange(program.n_ops, dtype=np.int32), np.diff(program.use_ptr))
    order = np.argsort(program.use_value, kind="stable").astype(np.int32)
    counts = (
        np.bincount(program.use_value, minlength=program.n_values)
        if program.n_uses
        else np.zeros(program.n_values, int)
    )
    output = np.zeros(program.n_values, dtype=bool)
    output[program.outputs] = True
    return Tables(
        program.shape_ptr,
        np.asarray([program.nbytes(v) for v in range(program.n_values)], dtype=np.float64),
        program.value_op,
        program.value_is_constant,
        output,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        order,
        program.result_ptr,
        program.use_ptr,
        program.use_value,
        use_op,
        program.owner[use_op],
        program.owner[program.value_op],
        program.region_end(),
        program.use_dim_ptr,
        program.use_dim_factor,
        program.def_dim_factor,
        program.factor_class == 1,
        program.n_arguments,
    )


@numba.njit(cache=True, nogil=True)
def layout_dim(layout: int, axis: int) -> int:
    """Dim on which ``axis`` stands in a packed layout, -1 if none."""
    return ((layout >> (LAYOUT_BITS * axis)) & 31) - 1


@numba.njit(cache=True, nogil=True)
def ways(layout: int, axis_size: np.ndarray) -> float:
    """Into how many pieces a layout cuts a tensor."""
    total = 1.0
    for a in range(axis_size.shape[0]):
        if (layout >> (LAYOUT_BITS * a)) & 31:
            total *= axis_size[a]
    return total


@numba.njit(cache=True, nogil=True)
def _put(layout: int, axis: int, dim: int) -> int:
    cleared = layout & ~(31 << (LAYOUT_BITS * axis))
    return cleared | ((dim + 1) << (LAYOUT_BITS * axis))


@numba.njit(cache=True, nogil=True)
def use_layout(t: Tables, op_axis: np.ndarray, use: int, n_axes: int) -> int:
    """Layout that the op wants of one operand."""
    layout = 0
    op = t.use_owner[use]
    for a in range(n_axes):
        name = op_axis[op, a]
        if name >= 0:
            for row in range(t.use_dim_ptr[use], t.use_dim_ptr[use + 1]):
                if t.use_dim_factor[row] == name:
                    layout |= (row - t.use_dim_ptr[use] + 1) << (LAYOUT_BITS * a)
                    break
    return layout


@numba.njit(cache=True, nogil=True)
def natural_layout(t: Tables, op_axis: np.ndarray, value: int, n_axes: int) -> tuple[int, int]:
    """Layout in which an op leaves its result, and the mask of axes over which it is partial."""
    layout, partial = 0, 0
    op = t.value_owner[value]
    for a in range(n_axes):
        name = op_axis[op, a]
        if name < 0:
            continue
        if t.factor_reduction[name]:
            partial |= 1 << a
            continue
        for row in range(t.shape_ptr[value], t.shape_ptr[value + 1]):
            if t.def_dim_factor[row] == name:
                layout |= (row - t.shape_ptr[value] + 1) << (LAYOUT_BITS * a)
                break
    return layout, partial


@numba.njit(cache=True, nogil=True)
def kept_layouts(t: Tables, op_axis: np.ndarray, value_axis: np.ndarray, n_axes: int) -> np.ndarray:
    """Layout in which each value is kept; moves that every use would undo at once are taken back.

    A reduce_scatter that every use gathers is an all_reduce, and where no use wants any axis where the value would be
    brought, it stays as its op leaves it.
    """
    n_values = t.value_op.shape[0]
    kept = np.zeros(n_values, np.int64)
    for v in range(n_values):
        if t.value_constant[v]:
            continue
        layout = 0
        for a in range(n_axes):
            if value_axis[v, a] >= 0:
                layout |= (value_axis[v, a] + 1) << (LAYOUT_BITS * a)
        if not t.value_output[v] and t.value_op[v] >= t.n_arguments:
            natural, partial = natural_layout(t, op_axis, v, n_axes)
            if layout != natural:
                used = 0  # axes that some use wants where they are kept
                for k in range(t.value_use_ptr[v], t.value_use_ptr[v + 1]):
                    wanted = use_layout(t, op_axis, t.value_use[k], n_axes)
                    for a in range(n_axes):
                        here = layout_dim(wanted, a)
                        if here == layout_dim(layout, a) or ((partial >> a) & 1 and here >= 0):
                            used |= 1 << a
                differs = 0
                for a in range(n_axes):
                    if layout_dim(layout, a) != layout_dim(natural, a):
                        differs |= 1 << a
                if not used & differs:
                    layout = natural
                for a in range(n_axes):
                    if (partial >> a) & 1 and not (used >> a) & 1:
                        layout = _put(layout, a, -1)
        kept[v] = layout
    return kept


@numba.njit(cache=True, nogil=True)
def _moved_axes(before: int, after: int, n_axes: int) -> int:
    """Axes between which shards move because the axes kept on a dim do not lead on it before and after; 0 if none."""
    mask = 0
    for a in range(n_axes):
        dim = layout_dim(before, a)
        if dim < 0 or layout_dim(after, a) != dim:
            continue
        for b in range(a):  # axis a is kept: every axis before it on this dim must be kept too
            if (layout_dim(before, b) == dim) != (layout_dim(after, b) == dim):
                for c in range(n_axes):
                    if layout_dim(before, c) == dim or layout_dim(after, c) == dim:
                        mask |= 1 << c
    return mask


@numba.njit(cache=True, nogil=True)
def _emit(
    steps: Steps,
    n: int,
    kind: int,
    op: int,
    value: int,
    use: int,
    axes: int,
    before: int,
    after: int,
    in_bytes: float,
    out_bytes: float,
) -> int:
    steps.kind[n] = kind
    steps.op[n] = op
    steps.value[n] = value
    steps.use[n] = use
    steps.axes[n] = axes
    steps.before[n] = before
    steps.after[n] = after
    steps.in_bytes[n] = in_bytes
    steps.out_bytes[n] = out_bytes
    return n + 1


@numba.njit(cache=True, nogil=True)
def _reshard(
    steps: Steps,
    n: int,
    op: int,
    value: int,
    use: int,
    before: int,
    after: int,
    partial: int,
    whole_bytes: float,
    axis_size: np.ndarray,
) -> int:
    """Emit the steps from one layout to another; axes in ``partial`` still carry partial results."""
    n_axes = axis_size.shape[0]
    here = before
    sliced, scattered, reduced, gathered = 0, 0, 0, 0
    for a in range(n_axes):
        bit = 1 << a
        old, new = layout_dim(before, a), layout_dim(after, a)
        if partial & bit:
            if new >= 0:
                scattered |= bit
            else:
                reduced |= bit
        elif old < 0 and new >= 0:
            sliced |= bit
        elif old >= 0 and new < 0:
            gathered |= bit
    moved = 0  # axes between which shards have to move before the next step that depends on their order
    for kind in (SLICE, REDUCE_SCATTER, ALL_REDUCE):
        mask = sliced if kind == SLICE else scattered if kind == REDUCE_SCATTER else reduced
        if mask:
            there = here
            if kind != ALL_REDUCE:
                for a in range(n_axes):
                    if (mask >> a) & 1:
                        there = _put(there, a, layout_dim(after, a))
            large, small = whole_bytes / ways(here, axis_size), whole_bytes / ways(there, axis_size)
            n = _emit(steps, n, kind, op, value, use, mask, here, there, large, small)
            moved |= _moved_axes(here, there, n_axes)
            here = there
    local = whole_bytes / ways(here, axis_size)
    # Axes that go from one dim to the same other dim go together; the last axis first, since it is the minor one.
    for a in range(n_axes - 1, -1, -1):
        old, new = layout_dim(here, a), layout_dim(after, a)
        if old >= 0 and new >= 0 and old != new:
            there, mask = here, 0
            for b in range(n_axes):
                if layout_dim(here, b) == old and layout_dim(after, b) == new:
                    there = _put(there, b, new)
                    mask |= 1 << b
            moved |= _moved_axes(here, there, n_axes)
            if moved:
                n = _emit(steps, n, PERMUTE, op, value, use, moved, here, here, local, local)
                moved = 0
            n = _emit(steps, n, ALL_TO_ALL, op, value, use, mask, here, there, local, local)
            here = there
    moved |= _moved_axes(here, after, n_axes)
    if moved:
        n = _emit(steps, n, PERMUTE, op, value, use, moved, here, here, local, local)
    if gathered:
        n = _emit(
            steps, n, ALL_GATHER, op, value, use, gathered, here, after, local, whole_bytes / ways(after, axis_size)
        )  # fmt: skip
    return n


@numba.njit(cache=True, nogil=True)
def lower_into(t: Tables, op_axis: np.ndarray, value_axis: np.ndarray, axis_size: np.ndarray, steps: Steps) -> int:
    """Fill ``steps`` (see ``buffers``) and give their number."""
    n_axes = axis_size.shape[0]
    n_ops = t.result_ptr.shape[0] - 1
    kept = kept_layouts(t, op_axis, value_axis, n_axes)
    steps.layout[:] = kept
    n = 0
    for op in range(t.n_arguments, n_ops):
        for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
            value = t.use_value[use]
            steps.copy[use] = -1
            if t.value_constant[value]:
                continue
            wanted = use_layout(t, op_axis, use, n_axes)
            if wanted == kept[value]:
                continue
            for k in range(t.value_use_ptr[value], t.value_use_ptr[value + 1]):
                earlier = t.value_use[k]
                if earlier >= use:
                    break
                row = steps.copy[earlier]
                # What a loop body or a branch brought somewhere is not there outside.
                if row >= 0 and steps.after[row] == wanted and op < t.region_end[steps.op[row]]:
                    steps.copy[use] = row
                    break
            if steps.copy[use] < 0:
                n = _reshard(steps, n, op, value, use, kept[value], wanted, 0, t.value_bytes[value], axis_size)
                steps.copy[use] = n - 1
        first = t.result_ptr[op] if t.result_ptr[op + 1] > t.result_ptr[op] else -1
        mask = 0
        for a in range(n_axes):
            if op_axis[op, a] >= 0:
                mask |= 1 << a
        n = _emit(steps, n, COMPUTE, op, first, -1, mask, 0, 0, 0.0, 0.0)
        for value in range(t.result_ptr[op], t.result_ptr[op + 1]):
            if t.value_constant[value]:
                continue
            natural, partial = natural_layout(t, op_axis, value, n_axes)
            if natural != kept[value] or partial:
                n = _reshard(steps, n, op, value, -1, natural, kept[value], partial, t.value_bytes[value], axis_size)
    return n


def buffers(t: Tables, n_axes: int) -> Steps:
    """Scratch arrays large enough for any plan of the program on ``n_axes`` mesh axes."""
    n_ops, n_uses, n_values = len(t.result_ptr) - 1, len(t.use_value), len(t.value_op)
    # Most programs need about one step per op; the bound holds for plans that reshard everything.
    rows = n_ops + n_uses * (3 + 2 * n_axes) + n_values * (5 + 2 * n_axes) + 1

    def ints(dtype: type) -> np.ndarray:
        return np.empty(rows, dtype)

    return Steps(
        kind=ints(np.int32),
        op=ints(np.int32),
        value=ints(np.int32),
        use=ints(np.int32),
        axes=ints(np.int32),
        before=ints(np.int64),
        after=ints(np.int64),
        in_bytes=np.empty(rows),
        out_bytes=np.empty(rows),
        copy=np.full(n_uses, -1, np.int32),
        layout=np.zeros(n_values, np.int64),
    )


def lower(program: Program, op_axis: np.ndarray, value_axis: np.ndarray, axis_size: np.ndarray) -> Steps:
    """Device-local steps of a plan given as state arrays (see ``state``), trimmed to size."""
    t = tables(program)
    steps = buffers(t, len(axis_size))
    n = lower_into(t, op_axis, value_axis, axis_size, steps)
    rows: list[np.ndarray] = [a[:n].copy() for a in steps[:9]]
    return Steps._make([*rows, steps.copy.copy(), steps.layout.copy()])


def unpack(layout: int, rank: int, n_axes: int) -> list[list[int]]:
    """Mesh axes per dim of a packed layout, in mesh order."""
    dims: list[list[int]] = [[] for _ in range(rank)]
    for a in range(n_axes):
        dim = ((int(layout) >> (LAYOUT_BITS * a)) & 31) - 1
        if dim >= 0:
            dims[dim].append(a)
    return dims

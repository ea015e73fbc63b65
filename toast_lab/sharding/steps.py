"""What a plan means: device-local steps.

Every reader of a plan - the cost model, the device-local listing, the exporter - goes through
``lower``, so that they cannot disagree.  For each op in program order:

* each operand goes from its value's axes to its use's axes: axis added = local slice, axis moved
  between dims = all_to_all, axis dropped = all_gather.  The same value brought to the same layout
  for several uses is brought there once, and the copy is kept until its last use (XLA merges
  identical gathers likewise); a copy made inside a loop body or a branch serves that body only;
* the op is computed on local shards;
* each result goes from the op's natural axes to the value's axes; a partial result over a sharded
  reduction factor becomes a reduce_scatter where the value carries that axis, else an all_reduce.
  A reduce_scatter whose every use gathers it straight back is an all_reduce.

Axes on one dim are always ordered as the mesh orders them, so a layout is a set of (axis, dim)
pairs and the order of actions leaves no trace in it.  Where that order makes shards move (the axes
kept on a dim are not the leading ones before and after a step) a collective_permute stands in the
steps.  Values made of constants alone are recomputed in whatever layout a use wants and cause no
steps.

Reference: TOAST section 2.1 (device-local code), Shardy's collectives.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import Program
from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    BoolArray,
    Float64Array,
    Int8Matrix,
    Int32Array,
    Int32Matrix,
    Int64Array,
    packed,
)
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COMPUTE,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
)

#: in a folded program: the copy that an earlier use made, whose row depends on the layer
SHARED = -2
LAYOUT_BITS = 5  # a layout packs (dim + 1) per mesh axis into 5 bits: ranks up to 30, axes up to 8


@packed
class Tables(NamedTuple):
    """What lowering needs of a program, as a plain tuple of arrays for compiled code.

    The same arrays describe a program op by op (``tables``) or folded, one op for each class of
    alike ones (see ``toast_lab.cost.fold``).  That is why a value and a use name the row of the
    state that decides about them instead of having its number.  Sizes: ``O`` ops, ``V`` values,
    ``U`` uses, ``W`` wants (ways in which uses want their values; unfolded: the uses), ``K`` and
    ``L`` rows of ``op_factor`` and ``value_dim``.
    """

    shape_ptr: Int32Array  #: [V+1]
    value_bytes: Float64Array  #: [V] float64, whole value
    value_op: Int32Array  #: [V]
    value_constant: BoolArray  #: [V] bool
    value_output: BoolArray  #: [V] bool
    value_use_ptr: Int64Array  #: [V+1] row starts into value_use
    value_use: Int32Array  #: wants of the uses of each value
    value_row: Int32Array  #: [V] row of value_dim
    #: [V] row of op_factor that decides the layout in which the value is made
    value_owner: Int32Array
    def_dim_factor: Int32Array
    result_ptr: Int32Array  #: [O+1]
    result: Int32Array  #: values
    op_row: Int32Array  #: [O] row of op_factor
    use_ptr: Int32Array  #: [O+1]
    use_value: Int32Array  #: [U]
    use_op: Int32Array  #: [U]
    use_want: Int32Array  #: [U]
    #: [U] row starts into earlier: what other uses wanted of the value before ...
    earlier_begin: Int64Array
    earlier_end: Int64Array  #: [U] ... and ends
    earlier: Int32Array  #: wants
    use_owner: Int32Array  #: [W] row of op_factor that decides the layout
    use_dim_ptr: Int32Array  #: [W+1]
    use_dim_factor: Int32Array
    #: [W] first op after the innermost loop body or branch that the use is in
    use_until: Int32Array
    factor_reduction: BoolArray  #: [F] bool
    n_arguments: int
    folded: bool


@packed
class Steps(NamedTuple):
    """Device-local steps, ``S`` rows in execution order, as parallel arrays."""

    kind: Int32Array  #: [S] index into STEP_KINDS
    op: Int32Array  #: [S] the op it computes or serves
    value: Int32Array  #: [S] the value it reads and writes (compute: first result or -1)
    use: Int32Array  #: [S] the use it serves, -1 when it belongs to the definition
    axes: Int32Array  #: [S] bit mask of mesh axes
    before: Int64Array  #: [S] packed layout of its input
    after: Int64Array  #: [S] packed layout of its output
    in_bytes: Float64Array  #: [S] float64 local bytes read
    out_bytes: Float64Array  #: [S] float64 local bytes written
    #: [U] row of the last step that made the use's copy, -1: the value itself, SHARED: see there
    copy: Int32Array
    wanted: Int64Array  #: [W] packed layout that each use wants
    layout: Int64Array  #: [V] packed layout of each value as it is kept


@functools.lru_cache(maxsize=8)
def tables(program: Program) -> Tables:
    """Collect the arrays of ``program`` for compiled code."""
    n_values, n_uses = program.n_values, program.n_uses
    use_op = np.repeat(np.arange(program.n_ops, dtype=np.int32), np.diff(program.use_ptr))
    order = np.argsort(program.use_value, kind="stable").astype(np.int32)
    counts = (
        np.bincount(program.use_value, minlength=n_values) if n_uses else np.zeros(n_values, int)
    )
    value_use_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    place = np.empty(n_uses, np.int64)
    place[order] = np.arange(n_uses)
    output = np.zeros(n_values, dtype=bool)
    output[program.outputs] = True
    return Tables(
        shape_ptr=program.shape_ptr,
        value_bytes=np.asarray([program.nbytes(v) for v in range(n_values)], dtype=np.float64),
        value_op=program.value_op,
        value_constant=program.value_is_constant,
        value_output=output,
        value_use_ptr=value_use_ptr,
        value_use=order,
        value_row=np.arange(n_values, dtype=np.int32),
        value_owner=program.owner[program.value_op],
        def_dim_factor=program.def_dim_factor,
        result_ptr=program.result_ptr,
        result=np.arange(n_values, dtype=np.int32),
        op_row=np.arange(program.n_ops, dtype=np.int32),
        use_ptr=program.use_ptr,
        use_value=program.use_value,
        use_op=use_op,
        use_want=np.arange(n_uses, dtype=np.int32),
        earlier_begin=value_use_ptr[program.use_value],
        earlier_end=place,
        earlier=order,
        use_owner=program.owner[use_op],
        use_dim_ptr=program.use_dim_ptr,
        use_dim_factor=program.use_dim_factor,
        use_until=program.region_end()[use_op],
        factor_reduction=program.factor_class == 1,
        n_arguments=program.n_arguments,
        folded=False,
    )


@helper
def layout_dim(layout: int, axis: int) -> int:
    """Dim on which ``axis`` stands in a packed layout, -1 if none."""
    return ((layout >> (LAYOUT_BITS * axis)) & 31) - 1


@helper
def ways(layout: int, axis_size: np.ndarray) -> float:
    """Into how many pieces a layout cuts a tensor."""
    total = 1.0
    for a in range(axis_size.shape[0]):
        if (layout >> (LAYOUT_BITS * a)) & 31:
            total *= axis_size[a]
    return total


@helper
def _put(layout: int, axis: int, dim: int) -> int:
    cleared = layout & ~(31 << (LAYOUT_BITS * axis))
    return cleared | ((dim + 1) << (LAYOUT_BITS * axis))


@helper
def use_layout(t: Tables, op_factor: np.ndarray, use: int, n_axes: int) -> int:
    """Layout that the op wants of one operand (``use`` counts wants)."""
    layout = 0
    op = t.use_owner[use]
    for a in range(n_axes):
        name = op_factor[op, a]
        if name >= 0:
            for row in range(t.use_dim_ptr[use], t.use_dim_ptr[use + 1]):
                if t.use_dim_factor[row] == name:
                    layout |= (row - t.use_dim_ptr[use] + 1) << (LAYOUT_BITS * a)
                    break
    return layout


@helper
def natural_layout(t: Tables, op_factor: np.ndarray, value: int, n_axes: int) -> tuple[int, int]:
    """Layout in which an op leaves its result, and the mask of axes over which it is partial."""
    layout, partial = 0, 0
    op = t.value_owner[value]
    for a in range(n_axes):
        name = op_factor[op, a]
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


@compiled
def wanted_layouts(t: Tables, op_factor: Int32Matrix, n_axes: int, wanted: Int64Array) -> None:
    """Fill ``wanted[W]``: layout that each use wants."""
    for w in range(wanted.shape[0]):
        wanted[w] = use_layout(t, op_factor, w, n_axes)


@compiled
def kept_layouts_into(
    t: Tables,
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    n_axes: int,
    wanted: Int64Array,
    kept: Int64Array,
) -> None:
    """Fill ``kept[V]`` with the layout in which each value is kept.

    Moves that every use would undo at once are taken back.

    A reduce_scatter that every use gathers is an all_reduce, and where no use wants any axis where
    the value would be brought, it stays as its op leaves it.
    """
    for v in range(kept.shape[0]):
        kept[v] = 0
        if t.value_constant[v]:
            continue
        layout = 0
        row = t.value_row[v]
        for a in range(n_axes):
            if value_dim[row, a] >= 0:
                layout |= (value_dim[row, a] + 1) << (LAYOUT_BITS * a)
        if not t.value_output[v] and t.value_op[v] >= t.n_arguments:
            natural, partial = natural_layout(t, op_factor, v, n_axes)
            if layout != natural:
                used = 0  # axes that some use wants where they are kept
                for k in range(t.value_use_ptr[v], t.value_use_ptr[v + 1]):
                    want = wanted[t.value_use[k]]
                    for a in range(n_axes):
                        here = layout_dim(want, a)
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


@compiled
def natural_layouts(
    t: Tables, op_factor: Int32Matrix, n_axes: int, natural: Int64Array, partial: Int64Array
) -> None:
    """Fill ``natural[V]`` and ``partial[V]``: ``natural_layout`` of each value."""
    for v in range(natural.shape[0]):
        natural[v], partial[v] = natural_layout(t, op_factor, v, n_axes)


def wants_of(t: Tables, op_factor: np.ndarray) -> np.ndarray:
    """[W] layout that each use wants, for the rows of a plan."""
    wanted = np.empty(len(t.use_owner), np.int64)
    wanted_layouts(t, np.array(op_factor, np.int32), op_factor.shape[1], wanted)
    return wanted


def made_layouts(t: Tables, op_factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How values are made, for the rows of a plan.

    Gives ([V] layout in which each value is made, [V] axes over which it is then partial).
    """
    natural, partial = np.empty(len(t.value_op), np.int64), np.empty(len(t.value_op), np.int64)
    natural_layouts(t, np.array(op_factor, np.int32), op_factor.shape[1], natural, partial)
    return natural, partial


def kept_layouts(t: Tables, op_factor: np.ndarray, value_dim: np.ndarray) -> np.ndarray:
    """[V] layout in which each value is kept, for the rows of a plan; see ``kept_layouts_into``."""
    op_factor, value_dim = np.array(op_factor, np.int32), np.array(value_dim, np.int8)
    kept = np.empty(len(t.value_op), np.int64)
    kept_layouts_into(t, op_factor, value_dim, op_factor.shape[1], wants_of(t, op_factor), kept)
    return kept


@helper
def _moved_axes(before: int, after: int, n_axes: int) -> int:
    """Axes between which shards move from one layout to another, 0 if none.

    They move because the axes kept on a dim do not lead on it before and after.
    """
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


@helper
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


@helper
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
    """Emit the steps from one layout to another.

    Axes in ``partial`` still carry partial results.
    """
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
    # Axes between which shards have to move before the next step that depends on their order
    moved = 0
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
    # Axes that go from one dim to the same other dim go together; the last axis first, since it is
    # the minor one.
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
            steps,
            n,
            ALL_GATHER,
            op,
            value,
            use,
            gathered,
            here,
            after,
            local,
            whole_bytes / ways(after, axis_size),
        )
    return n


@compiled
def lower_into(
    t: Tables, ops: Int32Array, op_factor: Int32Matrix, axis_size: Int64Array, steps: Steps
) -> int:
    """Fill ``steps`` (see ``buffers``) with the steps of ``ops``.

    ``ops`` are ascending and hold no arguments.  Gives the number of steps.

    Reads ``steps.wanted`` and ``steps.layout``, which hold the layouts of the state (see
    ``wanted_layouts`` and ``kept_layouts_into``).
    """
    n_axes = axis_size.shape[0]
    wanted, kept = steps.wanted, steps.layout
    n = 0
    for op in ops:
        for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
            value = t.use_value[use]
            steps.copy[use] = -1
            if t.value_constant[value]:
                continue
            want = wanted[t.use_want[use]]
            if want == kept[value]:
                continue
            made = False
            for k in range(t.earlier_begin[use], t.earlier_end[use]):
                earlier = t.earlier[k]
                # What a loop body or a branch brought somewhere is not there outside.
                if wanted[earlier] == want and op < t.use_until[earlier]:
                    steps.copy[use] = SHARED if t.folded else steps.copy[earlier]
                    made = True
                    break
            if not made:
                n = _reshard(
                    steps, n, op, value, use, kept[value], want, 0, t.value_bytes[value], axis_size
                )
                steps.copy[use] = n - 1
        first = t.result[t.result_ptr[op]] if t.result_ptr[op + 1] > t.result_ptr[op] else -1
        mask = 0
        row = t.op_row[op]
        for a in range(n_axes):
            if op_factor[row, a] >= 0:
                mask |= 1 << a
        n = _emit(steps, n, COMPUTE, op, first, -1, mask, 0, 0, 0.0, 0.0)
        for k in range(t.result_ptr[op], t.result_ptr[op + 1]):
            value = t.result[k]
            if t.value_constant[value]:
                continue
            natural, partial = natural_layout(t, op_factor, value, n_axes)
            if natural != kept[value] or partial:
                n = _reshard(
                    steps,
                    n,
                    op,
                    value,
                    -1,
                    natural,
                    kept[value],
                    partial,
                    t.value_bytes[value],
                    axis_size,
                )
    return n


def lower_all(
    t: Tables,
    ops: np.ndarray,
    op_factor: np.ndarray,
    value_dim: np.ndarray,
    axis_size: np.ndarray,
    steps: Steps,
) -> int:
    """Layouts of a state, then ``lower_into``."""
    n_axes = axis_size.shape[0]
    wanted_layouts(t, op_factor, n_axes, steps.wanted)
    kept_layouts_into(t, op_factor, value_dim, n_axes, steps.wanted, steps.layout)
    return lower_into(t, ops, op_factor, axis_size, steps)


def buffers(t: Tables, n_axes: int) -> Steps:
    """Scratch arrays large enough for any plan of the program on ``n_axes`` mesh axes."""
    n_ops = len(t.op_row)
    n_uses = len(t.use_value)
    n_values = len(t.value_op)
    n_results = len(t.result)
    # Most programs need about one step per op; the bound holds for plans that reshard everything.
    rows = n_ops + n_uses * (3 + 2 * n_axes) + n_results * (5 + 2 * n_axes) + 1

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
        wanted=np.zeros(len(t.use_owner), np.int64),
        layout=np.zeros(n_values, np.int64),
    )


def lower(
    program: Program, op_factor: np.ndarray, value_dim: np.ndarray, axis_size: np.ndarray
) -> Steps:
    """Device-local steps of a plan given as state arrays (see ``state``), trimmed to size."""
    t = tables(program)
    steps = buffers(t, len(axis_size))
    # Writeable copies of the same types, so that one compiled kernel serves all callers
    op_factor, value_dim = np.array(op_factor, np.int32), np.array(value_dim, np.int8)
    n = lower_all(t, real_ops(t), op_factor, value_dim, axis_size, steps)
    rows: list[np.ndarray] = [a[:n].copy() for a in steps[:9]]
    return Steps._make([*rows, steps.copy, steps.wanted, steps.layout])


def real_ops(t: Tables) -> np.ndarray:
    """Ops that are no arguments, in order."""
    return np.arange(t.n_arguments, len(t.op_row), dtype=np.int32)


def unpack(layout: int, rank: int, n_axes: int) -> list[list[int]]:
    """Mesh axes per dim of a packed layout, in mesh order."""
    dims: list[list[int]] = [[] for _ in range(rank)]
    for a in range(n_axes):
        dim = ((int(layout) >> (LAYOUT_BITS * a)) & 31) - 1
        if dim >= 0:
            dims[dim].append(a)
    return dims

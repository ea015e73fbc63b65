"""What a plan means: device-local steps.

Every reader of a plan - the cost model, the device-local listing, the exporter - goes through
``lower``, so that they cannot disagree. For each op in program order:

* each operand goes from its value's axes to its use's axes: an added axis is a local slice, an axis
  moved between dims an all_to_all, a dropped axis an all_gather. If several uses want a value in
  the same layout, it is brought there once, and the copy is kept until its last use (XLA merges
  identical gathers likewise). A copy made inside a loop body or a branch serves that body only;
* the op is computed on local shards; a ``shard_map`` takes its operands and leaves its results in
  the layouts of its specs, whatever the plan;
* each result goes from the op's natural axes to the value's axes. A result that is partial over a
  sharded reduction factor needs a reduce_scatter where the value has that axis, else an all_reduce.
  A reduce_scatter that every use gathers straight back becomes an all_reduce.

Axes on one dim are always in mesh order, so a layout is a set of (axis, dim) pairs and does not
depend on the order of actions. Where mesh order makes shards move between devices (the axes kept on
a dim are not its leading ones both before and after a step), the steps contain a
collective_permute. Values made of constants alone are recomputed in whatever layout a use wants and
cause no steps.

Reference: TOAST section 2.1 (device-local code), Shardy's collectives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
from toast_lab.ragged import Ragged
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COMPUTE,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
)

#: in a folded program: an earlier use's copy, whose row differs between layers
SHARED = -2
OPEN = -1  #: no layout is given
LAYOUT_BITS = 5  # a layout packs (dim + 1) per mesh axis into 5 bits: ranks up to 30, axes up to 8


@packed
class Tables(NamedTuple):
    """What lowering needs to know of a program, as a plain tuple of arrays for compiled code.

    The same arrays describe a program op by op (``tables``) or folded, with one op for each class
    of alike ops (see ``toast_lab.cost.fold``). Rows of the state therefore need not be numbered as
    values and uses are; each value and use names the row that decides its layout. Sizes: ``O`` ops,
    ``V`` values, ``U`` uses, ``W`` wants (distinct ways in which uses want their values; unfolded:
    the uses), ``K`` and ``L`` rows of ``op_factor`` and ``value_dim``.
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
    #: [U] first row in ``earlier``: the wants of the value's earlier uses ...
    earlier_begin: Int64Array
    earlier_end: Int64Array  #: [U] ... and end
    earlier: Int32Array  #: wants
    use_owner: Int32Array  #: [W] row of op_factor that decides the layout
    use_dim_ptr: Int32Array  #: [W+1]
    use_dim_factor: Int32Array
    #: [W] first op after the innermost loop body or branch that contains the use
    use_until: Int32Array
    factor_reduction: BoolArray  #: [F] bool
    #: [W] packed layout in which a ``shard_map`` takes the operand; OPEN: as the op is split
    use_given: Int64Array
    #: [V] packed layout in which a ``shard_map`` leaves the result; OPEN: as the op is split
    value_given: Int64Array
    n_arguments: int
    folded: bool


@packed
class Steps(NamedTuple):
    """Device-local steps, ``S`` rows in execution order, as parallel arrays."""

    kind: Int32Array  #: [S] index into STEP_KINDS
    op: Int32Array  #: [S] the op it computes or serves
    value: Int32Array  #: [S] the value it reads and writes (compute: first result or -1)
    use: Int32Array  #: [S] the use it serves, -1 if it belongs to the definition
    axes: Int32Array  #: [S] bit mask of mesh axes
    before: Int64Array  #: [S] packed layout of its input
    after: Int64Array  #: [S] packed layout of its output
    in_bytes: Float64Array  #: [S] float64 local bytes read
    out_bytes: Float64Array  #: [S] float64 local bytes written
    #: [U] row of the last step that made the use's copy; -1: the use reads the value itself;
    #: SHARED: see there
    copy: Int32Array
    wanted: Int64Array  #: [W] packed layout that each use wants
    layout: Int64Array  #: [V] packed layout in which each value is kept


@functools.lru_cache(maxsize=8)
def tables(program: Program) -> Tables:
    """Collect the arrays of ``program`` for compiled code."""
    n_values, n_uses = program.n_values, program.n_uses
    use_op = program.use_op.astype(np.int32)
    uses = Ragged.by_key(program.use_value, n_values)
    order = uses.flat.astype(np.int32)
    rank_of_use = np.empty(n_uses, np.int64)
    rank_of_use[order] = np.arange(n_uses)
    output = np.zeros(n_values, dtype=bool)
    output[program.outputs] = True
    use_given, value_given = _given_layouts(program)
    return Tables(
        shape_ptr=program.shape_ptr,
        value_bytes=np.asarray(
            [program.nbytes(value) for value in range(n_values)], dtype=np.float64
        ),
        value_op=program.value_op,
        value_constant=program.value_is_constant,
        value_output=output,
        value_use_ptr=uses.ptr,
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
        earlier_begin=uses.ptr[program.use_value],
        earlier_end=rank_of_use,
        earlier=order,
        use_owner=program.owner[use_op],
        use_dim_ptr=program.use_dim_ptr,
        use_dim_factor=program.use_dim_factor,
        use_until=program.region_end()[use_op],
        factor_reduction=program.factor_class == 1,
        use_given=use_given,
        value_given=value_given,
        n_arguments=program.n_arguments,
        folded=False,
    )


def _given_layouts(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """``use_given`` and ``value_given``; axes are numbered as in the mesh of the shard_maps."""
    use_given = np.full(program.n_uses, OPEN, np.int64)
    value_given = np.full(program.n_values, OPEN, np.int64)
    for shard_map in program.shard_maps:
        axes = [axis for axis, _ in shard_map.mesh]
        for given, tensors, specs in (
            (use_given, program.uses(shard_map.op), shard_map.operand_specs),
            (value_given, program.results(shard_map.op), shard_map.result_specs),
        ):
            for tensor, spec in zip(tensors, specs, strict=True):
                given[tensor] = pack(spec, axes)
    return use_given, value_given


@helper
def layout_dim(layout: int, axis: int) -> int:
    """Dim that ``axis`` cuts in a packed layout, -1 if none."""
    return ((layout >> (LAYOUT_BITS * axis)) & 31) - 1


@helper
def is_spread(layout: int, axes: int, n_axes: int) -> bool:
    """Do the axes of the bit mask ``axes`` cut more than one dim?"""
    dim = -1
    for axis in range(n_axes):
        axis_dim = layout_dim(layout, axis) if (axes >> axis) & 1 else -1
        if axis_dim >= 0 and dim >= 0 and axis_dim != dim:
            return True
        if axis_dim >= 0:
            dim = axis_dim
    return False


@helper
def ways(layout: int, axis_size: np.ndarray) -> float:
    """Number of pieces into which a layout cuts a tensor."""
    total = 1.0
    for axis in range(axis_size.shape[0]):
        if (layout >> (LAYOUT_BITS * axis)) & 31:
            total *= axis_size[axis]
    return total


@helper
def local_size(size: float, dim: int, layout: int, axis_size: np.ndarray) -> float:
    """Local size, on each device, of a dim whose global size is ``size``."""
    for axis in range(axis_size.shape[0]):
        if layout_dim(layout, axis) == dim:
            size /= axis_size[axis]
    return size


@helper
def cut_dims(layout: int, n_axes: int) -> int:
    """Bit mask of the dims that a layout cuts."""
    dims = 0
    for axis in range(n_axes):
        dim = layout_dim(layout, axis)
        if dim >= 0:
            dims |= 1 << dim
    return dims


@helper
def _with_axis_on(layout: int, axis: int, dim: int) -> int:
    cleared = layout & ~(31 << (LAYOUT_BITS * axis))
    return cleared | ((dim + 1) << (LAYOUT_BITS * axis))


@helper
def use_layout(tables: Tables, op_factor: np.ndarray, use: int, n_axes: int) -> int:
    """Layout in which the op wants one operand (``use`` is the number of a want)."""
    if tables.use_given[use] != OPEN:
        return tables.use_given[use]
    layout = 0
    op = tables.use_owner[use]
    for axis in range(n_axes):
        factor = op_factor[op, axis]
        if factor >= 0:
            for row in range(tables.use_dim_ptr[use], tables.use_dim_ptr[use + 1]):
                if tables.use_dim_factor[row] == factor:
                    layout |= (row - tables.use_dim_ptr[use] + 1) << (LAYOUT_BITS * axis)
                    break
    return layout


@helper
def natural_layout(
    tables: Tables, op_factor: np.ndarray, value: int, n_axes: int
) -> tuple[int, int]:
    """Layout in which an op leaves its result, and the mask of axes over which it is partial."""
    if tables.value_given[value] != OPEN:
        return tables.value_given[value], 0
    layout, partial = 0, 0
    op = tables.value_owner[value]
    for axis in range(n_axes):
        factor = op_factor[op, axis]
        if factor < 0:
            continue
        if tables.factor_reduction[factor]:
            partial |= 1 << axis
            continue
        for row in range(tables.shape_ptr[value], tables.shape_ptr[value + 1]):
            if tables.def_dim_factor[row] == factor:
                layout |= (row - tables.shape_ptr[value] + 1) << (LAYOUT_BITS * axis)
                break
    return layout, partial


@compiled
def wanted_layouts(tables: Tables, op_factor: Int32Matrix, n_axes: int, wanted: Int64Array) -> None:
    """Fill ``wanted[W]`` with the layout that each use wants."""
    for want in range(wanted.shape[0]):
        wanted[want] = use_layout(tables, op_factor, want, n_axes)


@compiled
def kept_layouts_into(
    tables: Tables,
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    n_axes: int,
    wanted: Int64Array,
    kept: Int64Array,
) -> None:
    """Fill ``kept[V]`` with the layout in which each value is kept.

    A reshard that every use would undo at once is dropped.

    A reduce_scatter that every use gathers becomes an all_reduce. A value stays as its op leaves it
    if no use wants any of the axes that the reshard changes where the reshard would put it.
    """
    for value in range(kept.shape[0]):
        kept[value] = 0
        if tables.value_constant[value]:
            continue
        layout = 0
        row = tables.value_row[value]
        for axis in range(n_axes):
            if value_dim[row, axis] >= 0:
                layout |= (value_dim[row, axis] + 1) << (LAYOUT_BITS * axis)
        if not tables.value_output[value] and tables.value_op[value] >= tables.n_arguments:
            natural, partial = natural_layout(tables, op_factor, value, n_axes)
            if layout != natural:
                used = 0  # axes that some use wants where the value would have them
                for position in range(tables.value_use_ptr[value], tables.value_use_ptr[value + 1]):
                    want = wanted[tables.value_use[position]]
                    for axis in range(n_axes):
                        wanted_dim = layout_dim(want, axis)
                        if wanted_dim == layout_dim(layout, axis) or (
                            (partial >> axis) & 1 and wanted_dim >= 0
                        ):
                            used |= 1 << axis
                differs = 0
                for axis in range(n_axes):
                    if layout_dim(layout, axis) != layout_dim(natural, axis):
                        differs |= 1 << axis
                if not used & differs:
                    layout = natural
                for axis in range(n_axes):
                    if (partial >> axis) & 1 and not (used >> axis) & 1:
                        layout = _with_axis_on(layout, axis, -1)
        kept[value] = layout


@compiled
def natural_layouts(
    tables: Tables, op_factor: Int32Matrix, n_axes: int, natural: Int64Array, partial: Int64Array
) -> None:
    """Fill ``natural[V]`` and ``partial[V]``: ``natural_layout`` of each value."""
    for value in range(natural.shape[0]):
        natural[value], partial[value] = natural_layout(tables, op_factor, value, n_axes)


def wants_of(tables: Tables, op_factor: np.ndarray) -> np.ndarray:
    """[W] layout that each use wants, for the rows of a plan."""
    wanted = np.empty(len(tables.use_owner), np.int64)
    wanted_layouts(tables, np.array(op_factor, np.int32), op_factor.shape[1], wanted)
    return wanted


def natural_layouts_of(tables: Tables, op_factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Layouts in which ops leave their results, for the rows of a plan.

    Gives ([V] natural layout of each value, [V] bit mask of the axes over which it is partial).
    """
    natural = np.empty(len(tables.value_op), np.int64)
    partial = np.empty_like(natural)
    natural_layouts(tables, np.array(op_factor, np.int32), op_factor.shape[1], natural, partial)
    return natural, partial


def kept_layouts(tables: Tables, op_factor: np.ndarray, value_dim: np.ndarray) -> np.ndarray:
    """[V] layout in which each value is kept, for the rows of a plan; see ``kept_layouts_into``."""
    op_factor, value_dim = np.array(op_factor, np.int32), np.array(value_dim, np.int8)
    kept = np.empty(len(tables.value_op), np.int64)
    kept_layouts_into(
        tables, op_factor, value_dim, op_factor.shape[1], wants_of(tables, op_factor), kept
    )
    return kept


@helper
def _moved_axes(before: int, after: int, n_axes: int) -> int:
    """Bit mask of the axes along which shards move between devices, 0 if none do.

    Shards move if the axes kept on a dim are not its leading ones both before and after.
    """
    mask = 0
    for axis in range(n_axes):
        dim = layout_dim(before, axis)
        if dim < 0 or layout_dim(after, axis) != dim:
            continue
        # This axis is kept, so every axis before it on this dim must be kept too
        for other in range(axis):
            if (layout_dim(before, other) == dim) != (layout_dim(after, other) == dim):
                for moved_axis in range(n_axes):
                    if (
                        layout_dim(before, moved_axis) == dim
                        or layout_dim(after, moved_axis) == dim
                    ):
                        mask |= 1 << moved_axis
    return mask


@helper
def _with_exchanged_axes(current: int, after: int, n_axes: int) -> int:
    """``current``, with every axis that both layouts have moved to its dim in ``after``."""
    target = current
    for axis in range(n_axes):
        if layout_dim(current, axis) >= 0 and layout_dim(after, axis) >= 0:
            target = _with_axis_on(target, axis, layout_dim(after, axis))
    return target


@helper
def _cut_alike(one_layout: int, other_layout: int, axis_size: np.ndarray) -> bool:
    """Do two layouts cut every dim into the same number of pieces?"""
    for axis in range(axis_size.shape[0]):
        for layout in (one_layout, other_layout):
            dim = layout_dim(layout, axis)
            if dim >= 0 and _pieces(one_layout, dim, axis_size) != _pieces(
                other_layout, dim, axis_size
            ):
                return False
    return True


@helper
def _pieces(layout: int, dim: int, axis_size: np.ndarray) -> int:
    """Number of pieces into which a layout cuts a dim."""
    pieces = 1
    for axis in range(axis_size.shape[0]):
        if layout_dim(layout, axis) == dim:
            pieces *= axis_size[axis]
    return pieces


@helper
def _axes_moving_with(current: int, after: int, axis: int, n_axes: int) -> int:
    """Bit mask of the axes that leave the same dim as ``axis`` for the same other dim."""
    mask = 0
    for other in range(n_axes):
        if layout_dim(current, other) == layout_dim(current, axis) and layout_dim(
            after, other
        ) == layout_dim(after, axis):
            mask |= 1 << other
    return mask


@helper
def _with_axes_on(layout: int, axes: int, dim: int, n_axes: int) -> int:
    for axis in range(n_axes):
        if (axes >> axis) & 1:
            layout = _with_axis_on(layout, axis, dim)
    return layout


@helper
def _permute_count(current: int, after: int, moved: int, step: int, n_axes: int) -> int:
    """Number of permutes needed beside the all_to_alls that lead to ``after``.

    Args:
        current: layout before the first all_to_all.
        after: layout after the last all_to_all, up to gathers.
        moved: bit mask of the axes along which shards have to move beforehand.
        step: 1: the first axis goes first; -1: the last axis goes first.
        n_axes: of the mesh.
    """
    count = 0
    for turn in range(n_axes):
        axis = turn if step > 0 else n_axes - 1 - turn
        old, new = layout_dim(current, axis), layout_dim(after, axis)
        if old >= 0 and new >= 0 and old != new:
            target = _with_axes_on(
                current, _axes_moving_with(current, after, axis, n_axes), new, n_axes
            )
            if moved | _moved_axes(current, target, n_axes):
                count += 1
            moved, current = 0, target
    if moved | _moved_axes(current, after, n_axes):
        count += 1
    return count


@helper
def _emit(
    steps: Steps,
    row: int,
    kind: int,
    axes: int,
    before: int,
    after: int,
    whole_bytes: float,
    axis_size: np.ndarray,
) -> int:
    steps.kind[row] = kind
    steps.axes[row] = axes
    steps.before[row] = before
    steps.after[row] = after
    steps.in_bytes[row] = whole_bytes / ways(before, axis_size)
    steps.out_bytes[row] = whole_bytes / ways(after, axis_size)
    return row + 1


@helper
def _assign(steps: Steps, begin: int, end: int, op: int, value: int, use: int) -> None:
    """Say which op, value and use some steps are for."""
    for row in range(begin, end):
        steps.op[row] = op
        steps.value[row] = value
        steps.use[row] = use


@helper
def reshard(
    steps: Steps,
    n_steps: int,
    before: int,
    after: int,
    partial: int,
    whole_bytes: float,
    axis_size: np.ndarray,
) -> int:
    """Emit the steps from one layout to another, and return the new number of steps.

    ``partial`` is the bit mask of the axes over which the value is still partial. What the steps
    are for is left open.
    """
    n_axes = axis_size.shape[0]
    current = before
    sliced, scattered, reduced, gathered = 0, 0, 0, 0
    for axis in range(n_axes):
        bit = 1 << axis
        old, new = layout_dim(before, axis), layout_dim(after, axis)
        if partial & bit:
            if new >= 0:
                scattered |= bit
            else:
                reduced |= bit
        elif old < 0 and new >= 0:
            sliced |= bit
        elif old >= 0 and new < 0:
            gathered |= bit
    # Axes along which shards have to move before the next step that depends on their order
    moved = 0
    for kind in (SLICE, REDUCE_SCATTER, ALL_REDUCE):
        mask = sliced if kind == SLICE else scattered if kind == REDUCE_SCATTER else reduced
        if mask:
            target = current
            if kind != ALL_REDUCE:
                for axis in range(n_axes):
                    if (mask >> axis) & 1:
                        target = _with_axis_on(target, axis, layout_dim(after, axis))
            n_steps = _emit(steps, n_steps, kind, mask, current, target, whole_bytes, axis_size)
            moved |= _moved_axes(current, target, n_axes)
            current = target
    target = _with_exchanged_axes(current, after, n_axes)
    if target == current:
        moved |= _moved_axes(current, after, n_axes)
    elif _cut_alike(current, target, axis_size):
        # The shards stay as they are, and move to other devices
        for axis in range(n_axes):
            if layout_dim(current, axis) != layout_dim(target, axis):
                moved |= 1 << axis
        moved |= _moved_axes(current, target, n_axes) | _moved_axes(target, after, n_axes)
        n_steps = _emit(steps, n_steps, PERMUTE, moved, current, target, whole_bytes, axis_size)
        current, moved = target, 0
    else:
        # Axes that go from one dim to the same other dim go together, in the order that needs the
        # fewest permutes. Of equal orders it is the one with the last axis first, which is the
        # minor axis.
        last_first = _permute_count(current, after, moved, -1, n_axes)
        step = 1 if _permute_count(current, after, moved, 1, n_axes) < last_first else -1
        for turn in range(n_axes):
            axis = turn if step > 0 else n_axes - 1 - turn
            old, new = layout_dim(current, axis), layout_dim(after, axis)
            if old >= 0 and new >= 0 and old != new:
                mask = _axes_moving_with(current, after, axis, n_axes)
                target = _with_axes_on(current, mask, new, n_axes)
                moved |= _moved_axes(current, target, n_axes)
                if moved:
                    n_steps = _emit(
                        steps, n_steps, PERMUTE, moved, current, current, whole_bytes, axis_size
                    )
                    moved = 0
                n_steps = _emit(
                    steps, n_steps, ALL_TO_ALL, mask, current, target, whole_bytes, axis_size
                )
                current = target
        moved |= _moved_axes(current, after, n_axes)
    if moved:
        n_steps = _emit(steps, n_steps, PERMUTE, moved, current, current, whole_bytes, axis_size)
    if gathered:
        n_steps = _emit(
            steps, n_steps, ALL_GATHER, gathered, current, after, whole_bytes, axis_size
        )
    return n_steps


@compiled
def lower_into(
    tables: Tables, ops: Int32Array, op_factor: Int32Matrix, axis_size: Int64Array, steps: Steps
) -> int:
    """Fill ``steps`` (see ``buffers``) with the steps of ``ops``, and return their number.

    ``ops`` are ascending and contain no arguments. ``steps.wanted`` and ``steps.layout`` have to
    hold the layouts of the state (see ``wanted_layouts`` and ``kept_layouts_into``).
    """
    n_axes = axis_size.shape[0]
    wanted, kept = steps.wanted, steps.layout
    n_steps = 0
    for op in ops:
        for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
            value = tables.use_value[use]
            steps.copy[use] = -1
            if tables.value_constant[value]:
                continue
            want = wanted[tables.use_want[use]]
            if want == kept[value]:
                continue
            shared = False
            for position in range(tables.earlier_begin[use], tables.earlier_end[use]):
                earlier = tables.earlier[position]
                # A copy made inside a loop body or a branch does not exist outside of it.
                if wanted[earlier] == want and op < tables.use_until[earlier]:
                    steps.copy[use] = SHARED if tables.folded else steps.copy[earlier]
                    shared = True
                    break
            if not shared:
                first = n_steps
                whole_bytes = tables.value_bytes[value]
                n_steps = reshard(steps, first, kept[value], want, 0, whole_bytes, axis_size)
                _assign(steps, first, n_steps, op, value, use)
                steps.copy[use] = n_steps - 1
        first_result = (
            tables.result[tables.result_ptr[op]]
            if tables.result_ptr[op + 1] > tables.result_ptr[op]
            else -1
        )
        mask = 0
        row = tables.op_row[op]
        for axis in range(n_axes):
            if op_factor[row, axis] >= 0:
                mask |= 1 << axis
        _assign(steps, n_steps, n_steps + 1, op, first_result, -1)
        n_steps = _emit(steps, n_steps, COMPUTE, mask, 0, 0, 0.0, axis_size)
        for position in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
            value = tables.result[position]
            if tables.value_constant[value]:
                continue
            natural, partial = natural_layout(tables, op_factor, value, n_axes)
            if natural != kept[value] or partial:
                first = n_steps
                whole_bytes = tables.value_bytes[value]
                n_steps = reshard(
                    steps, first, natural, kept[value], partial, whole_bytes, axis_size
                )
                _assign(steps, first, n_steps, op, value, -1)
    return n_steps


def lower_all(
    tables: Tables, op_factor: np.ndarray, value_dim: np.ndarray, axis_size: np.ndarray
) -> tuple[Steps, int]:
    """All steps of a plan over a whole program, in untrimmed buffers, and their number."""
    steps, n_axes = buffers(tables, len(axis_size)), len(axis_size)
    # Writeable copies with fixed dtypes, so that one compiled kernel serves all callers
    op_factor, value_dim = np.array(op_factor, np.int32), np.array(value_dim, np.int8)
    wanted_layouts(tables, op_factor, n_axes, steps.wanted)
    kept_layouts_into(tables, op_factor, value_dim, n_axes, steps.wanted, steps.layout)
    return steps, lower_into(tables, real_ops(tables), op_factor, axis_size, steps)


def buffers(tables: Tables, n_axes: int) -> Steps:
    """Scratch arrays large enough for any plan of the program on ``n_axes`` mesh axes."""
    n_ops = len(tables.op_row)
    n_uses = len(tables.use_value)
    n_values = len(tables.value_op)
    n_results = len(tables.result)
    # Most programs need about one step per op; this bound allows for plans that reshard all values.
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
        wanted=np.zeros(len(tables.use_owner), np.int64),
        layout=np.zeros(n_values, np.int64),
    )


def lower(
    program: Program, op_factor: np.ndarray, value_dim: np.ndarray, axis_size: np.ndarray
) -> Steps:
    """Device-local steps of a plan given by its state arrays (see ``state``), trimmed to size."""
    steps, n_steps = lower_all(tables(program), op_factor, value_dim, axis_size)
    return Steps._make([*(column[:n_steps].copy() for column in steps[:9]), *steps[9:]])


def real_ops(tables: Tables) -> np.ndarray:
    """Ops other than arguments, in order."""
    return np.arange(tables.n_arguments, len(tables.op_row), dtype=np.int32)


def pack(spec: Sequence[Sequence[str]], axes: Sequence[str]) -> int:
    """Packed layout of the mesh axes per dim; ``axes`` are those of the mesh."""
    return sum(
        (dim + 1) << (LAYOUT_BITS * axes.index(axis))
        for dim, dim_axes in enumerate(spec)
        for axis in dim_axes
    )


def unpack(layout: int, rank: int, n_axes: int) -> list[list[int]]:
    """Mesh axes per dim of a packed layout, in mesh order."""
    dims: list[list[int]] = [[] for _ in range(rank)]
    for axis in range(n_axes):
        dim = ((int(layout) >> (LAYOUT_BITS * axis)) & 31) - 1
        if dim >= 0:
            dims[dim].append(axis)
    return dims

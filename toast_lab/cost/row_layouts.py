"""Values that a TPU has to keep in rows, however few numbers a row has.

Memory comes in lines of 128 lanes. The compiler puts along them whichever dim fills them, so that
small dims cost nothing: numbers of shape [200000, 16] lie in 16 rows of 200,000. Rows that a gather
looks up or a scatter updates must lie along the lanes instead, and so must whatever is computed
from them element by element; rows of 16 numbers then take eight times their room, and as much
longer to read and write. Cutting the width of an embedding below 128 numbers therefore gains
nothing.

A slice that a loop picks out of a carried value, or puts back, has no such choice either: carried
values keep their own order, tiles hold eight of the last dim but one, and a copy from tile to tile
takes as long as if they were full. A cache of eight heads that is cut to two heads a device takes
four times as long to pick from.

Read off libtpu 0.0.42 (layouts in its final HLO, tables of embeddings cut to 16 and 64 numbers;
estimates of cached keys picked in a scan: 78 us with 8 heads, 134 with 4, 244 with 2 of the same
size together, and 78 again with one, whose dim then goes elsewhere).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.matrix_tiles import LANES, SUBLANES, sublane_padding
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.kernels import helper
from toast_lab.packs import Float64Array, Int32Array
from toast_lab.sharding.steps import local_size


class RowLayouts(NamedTuple):
    """Which dim of each value lies along the lanes."""

    dim: Int32Array  #: [V] -1: whichever fills them
    size: Float64Array  #: [V] its size, 0 if there is none


class SliceRows(NamedTuple):
    """The last dim but one of slices that a loop picks or puts back."""

    dim: Int32Array  #: [O] of the result, -1: another op
    size: Float64Array  #: [O] its size


def no_slice_rows(program: p.Program) -> SliceRows:
    """For compilers to which this does not apply."""
    n_ops = program.n_ops
    return SliceRows(dim=np.full(n_ops, -1, np.int32), size=np.full(n_ops, SUBLANES))


def slice_rows_of(program: p.Program, *, starts: np.ndarray) -> SliceRows:
    """Find slices in loops that have a kernel of their own, as ``starts`` [O] says."""
    rows = no_slice_rows(program)
    for op in np.flatnonzero(starts & (program.trips > 1.0)).tolist():
        if op_kind(program.kind[op]).picks_slice:
            dims = program.dims(program.results(op)[0])
            if len(dims) > 2:
                rows.dim[op], rows.size[op] = len(dims) - 2, dims[-2]
    return rows


def no_rows(program: p.Program) -> RowLayouts:
    """For compilers to which this does not apply."""
    n_values = program.n_values
    return RowLayouts(dim=np.full(n_values, -1, np.int32), size=np.zeros(n_values))


def rows_of(program: p.Program) -> RowLayouts:
    """Find values that gathers and scatters keep in rows; arguments have an order of their own."""
    rows = no_rows(program)
    neighbours = _neighbours(program)
    waiting = [
        value
        for op in program.ops()
        if op_kind(program.kind[op]).looks_up
        for value in _joined(program, op)
    ]
    while waiting:
        value = waiting.pop()
        if rows.dim[value] < 0 and program.value_op[value] >= program.n_arguments:
            rows.dim[value] = len(program.dims(value)) - 1
            rows.size[value] = program.dims(value)[-1]
            waiting.extend(neighbours.get(value, ()))
    return rows


def _neighbours(program: p.Program) -> dict[int, list[int]]:
    """For each value, those in the same order in memory, since an op goes over both at once."""
    neighbours: dict[int, list[int]] = {}
    for op in program.ops():
        creates_dims = op_kind(program.kind[op]).creates_dims
        if creates_dims or program.op_class[op] in (p.ELEMENTWISE, p.REDUCE):
            joined = _joined(program, op)
            for value in joined:
                neighbours.setdefault(value, []).extend(joined)
    return neighbours


def _joined(program: p.Program, op: int) -> list[int]:
    """The values of an op that have two dims or more and the last dim of its result."""
    last = {
        program.def_names(result)[-1]
        for result in program.results(op)
        if len(program.dims(result)) > 1
    }
    operands = [
        int(program.use_value[use])
        for use in program.uses(op)
        if len(program.use_names(use)) > 1 and program.use_names(use)[-1] in last
    ]
    return [*operands, *program.results(op)] if operands else []


@helper
def slice_padding(rows: float) -> float:
    """Factor on the time of such a slice with this many local rows."""
    return sublane_padding(rows) if rows > 1.0 else 1.0


@helper
def row_padding(dim: int, size: float, layout: int, axis_size: np.ndarray) -> float:
    """Factor by which a part of a value is larger in memory, since its rows fill whole lines."""
    if dim < 0 or size <= 0.0:
        return 1.0
    local = local_size(size, dim, layout, axis_size)
    return np.ceil(local / LANES) * LANES / local

"""Values that a TPU has to keep in rows, however few numbers a row has.

Memory comes in lines of 128 lanes. The compiler puts along them whichever dim fills them, so that
small dims cost nothing: numbers of shape [200000, 16] lie in 16 rows of 200,000. Rows that a gather
looks up or a scatter updates must lie along the lanes instead, and so must whatever is computed
from them element by element; rows of 16 numbers then take eight times their room, and as much
longer to read and write. Cutting the width of an embedding below 128 numbers therefore gains
nothing.

Read off libtpu 0.0.42 (layouts in its final HLO, tables of embeddings cut to 16 and 64 numbers).
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.matrix_tiles import LANES
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.kernels import helper
from toast_lab.sharding.steps import local_size


def _columns(fused: FusedProgram) -> Columns:
    """The dim along the lanes and its size, of values that gathers and scatters keep in rows.

    Arguments have an order of their own; -1: whichever dim fills them.
    """
    program = fused.program
    row_dim, row_size = np.full(program.n_values, -1, np.int32), np.zeros(program.n_values)
    neighbours = _neighbours(program)
    waiting = [
        value
        for op in program.ops()
        if op_kind(program.kind[op]).looks_up
        for value in _joined(program, op)
    ]
    while waiting:
        value = waiting.pop()
        if row_dim[value] < 0 and program.value_op[value] >= program.n_arguments:
            row_dim[value] = len(program.dims(value)) - 1
            row_size[value] = program.dims(value)[-1]
            waiting.extend(neighbours.get(value, ()))
    return {"value.row_dim": row_dim, "value.row_size": row_size}


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


VALUE_ROWS = PriceRule(
    name="value_rows",
    family="layouts",
    says="Rows that are looked up or updated fill lines of 128 numbers.",
    source="libtpu 0.0.42, tables cut to 16 and 64 numbers",
    compilers=("tpu",),
    off={"value.row_dim": -1, "value.row_size": 0.0},
    columns=_columns,
)


@helper
def row_padding(dim: int, size: float, layout: int, axis_size: np.ndarray) -> float:
    """Factor by which a part of a value is larger in memory, since its rows fill whole lines."""
    if dim < 0 or size <= 0.0:
        return 1.0
    local = local_size(size, dim, layout, axis_size)
    return np.ceil(local / LANES) * LANES / local

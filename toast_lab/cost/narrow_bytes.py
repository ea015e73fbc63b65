"""Kernels of a TPU that write no number of four bytes, and wait longer than for their traffic.

Reference: none; read off libtpu 0.0.42.1, docs/machines.md.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.ir import program as p


def _columns(fused: FusedProgram) -> Columns:
    """[O] bytes of traffic that a kernel waits for, in addition: 4 a number for its head."""
    program, fusion, kept_bytes = fused.program, fused.fusion, fused.kept_bytes
    elements, soft_or_product = fusion.elements, fusion.product | fusion.computable_in_parts
    numbers, is_wide = np.zeros(program.n_ops), np.zeros(program.n_ops, bool)
    for op in program.ops():
        head = int(fusion.head[op])
        if fusion.starts_kernel[op]:
            if soft_or_product[op]:
                numbers[op] = elements[program.results(op)[0]]
            elif program.op_class[op] == p.REDUCE:
                numbers[op] = elements[program.operands(op)[0]]
        for value in program.results(op):
            if fusion.written[value] and soft_or_product[op]:
                is_wide[head] |= (
                    kept_bytes[value] >= 4.0 * elements[value] and elements[value] >= numbers[head]
                )
    return {"op.narrow_bytes": np.where(is_wide, 0.0, 4.0 * numbers)}


NARROW_BYTES = PriceRule(
    name="narrow_bytes",
    family="computing",
    says="A kernel that writes no 4-byte type waits for 4 more bytes a number.",
    source="libtpu 0.0.42.1 for v5e, some 150 kernels",
    compilers=("tpu",),
    off={"op.narrow_bytes": 0.0},
    columns=_columns,
)

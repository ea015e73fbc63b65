"""Sums over devices that a compiler combines into one, which waits for the links once.

``docs/machines.md`` says which ("Sums that are made at once").

Reference: none; XLA's ``AllReduceCombiner``.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.ir import program as p
from toast_lab.sharding.steps import Tables


def _columns(fused: FusedProgram) -> Columns:
    return {"op.sums_together": sums_together(fused.program, fused.tables)}


def sums_together(program: p.Program, tables: Tables) -> np.ndarray:
    """[O] float64 how many sums are combined with that of an op, itself included.

    An op's distance is the largest number of ops with sums on a path from its results to the
    program's. The combined sums are those of one region, at one distance, over dims of one size.
    """
    sizes = [_summed_sizes(program, tables, op) for op in range(program.n_ops)]
    distance = np.zeros(program.n_ops, np.int64)
    for op in range(program.n_ops - 1, program.n_arguments - 1, -1):
        next_distance = int(distance[op]) + bool(sizes[op])
        for value in program.operands(op):
            maker = int(program.value_op[value])
            distance[maker] = max(distance[maker], next_distance)
    region = program.region.tolist()
    sum_counts = Counter(
        (region[op], int(distance[op]), size) for op in range(program.n_ops) for size in sizes[op]
    )
    return np.array(
        [
            max(
                (sum_counts[region[op], int(distance[op]), size] for size in sizes[op]),
                default=1,
            )
            for op in range(program.n_ops)
        ],
        np.float64,
    )


def _summed_sizes(program: p.Program, tables: Tables, op: int) -> set[float]:
    """Sizes of the dims that an op sums over."""
    names = {name for use in program.uses(op) for name in program.use_names(use)}
    return {float(program.factor_size[name]) for name in names if tables.factor_reduction[name]}


COMBINED_SUMS = PriceRule(
    name="combined_sums",
    family="collectives",
    says="Sums over the same devices, of which none needs another, are one collective.",
    source="libtpu 0.0.42.1 for v5e; XLA's AllReduceCombiner",
    compilers=("tpu",),
    off={"machine.combined_sum_bytes": 0.0, "op.sums_together": 1.0},
    columns=_columns,
)

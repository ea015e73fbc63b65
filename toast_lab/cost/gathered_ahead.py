"""Gathers of values that exist long before they are needed, which run beside earlier products."""

from __future__ import annotations

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where


def _columns(fused: FusedProgram) -> Columns:
    """Does a product run between where a value is made and a use of it?

    An op that only casts, cuts out or reorders a value counts as a part of bringing it.
    """
    program = fused.program
    heavy = np.isin(program.op_class, (p.DOT, p.CONVOLUTION))
    products_before = np.concatenate([[0], np.cumsum(heavy)])  # products before each op
    maker = np.array(program.value_op, np.int64)
    for op in np.flatnonzero(ops_where(program.kind, "done_while_fetched")).tolist():
        for result in program.results(op):
            maker[result] = maker[program.operands(op)[0]]
    source = maker[program.use_value]
    reader = np.repeat(np.arange(program.n_ops), np.diff(program.use_ptr))
    # Inside a loop only values count that a round takes from before the loop.
    starts = np.asarray([kind == "while.enter" for kind in program.kind])
    in_round = (program.trips[source] > 1) & ~starts[source]
    source = np.where(source < program.n_arguments, -1, source)
    return {"use.ahead": (products_before[reader] > products_before[source + 1]) & ~in_round}


GATHERED_AHEAD = PriceRule(
    name="gathered_ahead",
    family="collectives",
    says="A gather of a value made long before runs beside earlier products.",
    source="libtpu 0.0.42.1, schedules of plans with gathered weights",
    compilers=("tpu", "gpu", "cpu"),
    off={"machine.gathered_ahead": 0.0, "use.ahead": False},
    columns=_columns,
)

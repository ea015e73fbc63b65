"""Rows: classes of ops and of values that are split alike, more or less finely."""

from __future__ import annotations

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.hashing import classes
from toast_lab.ir import program as p
from toast_lab.sharding.alike import Alike, by_classes

#: Classes of ops that the grain ``kernels`` tells apart.
_HEAVY = (p.DOT, p.CONVOLUTION, p.REDUCE, p.INDEXING, p.OTHER)


def rows_of_grain(problem: Problem, grain: str) -> Alike:
    """Sort ops and values into rows.

    * ``colours``: ops and values that no sequence of colour actions tells apart are one row, as in
      the tree search;
    * ``roles``: ops that differ in price under some plan, by their kind, operands or results, are
      told apart everywhere, while repeated layers still share rows;
    * ``fine``: as roles, but of values that are alike in every price those that different ops make
      are told apart, too;
    * ``kernels``: as roles, but ops that are elementwise or move elements keep the rows of their
      colours.

    Arguments and results keep the rows of their colours at every grain. The results of a step are
    the arguments of the next one, and a plan whose parameters leave in another layout than that in
    which they came would hide the cost of bringing them back.
    """
    space, coarse = problem.space, problem.space.alike
    if grain == "colours":
        return coarse
    program, folded = problem.analysis.program, problem.folded
    like_op, maker = folded.memory.like_op, program.value_op
    is_told_apart = np.isin(program.op_class, _HEAVY) | (grain != "kernels")
    is_inner = is_told_apart[maker] & (maker >= program.n_arguments)
    is_inner[program.outputs] = False
    result_index = np.arange(program.n_values) - program.result_ptr[maker]
    like_result = folded.tables.result_ptr[like_op[maker]] + result_index
    like_value = like_result if grain == "fine" else folded.tables.result[like_result]
    return by_classes(
        classes(program.n_ops, np.where(is_told_apart, like_op, -1), coarse.ops.label),
        classes(program.n_values, np.where(is_inner, like_value, -1), coarse.values.label),
        space.op_effects,
        space.value_effects,
    )

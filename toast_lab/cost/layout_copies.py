"""Copies that a TPU's compiler makes because layouts disagree.

The gradient of ``x @ w`` comes out of its product transposed.  The compiler transposes nothing: it
computes the update of ``w`` in the order of the gradient.  But arguments and results of a program
stand in their own order, so ``w`` is copied into the other order before the update and the new
``w`` back behind it.  In steps that update what they differentiate these copies are a tenth to a
half of all computing, and the more the less their weights are cut.

Read off libtpu 0.0.42 on steps with plain gradient descent and Adam: 1 to 4 copies of each weight,
2 in the median.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where

#: An argument is read and written once more before its update, and the result behind it.
_PASSES = 4.0


def extra_reads(program: p.Program, root: np.ndarray) -> np.ndarray:
    """How often more than its op reads it a use goes through memory.

    Args:
        program: the program.
        root: [V] the value that each value is a view of.

    Returns:
        [U] float64, 0 for all but arguments that are updated in the order of a transposed product.
    """
    extra = np.zeros(program.n_uses)
    turned = set(_turned(program))
    for output in {int(value) for value in program.outputs}:
        if len(program.dims(output)) >= 2:
            arguments, is_turned = _behind(program, output, turned, root)
            if is_turned:
                extra[arguments] = _PASSES
    return extra


def _turned(program: p.Program) -> list[int]:
    """Ops that put another dim last."""
    return [
        op
        for op in np.flatnonzero(ops_where(program.kind, "reorders")).tolist()
        if program.use_names(program.uses(op)[0])[-1:]
        != program.def_names(program.results(op)[0])[-1:]
    ]


def _behind(
    program: p.Program, output: int, turned: set[int], root: np.ndarray
) -> tuple[Sequence[int], bool]:
    """What an output is computed from elementwise.

    Gives the uses of arguments of its shape, and whether a product comes in transposed.
    """
    uses, is_turned = list[int](), False
    seen, waiting = {output}, [output]
    while waiting:
        op = int(program.value_op[waiting.pop()])
        if op in turned:
            is_turned = is_turned or _is_of_product(program, op, root)
        elif program.op_class[op] == p.ELEMENTWISE:
            for use in program.uses(op):
                value = int(program.use_value[use])
                if value < program.n_arguments and program.dims(value) == program.dims(output):
                    uses.append(use)
                elif value not in seen:
                    seen.add(value)
                    waiting.append(value)
    return uses, is_turned


def _is_of_product(program: p.Program, op: int, root: np.ndarray) -> bool:
    """Does a product make what an op takes, casts and scaling aside?"""
    while True:
        value = int(root[program.use_value[program.uses(op)[0]]])
        op = int(program.value_op[value])
        if program.op_class[op] != p.ELEMENTWISE or not len(program.uses(op)):
            return bool(program.op_class[op] == p.DOT)

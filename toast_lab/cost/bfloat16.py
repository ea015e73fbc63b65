"""Values whose type in memory is not the program's: on a TPU, and on a GPU without bfloat16.

A TPU's matrix unit multiplies 32-bit operands in bfloat16, and the compiler makes use of that.

At JAX's default precision a product of f32 tensors is one pass in bfloat16. The compiler therefore

* keeps a value in bfloat16, at half its size, if nothing but such products reads it;
* sends operands of such products in bfloat16 when they have to be gathered, exchanged or permuted,
  and sums in bfloat16.

Products of ``high`` and ``highest`` precision take three and six passes, and none of this applies.

For GPUs that cannot compute in bfloat16 (before Ampere) XLA widens it to f32. Where a value is
stored between two of its fusions it is narrowed again; operands and results of products stay wide,
and take twice the bytes.

Found by reading what libtpu makes of the built-in models, see ``docs/accuracy.md``.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where

PASSES = {"": 1.0, "high": 3.0, "highest": 6.0}


class Bfloat16Factors(NamedTuple):
    """Factors on sizes and times; all 1 where nothing is narrowed."""

    kept: np.ndarray  #: [V] on the bytes of a value in memory
    moved: np.ndarray  #: [V] on the bytes of collectives that sum it or reshard its definition
    sent: np.ndarray  #: [U] on the bytes of collectives that bring the value to this use
    passes: np.ndarray  #: [O] passes of the matrix unit for one product


def no_factors(program: p.Program) -> Bfloat16Factors:
    """Factors where values keep their types."""
    return Bfloat16Factors(
        kept=np.ones(program.n_values),
        moved=np.ones(program.n_values),
        sent=np.ones(program.n_uses),
        passes=np.ones(program.n_ops),
    )


def widened_factors(
    program: p.Program, consumers: Sequence[Set[int]], output: np.ndarray
) -> Bfloat16Factors:
    """Factors of a GPU without bfloat16; arguments as for ``narrowed``."""
    factors = no_factors(program)
    product = np.isin(program.op_class, (p.DOT, p.CONVOLUTION))
    for value in np.flatnonzero(~output & (program.value_op >= program.n_arguments)).tolist():
        if program.value_dtype[value] != "bf16":
            continue
        read_by_products = consumers[value] and all(
            consumer < program.n_ops and product[consumer] for consumer in consumers[value]
        )
        if product[program.value_op[value]] or read_by_products:
            factors.kept[value] = 2.0
    return factors


class Narrowed(NamedTuple):
    """Ops and values that need no more than bfloat16."""

    ops: list[bool]  #: [O] that take operands in bfloat16
    values: list[bool]  #: [V] of 32 bits, made by the program and read by such ops alone


def none_narrowed(program: p.Program) -> Narrowed:
    """For compilers that keep the program's types."""
    return Narrowed(ops=[False] * program.n_ops, values=[False] * program.n_values)


def narrowed(program: p.Program, consumers: Sequence[Set[int]], output: np.ndarray) -> Narrowed:
    """Find what needs no more than bfloat16, going back from products of one pass.

    A cast is moved up through ops that only move elements.

    Args:
        program: the program.
        consumers: [V] ops that read each value, views looked through; O: a result of the program.
        output: [V] bool: results of the program keep their type.
    """
    n_ops = program.n_ops
    has_default_precision = np.asarray([not detail for detail in program.detail])
    is_single_pass = np.isin(program.op_class, (p.DOT, p.CONVOLUTION)) & has_default_precision
    moves = (program.op_class == p.VIEW) | ops_where(program.kind, "moves_elements")
    only_products = [False] * program.n_values

    def narrows(op: int) -> bool:
        return bool(is_single_pass[op]) or (
            bool(moves[op]) and all(only_products[result] for result in program.results(op))
        )

    for value in reversed(range(program.n_values)):
        only_products[value] = bool(consumers[value]) and all(
            consumer < n_ops and narrows(consumer) for consumer in consumers[value]
        )
    return Narrowed(
        ops=[narrows(op) for op in range(n_ops)],
        values=[
            dtype == "f32"
            and is_for_products
            and int(maker) >= program.n_arguments
            and not bool(is_output)
            for dtype, is_for_products, maker, is_output in zip(
                program.value_dtype, only_products, program.value_op, output, strict=True
            )
        ],
    )


def bfloat16_factors(program: p.Program, narrow: Narrowed, written: np.ndarray) -> Bfloat16Factors:
    """Compute the factors of a TPU.

    Args:
        program: the program.
        narrow: from ``narrowed``.
        written: [V] bool: in memory.
    """
    factors = no_factors(program)
    f32 = [dtype == "f32" for dtype in program.value_dtype]
    for op in np.flatnonzero(np.isin(program.op_class, (p.DOT, p.CONVOLUTION))).tolist():
        if any(f32[value] for value in program.operands(op)):
            factors.passes[op] = PASSES.get(program.detail[op], 1.0)
    factors.moved[narrow.values] = 0.5
    factors.kept[np.asarray(narrow.values, bool) & written] = 0.5
    for op in range(program.n_arguments, program.n_ops):
        if not narrow.ops[op]:
            continue
        for use, value in zip(program.uses(op), program.operands(op), strict=True):
            if f32[value]:
                factors.sent[use] = 0.5
    return factors

"""Types in memory other than the program's: bfloat16 on a TPU, none on a GPU without it.

A TPU's matrix unit multiplies 32-bit operands in bfloat16, and the compiler makes use of that.

At JAX's default precision a product of f32 tensors is one pass in bfloat16.  The compiler therefore

* keeps a value that nothing but such products read in bfloat16, half its size;
* sends operands of such products in bfloat16 when they have to be gathered, exchanged or permuted,
  and sums them in it.

``high`` and ``highest`` precision take three and six passes and none of this.

For GPUs that cannot compute in bfloat16 (before Ampere) XLA widens it to f32.  Where a value is
stored between two of its fusions it is narrowed again; operands and results of products stay wide,
and take twice the bytes.

Found by reading what libtpu makes of the built-in models, see ``docs/accuracy.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.fusion import Fusion
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where

PASSES = {"": 1.0, "high": 3.0, "highest": 6.0}


class Bfloat16Factors(NamedTuple):
    """Factors on sizes and times; all 1 where nothing is narrowed."""

    kept: np.ndarray  #: [V] of the bytes of a value in memory
    moved: np.ndarray  #: [V] of the bytes of collectives that sum it, or move it where it is made
    sent: np.ndarray  #: [U] of the bytes of collectives that bring the value to this use
    passes: np.ndarray  #: [O] of the matrix unit for one product


def no_factors(program: p.Program) -> Bfloat16Factors:
    """Factors where values keep their types."""
    return Bfloat16Factors(
        kept=np.ones(program.n_values),
        moved=np.ones(program.n_values),
        sent=np.ones(program.n_uses),
        passes=np.ones(program.n_ops),
    )


def widened_factors(program: p.Program, fusion: Fusion, output: np.ndarray) -> Bfloat16Factors:
    """Factors of a GPU without bfloat16; arguments as for ``bfloat16_factors``."""
    factors = no_factors(program)
    product = np.isin(program.op_class, (p.DOT, p.CONVOLUTION))
    for value in np.flatnonzero(~output & (program.value_op >= program.n_arguments)).tolist():
        if program.value_dtype[value] != "bf16":
            continue
        consumers = fusion.consumers[value]
        read_by_products = consumers and all(
            consumer < program.n_ops and product[consumer] for consumer in consumers
        )
        if product[program.value_op[value]] or read_by_products:
            factors.kept[value] = 2.0
    return factors


def bfloat16_factors(program: p.Program, fusion: Fusion, output: np.ndarray) -> Bfloat16Factors:
    """Work out the factors.

    Args:
        program: the program.
        fusion: what is written.
        output: [V] bool: results of the program keep their type.
    """
    factors = no_factors(program)
    product = np.isin(program.op_class, (p.DOT, p.CONVOLUTION))
    detail = program.detail
    f32 = [dtype == "f32" for dtype in program.value_dtype]
    single = [bool(product[op]) and not detail[op] for op in range(program.n_ops)]
    for op in np.flatnonzero(product).tolist():
        if any(f32[value] for value in program.operands(op)):
            factors.passes[op] = PASSES.get(detail[op], 1.0)
    n_ops = program.n_ops
    moves = (program.op_class == p.VIEW) | ops_where(program.kind, "moves_elements")
    only_products = [False] * program.n_values

    def narrows(op: int) -> bool:
        """Does an op take operands in bfloat16?  The cast is moved up through what only moves."""
        return single[op] or (
            bool(moves[op]) and all(only_products[result] for result in program.results(op))
        )

    for value in reversed(range(program.n_values)):
        only_products[value] = bool(fusion.consumers[value]) and all(
            consumer < n_ops and narrows(consumer) for consumer in fusion.consumers[value]
        )
    for value in range(program.n_values):
        maker = int(program.value_op[value])
        if (
            f32[value]
            and only_products[value]
            and maker >= program.n_arguments
            and not output[value]
        ):
            factors.moved[value] = 0.5
            if fusion.written[value]:
                factors.kept[value] = 0.5
    for op in filter(narrows, range(program.n_arguments, n_ops)):
        for use, value in zip(program.uses(op), program.operands(op), strict=True):
            if f32[value]:
                factors.sent[use] = 0.5
    return factors

"""A program as its compiler fuses it: kernels, views, and the bytes of each value as it is kept.

All that rules of the price read; ``price_rules`` makes columns of facts from it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.bfloat16 import (
    Bfloat16Factors,
    bfloat16_factors,
    no_factors,
    widened_factors,
)
from toast_lab.cost.compiler_styles import CompilerStyle
from toast_lab.cost.fusion import Fusion, fuse
from toast_lab.cost.matrix_tiles import Products, products
from toast_lab.cost.value_roots import Roots, value_roots
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.sharding.steps import Tables


class FusedProgram(NamedTuple):
    """A program as its compiler fuses it."""

    program: p.Program
    tables: Tables
    roots: Roots
    shapes: Products
    fusion: Fusion
    narrowed: Bfloat16Factors
    kept_bytes: np.ndarray  #: [V] bytes of each value as the compiler keeps it
    last_op: np.ndarray  #: [V] see ``_last_ops``
    delivered: np.ndarray  #: [U] as in ``UseFacts``
    update_operand: np.ndarray  #: [O] as in ``OpFacts``

    @property
    def compiler(self) -> str:
        """The compiler that fuses it."""
        return self.fusion.style.compiler

    @property
    def root(self) -> np.ndarray:
        """[V] the value in whose memory each value is."""
        return self.roots.root


def fused_program(
    program: p.Program,
    tables: Tables,
    style: CompilerStyle,
    *,
    has_bfloat16: bool,
) -> FusedProgram:
    """Fuse a program as its compiler does.

    Args:
        program: the program.
        tables: its tables.
        style: what of the habits of its compiler counts.
        has_bfloat16: has the device bfloat16 arithmetic?
    """
    roots = value_roots(program, tables, style, has_bfloat16=has_bfloat16)
    shapes = products(program)
    fusion = fuse(program, tables, shapes, roots=roots, style=style)
    shapes.rows[~fusion.product] = 0.0  # no product, although it is written as one
    if style.compiler == "tpu":
        narrowed = bfloat16_factors(program, fusion.narrowed, fusion.written)
    elif style.compiler == "gpu" and not has_bfloat16:
        narrowed = widened_factors(program, fusion.consumers, tables.value_output)
    else:
        narrowed = no_factors(program)
    last_op = _last_ops(program, roots.root, fusion.runs_at)
    delivered, update_operand = _partial_traffic(program, fusion, roots.root, last_op)
    return FusedProgram(
        program=program,
        tables=tables,
        roots=roots,
        shapes=shapes,
        fusion=fusion,
        narrowed=narrowed,
        kept_bytes=tables.value_bytes * narrowed.kept,
        last_op=last_op,
        delivered=delivered,
        update_operand=update_operand,
    )


def _last_ops(program: p.Program, root: np.ndarray, runs_at: np.ndarray) -> np.ndarray:
    """[V] the last op for which a value has to be in memory; O: to the end."""
    last = np.array(program.value_op, np.int64)
    last[root[program.outputs]] = program.n_ops
    for op in range(program.n_arguments, program.n_ops):
        for operand in program.operands(op):
            for value in {operand, int(root[operand])}:
                when = program.kept_until(int(program.value_op[value]), int(runs_at[op]))
                last[value] = max(last[value], when)
    return last


def _partial_traffic(
    program: p.Program, fusion: Fusion, root: np.ndarray, last_op: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``UseFacts.delivered`` and ``OpFacts.update_operand``."""
    delivered, update_operand = (
        np.zeros(program.n_uses, bool),
        np.full(program.n_ops, -1, np.int32),
    )
    for op in program.ops():
        facts, first = op_kind(program.kind[op]), int(program.use_ptr[op])
        if facts.reads_part:
            delivered[first] = True
        elif facts.update_operand >= 0 and len(program.results(op)) == 1:
            source = int(root[program.use_value[first]])
            maker = int(program.value_op[source])
            owned = maker >= program.n_arguments or bool(program.donated[maker])
            is_inside = facts.sorts_updates and not fusion.written[program.results(op)[0]]
            # A buffer that is still needed, or that does not exist yet, is written as a whole.
            if is_inside or (
                owned and last_op[source] <= op and not program.value_is_constant[source]
            ):
                update_operand[op] = facts.update_operand
    return delivered, update_operand

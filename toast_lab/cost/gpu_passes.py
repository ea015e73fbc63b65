"""Operands that a GPU goes over several times, or slower than it could read them.

A sort goes over its numbers again and again, a few bits or one merge at a time.  Numbers of 16 bits
that a scatter adds where several may meet share a word with a neighbour, which is exchanged until
nobody has come between.  Reference: read off kernels of an H100, docs/measured.md; TOAST section
4.5 leaves both out.
"""

from __future__ import annotations

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind

#: Reads of memory that take as long as one of a number of 16 bits that a scatter adds.
_NARROW_SUM = 14.0
_WORD_BYTES = 4


def gpu_passes(program: p.Program) -> np.ndarray:
    """[U] float64: how often reading an operand once is as slow as what a GPU does with it."""
    passes = np.ones(program.n_uses)
    for op in range(program.n_arguments, program.n_ops):
        kind, uses = op_kind(program.kind[op]), program.uses(op)
        passes[uses.start : uses.stop] = kind.gpu_passes
        if kind.sorts_updates and p.MONOIDS[program.monoid[op]] == "add":
            use = uses[kind.brings]
            if program.itemsize[program.use_value[use]] < _WORD_BYTES:
                passes[use] = _NARROW_SUM
    return passes

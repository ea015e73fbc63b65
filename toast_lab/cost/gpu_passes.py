"""Operands that a GPU goes over several times, or more slowly than it could read them.

A sort goes over its numbers again and again, a few bits or one merge at a time. A number of 16 bits
that a scatter adds to an element shares a word with its neighbour: since other threads may add to
the same word, it is compared and exchanged until none of them has come between. Reference: read off
kernels of an H100, docs/measured.md; TOAST section 4.5 leaves both out.
"""

from __future__ import annotations

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind

#: Time to add a number of 16 bits in a scatter, over the time to read it.
_NARROW_SUM = 14.0
_WORD_BYTES = 4


def gpu_passes(program: p.Program) -> np.ndarray:
    """[U] float64 time that a GPU takes for an operand, over the time to read it once."""
    passes = np.ones(program.n_uses)
    for op in range(program.n_arguments, program.n_ops):
        kind, uses = op_kind(program.kind[op]), program.uses(op)
        passes[uses.start : uses.stop] = kind.gpu_passes
        if kind.sorts_updates and p.MONOIDS[program.monoid[op]] == "add":
            use = uses[kind.update_operand]
            if program.itemsize[program.use_value[use]] < _WORD_BYTES:
                passes[use] = _NARROW_SUM
    return passes

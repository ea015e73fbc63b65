"""What a TPU may make as a whole although a reader takes only a part of it.

What is computed on the way into its readers is computed by each of them, and by one that takes a
device's part of it for that part alone.  That holds if all of them take the same part.  If another
reader takes more, libtpu makes the value in a kernel of its own, as all of what a device keeps, and
sometimes it does so although nobody takes more, or computes all of what reads it and takes the part
of that.  A price looks at one use at a time and cannot tell these cases apart.

So a use that takes a part pays for ``SHARE`` of that kernel.  It is less than half of what it costs
if it is made, and more than nothing: of two plans that are equal otherwise the one that computes
what it reads is better.

Read off libtpu 0.0.42 for v5e on elementwise chains with one to three readers, and on ``k_means``;
docs/machines.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from toast_lab.cost.fusion import Fusion
from toast_lab.cost.vector_work import NUMBERS
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.packs import Float64Array

#: Of the kernel that makes the whole value, for each use that takes a part.
SHARE = 0.25


class WholeKernels(NamedTuple):
    """The kernel of its own that makes a value, with all dims whole; 0: there is none."""

    bytes: Float64Array  #: [V] that it reads and writes
    steps: Float64Array  #: [V] of the vector unit


def no_whole_kernels(n_values: int) -> WholeKernels:
    """For machines to which this does not apply."""
    return WholeKernels(np.zeros(n_values), np.zeros(n_values))


def whole_kernels(
    program: p.Program, fusion: Fusion, *, root: np.ndarray, value_bytes: np.ndarray
) -> WholeKernels:
    """Work out the kernels.

    Args:
        program: the program.
        fusion: its kernels.
        root: [V] the value that each value is a view of.
        value_bytes: [V] of each value as it is kept.
    """
    whole = no_whole_kernels(program.n_values)
    for op in range(program.n_arguments, program.n_ops):
        if not fusion.soft[op] or program.op_class[op] != p.ELEMENTWISE:
            continue
        for value in program.results(op):
            readers = fusion.consumers[value]
            if fusion.written[value] or program.value_is_constant[value] or len(readers) < 2:
                continue
            sources, ops = _fused_with(program, fusion, root, op)
            whole.bytes[value] = value_bytes[value] + sum(value_bytes[list(sources)])
            # Exact, in whatever order: layers that are alike must get the very same number.
            whole.steps[value] = math.fsum(
                op_kind(program.kind[maker]).vector_steps
                * float(fusion.elements[program.results(maker)[0]])
                / NUMBERS
                for maker in ops
            )
    return whole


def _fused_with(
    program: p.Program, fusion: Fusion, root: np.ndarray, op: int
) -> tuple[set[int], set[int]]:
    """What is in memory of all that an op is computed of, and the ops that are computed with it."""
    sources, ops, left = set[int](), {op}, [op]
    while left:
        for operand in program.operands(left.pop()):
            value = int(root[operand])
            maker = int(program.value_op[value])
            if fusion.written[value] or maker < program.n_arguments:
                sources.add(value)
            elif maker not in ops and not program.value_is_constant[value]:
                ops.add(maker)
                left.append(maker)
    return sources, ops

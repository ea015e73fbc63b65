"""What a loop reads that was there before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p


class LoopUse(NamedTuple):
    """A use in a loop of a value from before it."""

    use: int
    source: int  #: the value in memory that is read
    loop: int  #: body of the outermost loop that the value is not made in


def loop_uses(
    program: p.Program, *, root: np.ndarray, reads: np.ndarray, written: np.ndarray
) -> Iterator[LoopUse]:
    """Find them.

    Args:
        program: the program.
        root: [V] the value that each value is a view of.
        reads: [U] is 0 where a use reads no memory, or only a part of the value.
        written: [V] bool: in memory; what is not is made of what is, on the way.
    """
    for use in np.flatnonzero((reads > 0.0) & (program.region[program.use_op] >= 0)).tolist():
        source = _source(program, int(program.use_value[use]), root, written)
        loop = _loop(program, int(program.use_op[use]), int(program.value_op[source]))
        if loop >= 0:
            yield LoopUse(use, source, loop)


def _source(program: p.Program, value: int, root: np.ndarray, written: np.ndarray) -> int:
    """What a value is made of that is not written: a transposed matrix, of the matrix."""
    value = int(root[value])
    while (
        not written[value] and len(operands := program.operands(int(program.value_op[value]))) == 1
    ):
        value = int(root[operands[0]])
    return value


def _loop(program: p.Program, op: int, maker: int) -> int:
    """The outermost body of a loop that an op is in and ``maker`` is not; -1 if there is none."""
    outermost, region = -1, int(program.region[op])
    while region >= 0:
        parent = program.regions[region].parent
        if program.regions[region].kind == "body" and maker < program.regions[parent].begin:
            outermost = region
        region = parent
    return outermost

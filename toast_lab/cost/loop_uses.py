"""Uses in loops of values from before the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p


class LoopUse(NamedTuple):
    """A use in a loop of a value from before it."""

    use: int
    source: int  #: the value in memory that is read
    loop: int  #: body of the outermost loop that does not make the value


def loop_uses(
    program: p.Program, *, root: np.ndarray, reads: np.ndarray, written: np.ndarray
) -> Iterator[LoopUse]:
    """Find all uses in loops of values from before the loop.

    Args:
        program: the program.
        root: [V] the value that each value is a view of.
        reads: [U] is 0 where a use reads no memory, or only a part of the value.
        written: [V] bool: in memory; other values are computed from these on the way.
    """
    for use in np.flatnonzero((reads > 0.0) & (program.region[program.use_op] >= 0)).tolist():
        source = _source(program, int(program.use_value[use]), root, written)
        loop = _loop(program, int(program.use_op[use]), int(program.value_op[source]))
        if loop >= 0:
            yield LoopUse(use, source, loop)


def _source(program: p.Program, value: int, root: np.ndarray, written: np.ndarray) -> int:
    """The value in memory from which a value is made: the matrix, for a transpose of it."""
    value = int(root[value])
    while (
        not written[value] and len(operands := program.operands(int(program.value_op[value]))) == 1
    ):
        value = int(root[operands[0]])
    return value


def _loop(program: p.Program, op: int, maker: int) -> int:
    """The outermost loop body that contains an op but not ``maker``; -1 if there is none."""
    outermost, region = -1, int(program.region[op])
    while region >= 0:
        parent = program.regions[region].parent
        if program.regions[region].kind == "body" and maker < program.regions[parent].begin:
            outermost = region
        region = parent
    return outermost

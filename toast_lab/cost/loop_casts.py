"""What a TPU casts to bfloat16 once, in front of a loop that reads it in every round.

A product of one pass multiplies in bfloat16.  Outside loops it reads f32 operands as they are and
casts them on the way.  The compiler moves the cast of a matrix that was there before a loop out of
the loop: the matrix is read and a copy of half its size written once, and every round reads half
the bytes.  It casts for each product by itself, and the value as it is kept: where a plan takes a
part of a whole value inside the loop, the whole is cast.

Read off libtpu 0.0.42 for v3 and v5e on a solver of linear equations, ``docs/machines.md``.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.bfloat16 import Narrowed
from toast_lab.cost.loop_uses import loop_uses
from toast_lab.ir import program as p
from toast_lab.packs import Float64Array

#: Bytes that a round reads of a cast matrix, for one of it in f32.
READ = 0.5
#: Bytes that the cast reads and writes, for one of the matrix in f32.
CAST = 1.5


def cast_rounds(
    program: p.Program,
    narrow: Narrowed,
    *,
    root: np.ndarray,
    reads: np.ndarray,
    written: np.ndarray,
) -> Float64Array:
    """[U] rounds that read what is cast once in front of their loop; 0 where nothing is.

    Args:
        program: the program.
        narrow: as ``bfloat16.narrowed`` finds.  What it keeps in bfloat16 needs no cast.
        root: [V] the value that each value is a view of.
        reads: [U] is 0 where a use reads no memory, or only a part of the value.
        written: [V] bool: in memory.
    """
    rounds = np.zeros(program.n_uses)
    takes_half = np.asarray(narrow.ops, bool)[program.use_op]
    for use, source, _ in loop_uses(program, root=root, reads=reads, written=written):
        is_wide = program.value_dtype[source] == "f32" and not narrow.values[source]
        if takes_half[use] and is_wide:
            trips_before = program.trips[int(program.value_op[source])]
            rounds[use] = program.trips[int(program.use_op[use])] / trips_before
    return rounds

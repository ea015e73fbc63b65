"""Values that a TPU casts to bfloat16 once, in front of a loop that reads them in every round.

A product of one pass multiplies in bfloat16. Outside loops it reads f32 operands as they are and
casts them on the way. If a matrix was made before a loop, the compiler moves its cast out of the
loop: the matrix is read and a copy of half its size written once, and every round reads half the
bytes. It casts separately for each product, and casts the value as it is kept: if a plan takes a
part of a whole value inside the loop, all of it is cast.

Read off libtpu 0.0.42 for v3 and v5e on a solver of linear equations, ``docs/machines.md``.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.bfloat16 import Narrowed
from toast_lab.cost.loop_uses import loop_uses
from toast_lab.ir import program as p
from toast_lab.packs import Float64Array

#: Bytes that a round reads of a cast matrix, for each byte of it in f32.
READ_BYTES_RATIO = 0.5
#: Bytes that the cast reads and writes, for each byte of the matrix in f32.
CAST_BYTES_RATIO = 1.5


def cast_rounds(
    program: p.Program,
    narrow: Narrowed,
    *,
    root: np.ndarray,
    reads: np.ndarray,
    written: np.ndarray,
) -> Float64Array:
    """[U] rounds that read a value cast once in front of their loop; 0 where none is.

    Args:
        program: the program.
        narrow: from ``bfloat16.narrowed``. A value that is kept in bfloat16 needs no cast.
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

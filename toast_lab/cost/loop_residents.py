"""Values that stay on the chip while a loop runs.

A TPU's vector memory holds 128 MiB on v5e and v6e. Its compiler loads the weights that every round
of a loop reads into it once, and keeps the sums of gradients there that every round adds to: a
recurrent step that would read its weights from memory in each of its rounds reads them only once.

We cannot know what else the compiler keeps, and a price looks at one op at a time. So each loop
shares out its room: first to values that are only read, then to sums, in proportion to their sizes.
A value stays if a plan cuts it into at least as many parts as all values of its kind in the loop
would have to be cut into.

Read off libtpu 0.0.42 for v5e (memory space ``S(1)`` in its final HLO) on recurrent steps and a
solver of linear equations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from toast_lab.cost.loop_sums import Accumulation
from toast_lab.cost.loop_uses import loop_uses
from toast_lab.ir import program as p
from toast_lab.packs import Float64Array

#: Share of the vector memory for such values; ops need the rest to work in.
RESIDENT_ROOM = 0.8
#: Time for a byte in vector memory over that for one in memory: products read 2 to 9 TB/s on v5e.
RESIDENT_TIME_RATIO = 0.15


class Residents(NamedTuple):
    """Which uses and results stay in vector memory, if they are cut into enough parts."""

    use_parts: Float64Array  #: [U] least number of parts, 0: it never stays
    use_share: Float64Array  #: [U] share of the time of reading memory, if it stays
    result_parts: Float64Array  #: [O] least number of parts for what an op writes


def no_residents(program: p.Program) -> Residents:
    """For machines without such a memory."""
    return Residents(
        use_parts=np.zeros(program.n_uses),
        use_share=np.ones(program.n_uses),
        result_parts=np.zeros(program.n_ops),
    )


def residents(
    program: p.Program,
    *,
    root: np.ndarray,
    reads: np.ndarray,
    written: np.ndarray,
    value_bytes: np.ndarray,
    accumulating: Mapping[int, Accumulation],
    vector_memory_bytes: float,
) -> Residents:
    """Find the uses and results that can stay in vector memory.

    Args:
        program: the program.
        root: [V] the value that each value is a view of.
        reads: [U] is 0 where a use reads no memory, or only a part of the value.
        written: [V] bool: in memory; other values are computed from these on the way.
        value_bytes: [V] bytes of each value as products read it.
        accumulating: see ``loop_sums.accumulating_ops``.
        vector_memory_bytes: vector memory of a device.
    """
    staying = no_residents(program)
    room_bytes = RESIDENT_ROOM * vector_memory_bytes
    read_only: dict[int, set[int]] = defaultdict(set)
    loop_of: dict[int, int] = {}
    for use, value, loop in loop_uses(program, root=root, reads=reads, written=written):
        loop_of[use] = loop
        read_only[loop].add(value)
    read_bytes = {
        loop: float(value_bytes[list(values)].sum()) for loop, values in read_only.items()
    }
    for use, loop in loop_of.items():
        rounds = program.regions[loop].times
        staying.use_parts[use] = read_bytes[loop] / room_bytes
        staying.use_share[use] = min(RESIDENT_TIME_RATIO + 1.0 / rounds, 1.0)
    sum_bytes: dict[int, float] = defaultdict(float)
    for op, accumulation in accumulating.items():
        sum_bytes[int(program.region[op])] += float(value_bytes[accumulation.value])
    for op, accumulation in accumulating.items():
        body = int(program.region[op])
        parts = (read_bytes.get(body, 0.0) + sum_bytes[body]) / room_bytes
        staying.result_parts[op] = parts
        for use in program.uses(op):
            if int(program.use_value[use]) == accumulation.value:
                staying.use_parts[use], staying.use_share[use] = parts, RESIDENT_TIME_RATIO
    return staying

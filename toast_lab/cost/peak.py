"""What is in memory when memory peaks: tensor by tensor, with the op that made each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.facts import Memory
from toast_lab.cost.kernel import BROUGHT, Prices
from toast_lab.ir.program import Program

ARGUMENT, TENSOR, COPY, WORK = "argument", "tensor", "copy", "work space"


class Held(NamedTuple):
    """One thing in memory at some op."""

    #: ARGUMENT, TENSOR, COPY (brought by a collective for uses) or WORK (only while an op runs)
    what: str
    value: str  #: name of the value, "" for work space
    op: int  #: the op that made it, that it was brought for, or that needs the space
    where: str  #: source line of that op
    bytes: float  #: on one device


def held_at(
    program: Program, m: Memory, found: Prices, size: np.ndarray, last: np.ndarray, op: int
) -> list[Held]:
    """What is alive at ``op``, largest first; adds up to the bytes alive there.

    Args:
        program: the program.
        m: its memory, not folded.
        found: prices of a state.
        size: [V] bytes of each value on a device, as ``live_bytes`` leaves it.
        last: [U] last op of each copy, as ``live_bytes`` leaves it.
        op: where; ``n_ops`` is the end.
    """
    held = []
    given_away = False  # one operand's place goes to the result
    for b in np.flatnonzero((m.buffer_start <= op) & (m.buffer_end >= op)).tolist():
        value, heir = int(m.buffer_value[b]), int(m.buffer_heir[b])
        if (
            int(m.buffer_end[b]) == op
            and heir >= 0
            and size[heir] == size[value]
            and not given_away
        ):
            given_away = True
            continue
        maker = int(program.value_op[value])
        what = ARGUMENT if maker < program.n_arguments else TENSOR
        held.append(
            Held(what, program.value_name[value], maker, program.where(maker), float(size[value]))
        )
    brought = np.flatnonzero(found.copied == BROUGHT)
    for use in brought[(m.use_from[brought] <= op) & (last[brought] >= op)].tolist():
        user = int(m.use_op[use])
        name = program.value_name[int(m.use_value[use])]
        held.append(Held(COPY, name, user, program.where(user), float(found.copy_bytes[use])))
    needs = np.flatnonzero(found.passing_bytes > 0)
    for at in needs[m.runs_at[needs] == op].tolist():
        held.append(Held(WORK, "", at, program.where(at), float(found.passing_bytes[at])))
    return sorted((h for h in held if h.bytes > 0), key=lambda h: -h.bytes)

"""What is in memory when memory peaks: tensor by tensor, with the op that made each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.cost.buffers import Memory
from toast_lab.cost.price_inputs import BROUGHT, Lifetimes, Prices
from toast_lab.ir.program import Program

ARGUMENT, TENSOR, COPY, WORK = "argument", "tensor", "copy", "work space"
VECTOR = "in vector memory"
RESERVED = "kept for results"


class Held(NamedTuple):
    """A tensor, a copy or work space in memory at some op."""

    #: ARGUMENT, TENSOR, COPY (brought by a collective for uses), WORK (only while an op runs),
    #: RESERVED: the place, or what is free of it, of a result of the program that comes later, or
    #: VECTOR: what of the others a TPU has in its vector memory, to be taken off
    kind: str
    value: str  #: name of the value, "" for work space and vector memory
    op: int  #: the op that made it, that it was brought for, or that needs the space
    where: str  #: source line of that op
    bytes: float  #: on one device; negative for VECTOR


def held_at(
    program: Program, memory: Memory, prices: Prices, lives: Lifetimes, op: int
) -> list[Held]:
    """What is alive at ``op``, largest first; adds up to the bytes in memory there.

    Args:
        program: the program.
        memory: of the program, not folded.
        prices: of a state.
        lives: of the state, as ``live_bytes`` leaves it.
        op: where; ``n_ops`` is the end.
    """
    size = lives.size
    held = []
    given_away = False  # one operand's place goes to the result
    start, end = _spans(memory, prices, lives)
    for buffer in np.flatnonzero((start <= op) & (end >= op)).tolist():
        value, heir = int(memory.buffer_value[buffer]), int(memory.buffer_heir[buffer])
        if (
            int(end[buffer]) == int(memory.buffer_end[buffer]) == op
            and heir >= 0
            and size[heir] == size[value]
            and not given_away
        ):
            given_away = True
            continue
        maker = int(program.value_op[value])
        held.append(
            Held(
                kind=ARGUMENT if maker < program.n_arguments else TENSOR,
                value=program.value_name[value],
                op=maker,
                where=program.where(maker),
                bytes=float(size[value]),
            )
        )
    brought = np.flatnonzero(prices.copied == BROUGHT)
    for use in brought[(memory.use_from[brought] <= op) & (lives.last[brought] >= op)].tolist():
        user = int(memory.use_op[use])
        held.append(
            Held(
                kind=COPY,
                value=program.value_name[int(memory.use_value[use])],
                op=user,
                where=program.where(user),
                bytes=float(prices.copy_bytes[use]),
            )
        )
    needs = np.flatnonzero(prices.passing_bytes > 0)
    for working_op in needs[memory.runs_at[needs] == op].tolist():
        held.append(
            Held(
                kind=WORK,
                value="",
                op=working_op,
                where=program.where(working_op),
                bytes=float(prices.passing_bytes[working_op]),
            )
        )
    if lives.near[op] > 0.0:
        at = min(op, program.n_ops - 1)
        held.append(
            Held(
                kind=VECTOR,
                value="",
                op=at,
                where=program.where(at),
                bytes=-float(lives.near[op]),
            )
        )
    rest_bytes = float(lives.reserved[op])
    to_come = memory.buffer_value[memory.buffer_result & (start > op)]
    for value in sorted(to_come.tolist(), key=lambda value: -size[value]):
        maker, kept_bytes = int(program.value_op[value]), min(rest_bytes, float(size[value]))
        rest_bytes -= kept_bytes
        held.append(
            Held(
                kind=RESERVED,
                value=program.value_name[value],
                op=maker,
                where=program.where(maker),
                bytes=kept_bytes,
            )
        )
    return sorted((part for part in held if part.bytes != 0), key=lambda part: -part.bytes)


def _spans(memory: Memory, prices: Prices, lives: Lifetimes) -> tuple[np.ndarray, np.ndarray]:
    """[B] first and last op at which a buffer is alive under a plan, as ``live_bytes`` has it."""
    start, end = memory.buffer_start, memory.buffer_end
    if lives.waiting[0]:
        read_late, written_late = (
            (product >= 0) & (prices.summed[product] == 1)
            for product in (memory.buffer_read_late, memory.buffer_written_late)
        )
        start = np.where(written_late, np.maximum(start, memory.late_op), start)
        end = np.where(read_late, np.maximum(end, memory.late_op - 1), end)
    return start, end


def largest(held: Sequence[Held], most: int) -> list[Held]:
    """The first ``most`` of what ``held_at`` gives, and what vector memory takes off."""
    return [*held[:most], *(part for part in held[most:] if part.kind == VECTOR)]

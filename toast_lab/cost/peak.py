"""What is in memory when memory peaks: tensor by tensor, with the op that made each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.cost.buffers import Memory
from toast_lab.cost.price_inputs import BROUGHT, Lifetimes, Prices
from toast_lab.ir.program import Program

ARGUMENT, TENSOR, COPY, WORK = "argument", "tensor", "copy", "work space"
COMPUTED_AGAIN = "computed again"
IN_VECTOR_MEMORY = "in vector memory"
KEPT_FOR_RESULTS = "kept for results"


class Held(NamedTuple):
    """A tensor, a copy or work space in memory at some op."""

    #: ARGUMENT, TENSOR, COMPUTED_AGAIN (for the backward pass), COPY (brought by a collective for
    #: uses), WORK (only while an op runs), KEPT_FOR_RESULTS (the unused part of the memory of a
    #: later result of the program), or IN_VECTOR_MEMORY (bytes of the others that a TPU has there,
    #: to be subtracted)
    kind: str
    value: str  #: name of the value, "" for work space and vector memory
    op: int  #: the op that made it, for which it was brought, or that needs the space
    where: str  #: source line of that op
    bytes: float  #: on one device; negative for VECTOR


def held_at(
    program: Program, memory: Memory, prices: Prices, lives: Lifetimes, op: int
) -> list[Held]:
    """What is alive at ``op``, largest first; adds up to the bytes in memory there.

    Args:
        program: the program.
        memory: live ranges of the program, not folded.
        prices: prices of a state.
        lives: lifetimes of the state, as ``live_bytes`` fills them.
        op: the op to look at; ``n_ops`` is the end.
    """
    size = lives.size
    held = []
    given_away = False  # one operand leaves its memory to the result
    start, end = _spans(memory, prices, lives)
    for buffer in np.flatnonzero((start <= op) & (end >= op)).tolist():
        value, heir = int(memory.buffers.value[buffer]), int(memory.buffers.heir[buffer])
        if (
            int(end[buffer]) == int(memory.buffers.end[buffer]) == op
            and heir >= 0
            and size[heir] == size[value]
            and not given_away
        ):
            given_away = True
            continue
        maker = int(program.value_op[value])
        held.append(
            Held(
                kind=_kind_of_values_by(program, maker),
                value=program.value_name[value],
                op=maker,
                where=program.where(maker),
                bytes=float(size[value]),
            )
        )
    brought = np.flatnonzero(prices.copied == BROUGHT)
    for use in brought[(memory.use_op[brought] <= op) & (lives.last[brought] >= op)].tolist():
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
    working_ops = np.flatnonzero(prices.passing_bytes > 0)
    for working_op in working_ops[memory.runs_at[working_ops] == op].tolist():
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
        last_op = min(op, program.n_ops - 1)
        held.append(
            Held(
                kind=IN_VECTOR_MEMORY,
                value="",
                op=last_op,
                where=program.where(last_op),
                bytes=-float(lives.near[op]),
            )
        )
    reserved_bytes = float(lives.reserved[op])
    later_results = memory.buffers.value[memory.buffers.result & (start > op)]
    for value in sorted(later_results.tolist(), key=lambda value: -size[value]):
        maker, kept_bytes = int(program.value_op[value]), min(reserved_bytes, float(size[value]))
        reserved_bytes -= kept_bytes
        held.append(
            Held(
                kind=KEPT_FOR_RESULTS,
                value=program.value_name[value],
                op=maker,
                where=program.where(maker),
                bytes=kept_bytes,
            )
        )
    return sorted((row for row in held if row.bytes != 0), key=lambda row: -row.bytes)


def _kind_of_values_by(program: Program, op: int) -> str:
    if op < program.n_arguments:
        return ARGUMENT
    return COMPUTED_AGAIN if program.is_computed_again(op) else TENSOR


def _spans(memory: Memory, prices: Prices, lives: Lifetimes) -> tuple[np.ndarray, np.ndarray]:
    """[B] first and last op at which a buffer is alive under a plan, as ``live_bytes`` has it."""
    start, end = memory.buffers.start, memory.buffers.end
    if lives.run_late[0]:
        read_late, written_late = (
            (product >= 0) & (prices.summed[product] == 1)
            for product in (memory.buffers.read_late, memory.buffers.written_late)
        )
        start = np.where(written_late, np.maximum(start, memory.late_op), start)
        end = np.where(read_late, np.maximum(end, memory.late_op - 1), end)
    return start, end


def largest(held: Sequence[Held], most: int) -> list[Held]:
    """The first ``most`` rows of ``held_at``, and the row that vector memory subtracts."""
    return [*held[:most], *(row for row in held[most:] if row.kind == IN_VECTOR_MEMORY)]

"""Work of a TPU's vector unit that takes longer than the reads and writes of its kernel.

A kernel waits for what it reads, and a matrix product for its matrix unit; beside that, additions,
exponentials and the like take no time. Sines, error functions and the like do: their kernel takes
as long as they do. So do slices of one value at several offsets, as a stencil reads them.
Reference: read off kernels of libtpu, see docs/machines.md; TOAST section 4.5 counts dot and
convolution only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.fusion import Fusion
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind

NUMBERS = 1024.0  #: how many a vector unit works on at once
#: Steps for all other work on as many numbers: in kernels of products, and in all others.
_BESIDE_PRODUCT, _BESIDE = 4.4, 1.4
#: Steps to bring as many numbers to another place among lanes and rows, beyond reading them.
_SHIFT = 10.0


class VectorWork(NamedTuple):
    """Work by the op that heads a kernel, with all dims whole; 0 where it takes no time."""

    steps: np.ndarray  #: [O] float64 steps of the vector unit
    #: [O] float64 bytes that other ops of the kernel read meanwhile; their time is with those ops
    read_bytes: np.ndarray


def no_vector_work(n_ops: int) -> VectorWork:
    """For machines to which this does not apply."""
    return VectorWork(np.zeros(n_ops), np.zeros(n_ops))


def vector_work(program: p.Program, fusion: Fusion, value_bytes: np.ndarray) -> VectorWork:
    """Compute the vector work of the kernels of a program.

    Args:
        program: the program.
        fusion: its kernels.
        value_bytes: [V] bytes of each value as it is kept.
    """
    work, numbers = no_vector_work(program.n_ops), np.zeros(program.n_ops)
    heads = heads_of_kernels(program, fusion)
    for op in range(program.n_arguments, program.n_ops):
        cost = op_kind(program.kind[op]).vector_steps
        if not cost or len(program.results(op)) != 1:
            continue
        size = float(fusion.elements[program.results(op)[0]])
        head = heads[op]
        work.steps[head] += cost * size
        numbers[head] = max(numbers[head], size)
    shifting = _shifts(program, fusion)
    if not numbers.any():
        return work._replace(steps=shifting)
    beside = np.where(fusion.product, _BESIDE_PRODUCT, _BESIDE)
    read_bytes = fusion.reads * value_bytes[program.use_value]
    for op in range(program.n_arguments, program.n_ops):
        head = heads[op]
        if head != op and numbers[head]:
            work.read_bytes[head] += sum(read_bytes[use] for use in program.uses(op))
    return work._replace(steps=(work.steps + beside * numbers) / NUMBERS + shifting)


def _shifts(program: p.Program, fusion: Fusion) -> np.ndarray:
    """[O] steps of slices at several offsets, each by itself: equal slices are one.

    They stay with the slice and not with its kernel, since a device that cuts the kernel's result
    along a sliced dim still makes all of the slice.
    """
    steps, known = np.zeros(program.n_ops), set[tuple[int, str]]()
    for op in np.flatnonzero(fusion.shifted).tolist():
        key = (program.operands(op)[0], program.detail[op])
        if key not in known:
            known.add(key)
            steps[op] = _SHIFT * fusion.elements[program.results(op)[0]] / NUMBERS
    return steps


def heads_of_kernels(program: p.Program, fusion: Fusion) -> list[int]:
    """[O] head of the first kernel that computes an op: costly ops are computed only once."""
    heads: list[int] = fusion.head.tolist()
    for op in range(program.n_ops - 1, program.n_arguments - 1, -1):
        if heads[op] != op or not fusion.computable_in_parts[op]:
            continue
        (result,) = program.results(op)
        first = min(fusion.consumers[result], default=program.n_ops)
        if not fusion.written[result] and first < program.n_ops:
            heads[op] = heads[first]
    return heads

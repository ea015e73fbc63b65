"""Work of a GPU where tensors are joined out of step with its warps.

A warp computes 32 neighbouring numbers. If the parts that are joined do not begin at multiples of
32, as in a roll along the last dim, a warp may need numbers of two parts, and goes through the code
of both. Kernels of 8 or 16-bit numbers wait for that rather than for memory. A joined value that is
read at several offsets is joined once for each.

Reference: XLA's cost model for GPUs counts 400 operations a number; docs/machines.md.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.fusion import Fusion
from toast_lab.cost.shifts import readings, shifts
from toast_lab.cost.vector_work import NUMBERS, VectorWork, heads_of_kernels, no_vector_work
from toast_lab.ir import program as p

_WARP = 32


def joined_rows(
    program: p.Program, fusion: Fusion, *, root: np.ndarray, value_bytes: np.ndarray
) -> VectorWork:
    """Compute the work of joining tensors, one step for 1,024 numbers.

    Args:
        program: the program.
        fusion: its kernels.
        root: [V] the value in whose memory each value is.
        value_bytes: [V] bytes of each value as it is kept.
    """
    work = no_vector_work(program.n_ops)
    joins = [op for op in program.ops() if _is_out_of_step(program, op)]
    if not joins:
        return work
    heads = heads_of_kernels(program, fusion)
    read = readings(
        program, root=root.tolist(), consumers=fusion.consumers, elements=fusion.elements.tolist()
    )
    for op in joins:
        (value,) = program.results(op)
        times = 1.0 if fusion.written[value] else _times_joined(program, fusion, op, read)
        work.steps[heads[op]] += times * fusion.elements[value] / NUMBERS
    read_bytes = fusion.reads * value_bytes[program.use_value]
    for op in range(program.n_arguments, program.n_ops):
        if heads[op] != op and work.steps[heads[op]]:
            work.read_bytes[heads[op]] += sum(read_bytes[use] for use in program.uses(op))
    return work


def _times_joined(program: p.Program, fusion: Fusion, op: int, read: list[float]) -> float:
    """How often a value that is not written is joined for its readers.

    A slice of one part needs no other one, and is cut out of that.
    """
    (value,), dim = program.results(op), int(program.detail[op])
    borders = np.cumsum(_part_sizes(program, op, dim))
    in_place, shifted = 0.0, 0.0
    for consumer in fusion.consumers[value]:
        if consumer == program.n_ops or not shifts(program, consumer):
            in_place = 1.0
            continue
        (result,) = program.results(consumer)
        if program.kind[consumer] == "concatenate" and int(program.detail[consumer]) == dim:
            continue  # both become one op, which counts
        begin, end = 0, int(borders[-1])
        if program.kind[consumer] == "slice":
            begin, end = _range(program.detail[consumer], dim, end)
        if np.searchsorted(borders, begin, "right") != np.searchsorted(borders, end - 1, "right"):
            shifted += max(1.0, read[result]) * (end - begin) / borders[-1]
    return in_place + shifted


def _part_sizes(program: p.Program, op: int, dim: int) -> list[int]:
    """Sizes along ``dim`` of the parts that are joined, those of parts that are joined included."""
    sizes = list[int]()
    for operand in program.operands(op):
        maker = int(program.value_op[operand])
        if program.kind[maker] == "concatenate" and int(program.detail[maker]) == dim:
            sizes += _part_sizes(program, maker, dim)
        else:
            sizes.append(program.dims(operand)[dim])
    return sizes


def _range(detail: str, dim: int, size: int) -> tuple[int, int]:
    """The numbers along ``dim`` of which a slice takes some; its detail leaves whole dims out."""
    for part in detail.split(","):
        sliced, begin, end, *_ = (*map(int, part.split(":")), 0, 0) if part else (-1, 0, 0)
        if sliced == dim:
            return begin, end
    return 0, size


def _is_out_of_step(program: p.Program, op: int) -> bool:
    """Does an op join tensors along a dim other than the first, not at a multiple of 32?"""
    if program.kind[op] != "concatenate":
        return False
    dim = int(program.detail[op])
    return dim > 0 and program.dims(program.operands(op)[0])[dim] % _WARP > 0

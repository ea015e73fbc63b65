"""Numbers that a kernel brings to another place before it computes with them, as stencils do.

On a TPU slices of one value at several offsets, which are computed on the way into a kernel, have
to be moved among lanes and rows, and the kernel takes as long as that.

On a GPU a warp computes 32 neighbouring numbers. If the parts that are joined do not begin at
multiples of 32, as in a roll along the last dim, a warp may need numbers of two parts, and goes
through the code of both. Kernels of 8 or 16-bit numbers wait for that rather than for memory. A
joined value that is read at several offsets is joined once for each.

Reference: none; read off libtpu 0.0.42.1 for v5e, and XLA's cost model for GPUs, which counts 400
operations a number; docs/machines.md.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.fusion import Fusion
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.cost.shifts import readings, shifts
from toast_lab.ir import program as p

_WARP = 32


def _columns(fused: FusedProgram) -> Columns:
    """Numbers by the op that heads a kernel, with all dims whole.

    And the bytes that other ops of the kernel read meanwhile, whose time is with those ops.
    """
    numbers, read_bytes = _joined(fused) if fused.compiler == "gpu" else _sliced(fused)
    return {"op.shifted_numbers": numbers, "op.shifted_read_bytes": read_bytes}


def _sliced(fused: FusedProgram) -> tuple[np.ndarray, np.ndarray]:
    """Slices at several offsets, each by itself: equal slices are one.

    They stay with the slice and not with its kernel, since a device that cuts the kernel's result
    along a sliced dim still makes all of the slice.
    """
    program, fusion = fused.program, fused.fusion
    numbers, known = np.zeros(program.n_ops), set[tuple[int, str]]()
    for op in np.flatnonzero(fusion.shifted).tolist():
        key = (program.operands(op)[0], program.detail[op])
        if key not in known:
            known.add(key)
            numbers[op] = fusion.elements[program.results(op)[0]]
    return numbers, np.zeros(program.n_ops)


def _joined(fused: FusedProgram) -> tuple[np.ndarray, np.ndarray]:
    """Tensors that are joined out of step with warps."""
    program, fusion = fused.program, fused.fusion
    numbers, read_bytes = np.zeros(program.n_ops), np.zeros(program.n_ops)
    joins = [op for op in program.ops() if _is_out_of_step(program, op)]
    if not joins:
        return numbers, read_bytes
    heads = _heads_of_kernels(program, fusion)
    read = readings(
        program,
        root=fused.root.tolist(),
        consumers=fusion.consumers,
        elements=fusion.elements.tolist(),
    )
    for op in joins:
        (value,) = program.results(op)
        times = 1.0 if fusion.written[value] else _times_joined(program, fusion, op, read)
        numbers[heads[op]] += times * fusion.elements[value]
    use_bytes = fusion.reads * fused.kept_bytes[program.use_value]
    for op in range(program.n_arguments, program.n_ops):
        if heads[op] != op and numbers[heads[op]]:
            read_bytes[heads[op]] += sum(use_bytes[use] for use in program.uses(op))
    return numbers, read_bytes


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


def _heads_of_kernels(program: p.Program, fusion: Fusion) -> list[int]:
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


SHIFTED_NUMBERS = PriceRule(
    name="shifted_numbers",
    family="computing",
    says="Slices at several offsets (TPU) and joins out of step with warps (GPU) take time.",
    source="libtpu 0.0.42.1 for v5e, ten steps of stencils; XLA's cost model for GPUs",
    compilers=("tpu", "gpu"),
    off={"op.shifted_numbers": 0.0, "op.shifted_read_bytes": 0.0},
    columns=_columns,
)

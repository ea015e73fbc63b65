"""Ragged products: what compilers multiply for them, and copy.

A ragged product needs each row multiplied by one group of the weight alone. XLA rewrites it to a
plain product over all groups, in which the rows of other groups are masked with zeros: as many
times the FLOPs as there are groups. Its compiler for GPUs writes the masked operands to memory,
a copy for each group, before the product reads them. libtpu has a tiled kernel instead, which
visits the tiles of each group alone, but none for gradients of weights, where the ragged dim is
contracted: these are a product over all groups there too, masked as it is read.

Read off modules that libtpu 0.0.42.1 compiles for v5e and XLA for H100, of 32768 rows, 8 groups,
2048 and 8192 features in f32 and bf16, forward and both gradients: on v5e 1, 1 and 8 times the
needed FLOPs; on H100 8 times for each, after copies of 8 times the rows, which gradients of weights
have on both sides. Reference: none, the paper has no ragged products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.attributes import RAGGED_BATCH, RAGGED_CONTRACTION
from toast_lab.text import counted, line_text

_RAGGED = "chlo.ragged_dot"
#: Kernels that multiply each row by its own group alone, in both directions
_KERNELS = {
    "tpu": "the kernel jax.experimental.pallas.ops.tpu.megablox.gmm",
    "gpu": "a grouped kernel such as jax.experimental.pallas.ops.gpu.ragged_dot_mgpu",
}


class MaskedCopies(NamedTuple):
    """Copies of operands for each group that are written before a product; 0 for other ops."""

    masked_left: np.ndarray  #: [O] float64 bytes of those of the first operand ...
    masked_right: np.ndarray  #: [O] ... and of the second


def groups_multiplied(program: p.Program, compiler: str) -> np.ndarray:
    """[O] float64 with how many groups a row is multiplied; 1 for other ops."""
    groups = np.ones(program.n_ops)
    for op in _masked_ops(program, compiler):
        groups[op] = _group_count(program, op)
    return groups


def masked_copies(
    program: p.Program, kept_bytes: np.ndarray, compiler: str, *, masks: bool = True
) -> MaskedCopies:
    """Bytes of the copies that a compiler makes if it masks, for ``kept_bytes`` [V] of values."""
    copies = MaskedCopies(np.zeros(program.n_ops), np.zeros(program.n_ops))
    for op in _masked_ops(program, compiler) if masks and compiler == "gpu" else ():
        left, right, *_ = program.operands(op)
        copies.masked_left[op] = _group_count(program, op) * kept_bytes[left]
        if program.detail[op] == RAGGED_CONTRACTION:
            copies.masked_right[op] = _group_count(program, op) * kept_bytes[right]
    return copies


def ragged_notes(program: p.Program, compiler: str) -> tuple[str, ...]:
    """A sentence on the ragged products that a compiler multiplies over all groups, if any."""
    masked = [(part, op) for part in _parts(program) for op in _masked_ops(part, compiler)]
    if not masked or compiler not in _KERNELS:
        return ()
    first, *others = dict.fromkeys(line_text(part.where(op)) for part, op in masked)
    more = f" and {counted(len(others), 'other line')}" if others else ""
    kind = "gradients of ragged products" if compiler == "tpu" else "ragged products"
    times = max(_group_count(part, op) for part, op in masked)
    return (
        f"{kind} at {first}{more} are multiplied over all groups, {times:g} times the FLOPs that "
        f"they need; {_KERNELS[compiler]} avoids that",
    )


def _parts(program: p.Program) -> Iterator[p.Program]:
    """A program and the bodies of its ``shard_map``s."""
    yield program
    for shard_map in program.shard_maps:
        yield from _parts(shard_map.body)


def _masked_ops(program: p.Program, compiler: str) -> list[int]:
    """The ragged products that a compiler makes one over all groups.

    Where the batch is ragged there are no groups of the weight.
    """
    return [
        op
        for op, kind in enumerate(program.kind)
        if kind == _RAGGED
        and len(program.operands(op)) > 2
        and program.detail[op] != RAGGED_BATCH
        and (compiler != "tpu" or program.detail[op] == RAGGED_CONTRACTION)
    ]


def _group_count(program: p.Program, op: int) -> float:
    return float(program.dims(program.operands(op)[2])[-1])

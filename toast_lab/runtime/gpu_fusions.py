"""What a fusion takes on a GPU, by XLA's own analysis of it and what an H100 makes of that.

XLA says of every fusion what its operations and its bytes would take by the description of the GPU
(``reification_cost``: one entry for each of its cost models).  Held against the kernels of an H100
(docs/measured.md), its bytes are right where each is read once, and the rest is not:

* Operations take a fifth or less of what it says: a sine, a tanh or an exponential is computed
  while the next bytes come, where XLA has them take up to seven times as long.
* Bytes that it has read several times come out of the cache: no fusion takes longer than its
  operands and its result take to come and go once.
* Scatters write into their operand; XLA has all of it read and written.
* Triton's fusions (softmax, normalisations) take "10 ns" in its table; another of its models, by
  indices, is as good for them as the usual one for others.
* A kernel takes about a microsecond before it does anything.

Sorts, convolutions and Fourier transforms are no fusions and have no time at all.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from toast_lab.runtime import hlo
from toast_lab.runtime.hlo_text import Computation, Instruction, Module

#: What a kernel takes that reads and writes next to nothing, read off 58 kernels of 1 to 3 us.
KERNEL_S = 1.1e-6
#: Share of XLA's time of operations that is believed.  Sines take less than 0.18 of it, tanh 0.2,
#: powers 0.39; those that are computed beside the traffic, which are nearly all, tell no more.
OPERATIONS = 0.2
#: Windows overlap: of what XLA has read again and again, so much is not in the cache.
WINDOWS = 0.35
#: Seconds for a bfloat16 number that is added where several may meet: two share a word, which is
#: exchanged until nobody else has come between.
NARROW_SUM_S = 9.4e-12

_COSTS = re.compile(r'"reification_cost":(\[[^\]]*\])')
_BY_INDICES = "indexing-cost-model"
#: Whose operations are whole numbers, which XLA counts well: random bits.
_WHOLE = frozenset({"xor", "shift-right-logical", "shift-left"})


class ModelCost(NamedTuple):
    """What one of XLA's cost models says of an instruction."""

    time_s: float
    operations_s: float
    memory_s: float


class DeviceMemory(NamedTuple):
    """What a kernel has to wait for at least."""

    bytes_per_s: float  #: as kernels reach it
    near_bytes: float  #: of the cache that what was just computed may still be in

    def product_s(self, product: Instruction, operands: list[Instruction]) -> float:
        """Seconds that a product takes to read what cannot be in the cache, and to write.

        That are arguments of the program, and whatever is larger than the cache.
        """
        sizes = [(hlo.type_bytes(operand.type), operand.opcode) for operand in operands]
        # Behind the result stands what the product takes for a work space
        sizes.append((hlo.first_bytes(product.type), product.opcode))
        return (
            sum(size for size, kind in sizes if kind == "parameter" or size > self.near_bytes)
            / self.bytes_per_s
        )


def costs(instruction: Instruction) -> dict[str, ModelCost]:
    """What XLA's cost models say, by their names; "sol" is what its scheduler goes by."""
    match = _COSTS.search(instruction.attributes)
    if not match:
        return {}
    by_model: dict[str, ModelCost] = {}
    try:
        for entry in json.loads(match.group(1)):
            times_us = [float(entry["exec_time_us"])]
            times_us += [
                float(entry.get(f"{part}_time_us", 0.0)) for part in ("compute", "memory_access")
            ]
            if all(math.isfinite(time_us) and time_us >= 0 for time_us in times_us):
                by_model[str(entry.get("name"))] = ModelCost(
                    *(time_us / 1e6 for time_us in times_us)
                )
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return by_model


def is_believed(instruction: Instruction) -> bool:
    """Is this a fusion or copy of which ``time_s`` knows more than XLA's scheduler?"""
    if instruction.opcode == "copy":
        return True
    return instruction.opcode == "fusion" and "gemm" not in instruction.field("kind")


def time_s(
    module: Module, computation: Computation, instruction: Instruction, memory: DeviceMemory
) -> float | None:
    """Seconds that a fusion or copy takes; None if XLA says nothing of use.

    Args:
        module: the parsed text.
        computation: where the instruction stands.
        instruction: a fusion or copy, see ``is_believed``.
        memory: of the GPU whose rate XLA was told.
    """
    once_s = _bytes_once(computation, instruction) / memory.bytes_per_s
    if instruction.opcode == "copy":
        return once_s + KERNEL_S
    by_model = costs(instruction)
    cost = by_model.get(_BY_INDICES) or by_model.get("")
    if cost is None:
        return None
    fused = module.computations.get(instruction.called("calls"))
    inside = fused.instructions if fused else ()
    opcodes = {one.opcode for one in inside}
    if "sort" in opcodes:  # which goes over its numbers again and again
        return None
    memory_s = min(cost.memory_s, once_s)
    if "reduce-window" in opcodes:
        memory_s = max(memory_s, WINDOWS * cost.memory_s)
    operations_s = cost.operations_s * (1.0 if opcodes & _WHOLE else OPERATIONS)
    for scatter in inside:
        if scatter.opcode == "scatter" and fused is not None:
            traffic_s, meeting_s = _scattered_s(fused, scatter, memory)
            memory_s, operations_s = min(memory_s, traffic_s), max(operations_s, meeting_s)
    return max(memory_s, operations_s) + KERNEL_S


def _bytes_once(computation: Computation, instruction: Instruction) -> int:
    """Bytes of the operands and the result, each once."""
    operands = (computation.by_name.get(name) for name in dict.fromkeys(instruction.operands))
    return hlo.type_bytes(instruction.type) + _sizes(one for one in operands if one is not None)


def _sizes(instructions: Iterable[Instruction]) -> int:
    return sum(hlo.type_bytes(one.type) for one in instructions)


def _scattered_s(
    fused: Computation, scatter: Instruction, memory: DeviceMemory
) -> tuple[float, float]:
    """Seconds of a scatter's traffic, and of its additions: it changes its operand in place."""
    pieces = [fused.by_name.get(name) for name in scatter.operands]
    half = len(pieces) // 2
    updates = [one for one in pieces[half + 1 :] if one is not None]
    indices = [one for one in pieces[half : half + 1] if one is not None]
    # Updates are read, and what they meet is read and written
    traffic_s = (3 * _sizes(updates) + _sizes(indices)) / memory.bytes_per_s
    narrow = [one for one in updates if hlo.first_dtype(one.type) in ("bf16", "f16")]
    return traffic_s, NARROW_SUM_S * _sizes(narrow) / 2

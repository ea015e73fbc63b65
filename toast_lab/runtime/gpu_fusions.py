"""The time of a fusion on a GPU: XLA's own estimate, corrected by measurements on an H100.

For every fusion XLA estimates the time of its operations and of its bytes from the description of
the GPU (``reification_cost``, one entry for each of XLA's cost models). Compared with kernels
measured on an H100 (docs/measured.md), the times of bytes that are read once are right, and all
else is not:

* Operations take at most a fifth of the estimate: a sine, tanh or exponential is computed while the
  next bytes arrive, where XLA expects it to take up to seven times as long as they do.
* Bytes that XLA counts as read several times come from the cache: no fusion takes longer than to
  read its operands and write its result once.
* Scatters write into their operand, where XLA counts all of it as read and written.
* Triton fusions (softmax, normalisations) take "10 ns" in XLA's table; its indexing cost model is
  as good for them as the usual model is for other fusions.
* A kernel takes about a microsecond before it does any work.

Sorts, convolutions and Fourier transforms are not fusions and have no time at all.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from toast_lab.runtime import hlo
from toast_lab.runtime.hlo_text import Computation, Instruction, Module

#: Time of a kernel that reads and writes next to nothing, from 58 kernels of 1 to 3 us.
KERNEL_S = 1.1e-6
#: Share of XLA's time of operations that counts. Sines take less than 0.18 of it, tanh 0.2, powers
#: 0.39; nearly all others overlap with memory traffic, so that their share cannot be measured.
OPERATIONS = 0.2
#: Share of XLA's time of bytes for overlapping windows: the other repeated reads hit the cache.
WINDOWS = 0.35
#: Seconds to add one 16-bit number of a scatter atomically: two numbers share a word, which is
#: compared and swapped until no other thread has changed it meanwhile.
NARROW_SUM_S = 9.4e-12

_COSTS = re.compile(r'"reification_cost":(\[[^\]]*\])')
_BY_INDICES = "indexing-cost-model"
#: Opcodes of integer operations (random bits), whose time XLA estimates well.
_WHOLE = frozenset({"xor", "shift-right-logical", "shift-left"})


class ModelCost(NamedTuple):
    """The estimate of one of XLA's cost models for an instruction."""

    time_s: float
    operations_s: float
    memory_s: float


class DeviceMemory(NamedTuple):
    """The memory of a GPU, which bounds the time of a kernel from below."""

    bytes_per_s: float  #: as reached by kernels
    near_bytes: float  #: size of the cache, which may still hold recent results

    def product_s(self, product: Instruction, operands: list[Instruction]) -> float:
        """Least seconds of a product: to read and write whatever cannot be in the cache.

        That is arguments of the program, and operands and results larger than the cache.
        """
        sizes = [(hlo.type_bytes(operand.type), operand.opcode) for operand in operands]
        # The product's type lists its workspace after the result
        sizes.append((hlo.first_bytes(product.type), product.opcode))
        return (
            sum(size for size, opcode in sizes if opcode == "parameter" or size > self.near_bytes)
            / self.bytes_per_s
        )


def costs(instruction: Instruction) -> dict[str, ModelCost]:
    """Estimates of XLA's cost models by name; the scheduler uses the one called "sol"."""
    match = _COSTS.search(instruction.attributes)
    if not match:
        return {}
    by_model: dict[str, ModelCost] = {}
    try:
        for estimate in json.loads(match.group(1)):
            times_us = [float(estimate["exec_time_us"])]
            times_us += [
                float(estimate.get(f"{part}_time_us", 0.0)) for part in ("compute", "memory_access")
            ]
            if all(math.isfinite(time_us) and time_us >= 0 for time_us in times_us):
                by_model[str(estimate.get("name"))] = ModelCost(
                    *(time_us / 1e6 for time_us in times_us)
                )
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return by_model


def is_believed(instruction: Instruction) -> bool:
    """Is this a fusion or copy that ``time_s`` estimates better than XLA's scheduler?"""
    if instruction.opcode == "copy":
        return True
    return instruction.opcode == "fusion" and "gemm" not in instruction.field("kind")


def time_s(
    module: Module, computation: Computation, instruction: Instruction, memory: DeviceMemory
) -> float | None:
    """Seconds that a fusion or copy takes; None if XLA has no usable estimate.

    Args:
        module: the parsed text.
        computation: the computation that contains the instruction.
        instruction: a fusion or copy, see ``is_believed``.
        memory: memory of the GPU, with the rate that XLA was told.
    """
    once_s = _bytes_once(computation, instruction) / memory.bytes_per_s
    if instruction.opcode == "copy":
        return once_s + KERNEL_S
    by_model = costs(instruction)
    cost = by_model.get(_BY_INDICES) or by_model.get("")
    if cost is None:
        return None
    fused = module.computations.get(instruction.called("calls"))
    body = fused.instructions if fused else ()
    opcodes = {inner.opcode for inner in body}
    if "sort" in opcodes:  # it passes over its data many times
        return None
    memory_s = min(cost.memory_s, once_s)
    if "reduce-window" in opcodes:
        memory_s = max(memory_s, WINDOWS * cost.memory_s)
    operations_s = cost.operations_s * (1.0 if opcodes & _WHOLE else OPERATIONS)
    for scatter in body:
        if scatter.opcode == "scatter" and fused is not None:
            traffic_s, adding_s = _scattered_s(fused, scatter, memory)
            memory_s, operations_s = min(memory_s, traffic_s), max(operations_s, adding_s)
    return max(memory_s, operations_s) + KERNEL_S


def _bytes_once(computation: Computation, instruction: Instruction) -> int:
    """Bytes of the operands and the result, each counted once."""
    operands = (computation.by_name.get(name) for name in dict.fromkeys(instruction.operands))
    return hlo.type_bytes(instruction.type) + _sizes(
        operand for operand in operands if operand is not None
    )


def _sizes(instructions: Iterable[Instruction]) -> int:
    return sum(hlo.type_bytes(instruction.type) for instruction in instructions)


def _scattered_s(
    fused: Computation, scatter: Instruction, memory: DeviceMemory
) -> tuple[float, float]:
    """Seconds of a scatter's memory traffic and of its additions; it works in place."""
    operands = [fused.by_name.get(name) for name in scatter.operands]
    input_count = len(operands) // 2
    updates = [operand for operand in operands[input_count + 1 :] if operand is not None]
    indices = [
        operand for operand in operands[input_count : input_count + 1] if operand is not None
    ]
    # Updates are read; the elements that they are added to are read and written
    traffic_s = (3 * _sizes(updates) + _sizes(indices)) / memory.bytes_per_s
    narrow_updates = [
        operand for operand in updates if hlo.first_dtype(operand.type) in ("bf16", "f16")
    ]
    return traffic_s, NARROW_SUM_S * _sizes(narrow_updates) / 2

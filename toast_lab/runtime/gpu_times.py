"""The GPU compiler's own times, read from the compiled text, and which of them to trust.

When XLA is asked to collect the statistics of its cost model, it writes a time next to every
instruction (``reification_cost``, the entry "sol", in microseconds). As tried with jax 0.10.2,
these times come from two sources:

* products and collectives: tables that were measured on H100, B200, GB200 and GB300 (``MEASURED``),
  between whose points XLA interpolates. For other GPUs it has no tables and refuses to collect
  statistics.
* fusions: estimates from their bytes and operations and the description of the GPU;
  ``gpu_fusions`` corrects them.

For products of few rows the tables count operations alone: a decoding step of 8 rows "reads" 134 MB
of weights in 3 us, at 44 TB/s. Such a product takes as long as reading its operands from memory and
writing its result (``DeviceMemory``).

Outside of its tables XLA uses other rules, whose numbers are not estimates at all. These are not
passed on: ``CompilerTimes.left_out`` lists each with the reason. Times that are passed on but look
wrong are in ``doubtful``. None of them accounts for overlap. Times of kernels measured on an H100
are in docs/measured.md.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from toast_lab import records
from toast_lab.runtime import gpu_fusions, hlo, hlo_text
from toast_lab.runtime.gpu_fusions import DeviceMemory
from toast_lab.runtime.hlo_text import ExecutedComputation, Instruction, Module

#: Architectures that XLA has tables for, with the largest group in the table of collectives.
MEASURED = {"sm_90": 8, "sm_100": 8, "sm_103": 72}
#: Types of the products in XLA's tables: left operand, right operand, result.
MEASURED_PRODUCTS = frozenset(
    {
        ("bf16", "bf16", "bf16"),
        ("f32", "f32", "f32"),
        ("f8e4m3fn", "f8e4m3fn", "bf16"),
        ("f8e4m3fn", "f8e5m2", "bf16"),
        ("f8e5m2", "f8e4m3fn", "bf16"),
    }
)
#: Size of the smallest collective in XLA's tables.
SMALLEST_BYTES = 1024

NO_TABLES = "XLA has no measured tables for this GPU"
NO_TIME = "the compiler gives it no time"
PRODUCT_TYPES = "no product of these types was measured; XLA's number is up to 64 times too slow"
TRITON = "a Triton product whose tiles were not tuned"
TOO_SMALL = "smaller than what was measured (1 KiB): XLA's time shrinks with the bytes, down to 0"
BETWEEN_HOSTS = "between hosts nothing was measured: XLA's own formula, with its own network"
LARGE_GROUP = "a larger group than was measured"
FROM_MEMORY = (
    "XLA's tables count only the operations; raised to the time of reading the operands and "
    "writing the result"
)
FULL_FLOAT32 = "XLA's table is of products in TF32, and this one is in full float32"
PERMUTE = "permutes of 4 to 128 MiB look too slow beside larger ones"
_FULL_PRECISION = re.compile(r'"operand_precision":\["HIGHEST"|operand_precision=\{highest')
_NOTHING = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id while
    conditional call iota optimization-barrier add-dependency async-update""".split()
)
_TRITON_PRODUCT = '"__triton_gemm"'


class NotTimed(NamedTuple):
    """An instruction whose time is left out or doubtful."""

    op: int  #: op index, -1 if unknown
    kind: str  #: "product bf16 x bf16 -> f32", "all_reduce", "fusion"
    times: float  #: how often one step runs it
    reason: str  #: one of the above, or why its time is doubtful


class CompilerTimes(NamedTuple):
    """Seconds of one step on one device by op index (-1: unknown), counting every round of loops.

    The sums have all instructions that are not ``left_out``, as if nothing overlapped.
    """

    compute_s_by_op: Mapping[int, float]  #: products and fusions
    collective_s_by_op: Mapping[int, float]
    left_out: tuple[NotTimed, ...]
    doubtful: tuple[NotTimed, ...]  #: the sums include these

    @property
    def compute_s(self) -> float:
        """Seconds of products and fusions in one step, without those that are left out."""
        return math.fsum(self.compute_s_by_op.values())

    @property
    def collective_s(self) -> float:
        """Seconds of collectives in one step, without those that are left out."""
        return math.fsum(self.collective_s_by_op.values())

    @property
    def total_s(self) -> float:
        """Seconds of computing and collectives, as if nothing overlapped."""
        return self.compute_s + self.collective_s

    def left_out_by_reason(self) -> dict[str, int]:
        """Number of instructions that are left out, by reason."""
        return dict(collections.Counter(row.reason for row in self.left_out))

    def to_json(self) -> dict[str, Any]:
        """All fields and sums as plain data."""
        sums = {"compute_s": self.compute_s, "collective_s": self.collective_s}
        return {**records.plain(self), **sums, "total_s": self.total_s}


def read(
    module: Module,
    architecture: str,
    n_devices: int,
    hosts: int = 1,
    rounds: hlo_text.Rounds = hlo_text.unknown,
    memory: DeviceMemory | None = None,
) -> CompilerTimes | None:
    """The times in a compiled text; None if XLA has no tables for this GPU and gave none.

    Args:
        module: the parsed text.
        architecture: architecture of the GPU that it was compiled for, "sm_90".
        n_devices: number of devices that it was compiled for.
        hosts: number of hosts, each with equally many of these devices.
        rounds: gives a loop's number of rounds where the text does not state it.
        memory: memory of the GPU; if None, XLA's times are not corrected by it.
    """
    compute_s_by_op: dict[int, float] = {}
    collective_s_by_op: dict[int, float] = {}
    left_out, doubtful = [], []
    any_time = False
    for row in timed(module, architecture, n_devices, hosts=hosts, rounds=rounds, memory=memory):
        any_time = any_time or row.time_s is not None
        if row.reason or row.time_s is None:
            left_out.append(NotTimed(row.op, row.kind, row.times, row.reason))
            continue
        sums = collective_s_by_op if row.is_collective else compute_s_by_op
        sums[row.op] = sums.get(row.op, 0.0) + row.time_s * row.times
        if row.doubt:
            doubtful.append(NotTimed(row.op, row.kind, row.times, row.doubt))
    if architecture not in MEASURED and not any_time:
        return None
    return CompilerTimes(compute_s_by_op, collective_s_by_op, tuple(left_out), tuple(doubtful))


class TimedInstruction(NamedTuple):
    """An instruction with the compiler's time."""

    instruction: Instruction
    op: int  #: op index, -1 if unknown
    kind: str  #: as in ``NotTimed``
    times: float  #: how often one step runs it
    time_s: float | None  #: of one run; None: the compiler gives none
    reason: str  #: one of the above if the time means nothing, else ""
    doubt: str  #: why a time that is passed on looks wrong, else ""
    is_collective: bool


def timed(
    module: Module,
    architecture: str,
    n_devices: int,
    hosts: int = 1,
    rounds: hlo_text.Rounds = hlo_text.unknown,
    memory: DeviceMemory | None = None,
) -> Iterator[TimedInstruction]:
    """Every instruction that takes time, with its time; the arguments are those of ``read``."""
    largest_group = MEASURED.get(architecture, 0)
    for place, instruction in _timed(module, rounds):
        collective = hlo.kind_of(instruction)
        if collective:
            op = hlo.served_op(module, place, instruction)[0]
        else:
            op = hlo.op_or_inside(module, instruction)
        cost = gpu_fusions.costs(instruction).get("sol")
        seconds = None if cost is None else cost.time_s
        doubt = ""
        if collective:
            kind = collective
            groups = hlo.device_groups(instruction, n_devices)
            size = hlo.local_bytes(instruction, max(map(len, groups), default=1))
            reason = _why_collective_left_out(
                kind,
                groups,
                size,
                seconds=seconds,
                largest_group=largest_group,
                per_host=n_devices // hosts,
            )
            if kind == "collective_permute" and 2**22 <= size <= 2**27:
                doubt = PERMUTE
        else:
            kind = _kind_of_compute(place, instruction)
            if memory is not None and largest_group and gpu_fusions.is_believed(instruction):
                seconds = gpu_fusions.time_s(module, place.computation, instruction, memory)
            reason = _why_compute_left_out(kind, instruction, seconds, largest_group)
            if memory is not None and seconds is not None and kind.startswith("product "):
                least_s = memory.product_s(instruction, _operands(place, instruction))
                if least_s > seconds:
                    seconds, doubt = least_s, FROM_MEMORY
        yield TimedInstruction(
            instruction=instruction,
            op=op,
            kind=kind,
            times=place.times,
            time_s=seconds,
            reason=reason,
            doubt=doubt,
            is_collective=bool(collective),
        )


def _timed(
    module: Module, rounds: hlo_text.Rounds
) -> Iterator[tuple[ExecutedComputation, Instruction]]:
    """Every instruction outside fusions that takes time, with the place where it runs."""
    for place in hlo_text.executed(module, rounds):
        if place.fused:
            continue
        for instruction in place.computation.instructions:
            opcode = instruction.opcode
            # The start and done of an asynchronous instruction count once
            if opcode in _NOTHING or opcode.endswith("-done"):
                continue
            if opcode == "async-start" and instruction.called("calls") in module.computations:
                continue  # the wrapped instruction is visited itself
            yield place, instruction


def _why_collective_left_out(
    kind: str,
    groups: list[list[int]],
    size: int,
    *,
    seconds: float | None,
    largest_group: int,
    per_host: int,
) -> str:
    """Why the time of a collective is left out; "" if it is not."""
    if not largest_group:
        return NO_TABLES
    if seconds is None:
        return NO_TIME
    if any(device // per_host != group[0] // per_host for group in groups for device in group):
        return BETWEEN_HOSTS
    if kind != "collective_permute" and max(map(len, groups), default=1) > largest_group:
        return LARGE_GROUP
    return TOO_SMALL if size < SMALLEST_BYTES else ""


def _why_compute_left_out(
    kind: str, instruction: Instruction, seconds: float | None, largest_group: int
) -> str:
    """Why the time of a computing instruction is left out; "" if it is not."""
    if _TRITON_PRODUCT in instruction.attributes:
        return TRITON
    if kind.startswith("product "):
        if not largest_group:
            return NO_TABLES
        types = tuple(re.split(" x | -> ", kind.removeprefix("product ")))
        if types not in MEASURED_PRODUCTS:
            return PRODUCT_TYPES
        if _FULL_PRECISION.search(instruction.attributes):
            return FULL_FLOAT32
    return NO_TIME if seconds is None else ""


def _kind_of_compute(place: ExecutedComputation, instruction: Instruction) -> str:
    target = instruction.field("custom_call_target")
    if instruction.opcode == "dot" or target.startswith("__cublas"):
        types = [hlo.first_dtype(operand.type) for operand in _operands(place, instruction)]
        types += ["?"] * (2 - len(types))
        return f"product {' x '.join(types)} -> {hlo.first_dtype(instruction.type)}"
    return f"custom call {target}" if target else instruction.opcode


def _operands(place: ExecutedComputation, product: Instruction) -> list[Instruction]:
    """The two factors of a product, before bitcasts."""
    operands = []
    for name in product.operands[:2]:
        operand = place.computation.by_name.get(name)
        while operand is not None and operand.opcode == "bitcast":
            operand = place.computation.by_name.get(operand.operands[0])
        if operand is not None:
            operands.append(operand)
    return operands

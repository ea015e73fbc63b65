"""Host memory: what of a program is in it, and what crosses the link between host and device.

Values in host memory (``Program.host``) are no part of a device's peak. They are read in blocks of
a device's share, as the plan cuts them. Start reading at ``host_traffic``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toast_lab.ir.op_kinds import is_control, op_kind
from toast_lab.ir.program import Program
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.sharding.plan import ShardingPlan


class HostTraffic(NamedTuple):
    """Figures of one device."""

    held_bytes: float = 0.0  #: its share of everything in host memory
    sent_bytes: float = 0.0  #: over the link to the host, both ways together
    #: seconds of that, beside ``Cost.time_s``; None if the machine gives no rate
    sent_s: float | None = 0.0

    def __str__(self) -> str:
        if not self.held_bytes and not self.sent_bytes:
            return "nothing in host memory"
        time = "not priced" if self.sent_s is None else f"{self.sent_s * 1e3:.3f} ms"
        return (
            f"{bytes_text(self.held_bytes)} in host memory, {bytes_text(self.sent_bytes)} over "
            f"the host link ({time})"
        )


def host_traffic(program: Program, plan: ShardingPlan, bytes_per_s: float) -> HostTraffic:
    """What is in host memory under a plan, and what crosses the link of ``bytes_per_s`` (0: ?)."""
    if not program.host:
        return HostTraffic()
    kept = plan.lowered.kept

    def local_bytes(value: int) -> float:
        ways = [plan.mesh.ways(axes) for axes in kept[value]]
        return program.nbytes(value) / float(np.prod(ways, initial=1.0))

    at_end = {int(program.outputs[i]) for i in program.host.results}
    held = {*program.host.arguments, *at_end}
    sent_bytes = sum(
        local_bytes(value) * (program.trips[op] if op < program.n_ops else 1.0)
        for value, op in crossings(program)
    )
    return HostTraffic(
        held_bytes=float(sum(map(local_bytes, held))),
        sent_bytes=float(sent_bytes),
        sent_s=float(sent_bytes) / bytes_per_s if bytes_per_s else None,
    )


@functools.lru_cache(maxsize=8)
def crossings(program: Program) -> tuple[tuple[int, int], ...]:
    """(value, op) of each transfer between host and device.

    The op reads a host value on the device, or makes one there; past the last op for results that
    leave the device at the end.
    """
    host, already_read = set(program.host.values), set[int]()
    transfers: list[tuple[int, int]] = []
    for op in program.ops():
        kind, operands = program.kind[op], program.operands(op)
        reads = {value for value in operands if value in host}
        writes = [
            value
            for value in program.results(op)
            if value in host and not program.value_is_constant[value]
        ]
        if is_control(kind) or op_kind(kind).stays_in_memory:
            update = op_kind(kind).update_operand
            if writes and update >= 0 and operands[update] not in host:
                transfers.append((operands[update], op))
        elif not writes:
            transfers += [(value, op) for value in sorted(reads - already_read)]
            already_read |= reads
        elif not reads:
            transfers += [(value, op) for value in writes]
    leaving = sorted({int(program.outputs[i]) for i in program.host.results} - host)
    return (*transfers, *((value, program.n_ops) for value in leaving))


def beside_link(program: Program) -> list[int]:
    """Values on the device that come from the host or go there, whose copies are in its memory."""
    host = set(program.host.values)
    ends = {
        value
        for _, op in crossings(program)
        if op < program.n_ops
        for value in (*program.operands(op), *program.results(op))
    }
    return sorted(ends - host)


def first_reads(program: Program) -> dict[int, int]:
    """Host value -> first op that reads it on the device, for values without a copy there.

    Programs lowered for a platform without memories have no op for the transfer.
    """
    host = set(program.host.values)
    return {
        value: op
        for value, op in crossings(program)
        if value in host
        and op < program.n_ops
        and program.kind[op] != "custom_call"
        and value in program.operands(op)
    }

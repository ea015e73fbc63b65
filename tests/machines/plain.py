"""A machine with round numbers, for mental arithmetic; its rates differ, to tell terms apart."""

from __future__ import annotations

import dataclasses

from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import Machine

#: Every mesh axis has a closed ring of its own; only FLOPs, memory and link rates take time.
PLAIN = Machine(
    name="plain",
    flops={"f32": 1e6},
    memory_bytes=1e9,
    memory_bytes_per_s=1e3,
    links=(Link("links", "ring", bytes_per_s=1e2, latency_s=0.0),),
    op_overhead_s=0.0,
)


def without_terms(machine: Machine) -> Machine:
    """Return ``machine`` with only the rate and the latency of its links."""
    links = [dataclasses.replace(link, collectives={}) for link in machine.links]
    return dataclasses.replace(machine, links=tuple(links))

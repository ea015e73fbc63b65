"""``toast-lab machines``: what plans can be priced on."""

from __future__ import annotations

import argparse

from toast_lab.commands import common
from toast_lab.cost.machines import MACHINES, Machine


def run(args: argparse.Namespace) -> int:
    """Print every machine with its numbers and their sources."""
    return common.emit(args, {"machines": [_data(m) for m in MACHINES.values()]}, _show)


def _data(m: Machine) -> dict[str, object]:
    return {
        "name": m.name, "flops_per_s": dict(m.flops),
        "memory_bytes": m.memory_bytes, "memory_bytes_per_s": m.memory_bytes_per_s,
        "link_bytes_per_s": m.link_bytes_per_s, "link_latency_s": m.link_latency_s, "topology": m.topology,
        "op_overhead_s": m.op_overhead_s, "source": m.source,
    }  # fmt: skip


def _show(out: common.Out) -> None:
    out.table(
        "Machines (one device each)",
        ("name", ">bf16 FLOP/s", ">f32 FLOP/s", ">memory", ">memory/s", ">link/s per axis", ">hop", "links"),
        [_row(m) for m in MACHINES.values()],
    )
    out.table("Sources", ("name", "~where the numbers are from"), [(m.name, m.source) for m in MACHINES.values()])


def _row(m: Machine) -> tuple[str, ...]:
    peaks = f"{m.peak_flops('bf16'):.3g}", f"{m.peak_flops('f32'):.3g}"
    rates = (common.bytes_text(b) for b in (m.memory_bytes, m.memory_bytes_per_s, m.link_bytes_per_s))
    return m.name, *peaks, *rates, common.time_text(m.link_latency_s), m.topology

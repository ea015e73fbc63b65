"""Machine models: what one device can compute, hold and send.

Every number carries its public source.  ``link_bytes_per_s`` is what one device can send along one mesh axis
in one direction, with both neighbours of a ring in use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from toast_lab.errors import InvalidProblem, did_you_mean


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device and its links.  Rates per second, sizes in bytes, times in seconds."""

    name: str
    flops: Mapping[str, float]  #: peak FLOP/s per element type of a dot or convolution; "f32" is the fallback
    memory_bytes: float  #: memory per device
    memory_bytes_per_s: float
    link_bytes_per_s: float  #: per device, mesh axis and direction, summed over the links of that axis
    link_latency_s: float  #: one hop
    topology: str  #: "ring" (torus dims) or "switch" (all devices of an axis one hop apart)
    op_overhead_s: float  #: fixed cost of starting one unfused op
    source: str

    def __post_init__(self) -> None:
        numbers = {
            "memory_bytes": self.memory_bytes,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "link_bytes_per_s": self.link_bytes_per_s,
            **{f"flops[{k}]": v for k, v in self.flops.items()},
        }
        wrong = [f"{k} = {v}" for k, v in numbers.items() if not v > 0]
        wrong += [
            f"{k} = {v}"
            for k, v in (("link_latency_s", self.link_latency_s), ("op_overhead_s", self.op_overhead_s))
            if not v >= 0
        ]
        if self.topology not in ("ring", "switch"):
            wrong.append(f"topology = {self.topology!r} (ring or switch)")
        if "f32" not in self.flops:
            wrong.append('flops has no "f32" entry')
        if wrong:
            raise InvalidProblem(f"machine {self.name}: impossible numbers: {'; '.join(wrong)}")

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s for an element type as StableHLO spells it."""
        return self.flops.get(dtype, self.flops.get("bf16" if dtype == "f16" else "f32", self.flops["f32"]))


GiB = 2.0**30

MACHINES: dict[str, Machine] = {
    m.name: m
    for m in (
        Machine(
            "tpu-v5e", {"bf16": 197e12, "f32": 197e12, "i8": 394e12, "f64": 2e12},
            16 * GiB, 819e9, 90e9, 1e-6, "ring", 1e-6,
            "Google Cloud TPU v5e documentation: 197 TFLOP/s bf16, 394 TOP/s int8, 16 GB, 819 GB/s, 1600 Gb/s of ICI "
            "per chip over 4 links (2 per torus dim, about 45 GB/s each after encoding). f32 dots run in bf16 "
            "passes at JAX's default precision. Latency and overhead are estimates.",
        ),
        Machine(
            "tpu-v3", {"bf16": 61.5e12, "f32": 61.5e12, "f64": 1e12}, 16 * GiB, 450e9, 82e9, 1e-6, "ring", 1e-6,
            "Jouppi et al., A domain-specific supercomputer for training deep neural networks, CACM 63(7), 2020: "
            "per chip 123 TFLOP/s bf16, 32 GB, 900 GB/s, 4 links of 656 Gb/s; here per core, links shared by "
            "both cores. Latency and overhead are estimates.",
        ),
        Machine(
            "a100", {"bf16": 312e12, "tf32": 156e12, "f32": 156e12, "f64": 19.5e12, "i8": 624e12},
            80e9, 2039e9, 300e9, 3e-6, "switch", 3e-6,
            "NVIDIA A100 80GB SXM data sheet: 312 TFLOP/s bf16, 156 TFLOP/s TF32 (JAX's default for f32 dots), 80 GB, "
            "2039 GB/s, NVLink 600 GB/s both directions together. Latency and overhead are estimates.",
        ),
        Machine(
            "cpu", {"f32": 30e9, "bf16": 10e9, "f64": 15e9}, 4 * GiB, 5e9, 1e9, 2e-5, "switch", 5e-6,
            "One of several virtual devices that share a small host: round estimates, meant for trying things "
            "out, not a measurement.",
        ),
    )
}  # fmt: skip


def machine(which: str | Machine) -> Machine:
    """A machine by name.  Raises InvalidProblem with the closest names."""
    if isinstance(which, Machine):
        return which
    if which not in MACHINES:
        raise InvalidProblem(
            f"no machine is called {which!r}{did_you_mean(str(which), MACHINES)}; machines: {', '.join(MACHINES)}"
        )
    return MACHINES[which]

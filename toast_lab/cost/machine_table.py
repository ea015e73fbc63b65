"""The machines that plans can be priced on; every number with its public source.

A TPU's link rates are what remains of the nominal rate after line encoding, nine tenths, as the JAX team's book "How to
scale your model" (2025) tabulates them; one torus dim has two links, one each way.  Latencies of a hop and the overhead
of starting an op are round estimates everywhere: no data sheet gives them, and ``toast-lab calibrate`` measures them.
"""

from __future__ import annotations

from toast_lab.cost.machine_model import Link, Machine

GiB = 2.0**30

_ESTIMATE = "Estimate, no data sheet gives it."
_BOOK = 'JAX team, "How to scale your model", 2025, table of TPU specifications'


def _tpu(
    name: str, flops: dict[str, float], memory: tuple[float, float], links: tuple[Link, ...], flops_from: str,
    memory_from: str,
) -> Machine:  # fmt: skip
    sources = {"flops": flops_from, "memory": memory_from, "op_overhead_s": _ESTIMATE}
    tile = 256 if name == "tpu-v6e" else 128
    sources["tile"] = f"{_BOOK}: matrix units of 128x128, of 256x256 from v6e on."
    return Machine(name, flops, *memory, links, 1e-6, sources=sources, tile=tile, compiler="tpu")


def _gpu(
    name: str, flops: dict[str, float], memory: tuple[float, float], links: tuple[Link, ...], flops_from: str,
    memory_from: str,
) -> Machine:  # fmt: skip
    sources = {"flops": flops_from, "memory": memory_from, "op_overhead_s": _ESTIMATE}
    return Machine(name, flops, *memory, links, 3e-6, sources=sources, compiler="gpu")


def _ici(rate: float, devices: int, extents: tuple[int, ...], wrap: tuple[int, bool], source: str) -> Link:
    text = f"{source} Latency of a hop: {_BOOK.split(',')[0]}'s round figure of 1 us."
    return Link("ICI", "torus", rate, 1e-6, devices, extents, *wrap, source=text)


_CACM = "Jouppi et al., A domain-specific supercomputer for training deep neural networks, CACM 63(7), 2020"
_ISCA = "Jouppi et al., TPU v4, ISCA 2023"
_F64 = "f64 is emulated, an estimate; f32 dots run in one bf16 pass at JAX's default precision."

MACHINES: dict[str, Machine] = {
    m.name: m
    for m in (
        _tpu(
            "tpu-v5e", {"bf16": 197e12, "f32": 197e12, "i8": 394e12, "f64": 2e12}, (16 * GiB, 819e9),
            (_ici(90e9, 256, (16, 16), (16, False),
                  f"Google Cloud, TPU v5e: 400 GB/s a chip both ways over 4 links, pods of 16x16; {_BOOK}: 45 GB/s a "
                  "link one way, and only a dim of 16 wraps around."),),
            f"Google Cloud, TPU v5e: 197 TFLOP/s bf16, 394 TOP/s int8. {_F64}",
            "Google Cloud, TPU v5e: 16 GB HBM2, 819 GB/s.",
        ),
        _tpu(
            "tpu-v3", {"bf16": 61.5e12, "f32": 61.5e12, "f64": 1e12}, (16 * GiB, 450e9),
            (Link("chip", "switch", 225e9, 0.5e-6, 2,
                  source="Two cores of a chip exchange through its HBM, one reads what the other writes: half of a "
                         "core's memory bandwidth. An estimate, as is the latency."),
             _ici(82e9, 2048, (32, 32), (32, False),
                  f"{_CACM}: 4 links of 656 Gb/s a chip each way, shared by its 2 cores, in a torus of 32x32 chips. "
                  "A slice smaller than the pod along a dim is taken not to wrap around there.")),
            f"{_CACM}: 123 TFLOP/s bf16 a chip of 2 cores; a device is a core. {_F64}",
            f"{_CACM}: 32 GiB and 900 GB/s a chip; a device is a core.",
        ),
        _tpu(
            "tpu-v4", {"bf16": 275e12, "f32": 275e12, "i8": 275e12, "f64": 2.5e12}, (32 * GiB, 1200e9),
            (_ici(90e9, 4096, (16, 16, 16), (4, True),
                  f"{_ISCA}: 6 links of 50 GB/s each way; {_BOOK}: 45 GB/s usable. Google Cloud, TPU v4: pods of 4096 "
                  "chips, a 3D torus where every dim is a multiple of 4, else a mesh."),),
            f"{_ISCA} and Google Cloud, TPU v4: 275 TFLOP/s bf16 or int8. {_F64}",
            "Google Cloud, TPU v4: 32 GiB HBM2, 1200 GB/s.",
        ),
        _tpu(
            "tpu-v5p", {"bf16": 459e12, "f32": 459e12, "i8": 918e12, "f64": 4e12}, (95 * GiB, 2765e9),
            (_ici(180e9, 8960, (16, 20, 28), (4, True),
                  f"Google Cloud, TPU v5p: 1200 GB/s a chip both ways over 6 links, pods of 8960 chips, 3D torus from "
                  f"4x4x4 on; {_BOOK}: 90 GB/s a link one way, 16x20x28."),),
            f"Google Cloud, TPU v5p: 459 TFLOP/s bf16; int8 at twice that ({_BOOK}). {_F64}",
            "Google Cloud, TPU v5p: 95 GiB HBM2e, 2765 GB/s.",
        ),
        _tpu(
            "tpu-v6e", {"bf16": 918e12, "f32": 918e12, "i8": 1836e12, "f64": 8e12}, (32 * GiB, 1640e9),
            (_ici(180e9, 256, (16, 16), (16, False),
                  f"Google Cloud, TPU v6e: 800 GB/s a chip both ways over 4 links, pods of 256 chips; {_BOOK}: 90 GB/s "
                  "a link one way, and only a dim of 16 wraps around."),),
            f"Google Cloud, TPU v6e: 918 TFLOP/s bf16, 1836 TOP/s int8. {_F64}",
            "Google Cloud, TPU v6e: 32 GB HBM, 1640 GB/s.",
        ),
        _gpu(
            "p100", {"f16": 21.2e12, "bf16": 10.6e12, "f32": 10.6e12, "f64": 5.3e12}, (16e9, 732e9),
            (Link("NVLink", "switch", 80e9, 5e-6, 8,
                  source="NVIDIA Tesla P100 data sheet: NVLink 160 GB/s both ways together; 8 in a DGX-1, whose cube "
                         "mesh is priced as a switch at the full rate. Latency is an estimate."),
             Link("InfiniBand", "switch", 6.25e9, 10e-6,
                  source="NVIDIA DGX-1 system architecture white paper: 4 EDR ports of 100 Gb/s for 8 GPUs. Latency "
                         "is an estimate.")),
            "NVIDIA Tesla P100 data sheet (SXM2): 21.2 TFLOP/s half, 10.6 single, 5.3 double precision; no bf16 units.",
            "NVIDIA Tesla P100 data sheet (SXM2): 16 GB HBM2, 732 GB/s.",
        ),
        _gpu(
            "a100", {"bf16": 312e12, "tf32": 156e12, "f32": 156e12, "f64": 19.5e12, "i8": 624e12}, (80e9, 2039e9),
            (Link("NVLink", "switch", 300e9, 3e-6, 8,
                  source="NVIDIA A100 80GB SXM data sheet: NVLink 600 GB/s both ways together; 8 on the NVSwitches of "
                         "a DGX A100. Latency is an estimate."),
             Link("InfiniBand", "switch", 25e9, 5e-6,
                  source="NVIDIA DGX A100 data sheet: 8 HDR ports of 200 Gb/s for 8 GPUs. Latency is an estimate.")),
            "NVIDIA A100 80GB SXM data sheet: 312 TFLOP/s bf16, 156 TF32 (JAX's default for f32 dots), 19.5 f64 with "
            "tensor cores, 624 TOP/s int8; all dense.",
            "NVIDIA A100 80GB SXM data sheet: 80 GB HBM2e, 2039 GB/s.",
        ),
        _gpu(
            "h100", {"f8": 1979e12, "bf16": 989e12, "tf32": 494e12, "f32": 494e12, "f64": 67e12, "i8": 1979e12},
            (80e9, 3350e9),
            (Link("NVLink", "switch", 450e9, 3e-6, 8,
                  source="NVIDIA H100 SXM data sheet: NVLink 900 GB/s both ways together; 8 on the NVSwitches of a DGX "
                         "H100. Latency is an estimate."),
             Link("InfiniBand", "switch", 50e9, 5e-6,
                  source="NVIDIA DGX H100 data sheet: 8 NDR ports of 400 Gb/s for 8 GPUs. Latency is an estimate.")),
            "NVIDIA H100 SXM data sheet, halved where it counts sparsity: 989 TFLOP/s bf16, 494 TF32 (JAX's default "
            "for f32 dots), 67 f64 with tensor cores, 1979 fp8 and int8.",
            "NVIDIA H100 SXM data sheet: 80 GB HBM3, 3.35 TB/s.",
        ),
        Machine(
            "cpu", {"f32": 30e9, "bf16": 10e9, "f64": 15e9}, 4 * GiB, 5e9,
            (Link("shared memory", "switch", 1e9, 2e-5, source="Round estimates, not a measurement."),), 5e-6,
            sources={"all": "One of several virtual devices that share a small host: round estimates, meant for "
                            "trying things out; toast-lab calibrate --devices cpu:8 measures yours."},
        ),
    )
}  # fmt: skip

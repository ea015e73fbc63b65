"""From measured points to a ``Machine``: monotone fits, and how far off they are.

* FLOP/s of a type: the rate reached is made monotone in the size (isotonic regression: a larger dot
  is not slower a flop, unless noise says so) and its largest value taken.
* Memory: a line through the times of the largest sizes, those that no cache holds.
* Links: the two numbers, latency and bytes/s, with which ``collectives.py`` comes closest to all
  measured times of all collectives over all numbers of devices, in ratios and with outliers
  damped.  Times are made monotone in the size first.  What the formulas cannot express stays
  visible as a ratio for each collective.
* Overhead and overlap: medians.

A number that was not measured is taken from the table's nearest machine, and its source says so.

Reference: Barlow, Bartholomew, Bremner, Brunk, Statistical inference under order restrictions, 1972
(isotonic regression); Hockney, The communication challenge for MPP, 1994 (latency +
bytes/bandwidth).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import isotonic_regression, least_squares

from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.collectives import collective_time_s
from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import lay_out
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.step_kinds import STEP_KINDS


class Measured(Protocol):
    """A measured point, as ``runtime/calibrate_child.Point`` has it."""

    @property
    def what(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def devices(self) -> int: ...  # noqa: D102
    @property
    def size_bytes(self) -> float: ...  # noqa: D102
    @property
    def flops(self) -> float: ...  # noqa: D102
    @property
    def time_s(self) -> float: ...  # noqa: D102


class Residual(NamedTuple):
    """How far a fit is from the measurements that it was made from."""

    what: str  #: "dot f32", "memory", "all_reduce over 8"
    points: int
    median_ratio: float  #: measured time over fitted time
    worst_ratio: float  #: the ratio farthest from 1


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """A machine, and how well it predicts the measured times."""

    machine: Machine
    residuals: tuple[Residual, ...]
    not_measured: tuple[str, ...]  #: numbers that are the table's


def nearest(platform: str, kind: str) -> Machine:
    """The table's machine that a device called ``kind`` resembles.

    It stands in for what could not be measured.
    """
    words = {
        "v6": "tpu-v6e",
        "v5p": "tpu-v5p",
        "v5": "tpu-v5e",
        "v4": "tpu-v4",
        "v3": "tpu-v3",
        "h100": "h100",
        "h200": "h200",
        "b200": "b200",
        "p100": "p100",
    }
    fallback = {"cpu": "cpu", "tpu": "tpu-v5e"}.get(platform, "a100")
    if platform == "cpu":
        return MACHINES["cpu"]
    return MACHINES[next((name for word, name in words.items() if word in kind.lower()), fallback)]


def fit(
    points: Iterable[Measured],
    name: str,
    base: Machine,
    memory_bytes: float,
    provenance: Mapping[str, str],
) -> Fit:
    """Make a machine of ``points``.

    Args:
        points: what was measured; any part of it may be missing.
        name: of the new machine.
        base: for the numbers that are missing.
        memory_bytes: of one device, 0 if unknown.
        provenance: what the measurement was made on.
    """
    by: dict[str, list[Measured]] = {}
    for p in points:
        if math.isfinite(p.time_s) and (p.time_s > 0 or p.what == "overlap"):
            by.setdefault(p.what, []).append(p)
    residuals: list[Residual] = []
    missing: list[str] = []
    dots: dict[str, list[Measured]] = {}
    for p in by.get("dot", []):
        dots.setdefault(p.dtype, []).append(p)
    flops = {dtype: peak_flops(some) for dtype, some in dots.items()}
    if "f32" not in flops:
        missing.append("flops.f32")
        flops["f32"] = base.flops["f32"]
    if by.get("memory"):
        memory_rate = memory_bytes_per_s(by["memory"])
    else:
        missing.append("memory_bytes_per_s")
        memory_rate = base.memory_bytes_per_s
    overhead_s = (
        statistics.median(p.time_s for p in by["overhead"])
        if "overhead" in by
        else base.op_overhead_s
    )
    missing += [] if "overhead" in by else ["op_overhead_s"]
    overlap = (
        statistics.median(p.time_s for p in by["overlap"]) if "overlap" in by else base.overlap
    )
    missing += [] if "overlap" in by else ["overlap"]
    comm = monotone([p for kind in STEP_KINDS for p in by.get(kind, [])])
    if comm:
        links: tuple[Link, ...] = (fit_link(comm),)
    else:
        links = base.links
        missing.append("links")
    if memory_bytes <= 0:
        missing.append("memory_bytes")
    sources = {"all": "Measured by toast-lab calibrate, see provenance."}
    sources |= {key: f"Not measured: that of {base.name}." for key in missing}
    machine = Machine(
        name=name,
        flops=dict(sorted(flops.items())),
        memory_bytes=memory_bytes or base.memory_bytes,
        memory_bytes_per_s=memory_rate,
        links=links,
        op_overhead_s=overhead_s,
        overlap=overlap,
        sources=sources,
        provenance=dict(provenance),
        tile=base.tile,
        compiler=base.compiler,
    )
    for dtype, some in dots.items():
        pairs = [
            (p, max(p.flops / flops[dtype], p.size_bytes / memory_rate) + overhead_s) for p in some
        ]
        residuals.append(_residual(f"dot {dtype}", pairs))
    if by.get("memory"):
        residuals.append(
            _residual(
                "memory", [(p, p.size_bytes / memory_rate + overhead_s) for p in by["memory"]]
            )
        )
    if comm:
        groups = sorted({(p.what, p.devices) for p in comm})
        for kind, devices in groups:
            some = [p for p in comm if (p.what, p.devices) == (kind, devices)]
            residuals.append(
                _residual(f"{kind} over {devices}", [(p, collective_of(machine, p)) for p in some])
            )
    return Fit(machine, tuple(residuals), tuple(missing))


def _residual(what: str, pairs: Sequence[tuple[Measured, float]]) -> Residual:
    ratios = [p.time_s / fitted for p, fitted in pairs]
    worst = max(ratios, key=lambda r: abs(math.log(r)))
    return Residual(what, len(pairs), statistics.median(ratios), worst)


def peak_flops(points: Sequence[Measured]) -> float:
    """Largest FLOP/s of the rates reached, after these are made monotone in the size of the dot."""
    ordered = sorted(points, key=lambda p: p.flops)
    rates = [p.flops / p.time_s for p in ordered]
    return float(isotonic_regression(rates, weights=[p.time_s for p in ordered]).x[-1])


def memory_bytes_per_s(points: Sequence[Measured]) -> float:
    """Bytes/s of what no cache holds.

    It is the middle rate of the sizes within a sixteenth of the largest.
    """
    largest = max(p.size_bytes for p in points)
    return statistics.median(
        p.size_bytes / p.time_s for p in points if p.size_bytes >= largest / 16
    )


@dataclasses.dataclass(frozen=True)
class _Smooth:
    what: str
    dtype: str
    devices: int
    size_bytes: float
    flops: float
    time_s: float


def monotone(points: Sequence[Measured]) -> list[Measured]:
    """The same points, with times that never fall as sizes grow.

    Times are smoothed for each collective over each number of devices, in logarithms.
    """
    smoothed: list[Measured] = []
    for kind, devices in sorted({(p.what, p.devices) for p in points}):
        some = sorted(
            (p for p in points if (p.what, p.devices) == (kind, devices)),
            key=lambda p: p.size_bytes,
        )
        times = np.exp(isotonic_regression(np.log([p.time_s for p in some])).x)
        smoothed += [
            _Smooth(p.what, p.dtype, p.devices, p.size_bytes, p.flops, float(t))
            for p, t in zip(some, times, strict=True)
        ]
    return smoothed


def collective_of(machine: Machine, point: Measured) -> float:
    """Seconds that ``collectives.py`` gives for a measured collective."""
    mesh = Mesh(("d",), (point.devices,))
    links = lay_out(machine, mesh)
    in_bytes = point.size_bytes / (point.devices if point.what == "all_gather" else 1)
    return float(
        collective_time_s(
            STEP_KINDS.index(point.what),
            1,
            in_bytes,
            mesh.array(),
            links.bytes_per_s,
            links.latency_s,
            links.switched,
            links.shape,
        )
    )


def fit_link(points: Sequence[Measured]) -> Link:
    """Fit latency and bytes/s of a switch to measured times.

    What is minimised are the damped logarithms of measured over fitted times.
    """
    measured = np.log([p.time_s for p in points])

    def link(parameters: np.ndarray) -> Link:
        latency_s, rate = np.exp(parameters)
        return Link(
            "measured links",
            "switch",
            float(rate),
            float(latency_s),
            source="Measured, see provenance.",
        )

    def off(parameters: np.ndarray) -> np.ndarray:
        trial = Machine("trial", {"f32": 1.0}, 1.0, 1.0, (link(parameters),), 0.0)
        return measured - np.log([collective_of(trial, p) for p in points])

    starts = [
        np.log(
            [min(p.time_s for p in points) * scale, max(p.size_bytes / p.time_s for p in points)]
        )
        for scale in (0.1, 0.5, 1.0)
    ]
    fits = [least_squares(off, start, loss="soft_l1", f_scale=0.2) for start in starts]
    return link(min(fits, key=lambda f: f.cost).x)

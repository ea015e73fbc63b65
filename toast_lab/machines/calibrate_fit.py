"""Fit a ``Machine`` to measured points, and report how far off the fit is.

``docs/machines.md`` says how each number follows from the times ("Measuring one"). Behaviour that
the formulas cannot express stays visible as a ratio for each collective. A number that was not
measured is taken from the nearest built-in machine, and its source says so.

Reference: Barlow, Bartholomew, Bremner, Brunk, Statistical inference under order restrictions, 1972
(isotonic regression); Hockney, The communication challenge for MPP, 1994 (latency +
bytes/bandwidth).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression, least_squares

from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.collectives import collective_time_s
from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import lay_out
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.step_kinds import STEP_KINDS


class CalibrationPoint(NamedTuple):
    """One measurement; times are medians of repeats."""

    what: str  #: "dot", "memory", "overhead", "overlap" or a collective
    dtype: str
    #: number of devices; for a collective, in each of the groups that worked side by side
    devices: int
    #: dot: operands and result; memory: bytes read and written; collective: the larger of operand
    #: and result on one device
    size_bytes: float
    flops: float
    time_s: float  #: of one round; for "overlap" the hidden share instead, 0 to 1


Groups = dict[Any, list[CalibrationPoint]]


class Residual(NamedTuple):
    """The deviation of a fit from its measurements."""

    what: str  #: "dot f32", "memory", "all_reduce over 8"
    points: int
    median_ratio: float  #: measured time over fitted time
    worst_ratio: float  #: the ratio farthest from 1


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """A machine, and how well it predicts the measured times."""

    machine: Machine
    residuals: tuple[Residual, ...]
    not_measured: tuple[str, ...]  #: numbers that come from the built-in machine


def nearest(platform: str, kind: str) -> Machine:
    """The built-in machine that a device called ``kind`` resembles.

    It provides the numbers that could not be measured.
    """
    if platform == "cpu":
        return MACHINES["cpu"]
    by_word = {
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
    fallback = "tpu-v5e" if platform == "tpu" else "a100"
    names = [name for word, name in by_word.items() if word in kind.lower()]
    return MACHINES[next(iter(names), fallback)]


def fit(
    points: Iterable[CalibrationPoint],
    name: str,
    base: Machine,
    memory_bytes: float,
    provenance: Mapping[str, str],
) -> Fit:
    """Fit a machine to ``points``.

    Args:
        points: the measurements; any kind of them may be missing.
        name: name of the new machine.
        base: provides the numbers that are missing.
        memory_bytes: memory of one device, 0 if unknown.
        provenance: date and hardware of the measurement.
    """
    usable = [
        point
        for point in points
        if math.isfinite(point.time_s) and (point.time_s > 0 or point.what == "overlap")
    ]
    by_kind = _grouped(usable, lambda point: point.what)
    missing: list[str] = []
    dots = _grouped(by_kind.get("dot", []), lambda point: point.dtype)
    flops = {dtype: peak_flops(group) for dtype, group in dots.items()}
    if "f32" not in flops:
        missing.append("flops.f32")
        flops["f32"] = base.flops["f32"]
    memory_rate = base.memory_bytes_per_s
    if "memory" in by_kind:
        memory_rate = memory_bytes_per_s(by_kind["memory"])
    else:
        missing.append("memory_bytes_per_s")
    medians = {"overhead": base.op_overhead_s, "overlap": base.overlap}
    for kind, key in (("overhead", "op_overhead_s"), ("overlap", "overlap")):
        if kind in by_kind:
            medians[kind] = statistics.median(point.time_s for point in by_kind[kind])
        else:
            missing.append(key)
    overhead_s = medians["overhead"]
    comm = monotone([point for kind in STEP_KINDS for point in by_kind.get(kind, [])])
    links = (fit_link(comm),) if comm else base.links
    if not comm:
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
        overlap=medians["overlap"],
        sources=sources,
        provenance=dict(provenance),
        tile=base.tile,
        vector_memory_bytes=base.vector_memory_bytes,
        vector_memory_bytes_per_s=base.vector_memory_bytes_per_s,
        collective_matmul=base.collective_matmul,
        combined_sum_bytes=base.combined_sum_bytes,
        transposed_numbers_per_s=base.transposed_numbers_per_s,
        shifted_numbers_per_s=base.shifted_numbers_per_s,
        gathered_ahead=base.gathered_ahead,
        host_link_bytes_per_s=base.host_link_bytes_per_s,
        compiler=base.compiler,
        # Full waves of tiles reach the measured FLOP/s, so the sustained share is 1.
        products=base.products and base.products._replace(sustained=1.0, sustained_f32=0.0),
    )
    fitted: dict[str, list[tuple[CalibrationPoint, float]]] = {}
    for dtype, group in dots.items():
        fitted[f"dot {dtype}"] = [
            (point, max(point.flops / flops[dtype], point.size_bytes / memory_rate) + overhead_s)
            for point in group
        ]
    if "memory" in by_kind:
        fitted["memory"] = [
            (point, point.size_bytes / memory_rate + overhead_s) for point in by_kind["memory"]
        ]
    for (kind, devices), group in sorted(_series(comm).items()):
        fitted[f"{kind} over {devices}"] = [
            (point, collective_of(machine, point)) for point in group
        ]
    residuals = [_residual(label, pairs) for label, pairs in fitted.items()]
    return Fit(machine, tuple(residuals), tuple(missing))


def _grouped(points: Iterable[CalibrationPoint], key: Callable[[CalibrationPoint], Any]) -> Groups:
    """Points grouped by ``key``, in order of first appearance."""
    groups: Groups = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return groups


def _series(points: Iterable[CalibrationPoint]) -> Groups:
    """Points grouped by collective and number of devices."""
    return _grouped(points, lambda point: (point.what, point.devices))


def _residual(label: str, pairs: Sequence[tuple[CalibrationPoint, float]]) -> Residual:
    ratios = [point.time_s / fitted for point, fitted in pairs]
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    return Residual(label, len(pairs), statistics.median(ratios), worst)


def peak_flops(points: Sequence[CalibrationPoint]) -> float:
    """The largest FLOP/s reached, after rates are made monotone in the size of the dot."""
    ordered = sorted(points, key=lambda point: point.flops)
    rates = [point.flops / point.time_s for point in ordered]
    return float(isotonic_regression(rates, weights=[point.time_s for point in ordered]).x[-1])


def memory_bytes_per_s(points: Sequence[CalibrationPoint]) -> float:
    """Bytes/s of sizes that no cache holds.

    It is the median rate of the sizes that are at least a sixteenth of the largest.
    """
    largest = max(point.size_bytes for point in points)
    return statistics.median(
        point.size_bytes / point.time_s for point in points if point.size_bytes >= largest / 16
    )


def monotone(points: Sequence[CalibrationPoint]) -> list[CalibrationPoint]:
    """The same points, with times that never fall as sizes grow.

    Logarithms of times are smoothed, separately for each collective and number of devices.
    """
    smoothed: list[CalibrationPoint] = []
    for group in _series(points).values():
        group = sorted(group, key=lambda point: point.size_bytes)
        times = np.exp(isotonic_regression(np.log([point.time_s for point in group])).x)
        smoothed += [
            point._replace(time_s=float(time_s)) for point, time_s in zip(group, times, strict=True)
        ]
    return smoothed


def collective_of(machine: Machine, point: CalibrationPoint) -> float:
    """Seconds by the formulas of ``collectives.py`` for a measured collective."""
    mesh = Mesh(("d",), (point.devices,))
    in_bytes = point.size_bytes / (point.devices if point.what == "all_gather" else 1)
    kind = STEP_KINDS.index(point.what)
    return float(collective_time_s(kind, 1, in_bytes, lay_out(machine, mesh).shape))


def fit_link(points: Sequence[CalibrationPoint]) -> Link:
    """Fit latency and bytes/s of a switch to measured times.

    The fit minimises the damped logarithms of measured over fitted times.
    """
    log_times = np.log([point.time_s for point in points])

    def link_of(parameters: np.ndarray) -> Link:
        latency_s, rate = np.exp(parameters)
        return Link(
            "measured links",
            topology="switch",
            bytes_per_s=float(rate),
            latency_s=float(latency_s),
            source="Measured, see provenance.",
        )

    def log_ratios(parameters: np.ndarray) -> np.ndarray:
        trial = dataclasses.replace(MACHINES["cpu"], links=(link_of(parameters),))
        return log_times - np.log([collective_of(trial, point) for point in points])

    start_points = [
        np.log(
            [
                min(point.time_s for point in points) * scale,
                max(point.size_bytes / point.time_s for point in points),
            ]
        )
        for scale in (0.1, 0.5, 1.0)
    ]
    fits = [least_squares(log_ratios, start, loss="soft_l1", f_scale=0.2) for start in start_points]
    return link_of(min(fits, key=lambda candidate: candidate.cost).x)

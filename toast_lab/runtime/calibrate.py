"""``calibrate``: measure attached devices and fit a machine model to the numbers.

The benchmarks run in a child process that sends each point as it is measured, so that a time limit,
a cancellation or a crash of the child loses nothing measured before.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import platform as host
import re
from typing import Any

from toast_lab import isolate
from toast_lab.errors import InvalidProblem, RunFailed
from toast_lab.machines.calibrate_fit import CalibrationPoint, Fit, fit, nearest
from toast_lab.runtime import calibrate_child as child
from toast_lab.runtime import devices as dev
from toast_lab.runtime.child import OnProgress, RunProgress

#: Most virtual devices: each takes a few threads of the host.
MOST_VIRTUAL = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """A measured machine with the points that it was fitted to."""

    fit: Fit
    points: tuple[CalibrationPoint, ...]
    skipped: tuple[child.Skipped, ...]
    note: str  #: why the measurement ended early, "" if it did not

    def save(self, path: str) -> None:
        """Write the machine file, with the measured points and residuals as comments at its end."""
        lines = [self.note] if self.note else []
        lines += [f"Not measured: {skip.what}: {skip.why}" for skip in self.skipped]
        lines += [
            "",
            "Fit: measured time over fitted time",
            f"{'what':24} {'points':>6} {'median':>8} {'worst':>8}",
        ]
        lines += ["{:24} {:6} {:8.3g} {:8.3g}".format(*residual) for residual in self.fit.residuals]
        lines += [
            "",
            "Points (of overlap: the share that was hidden, in place of a time)",
            "what,dtype,devices,size_bytes,flops,time_s",
        ]
        lines += ["{},{},{},{:g},{:g},{:.4g}".format(*point) for point in self.points]
        self.fit.machine.to_toml(path, "\n".join(lines))


def calibrate(
    devices: str = "cpu:8",
    *,
    name: str = "",
    time_limit_s: float = 600.0,
    on_event: OnProgress | None = None,
    cancel: isolate.Cancel | None = None,
    quick: bool = False,
) -> Calibration:
    """Measure ``devices`` and fit a machine to them.

    Args:
        devices: "cpu:8" (virtual devices, which share this host), "gpu" (all attached), "tpu:4" or
            "auto".
        name: name of the machine; by default derived from that of the devices.
        time_limit_s: limit in seconds; whatever is not measured by then is left out.
        on_event: called with progress, in this thread.
        cancel: polled; True ends the measurement and keeps the points so far.
        quick: measure few, small sizes; good for trying it out, not for reliable numbers.

    Raises:
        InvalidProblem: ``devices`` cannot be read, or too few are attached.
        RunFailed: nothing was measured; the message says why.
        Cancelled: cancelled before anything was measured.
    """
    platform, count = _read(devices)
    if platform == "auto":
        platform = dev.find("auto", 1, time_limit_s=120.0, cancel=cancel).platform
    if platform == "cpu" and count is None:
        count = 8
    events = collections.defaultdict[type, list[Any]](list)
    points, skipped = events[CalibrationPoint], events[child.Skipped]

    def listen(event: object) -> None:
        events[type(event)].append(event)
        if isinstance(event, RunProgress) and on_event is not None:
            on_event(event)

    note = ""
    try:
        finished = isolate.run_in_child(
            "toast_lab.runtime.calibrate_child:measure",
            platform,
            count,
            time_limit_s,
            quick=quick,
            env=dev.environment(dev.Devices(platform, count or 1)),
            time_limit_s=time_limit_s + 30.0,
            on_event=listen,
            cancel=cancel,
            activity=f"calibrating {devices}",
        )
        if not finished:
            note = (
                f"Stopped after the time limit of {time_limit_s:g} s; what came later is not "
                "measured."
            )
    except (RunFailed, isolate.Cancelled) as error:
        if not points:
            raise
        note = f"Ended early: {error}"
    if not points:
        reasons = "; ".join(f"{skip.what}: {skip.why}" for skip in skipped[:3])
        raise RunFailed(f"calibrating {devices}: nothing was measured. {note or reasons}")
    hardware: child.Hardware = events[child.Hardware][0]
    label = f"{hardware.kind}-x{hardware.n_devices}".lower()
    versions = [f"{package} {version}" for package, version in hardware.versions.items()]
    provenance = {
        "command": f"toast-lab calibrate --devices {devices}",
        "devices": f"{hardware.n_devices} x {hardware.kind} ({hardware.platform})",
        "host": f"{host.machine()}, {host.system()}",
        "versions": ", ".join(versions),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    result = fit(
        points,
        name=name or re.sub(r"[^a-z0-9]+", "-", label).strip("-"),
        base=nearest(hardware.platform, hardware.kind),
        memory_bytes=hardware.memory_bytes,
        provenance=provenance,
    )
    return Calibration(result, tuple(points), tuple(skipped), note)


def _read(devices: str) -> tuple[str, int | None]:
    count_match = re.search(r":(\d+)\s*$", devices)
    count = int(count_match.group(1)) if count_match else None
    dev.parse(devices, count if count is not None else 1)
    platform = devices.strip().lower().partition(":")[0]
    if count is not None and (count < 1 or (platform == "cpu" and count > MOST_VIRTUAL)):
        raise InvalidProblem(
            f"--devices {devices}: from 1 to {MOST_VIRTUAL} devices can be measured"
        )
    return platform, count

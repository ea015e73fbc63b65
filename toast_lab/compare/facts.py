"""What a measured number hangs on besides the plan.

That is the machine and the versions, with digests to find alike ones by.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

PACKAGES = ("jax", "jaxlib", "numba", "numpy")


def digest(data: Any) -> str:
    """16 hex digits of plain data, whatever the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_digest(plan: Mapping[str, Any] | None) -> str:
    """Of the shardings of a plan, as ``Plan.to_json`` gives it; not of how it was found."""
    if plan is None:
        return ""
    return digest({k: v for k, v in plan.items() if k not in ("actions", "key", "program")})


def machine(device_kind: str, n_devices: int, n_processes: int) -> dict[str, Any]:
    """Host and devices.  Takes what only a process with the devices knows."""
    return {
        "host_cpu": host_cpu(),
        "host_cores": os.cpu_count() or 0,
        "device_kind": device_kind,
        "n_devices": n_devices,
        "n_processes": n_processes,
    }


@functools.cache
def host_cpu() -> str:
    """What the processor calls itself."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def versions() -> dict[str, str]:
    """Of this package, of Python and of what compiles and prices."""
    from toast_lab._version import __version__

    found = {"toast_lab": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found

"""What a measured number depends on besides the plan: the machine and the versions.

Their digests find those that are alike.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toast_lab.runtime import compile_child

PACKAGES = ("jax", "jaxlib", "numba", "numpy")


def digest(data: Any) -> str:
    """16 hex digits of plain data, whatever the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_digest(plan: Mapping[str, Any] | None) -> str:
    """Digest of a plan's shardings (``Plan.to_json``), whatever way they were found."""
    if plan is None:
        return ""
    return digest({key: plan[key] for key in plan if key not in ("actions", "key", "program")})


def machine(device_kind: str, n_devices: int, n_processes: int) -> dict[str, Any]:
    """Host and devices; the arguments are known only to a process that has the devices."""
    return {
        "host_cpu": host_cpu(),
        "host_cores": os.cpu_count() or 0,
        "device_kind": device_kind,
        "n_devices": n_devices,
        "n_processes": n_processes,
    }


@functools.cache
def host_cpu() -> str:
    """The processor's model, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
        return names[0].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


@functools.cache
def versions() -> dict[str, str]:
    """Of this package, of Python and of what compiles and prices."""
    from toast_lab._version import __version__

    return {
        "toast_lab": __version__,
        "python": platform.python_version(),
        **compile_child.versions(PACKAGES),
    }

"""What a measured number depends on besides the plan: the machine and the software versions.

Digests identify equal plans and machines.
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
    """Hash of plain data as 16 hex digits, independent of the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_digest(plan: Mapping[str, Any] | None) -> str:
    """Digest of a plan's shardings (``Plan.to_json``), however they were found."""
    if plan is None:
        return ""
    return digest({key: plan[key] for key in plan if key not in ("actions", "key", "program")})


def machine(device_kind: str, n_devices: int, n_processes: int) -> dict[str, Any]:
    """Facts about host and devices; only a process that has the devices knows the arguments."""
    return {
        "host_cpu": host_cpu(),
        "host_cores": os.cpu_count() or 0,
        "device_kind": device_kind,
        "n_devices": n_devices,
        "n_processes": n_processes,
    }


@functools.cache
def host_cpu() -> str:
    """Name of the processor's model, from the operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model_names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
        return model_names[0].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the packages that compile and price."""
    from toast_lab._version import __version__

    return {
        "toast_lab": __version__,
        "python": platform.python_version(),
        **compile_child.versions(PACKAGES),
    }

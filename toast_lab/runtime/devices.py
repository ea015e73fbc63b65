"""Which devices a run uses: the user's words, such as ``cpu:8``, as the child process needs them.

``cpu:8`` is eight virtual devices of this machine's processor: good for checking correctness and
what the compiler makes of a plan, meaningless for speed, since they share the same cores.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from toast_lab import isolate
from toast_lab.errors import InvalidProblem, did_you_mean

PLATFORM_WORDS = ("auto", "cpu", "gpu", "tpu")
_COUNT_FLAG = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices of one kind."""

    platform: str  #: "cpu", "gpu" or "tpu"
    count: int

    def __str__(self) -> str:
        return f"{self.platform}:{self.count}"


def parse(text: str, wanted: int) -> Devices | None:
    """Parse ``"cpu:8"``, ``"cpu"``, ``"gpu"``, ``"tpu:4"`` or ``"auto"``.

    The mesh has ``wanted`` devices.

    Returns:
        The first ``wanted`` devices, or None for "auto", which depends on the attached devices.

    Raises:
        InvalidProblem: the text is none of these, or its number is below the mesh's.
    """
    match = re.fullmatch(r"\s*(?:auto|(cpu|gpu|tpu)(?::(\d+))?)\s*", str(text).lower())
    if not match:
        hint = did_you_mean(str(text).partition(":")[0], PLATFORM_WORDS)
        raise InvalidProblem(
            f'cannot read devices {text!r}{hint}; write "cpu:{wanted}", "gpu", "tpu" or "auto"'
        )
    platform, digits = match.groups()
    if platform is None:
        return None
    if digits and len(digits.lstrip("0")) > 9:
        raise InvalidProblem(
            f'devices {text[:40]!r}: no machine has that many; write "{platform}:{wanted}"'
        )
    count = int(digits) if digits else wanted
    if count < wanted:
        raise InvalidProblem(
            f"the mesh needs {wanted} devices, but {text!r} has only {count}. Write "
            f'"{platform}:{wanted}", or search for a plan on a mesh of {count}.'
        )
    return Devices(platform, wanted)  # the first ones if there are more


def find(text: str, wanted: int, **limits: Any) -> Devices:
    """``parse``, but for "auto" a child process looks at the attached devices and chooses.

    Args:
        text: as for ``parse``.
        wanted: number of devices of the mesh.
        limits: limits of the child, see ``isolate.run_in_child``.
    """
    devices: Devices = parse(text, wanted) or isolate.run_in_child(
        "toast_lab.runtime.devices:choose",
        wanted,
        env=environment(None),
        activity="looking for devices",
        **limits,
    )
    return devices


def check(text: str, wanted: int) -> None:
    """Raise the error that a run on ``wanted`` of these devices would raise.

    For accelerators, a child process looks at the attached devices.

    Raises:
        InvalidProblem: as for ``parse`` and ``attached``.
    """
    devices = parse(text, wanted)
    if devices is not None and devices.platform != "cpu":
        isolate.run_in_child(
            "toast_lab.runtime.devices:count_attached",
            devices,
            env=environment(devices),
            time_limit_s=120.0,
            activity=f"looking for {devices.platform} devices",
        )


def count_attached(devices: Devices) -> int:
    """The number of ``attached`` devices. Runs in a child."""
    return len(attached(devices))


def environment(devices: Devices | None) -> dict[str, str]:
    """Environment variables of the child process.

    For None, the child sees the devices that JAX finds, within the user's JAX_PLATFORMS.
    """
    if devices is None or devices.platform != "cpu":
        # An empty value lets JAX find accelerators itself; another one, such as a test run's "cpu",
        # would hide them.
        platforms = os.environ.get("JAX_PLATFORMS", "") if devices is None else ""
        return {"JAX_PLATFORMS": platforms, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    flags = [
        flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_COUNT_FLAG)
    ]
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*flags, f"{_COUNT_FLAG}={devices.count}"]),
    }


def attached(devices: Devices) -> list[Any]:
    """The JAX devices to use, in order. Runs in the child.

    Raises:
        InvalidProblem: fewer are attached than the mesh needs.
    """
    import jax

    try:
        present = jax.devices(devices.platform)
    except RuntimeError as error:
        raise InvalidProblem(
            f"no {devices.platform} is attached, but the mesh needs {devices.count}: "
            f'{str(error)[:300]}. Use devices="cpu:{devices.count}" for virtual ones.'
        ) from None
    if len(present) < devices.count:
        raise InvalidProblem(
            f"{len(present)} {devices.platform} devices are attached, but the mesh needs "
            f'{devices.count}. Use devices="cpu:{devices.count}" for virtual ones, or search for a '
            f"plan on a mesh of {len(present)}."
        )
    return list(present[: devices.count])


def choose(wanted: int) -> Devices:
    """Choose attached accelerators if there are enough of them, else virtual CPU devices.

    Runs in a child.
    """
    import jax

    for platform in ("tpu", "gpu"):
        try:
            if len(jax.devices(platform)) >= wanted:
                return Devices(platform, wanted)
        except RuntimeError:
            continue
    return Devices("cpu", wanted)

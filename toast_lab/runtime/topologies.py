"""The devices that a plan is compiled for.

They are a TPU slice that need not be attached, virtual CPU devices, or attached GPUs.

    parse("tpu:v5e:4x4")   16 chips of TPU v5e, their links a torus or mesh of 4 by 4
    parse("cpu:8")         8 virtual devices of this machine's processor
    parse("gpu")           attached GPUs, as many as the mesh has

Numbers of the chips (``CHIPS``): clock of the cores, and which slices exist.  A device of JAX is a
core on v2 and v3 (two a chip) and v4 (whose two cores are one device only where a real chip says
so), and a chip on the others.

Sources of the clocks: Norrie et al., The Design Process for Google's Training Chips: TPUv2 and
TPUv3, IEEE Micro 41(2), 2021 (v2 700 MHz, v3 940 MHz); Jouppi et al., TPU v4, ISCA 2023 (1050 MHz);
Austin et al., How to Scale Your Model, 2025, chapter on TPUs (v5e 1.5 GHz, v5p 1.75 GHz).  Each
equals published peak FLOP/s over 2 * 128 * 128 * matrix units; v6e is taken from that relation
alone (918e12 / (2 * 256 * 256 * 4 units) = 1.75 GHz).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection
from typing import Any

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.runtime import devices as dev
from toast_lab.sharding.mesh import Mesh

_PLANE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of TPUs."""

    clock_hz: float
    devices_per_chip: int
    slices: tuple[str, ...]  #: dims in chips
    machine: str  #: name of the machine model of one device


CHIPS: dict[str, Chip] = {
    "v2": Chip(0.70e9, 2, ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16"), "tpu-v2"),
    "v3": Chip(
        0.94e9, 2, ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"), "tpu-v3"
    ),
    "v4": Chip(1.05e9, 2, _CUBE, "tpu-v4"),
    "v5e": Chip(1.50e9, 1, _PLANE, "tpu-v5e"),
    "v5p": Chip(1.75e9, 1, _CUBE, "tpu-v5p"),
    "v6e": Chip(1.75e9, 1, _PLANE, "tpu-v6e"),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices to compile for."""

    platform: str  #: "tpu", "cpu" or "gpu"
    count: int
    chip: str = ""  #: "v5e"
    slice: str = ""  #: "4x4"

    @property
    def clock_hz(self) -> float | None:
        """Cycles a second of what the compiler's estimates count; None where it makes none."""
        return CHIPS[self.chip].clock_hz if self.chip else None

    def __str__(self) -> str:
        return f"tpu:{self.chip}:{self.slice}" if self.chip else f"{self.platform}:{self.count}"


def known() -> list[str]:
    """Every TPU slice by name."""
    return [f"tpu:{name}:{dims}" for name, chip in CHIPS.items() for dims in chip.slices]


def parse(text: str, mesh: Mesh) -> Topology:
    """Read a topology's name for a mesh.

    Raises:
        InvalidProblem: there is no such topology, or it has not exactly as many devices as the
            mesh.
    """
    name = text.lower() if isinstance(text, str) else ""
    match = re.fullmatch(r"\s*(?:tpu:)?(v\w+):(\d+(?:x\d+)*)\s*", name)
    if match and match.group(1) in CHIPS:
        topology = _tpu(match.group(1), match.group(2))
    elif re.match(r"\s*(cpu|gpu)\b", name):
        topology = _attached(text, mesh)
    else:
        slices = "; ".join(f"tpu:{chip}: {', '.join(CHIPS[chip].slices)}" for chip in CHIPS)
        hint = did_you_mean(str(text), [*known(), "cpu:8", "gpu"])
        raise InvalidProblem(
            f'no topology is called {text!r}{hint}. Known are "cpu:{mesh.n_devices}", "gpu", and '
            f"of TPUs, in chips: {slices}"
        )
    if topology.count != mesh.n_devices:
        difference = "more" if mesh.n_devices > topology.count else "fewer"
        choices = f"{topology.count}{_fitting(topology, mesh.n_devices)}"
        raise InvalidProblem(
            f"the mesh {mesh} has {mesh.n_devices} devices, {difference} than the {topology.count} "
            f"of {topology}{_cores(topology)}. Choose a mesh of {choices}."
        )
    return topology


def _tpu(name: str, dims: str) -> Topology:
    chip = CHIPS[name]
    if dims not in chip.slices:
        raise InvalidProblem(
            f"TPU {name} has no slice {dims}; in chips there are {', '.join(chip.slices)} "
            f"({chip.devices_per_chip} device{'s' * (chip.devices_per_chip > 1)} a chip)"
        )
    return Topology("tpu", math.prod(map(int, dims.split("x"))) * chip.devices_per_chip, name, dims)


def _attached(text: str, mesh: Mesh) -> Topology:
    match = re.fullmatch(r"\s*(cpu|gpu)(?::(\d+))?\s*", text.lower())
    if not match:
        raise InvalidProblem(
            f'cannot read the topology {text!r}; write "cpu:{mesh.n_devices}" or "gpu"'
        )
    count = mesh.n_devices if match.group(2) is None else int(match.group(2))
    return Topology(match.group(1), count)


def _cores(topology: Topology) -> str:
    per_chip = CHIPS[topology.chip].devices_per_chip if topology.chip else 1
    return f" ({per_chip} a chip)" if per_chip > 1 else ""


def _fitting(topology: Topology, wanted: int) -> str:
    if not topology.chip:
        return f' or write "{topology.platform}:{wanted}"'
    chip = CHIPS[topology.chip]
    names = [
        f"tpu:{topology.chip}:{dims}"
        for dims in chip.slices
        if math.prod(map(int, dims.split("x"))) * chip.devices_per_chip == wanted
    ]
    return f", or the topology {' or '.join(names)}" if names else ""


def machine_of(topology: str, machines: Collection[str]) -> str:
    """Name of the machine model of a topology's devices, or of the nearest that there is."""
    match = re.match(r"\s*(?:tpu:)?(v\w+):", topology.lower())
    chip = CHIPS.get(match.group(1)) if match else None
    machine = "cpu" if "cpu" in topology else "a100"
    if chip is not None:
        machine = chip.machine
    return machine if machine in machines else "tpu-v5e"


def environment(topology: Topology) -> dict[str, str]:
    """Environment variables of the child process that compiles."""
    if topology.platform == "tpu":
        # No TPU is looked for, and the compiler's own messages come to stderr from warnings on.
        return {
            "JAX_PLATFORMS": "cpu",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is opened
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_STDERR_LOG_LEVEL": "1",
            "TPU_MIN_LOG_LEVEL": "1",
            "TF_CPP_MIN_LOG_LEVEL": "1",
        }
    return {
        **dev.environment(dev.Devices(topology.platform, topology.count)),
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def devices(topology: Topology, mesh: Mesh) -> list[Any]:
    """JAX devices in mesh order.  Runs in the child.

    On TPU the mesh is laid onto the torus by JAX's ``mesh_utils.create_device_mesh``, so that
    neighbours along a mesh axis are neighbours in the machine where that can be; where it finds no
    such order, devices stand in the order of their coordinates.  CPUs and GPUs stand in JAX's
    order.

    Raises:
        InvalidProblem: libtpu does not know the topology, or too few GPUs are attached.
    """
    if topology.platform != "tpu":
        return dev.attached(dev.Devices(topology.platform, topology.count))
    from jax.experimental import mesh_utils, topologies

    options = {"chips_per_host_bounds": (1, 1, 1)} if topology.slice == "1x1" else {}
    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{topology.chip}:{topology.slice}", **options
        )
    except Exception as error:
        raise InvalidProblem(f"libtpu gives no topology {topology}: {str(error)[:300]}") from None
    listed = list(description.devices)
    try:
        ordered = mesh_utils.create_device_mesh(mesh.sizes, listed, allow_split_physical_axes=True)
        return list(ordered.reshape(-1))
    except (AssertionError, NotImplementedError, ValueError):
        return sorted(listed, key=_place)


def _place(device: Any) -> tuple[int, ...]:
    return (*reversed(device.coords), device.core_on_chip)

"""The devices that a plan is compiled for.

They are a TPU slice or described GPUs, neither of which need be attached, virtual CPU devices, or
attached GPUs.

    parse("tpu:v5e:4x4")    16 chips of TPU v5e, linked as a torus or mesh of 4 by 4
    parse("gpu:h100:8")     8 H100 in one host, none of them attached
    parse("gpu:a100:2x8")   2 hosts of 8 A100 each
    parse("gpu:my.toml:8")  8 GPUs as described by a file, see ``gpu_target``
    parse("cpu:8")          8 virtual devices of this machine's processor
    parse("gpu")            attached GPUs, as many as the mesh has

``CHIPS`` has the core clock of each chip and the slices that exist. A JAX device is a core on v2
and v3 (two a chip) and v4 (whose two cores are one device only if a real chip says so), and a chip
on the others.

Sources of the clocks: Norrie et al., The Design Process for Google's Training Chips: TPUv2 and
TPUv3, IEEE Micro 41(2), 2021 (v2 700 MHz, v3 940 MHz); Jouppi et al., TPU v4, ISCA 2023 (1050 MHz);
Austin et al., How to Scale Your Model, 2025, chapter on TPUs (v5e 1.5 GHz, v5p 1.75 GHz). Each
equals the published peak FLOP/s over 2 * 128 * 128 * matrix units; the clock of v6e follows from
that relation alone (918e12 / (2 * 256 * 256 * 4 units) = 1.75 GHz).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.runtime import devices as dev
from toast_lab.runtime import gpu_compiler, gpu_target
from toast_lab.sharding.mesh import Mesh

#: Flags that, with ``xla_dump_to``, make a compiler write its schedule.
DUMP_FLAGS = ("xla_dump_hlo_as_text", "xla_dump_latency_hiding_schedule")
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
    gpu: gpu_target.GpuTarget | None = None  #: described GPUs, which need not be attached
    hosts: int = 1  #: of the described GPUs

    @property
    def clock_hz(self) -> float | None:
        """Clock of the cycles that the compiler estimates; None if it makes no estimates."""
        return CHIPS[self.chip].clock_hz if self.chip else None

    def __str__(self) -> str:
        if self.gpu is not None:
            shape = f"{self.hosts}x{self.count // self.hosts}" if self.hosts > 1 else self.count
            return f"gpu:{self.gpu.name}:{shape}"
        return f"tpu:{self.chip}:{self.slice}" if self.chip else f"{self.platform}:{self.count}"


def known() -> list[str]:
    """Names of all TPU slices; for GPUs any number is possible."""
    return [f"tpu:{name}:{dims}" for name, chip in CHIPS.items() for dims in chip.slices]


def parse(text: str, mesh: Mesh) -> Topology:
    """Read the name of a topology that ``mesh`` is to run on.

    Raises:
        InvalidProblem: there is no such topology, or it does not have exactly as many devices as
            the mesh.
    """
    name = text.lower() if isinstance(text, str) else ""
    match = re.fullmatch(r"\s*(?:tpu:)?(v\w+):(\d+(?:x\d+)*)\s*", name)
    if match and match.group(1) in CHIPS:
        topology = _tpu(match.group(1), match.group(2))
    elif re.match(r"\s*gpu:(?!\s*\d+\s*$)", name):
        topology = _described(text, mesh)
    elif re.match(r"\s*(cpu|gpu)\b", name):
        topology = _attached(text, mesh)
    else:
        slices = "; ".join(f"tpu:{chip}: {', '.join(CHIPS[chip].slices)}" for chip in CHIPS)
        gpus = described(mesh.n_devices)
        hint = did_you_mean(str(text), [*known(), *gpus, "cpu:8", "gpu"])
        raise InvalidProblem(
            f'no topology is called {text!r}{hint}. Known are "cpu:{mesh.n_devices}", "gpu" '
            f"(attached), GPUs that need not be attached, {', '.join(gpus)}, and TPUs, in chips: "
            f"{slices}"
        )
    if topology.count != mesh.n_devices:
        difference = "more" if mesh.n_devices > topology.count else "fewer"
        per_chip = CHIPS[topology.chip].devices_per_chip if topology.chip else 1
        cores = f" ({per_chip} a chip)" if per_chip > 1 else ""
        choices = f"{topology.count}{_fitting(topology, mesh.n_devices)}"
        raise InvalidProblem(
            f"the mesh {mesh} has {mesh.n_devices} devices, {difference} than the {topology.count} "
            f"of {topology}{cores}. Choose a mesh of {choices}."
        )
    return topology


def _tpu(name: str, dims: str) -> Topology:
    chip = CHIPS[name]
    if dims not in chip.slices:
        raise InvalidProblem(
            f"TPU {name} has no slice {dims}; its slices, in chips, are {', '.join(chip.slices)} "
            f"({chip.devices_per_chip} device{'s' * (chip.devices_per_chip > 1)} a chip)"
        )
    return Topology("tpu", devices_in(chip, dims), name, dims)


def _attached(text: str, mesh: Mesh) -> Topology:
    match = re.fullmatch(r"\s*(cpu|gpu)(?::(\d+))?\s*", text.lower())
    if not match:
        raise InvalidProblem(
            f'cannot read the topology {text!r}; write "cpu:{mesh.n_devices}" or "gpu"'
        )
    count = mesh.n_devices if match.group(2) is None else int(match.group(2))
    return Topology(match.group(1), count)


def described(count: int) -> list[str]:
    """Topologies of ``count`` GPUs in one host, one for each known kind of GPU."""
    return [f"gpu:{name}:{count}" for name in gpu_target.NAMES]


def _described(text: str, mesh: Mesh) -> Topology:
    """Described GPUs: ``gpu:NAME:COUNT`` or ``gpu:NAME:HOSTSxCOUNT``."""
    name_and_shape = text.strip()[len("gpu:") :]
    name, _, shape = name_and_shape.rpartition(":")
    match = re.fullmatch(r"\s*(?:(\d{1,6})\s*x\s*)?(\d{1,6})\s*", shape.lower())
    if not name:  # a kind without a number: raises if it is unknown
        name = gpu_target.find(name_and_shape.strip()).name
    hosts, gpus_per_host = (int(digits or 1) for digits in match.groups()) if match else (0, 0)
    if hosts * gpus_per_host == 0:
        count = mesh.n_devices
        raise InvalidProblem(
            f"cannot read the topology {text[:80]!r}: after the kind of GPU give their number, "
            f'or hosts x GPUs of each, as in "gpu:{name}:{count}"'
            + (f' or "gpu:{name}:2x{count // 2}"' if count % 2 == 0 and count > 2 else "")
        )
    return Topology("gpu", hosts * gpus_per_host, gpu=gpu_target.find(name.strip()), hosts=hosts)


def devices_in(chip: Chip, dims: str) -> int:
    """Number of devices in a slice with these ``dims``."""
    return math.prod(map(int, dims.split("x"))) * chip.devices_per_chip


def _fitting(topology: Topology, wanted: int) -> str:
    if topology.gpu is not None:
        gpus_per_host = topology.count // topology.hosts
        whole_hosts = topology.hosts > 1 and wanted > gpus_per_host and wanted % gpus_per_host == 0
        shape = f"{wanted // gpus_per_host}x{gpus_per_host}" if whole_hosts else f"{wanted}"
        return f", or the topology gpu:{topology.gpu.name}:{shape}"
    if not topology.chip:
        return f' or write "{topology.platform}:{wanted}"'
    chip = CHIPS[topology.chip]
    names = [
        f"tpu:{topology.chip}:{dims}" for dims in chip.slices if devices_in(chip, dims) == wanted
    ]
    return f", or the topology {' or '.join(names)}" if names else ""


class Target(NamedTuple):
    """A topology that a plan can be compiled for without attached devices."""

    title: str  #: as shown to users: "TPU v5e, 2x4 chips"
    topology: str  #: "tpu:v5e:2x4"
    machine: str  #: name of the machine model of one device


#: Machines whose compilers estimate the time of a step (see ``Compiled.time_s``); for the others
#: they report only memory and collectives.
MACHINES_WITH_TIMES = frozenset(("tpu-v5e", "tpu-v5p", "tpu-v6e", "h100", "h200", "b200"))
GPUS_PER_HOST = 8  # as on boards that are sold


def targets(n_devices: int) -> list[Target]:
    """Every TPU slice of ``n_devices`` devices, and that many GPUs of every known kind."""
    slices = [
        Target(f"TPU {name}, {dims} chips", f"tpu:{name}:{dims}", chip.machine)
        for name, chip in CHIPS.items()
        for dims in chip.slices
        if devices_in(chip, dims) == n_devices
    ]
    hosts, leftover_gpus = divmod(n_devices, GPUS_PER_HOST)
    several_hosts = hosts > 1 and not leftover_gpus
    shape = f"{hosts}x{GPUS_PER_HOST}" if several_hosts else f"{n_devices}"
    gpus = [
        Target(
            f"{n_devices} {name.upper()}" + (f" in {hosts} hosts" if several_hosts else ""),
            f"gpu:{name}:{shape}",
            gpu_target.find(name).machine,
        )
        for name in gpu_target.NAMES
    ]
    return [*slices, *gpus]


def machine_of(topology: str, machines: Collection[str]) -> str:
    """Name of the machine model of a topology's devices, or of the nearest one in ``machines``.

    For described GPUs it is the one that their description names.
    """
    match = re.match(r"\s*(?:tpu:)?(v\w+):", topology.lower())
    gpu = re.match(r"\s*gpu:(?!\s*\d+\s*$)(.*):", topology, re.IGNORECASE)
    if match and match.group(1) in CHIPS:
        machine = CHIPS[match.group(1)].machine
    elif gpu:
        machine = gpu_target.find(gpu.group(1).strip()).machine or "a100"
    else:
        machine = "cpu" if "cpu" in topology else "a100"
    return machine if machine in machines else "tpu-v5e"


def machine_name(topology: Topology, device_kind: str) -> str:
    """Name of the machine model of these devices, "" if none is known.

    Attached GPUs are recognised by their ``device_kind``.
    """
    if topology.chip:
        return CHIPS[topology.chip].machine
    if topology.gpu is not None:
        return topology.gpu.machine
    if topology.platform == "cpu":
        return "cpu"
    words = re.split(r"[^a-z0-9]+", device_kind.lower())
    return next((name for name in gpu_target.NAMES if name in words), "")


def environment(topology: Topology, dump_folder: str = "") -> dict[str, str]:
    """Environment variables of the child process that compiles.

    They tell the TPU compiler to write its schedule to ``dump_folder``.
    """
    if topology.platform == "tpu":
        dump_flags = [f"--xla_dump_to={dump_folder}", *(f"--{flag}=true" for flag in DUMP_FLAGS)]
        flags = [*(dump_flags if dump_folder else ()), *os.environ.get("XLA_FLAGS", "").split()]
        # libtpu looks for no TPU, and logs warnings and above to standard error.
        return {
            "JAX_PLATFORMS": "cpu",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is opened
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_STDERR_LOG_LEVEL": "1",
            "TPU_MIN_LOG_LEVEL": "1",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "XLA_FLAGS": " ".join(flags),
        }
    if topology.gpu is not None:
        return gpu_compiler.environment(gpu_compiler.flags())
    return {
        **dev.environment(dev.Devices(topology.platform, topology.count)),
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def devices(topology: Topology, mesh: Mesh) -> list[Any]:
    """JAX devices in mesh order. Runs in the child.

    On TPU, JAX's ``mesh_utils.create_device_mesh`` lays the mesh onto the torus so that neighbours
    along a mesh axis are neighbours in the machine where possible; if it finds no such order, the
    devices are in the order of their coordinates. CPUs and GPUs are in JAX's order, which for GPUs
    is host by host.

    Raises:
        InvalidProblem: libtpu does not know the topology, or too few GPUs are attached.
    """
    if topology.gpu is not None:
        return _gpus(topology)
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
        return sorted(listed, key=lambda device: (*reversed(device.coords), device.core_on_chip))


def _gpus(topology: Topology) -> list[Any]:
    from jax.experimental import topologies

    assert topology.gpu is not None
    gpus_per_host = topology.count // topology.hosts
    try:
        description = topologies.get_topology_desc(
            platform="cuda",
            target_config=topology.gpu.proto_text(),
            # Groups of linked hosts, hosts in a group, GPUs in a host
            topology=f"1x{topology.hosts}x{gpus_per_host}",
        )
    except Exception as error:
        raise InvalidProblem(
            f"XLA's compiler for GPUs gives no topology {topology}: {str(error)[:500]}. If its "
            f"files are damaged, {gpu_compiler.COMMAND} gets them again."
        ) from None
    return list(description.devices)


def is_installed(topology: str) -> bool:
    """Is the compiler for a topology installed? Attached devices are not looked for."""
    if topology.startswith("tpu:"):
        return importlib.util.find_spec("libtpu") is not None
    if not re.match(r"gpu:(?!\d+$)", topology):
        return topology.startswith("cpu")
    try:
        gpu_compiler.find()
    except InvalidProblem:
        return False
    return True

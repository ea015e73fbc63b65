"""The devices that a plan is compiled for.

They are a TPU slice or GPUs that need not be attached, virtual CPU devices, or attached GPUs.

    parse("tpu:v5e:4x4")    16 chips of TPU v5e, their links a torus or mesh of 4 by 4
    parse("gpu:h100:8")     8 H100 in one host, none of them attached
    parse("gpu:a100:2x8")   2 hosts of 8 A100 each
    parse("gpu:my.toml:8")  8 of the GPU that a file describes, see ``gpu_target``
    parse("cpu:8")          8 virtual devices of this machine's processor
    parse("gpu")            attached GPUs, as many as the mesh has

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
import os
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.runtime import devices as dev
from toast_lab.runtime import gpu_compiler, gpu_target
from toast_lab.sharding.mesh import Mesh

#: What makes a compiler write its schedule, beside ``xla_dump_to``.
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
    gpu: gpu_target.GpuTarget | None = None  #: GPUs that need not be there
    hosts: int = 1  #: of those

    @property
    def clock_hz(self) -> float | None:
        """Cycles a second of what the compiler's estimates count; None where it makes none."""
        return CHIPS[self.chip].clock_hz if self.chip else None

    def __str__(self) -> str:
        if self.gpu is not None:
            each = f"{self.hosts}x{self.count // self.hosts}" if self.hosts > 1 else self.count
            return f"gpu:{self.gpu.name}:{each}"
        return f"tpu:{self.chip}:{self.slice}" if self.chip else f"{self.platform}:{self.count}"


def known() -> list[str]:
    """Every TPU slice by name; of GPUs there are as many as one likes."""
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
    """Topologies of so many GPUs of each known kind, in one host."""
    return [f"gpu:{name}:{count}" for name in gpu_target.NAMES]


def _described(text: str, mesh: Mesh) -> Topology:
    """GPUs that need not be there: ``gpu:NAME:COUNT`` or ``gpu:NAME:HOSTSxCOUNT``."""
    rest = text.strip()[len("gpu:") :]
    name, _, shape = rest.rpartition(":")
    match = re.fullmatch(r"\s*(?:(\d{1,6})\s*x\s*)?(\d{1,6})\s*", shape.lower())
    if not name:  # a kind alone: is it one at all?
        name = gpu_target.find(rest.strip()).name
    hosts, each = (int(number or 1) for number in match.groups()) if match else (0, 0)
    if hosts * each == 0:
        count = mesh.n_devices
        raise InvalidProblem(
            f"cannot read the topology {text[:80]!r}: the kind of GPU is followed by their number, "
            f'or by hosts x GPUs of each, as in "gpu:{name}:{count}"'
            + (f' or "gpu:{name}:2x{count // 2}"' if count % 2 == 0 and count > 2 else "")
        )
    return Topology("gpu", hosts * each, gpu=gpu_target.find(name.strip()), hosts=hosts)


def _cores(topology: Topology) -> str:
    per_chip = CHIPS[topology.chip].devices_per_chip if topology.chip else 1
    return f" ({per_chip} a chip)" if per_chip > 1 else ""


def devices_in(chip: Chip, dims: str) -> int:
    """Devices of a slice."""
    return math.prod(map(int, dims.split("x"))) * chip.devices_per_chip


def _fitting(topology: Topology, wanted: int) -> str:
    if topology.gpu is not None:
        each = topology.count // topology.hosts
        whole_hosts = topology.hosts > 1 and wanted > each and wanted % each == 0
        shape = f"{wanted // each}x{each}" if whole_hosts else f"{wanted}"
        return f", or the topology gpu:{topology.gpu.name}:{shape}"
    if not topology.chip:
        return f' or write "{topology.platform}:{wanted}"'
    chip = CHIPS[topology.chip]
    names = [
        f"tpu:{topology.chip}:{dims}" for dims in chip.slices if devices_in(chip, dims) == wanted
    ]
    return f", or the topology {' or '.join(names)}" if names else ""


class Target(NamedTuple):
    """Something that a plan can be compiled for, without its devices being attached."""

    title: str  #: for people: "TPU v5e, 2x4 chips"
    topology: str  #: "tpu:v5e:2x4"
    machine: str  #: name of the machine model of one device


#: Machines whose compilers tell what a step takes (see ``Compiled.time_s``); of the others they
#: tell memory and collectives alone.
TELL_TIMES = frozenset(("tpu-v5e", "tpu-v5p", "tpu-v6e", "h100", "h200", "b200"))
GPUS_PER_HOST = 8  # as in the boards that are sold


def targets(n_devices: int) -> list[Target]:
    """Every TPU slice of so many devices, and as many of every known kind of GPU."""
    slices = [
        Target(f"TPU {name}, {dims} chips", f"tpu:{name}:{dims}", chip.machine)
        for name, chip in CHIPS.items()
        for dims in chip.slices
        if devices_in(chip, dims) == n_devices
    ]
    hosts, rest = divmod(n_devices, GPUS_PER_HOST)
    several = hosts > 1 and not rest
    shape = f"{hosts}x{GPUS_PER_HOST}" if several else f"{n_devices}"
    gpus = [
        Target(
            f"{n_devices} {name.upper()}" + (f" in {hosts} hosts" if several else ""),
            f"gpu:{name}:{shape}",
            gpu_target.find(name).machine,
        )
        for name in gpu_target.NAMES
    ]
    return [*slices, *gpus]


def machine_of(topology: str, machines: Collection[str]) -> str:
    """Name of the machine model of a topology's devices, or of the nearest that there is.

    Described GPUs have the one that their description names.
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
    """Name of the machine model of these devices, "" if none is known to be theirs.

    Attached GPUs are known by what they call themselves.
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

    A TPU's compiler takes from them where it writes its schedule to, ``dump_folder``.
    """
    if topology.platform == "tpu":
        dumps = [f"--xla_dump_to={dump_folder}", *(f"--{flag}=true" for flag in DUMP_FLAGS)]
        flags = [*(dumps if dump_folder else ()), *os.environ.get("XLA_FLAGS", "").split()]
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
            "XLA_FLAGS": " ".join(flags),
        }
    if topology.gpu is not None:
        return gpu_compiler.environment(gpu_compiler.flags())
    return {
        **dev.environment(dev.Devices(topology.platform, topology.count)),
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def devices(topology: Topology, mesh: Mesh) -> list[Any]:
    """JAX devices in mesh order.  Runs in the child.

    On TPU the mesh is laid onto the torus by JAX's ``mesh_utils.create_device_mesh``, so that
    neighbours along a mesh axis are neighbours in the machine where that can be; where it finds no
    such order, devices stand in the order of their coordinates.  CPUs and GPUs stand in JAX's
    order, that is of GPUs host by host.

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
        return sorted(listed, key=_place)


def _gpus(topology: Topology) -> list[Any]:
    from jax.experimental import topologies

    assert topology.gpu is not None
    each = topology.count // topology.hosts
    try:
        description = topologies.get_topology_desc(
            platform="cuda",
            target_config=topology.gpu.proto_text(),
            # Groups of hosts that are linked to each other, hosts of a group, GPUs of a host
            topology=f"1x{topology.hosts}x{each}",
        )
    except Exception as error:
        raise InvalidProblem(
            f"XLA's compiler for GPUs gives no topology {topology}: {str(error)[:500]}. If its "
            f"files are damaged, {gpu_compiler.COMMAND} gets them anew."
        ) from None
    return list(description.devices)


def _place(device: Any) -> tuple[int, ...]:
    return (*reversed(device.coords), device.core_on_chip)


def is_installed(topology: str) -> bool:
    """Is the compiler for a topology here?  Whether devices are attached is not looked for."""
    if topology.startswith("tpu:"):
        return not _libtpu_missing()
    if not re.match(r"gpu:(?!\d+$)", topology):
        return topology.startswith("cpu")
    try:
        gpu_compiler.find()
    except InvalidProblem:
        return False
    return True


def _libtpu_missing() -> bool:
    import importlib.util

    return importlib.util.find_spec("libtpu") is None

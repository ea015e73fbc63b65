"""The slices and mesh shapes of a machine: all that a model may be trained on.

A mesh shape is laid onto links in the order of its axes, the last one innermost
(``machines.topology``): with 8 GPUs a host, 4x8 has its second axis inside the hosts and 8x4 does
not. So every order of the sizes is a shape of its own. Shapes whose axes get the same links, in
whatever order, have the same plans at the same prices; they are *alike*, and one of them is
searched.

Reference: TOAST takes the mesh as given.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import GROUP, lay_out
from toast_lab.runtime.topologies import CHIPS, devices_in
from toast_lab.sharding.mesh import Mesh, make_mesh

MOST_AXES = 3
#: Most devices by default, on a machine whose links join any number.
DEFAULT_MOST = 64


def device_counts(machine: Machine, devices: Any = None) -> tuple[int, ...]:
    """Numbers of devices to look at, the smallest first.

    Args:
        machine: the machine.
        devices: the most devices: all slices up to it are looked at, which are those that can be
            rented if they are known, else powers of two, and the number itself. Or a list of
            numbers, which are taken as they are. None: the machine's largest slice.

    Raises:
        InvalidProblem: a number is not above 0, or more than the links join; all are listed.
    """
    most = machine.max_devices
    if devices is None:
        devices = min(most or DEFAULT_MOST, max(_slices(machine), default=DEFAULT_MOST))
    listed = isinstance(devices, Sequence) and not isinstance(devices, str)
    counts = list(devices) if listed else [devices]
    offences = [f"devices {text}" for count in counts if (text := checks.whole_offence(count, 1))]
    if not offences and most is not None:
        offences += [
            f"{count} devices: {machine.name} joins at most {most} ({machine.links[-1].name})"
            for count in counts
            if count > most
        ]
    if offences or not counts:
        raise InvalidProblem(
            "these numbers of devices are not possible; give the most, as in devices=64, or a "
            f"list, as in devices=[16, 32]:\n{join_offenders(offences or ['an empty list'])}"
        )
    if listed:
        return tuple(sorted({int(count) for count in counts}))
    return tuple(sorted({*(count for count in _slices(machine) if count <= devices), int(devices)}))


def _slices(machine: Machine) -> list[int]:
    """Slices of a machine that can be rented, or powers of two if none are known."""
    chips = [chip for chip in CHIPS.values() if chip.machine == machine.name]
    if chips:
        return sorted({devices_in(chip, dims) for chip in chips for dims in chip.slices})
    most = machine.max_devices or 2**20
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def mesh_shapes(count: int, most_axes: int = MOST_AXES) -> list[Mesh]:
    """Meshes of ``count`` devices with 1 to ``most_axes`` axes of more than one, in every order."""
    if count == 1:
        return [make_mesh("1")]
    return [
        make_mesh("x".join(map(str, sizes)))
        for n_axes in range(1, most_axes + 1)
        for sizes in _factored(count, n_axes)
    ]


def _factored(count: int, n_axes: int) -> Iterator[tuple[int, ...]]:
    if n_axes == 1:
        yield (count,)
        return
    for size in range(2, count // 2 + 1):
        if count % size == 0:
            for rest in _factored(count // size, n_axes - 1):
                if min(rest) > 1:
                    yield (size, *rest)


def alike(machine: Machine, meshes: Sequence[Mesh]) -> list[tuple[Mesh, ...]]:
    """Meshes in groups whose axes have the same links in some order."""
    keyed = [(_links_key(machine, mesh), mesh) for mesh in meshes]
    groups: dict[Any, list[Mesh]] = {}
    for key, mesh in keyed:
        groups.setdefault(key, []).append(mesh)
    return [tuple(group) for group in groups.values()]


def _links_key(machine: Machine, mesh: Mesh) -> tuple[Any, ...]:
    links = lay_out(machine, mesh)
    columns = np.delete(links.shape, GROUP, axis=1)
    shared = [
        tuple(sorted(mesh.sizes[axis] for axis in axes_of_group))
        for axes_of_group in _groups(links.shape[:, GROUP])
    ]
    return mesh.n_devices, tuple(sorted(map(tuple, columns))), tuple(sorted(shared))


def _groups(group: np.ndarray) -> list[list[int]]:
    order = sorted(range(len(group)), key=lambda axis: group[axis])
    return [list(axes) for _, axes in itertools.groupby(order, key=lambda axis: group[axis])]


def shape_text(mesh: Mesh) -> str:
    """``16x8x2``."""
    return "x".join(map(str, mesh.sizes))


def links_text(machine: Machine, mesh: Mesh) -> str:
    """Where each axis of a mesh runs: ``data: NVLink, 8 devices``."""
    where = lay_out(machine, mesh).where
    return "; ".join(f"{axis}: {text}" for axis, text in zip(mesh.axes, where, strict=True))

"""What an audit is asked: the model as it is sharded, its mesh, and what to compile it for.

Start reading at ``checked_mesh``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.ir.annotations import Annotation
from toast_lab.ir.model import Model
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.machine_model import Machine
from toast_lab.runtime import topologies
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.text import counted


def checked_mesh(model: Model, mesh: Mesh | Mapping[str, int] | str | None) -> Mesh:
    """The mesh that the model's annotations are on.

    Args:
        model: its annotations name mesh axes.
        mesh: the mesh that is wanted; None: the one of the annotations.

    Raises:
        InvalidProblem: there are no annotations, they are on several meshes, or on another one than
            ``mesh``; the offending lines are listed.
    """
    annotations = [a for a in model.annotations if a.mesh]
    if not annotations:
        raise InvalidProblem(
            f"{model.name} has no shardings: no in_shardings or out_shardings, no "
            "with_sharding_constraint, and no argument with a sharding. There is nothing to audit; "
            "tl.search (toast-lab search) finds a plan for it"
        )
    by_mesh: dict[tuple[tuple[str, int], ...], list[Annotation]] = {}
    for annotation in annotations:
        by_mesh.setdefault(annotation.mesh, []).append(annotation)
    wanted = None if mesh is None else make_mesh(mesh)
    if wanted is None:
        if len(by_mesh) > 1:
            raise InvalidProblem(
                f"the shardings of {model.name} are on {len(by_mesh)} meshes, and a program runs "
                "on one:\n" + join_offenders(_lines(by_mesh)) + "\nMake one mesh and use it in all"
            )
        own_axes = next(iter(by_mesh))
        return Mesh(*(tuple(column) for column in zip(*own_axes, strict=True)))
    offenders = {own: rows for own, rows in by_mesh.items() if not _fits(own, wanted)}
    if offenders:
        raise InvalidProblem(
            f"these shardings are not on the mesh {wanted}:\n"
            + join_offenders(_lines(offenders))
            + "\nGive the mesh that the code uses (or none, and it is taken from there), or make "
            f"the code's mesh {wanted}"
        )
    # The order of its axes decides which devices are neighbours: the code's own counts
    own = next(iter(by_mesh))
    if {*own} == {*zip(wanted.axes, wanted.sizes, strict=True)}:
        return Mesh(*(tuple(column) for column in zip(*own, strict=True)))
    return wanted


def _fits(own: tuple[tuple[str, int], ...], wanted: Mesh) -> bool:
    sizes = dict(zip(wanted.axes, wanted.sizes, strict=True))
    return all(sizes.get(axis) == size for axis, size in own if size > 1 or axis in sizes) and all(
        size == 1 or axis in dict(own) for axis, size in sizes.items()
    )


def _lines(by_mesh: Mapping[tuple[tuple[str, int], ...], Sequence[Annotation]]) -> list[str]:
    sentences = []
    for axes, rows in by_mesh.items():
        mesh = ", ".join(f"{axis}={size}" for axis, size in axes)
        places = dict.fromkeys(
            f"{row.kind} {row.name}" + (f" ({row.where})" if row.where else "") for row in rows
        )
        shown = ", ".join(list(places)[:4])
        more = f" and {counted(len(places) - 4, 'other')}" if len(places) > 4 else ""
        sentences.append(f"{mesh}: {shown}{more}")
    return sentences


def target_of(
    mesh: Mesh, machine: str | Machine | None, topology: str | None, *, compiled: bool
) -> tuple[str | Machine, str, tuple[str, ...]]:
    """(machine, topology, notes) for a machine, a topology, or neither.

    Without a topology it is one of the machine's with as many devices as the mesh. Where its
    compiler is not installed, or there is no such slice, the program is compiled for virtual CPU
    devices, which the notes say.
    """
    if topology:
        return machine or topologies.machine_of(topology, MACHINES), topology, ()
    machine = machine or "tpu-v5e"
    name = machine if isinstance(machine, str) else machine.name
    fallback = f"cpu:{mesh.n_devices}"
    if not compiled or name == "cpu":
        return machine, fallback, ()
    own = [t.topology for t in topologies.targets(mesh.n_devices) if t.machine == name]
    installed = [name for name in own if topologies.is_installed(name)]
    if installed:
        return machine, installed[0], ()
    reason = (
        f"the compiler for {own[0]} is not installed"
        if own
        else f"no topology of {name} has {mesh.n_devices} devices"
    )
    return machine, fallback, (f"{reason}: compiled for {fallback}, virtual devices, instead",)

"""Checks that a mesh is the one that a program's shard_maps were written for."""

from __future__ import annotations

from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import Mesh


def check_mesh(program: Program, mesh: Mesh) -> None:
    """Raise InvalidProblem with every ``shard_map`` that was written for another mesh.

    Shapes inside a ``shard_map`` are those of one device, and its collectives count devices in the
    order of its mesh. So the problem's mesh must have the same axes, of the same sizes, in the same
    order.
    """
    given = tuple(zip(mesh.axes, mesh.sizes, strict=True))
    meshes: dict[tuple[tuple[str, int], ...], None] = {}
    offenders = []
    for shard_map in program.shard_maps:
        if shard_map.mesh == given:
            continue
        meshes[shard_map.mesh] = None
        sizes = dict(given)
        differences = [
            f"the mesh has no axis {axis}" if axis not in sizes else f"{axis} is {sizes[axis]}"
            for axis, size in shard_map.mesh
            if sizes.get(axis) != size
        ]
        extra = [axis for axis in mesh.axes if axis not in dict(shard_map.mesh)]
        differences += [f"{axis} is not an axis of the shard_map's mesh" for axis in extra]
        offenders.append(
            f"shard_map ({program.where(shard_map.op)}) on {_mesh_text(shard_map.mesh)}: "
            f"{'; '.join(differences) or 'the axes are in another order'}"
        )
    if not offenders:
        return
    remedy = (
        f"Give the problem the mesh {_mesh_text(next(iter(meshes)))}, or trace the function with "
        f"its shard_maps on {mesh}."
        if len(meshes) == 1
        else f"Trace the function with all of its shard_maps on one mesh, such as {mesh}."
    )
    raise InvalidProblem(
        f"the mesh {mesh} is not the one that this program's shard_maps are written for:\n"
        f"{join_offenders(dict.fromkeys(offenders))}\n  {remedy}"
    )


def _mesh_text(mesh: tuple[tuple[str, int], ...]) -> str:
    return "{" + ", ".join(f'"{axis}": {size}' for axis, size in mesh) + "}"

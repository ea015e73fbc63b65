"""What propagated shardings mean as a plan, so that they can be priced and explained.

Propagation says how every value is sharded; ``sharding.split_ops`` adds along which factor every op
is split. Start reading at ``plan_of_values``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, Spec, make_plan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.split_ops import OpSplits

_WHOLE_AXIS = re.compile(r"[A-Za-z_]\w*")


class Uneven(NamedTuple):
    """A dim that its mesh axes do not cut into equal parts, so that a compiler pads it."""

    value: int
    dim: int
    axes: tuple[str, ...]
    size: int
    ways: int

    @property
    def padded(self) -> int:
        """Size of the dim with the padding."""
        return -(-self.size // self.ways) * self.ways


class Meaning(NamedTuple):
    """A plan, and what of the shardings it cannot express."""

    #: priced with equal parts; not valid as a plan where a dim is uneven
    plan: ShardingPlan
    uneven: tuple[Uneven, ...]
    #: values sharded over parts of axes, whose shardings are left out of the plan
    split_axes: tuple[int, ...]


def plan_of_values(
    analysis: Analysis,
    mesh: Mesh,
    specs: Sequence[Spec],
    returned: Mapping[int, Spec] | None = None,
) -> Meaning:
    """The plan in which every value is sharded as ``specs`` say.

    Args:
        analysis: of the program of ``V`` values.
        mesh: the mesh of the axes in ``specs``.
        specs: [V] axes per dim of each value.
        returned: specs in which the program returns values, whatever they are computed in.
    """
    program = analysis.program
    sharding = Sharding.whole(program, len(mesh.axes))
    uneven: list[Uneven] = []
    split_axes: list[int] = []
    for value, spec in enumerate(specs):
        if program.value_is_constant[value]:
            continue
        for dim, axes in enumerate(spec):
            whole_axes = tuple(axis for axis in axes if _WHOLE_AXIS.fullmatch(axis))
            if len(whole_axes) < len(axes):
                split_axes.append(value)
            size = program.dims(value)[dim]
            if not mesh.divides(size, whole_axes):
                uneven.append(Uneven(value, dim, whole_axes, size=size, ways=mesh.ways(whole_axes)))
        sharding.value_dim[value] = mesh.cut_dims(spec)
    OpSplits(program, analysis.names.shardable).split(
        sharding.value_dim, sharding.value_dim, mesh.array(), sharding.op_factor
    )
    for value, spec in (returned or {}).items():
        if spec != specs[value] and not program.value_is_constant[value]:
            sharding.value_dim[value] = mesh.cut_dims(spec)
    plan = make_plan(analysis, mesh, sharding, ("as written",), key=sharding.key())
    return Meaning(plan, tuple(uneven), tuple(dict.fromkeys(split_axes)))

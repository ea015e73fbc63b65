"""What propagated shardings mean as a plan, so that they can be priced and explained.

Propagation says how every value is sharded; a plan also says along which factor every op is split.
On each mesh axis an op is split

* along a factor that it sums over, if the axis cuts that dim of all its operands: each device sums
  a part, and the parts are added, or scattered to the dim that the axis cuts of the result;
* else along the factor of the dim that the axis cuts of its results: it is computed as it is kept;
* else along a factor that it sums over, if the axis cuts that dim of one operand and nothing else;
* else not at all: operands that are cut are gathered for it.

Partitioners decide alike in nearly all ops; where XLA does not, the comparison with the compiled
program (``runtime.diff``) shows it. Start reading at ``plan_of_values``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir.program import PASS, REDUCTION, Program
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, Spec, make_plan
from toast_lab.sharding.sharding import Sharding

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
            for axis in whole_axes:
                sharding.value_dim[value, mesh.axes.index(axis)] = dim
    _split_ops(program, mesh, analysis.names.shardable, sharding)
    for value, spec in (returned or {}).items():
        if spec != specs[value] and not program.value_is_constant[value]:
            sharding.value_dim[value] = -1
            for dim, axes in enumerate(spec):
                for axis in axes:
                    sharding.value_dim[value, mesh.axes.index(axis)] = dim
    plan = make_plan(analysis, mesh, sharding, ("as written",), key=sharding.key())
    return Meaning(plan, tuple(uneven), tuple(dict.fromkeys(split_axes)))


def _split_ops(program: Program, mesh: Mesh, shardable: np.ndarray, sharding: Sharding) -> None:
    """Decide along which factor each op is split on each axis, from the shardings of values."""
    value_dim = sharding.value_dim
    results: dict[int, list[int]] = {}
    uses: dict[int, list[int]] = {}
    for op in range(program.n_ops):
        owner = int(program.owner[op])
        results.setdefault(owner, []).extend(program.results(op))
        uses.setdefault(owner, []).extend(program.uses(op))
    is_cut = np.any(value_dim >= 0, axis=1, keepdims=True)[:, 0]
    for owner in sorted({*results, *uses}):
        own_results = [value for value in results.get(owner, ()) if is_cut[value]]
        own_uses = [use for use in uses.get(owner, ()) if is_cut[program.use_value[use]]]
        for axis, size in enumerate(mesh.sizes):
            if size == 1:
                continue
            factor = _factor(program, value_dim[:, axis], own_results, own_uses)
            if factor >= 0 and shardable[factor] and program.factor_size[factor] > 1:
                sharding.op_factor[owner, axis] = factor


def _factor(
    program: Program, dim_of: np.ndarray, results: Sequence[int], uses: Sequence[int]
) -> int:
    """The factor along which an op is split on one axis; -1: none."""
    read: dict[int, int] = {}  # factor -> number of operands that are cut along it
    for use in uses:
        dim = dim_of[program.use_value[use]]
        if dim >= 0:
            factor = program.use_names(use)[dim]
            read[factor] = read.get(factor, 0) + 1
    sums = [factor for factor in read if program.factor_class[factor] == REDUCTION]
    if len(read) == 1 and sums and read[sums[0]] > 1:
        return int(sums[0])
    kept = {program.def_names(value)[dim_of[value]] for value in results if dim_of[value] >= 0}
    for factor in sorted(kept):
        if program.factor_class[factor] == PASS:
            return int(factor)
    return int(sums[0]) if len(read) == 1 and sums else -1

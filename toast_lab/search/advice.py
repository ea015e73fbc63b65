"""Advice when no plan fits: how far the best is over the limit, and a mesh or a size that would do.

Meshes are tried: the plan's own actions are applied on meshes with one axis enlarged, and priced
again. Sizes are estimated from the values in memory at the peak: the bytes of values that have a
dim of a colour shrink with the size of that colour.

Reference: TOAST section 4.5, where a plan over the limit is penalised; the paper gives no advice.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import ToastError
from toast_lab.sharding.plan import ShardingPlan, pinned_texts
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State

GIB = 2.0**30
MOST_MESHES = 4  # most meshes tried; each takes about as long as the problem took to make


def how_to_fit(problem: Problem, plan: ShardingPlan, cost: Cost) -> str:
    """A few sentences of advice on a plan that is over the memory limit."""
    need_bytes, limit_bytes = cost.peak_bytes, cost.memory_limit_bytes
    advice = (
        f"No plan found fits: the best needs {need_bytes / GIB:.2f} GiB a device, "
        f"{(need_bytes - limit_bytes) / GIB:.2f} GiB over the "
        f"limit of {limit_bytes / GIB:.2f} GiB."
    )
    mesh = larger_mesh(problem, plan, cost)
    if mesh is not None:
        advice += f" Its actions fit on the mesh {mesh[0]} ({mesh[1] / GIB:.2f} GiB)."
    size = smaller_size(problem, plan, cost)
    if size is not None:
        advice += (
            f" {size[1] / GIB:.2f} GiB of the peak lies in values with the dim {size[0]} (size "
            f"{size[2]}): "
            f"with {size[3]} instead it would be about {size[4] / GIB:.2f} GiB."
        )
    if mesh is None and size is None:
        advice += " Use a larger mesh, a smaller batch or a machine with more memory."
    return f"{advice} tl.why_not (toast-lab why-not) says what fills it, and what makes room."


def larger_mesh(problem: Problem, plan: ShardingPlan, cost: Cost) -> tuple[str, float] | None:
    """(mesh, peak bytes) of the first mesh tried on which the plan's actions fit.

    Each mesh tried has one axis enlarged. None: none of them fits, or the plan was not made of
    actions.
    """
    wishes = () if problem.pins is None else problem.pins.wishes
    actions = plan.actions[len(pinned_texts(problem.space)) :]
    if plan.refinements and not actions:
        return None
    first_factor = 2 ** max(
        1, math.ceil(math.log2(max(2.0, cost.peak_bytes / cost.memory_limit_bytes)))
    )
    mesh = problem.mesh
    meshes = itertools.product((first_factor, 2 * first_factor), mesh.axes)
    for factor, axis in itertools.islice(meshes, MOST_MESHES):
        sizes = dict(zip(mesh.axes, mesh.sizes, strict=True))
        sizes[axis] *= factor
        try:
            enlarged = problem.on_mesh(sizes)._keeping_to(wishes)
            state = State(enlarged.space)
            for text in actions:
                state.apply(parse_action(enlarged.analysis, enlarged.mesh, text))
        except ToastError:  # too many devices for the links, or a plan not made of actions
            continue
        quick = enlarged.pricer().quick(state)
        if quick.fits:
            return f"{axis}={sizes[axis]} ({enlarged.mesh})", quick.peak_bytes
    return None


def smaller_size(
    problem: Problem, plan: ShardingPlan, cost: Cost
) -> tuple[str, float, int, int, float] | None:
    """The dim whose reduction helps most; None: no dim is enough.

    Only dims of inputs can be chosen freely, not those of parameters, and none gets smaller than
    the number of devices that the plan cuts it over. The result is an estimate: values with two
    such dims shrink faster.

    Returns:
        (dim, bytes of values with it at the peak, size, size that would fit, peak bytes with it).
    """
    analysis, program = problem.analysis, problem.analysis.program
    excess_bytes = cost.peak_bytes - cost.memory_limit_bytes
    held_bytes: dict[int, float] = {}
    most_ways: dict[int, int] = {}
    index_of_value = {name: index for index, name in enumerate(program.value_name)}
    for tensor in cost.at_peak:
        value = index_of_value.get(tensor.value)
        if value is None:
            continue
        names = program.def_names(value)
        ways_of_group: dict[int, int] = {}
        for dim, name in enumerate(names):
            ways = math.prod(
                size
                for axis, size in enumerate(problem.mesh.sizes)
                if plan.value_dim[value, axis] == dim
            )
            group = int(analysis.group[analysis.colour[name]])
            ways_of_group[group] = max(ways_of_group.get(group, 1), ways)
        for group, ways in ways_of_group.items():
            held_bytes[group] = held_bytes.get(group, 0.0) + tensor.bytes
            most_ways[group] = max(most_ways.get(group, 1), ways)
    input_groups = _input_groups(problem)
    for group, group_bytes in sorted(held_bytes.items(), key=lambda pair: -pair[1]):
        size = int(analysis.groups[group].size)
        if group not in input_groups or group_bytes <= excess_bytes:
            continue
        remaining_share = 1.0 - excess_bytes / group_bytes
        smaller = int(size * remaining_share) // most_ways[group] * most_ways[group]
        if 0 < smaller < size:
            return (
                analysis.group_name[group],
                group_bytes,
                size,
                smaller,
                cost.peak_bytes - group_bytes * (1 - smaller / size),
            )
    return None


def _input_groups(problem: Problem) -> set[int]:
    """Colour groups with a dim of an argument that is data, not a parameter.

    Arguments are data if they are integers, or if no result of the program has their shape and
    dtype.
    """
    analysis, program = problem.analysis, problem.analysis.program
    returned = {
        (tuple(program.dims(int(output))), program.value_dtype[int(output)])
        for output in program.outputs
    }
    groups = set()
    for argument in range(program.n_arguments):
        dtype = program.value_dtype[argument]
        if (
            dtype.startswith(("i", "ui", "s", "u"))
            or (tuple(program.dims(argument)), dtype) not in returned
        ):
            names = np.asarray(program.def_names(argument))
            groups |= {int(analysis.group[analysis.colour[name]]) for name in names[names >= 0]}
    return groups

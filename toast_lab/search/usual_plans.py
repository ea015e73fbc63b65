"""The plans that everybody would try first: data parallel, fully sharded, tensor parallel.

They are made of colour actions, so they need to know which dim is the batch and which one the
weights; what nobody has named is guessed (``batch_group``, ``weights_group``).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import Program
from toast_lab.sharding.plan import plan_of_actions
from toast_lab.sharding.space import Action, parse_action


def data_parallel(problem: Problem) -> list[Action]:
    """The batch dimension along every mesh axis that divides it.

    Raises InvalidPlan if there is none.
    """
    group = batch_group(problem.analysis)
    try:
        return _along(problem, group, problem.mesh.axes, [])
    except InvalidPlan as error:
        raise InvalidPlan(f"data parallel: {error}") from None


def fully_sharded(problem: Problem) -> list[Action]:
    """Data parallel, and the weights cut along every axis as well (FSDP, ZeRO-3).

    Raises InvalidPlan if there is no batch, or no weights to cut.
    """
    taken = data_parallel(problem)
    return _along(problem, weights_group(problem.analysis), problem.mesh.axes, taken)


def tensor_parallel(problem: Problem) -> list[Action]:
    """The weights along the last axis of the mesh, the batch along those before.

    Raises InvalidPlan if there is no batch, or no weights to cut.
    """
    *others, last = problem.mesh.axes
    batch = batch_group(problem.analysis)
    taken = _along(problem, batch, others, []) if others else []
    return _along(problem, weights_group(problem.analysis), (last,), taken)


#: what everybody would try first
USUAL = {
    "data parallel": data_parallel,
    "fully sharded": fully_sharded,
    "tensor parallel": tensor_parallel,
}


def usual_plans(problem: Problem) -> dict[str, list[Action]]:
    """The actions of the usual plans that this problem allows, by name."""
    usual: dict[str, list[Action]] = {}
    for name, actions in USUAL.items():
        with contextlib.suppress(InvalidPlan):
            usual[name] = actions(problem)
    return usual


def _along(
    problem: Problem, group: int, axes: Iterable[str], taken: Sequence[Action]
) -> list[Action]:
    """Actions that also cut a colour group along these axes, as far as each divides it.

    Raises InvalidPlan if none does.
    """
    analysis, actions = problem.analysis, list(taken)
    for axis in axes:
        with contextlib.suppress(InvalidPlan):
            action = parse_action(analysis, problem.mesh, (analysis.group_name[group], axis))
            plan_of_actions(problem.space, [*actions, action])
            actions.append(action)
    if len(actions) == len(taken):
        size = analysis.groups[group].size
        raise InvalidPlan(
            f"{analysis.group_name[group]} has size {size}, which no axis of {problem.mesh} divides"
        )
    return actions


def batch_group(analysis: Analysis) -> int:
    """The colour group of the batch dimension.

    It is one that is called so; else the first dim that can be cut of the inputs that carry data:
    those of whole numbers, else those that the program does not give back (a training step returns
    parameters and moments), else any.  The steps of a sequence that a loop goes through are no
    batch.  Of several colours it is one that results have, on most of
    the computed values.

    Raises InvalidPlan listing the candidates: nothing looks like a batch, or several do.
    """
    for word in ("batch", "b", "n"):
        for group in analysis.groups:
            if group.name.casefold() == word and group.shardable:
                return group.index
    walked = _walked_groups(analysis)
    for arguments in _data_arguments(analysis.program):
        inputs = {
            leading: analysis.program.value_name[argument]
            for argument in reversed(arguments)
            if (leading := _leading_group(analysis, argument, walked)) is not None
        }
        if not inputs:
            continue
        spread, returned = _computed_values(analysis)
        first, *others = sorted(
            inputs, key=lambda group: (group not in returned, -spread[group], group)
        )
        others = [
            group
            for group in others
            if (group in returned) == (first in returned)
            and spread[group] > IN_DOUBT * spread[first]
        ]
        if not others:
            return first
        listed = ", ".join(
            f"{analysis.group_name[group]} (size {analysis.groups[group].size}, of {inputs[group]})"
            for group in (first, *others)
        )
        raise InvalidPlan(
            f"several dims could be the batch: {listed}. Type the one that is as an action, for "
            f"instance {analysis.group_name[first]}->data"
        )
    raise InvalidPlan(
        "no dimension looks like a batch; type an action list instead, for instance batch->data"
    )


def weights_group(analysis: Analysis) -> int:
    """The colour group, other than the batch, on most bytes of arguments.

    Raises InvalidPlan if there is no batch, or no other colour that can be cut.
    """
    batch, program = batch_group(analysis), analysis.program
    weight: Counter[int] = Counter()
    for argument in range(program.n_arguments):
        for group in _groups_of(analysis, argument):
            if group != batch and analysis.groups[group].shardable:
                weight[group] += program.nbytes(argument)
    if not weight:
        raise InvalidPlan("no dimension but the batch can be cut")
    return max(weight, key=lambda group: (weight[group], -group))


IN_DOUBT = 0.9  #: a colour on that share of the values of the first is a batch as well as it


def _data_arguments(program: Program) -> list[list[int]]:
    """Arguments that may carry the examples, in groups, the likeliest group first."""

    def type_of(value: int) -> tuple[str, tuple[int, ...]]:
        return program.value_dtype[value], program.dims(value)

    arguments = list(range(program.n_arguments))
    returned = Counter(type_of(int(value)) for value in program.outputs)
    kept = []
    for argument in arguments:
        if returned[type_of(argument)]:
            returned[type_of(argument)] -= 1
        else:
            kept.append(argument)
    if 2 * len(kept) > len(arguments):
        # Few come back, and these may be activations that look like the input
        kept = arguments
    whole = [argument for argument in kept if program.value_dtype[argument].strip("u")[:1] == "i"]
    return [whole, kept, arguments]


def _walked_groups(analysis: Analysis) -> set[int]:
    """Colour groups of dims of which each round of a loop takes or writes a part."""
    program = analysis.program
    walked: set[int] = set()
    for op in program.ops():
        if not op_kind(program.kind[op]).picks_slice or program.trips[op] <= 1.0:
            continue
        stacked, *others = program.operands(op)
        brings = op_kind(program.kind[op]).brings
        part = others[brings - 1] if brings >= 0 else program.results(op)[0]
        for name, size, taken in zip(
            program.use_names(program.uses(op)[0]),
            program.dims(stacked),
            program.dims(part),
            strict=True,
        ):
            if size != taken:
                walked.add(int(analysis.group[analysis.colour[name]]))
    return walked


def _leading_group(analysis: Analysis, argument: int, walked: set[int]) -> int | None:
    """Colour group of the first dim of an argument that an action can cut, not in ``walked``."""
    for name in analysis.program.def_names(argument):
        group = analysis.groups[int(analysis.group[analysis.colour[name]])]
        if group.shardable and group.n_names > 1 and group.index not in walked:
            return int(group.index)
    return None


def _computed_values(analysis: Analysis) -> tuple[Counter[int], set[int]]:
    """On how many values that are no arguments each colour group is; those that results have."""
    program = analysis.program
    counts: Counter[int] = Counter()
    for value in range(program.n_arguments, program.n_values):
        counts.update(_groups_of(analysis, value))
    returned = {group for value in program.outputs for group in _groups_of(analysis, int(value))}
    return counts, returned


def _groups_of(analysis: Analysis, value: int) -> set[int]:
    """Colour groups of the dims of a value."""
    names = analysis.program.def_names(value)
    return {int(analysis.group[analysis.colour[name]]) for name in names}

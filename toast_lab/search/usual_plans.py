"""The plans that everybody would try first: data parallel, fully sharded, tensor parallel.

They are made of colour actions, so the colours of the batch and of the weights must be known. If
the program does not name them, they are guessed (``batch_group``, ``weights_group``).
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
    """Data parallelism: the batch dim is split along every mesh axis that divides it.

    Raises InvalidPlan if there is no batch, or no axis divides it.
    """
    group = batch_group(problem.analysis)
    try:
        return _along(problem, group, problem.mesh.axes, [])
    except InvalidPlan as error:
        raise InvalidPlan(f"data parallel: {error}") from None


def fully_sharded(problem: Problem) -> list[Action]:
    """Data parallelism with the weights split along every axis as well (FSDP, ZeRO-3).

    Raises InvalidPlan if there is no batch, or no weights that can be split.
    """
    taken = data_parallel(problem)
    return _along(problem, weights_group(problem.analysis), problem.mesh.axes, taken)


def tensor_parallel(problem: Problem) -> list[Action]:
    """Tensor parallelism: weights are split along the last mesh axis, the batch along the others.

    Raises InvalidPlan if there is no batch, or no weights that can be split.
    """
    *others, last = problem.mesh.axes
    batch = batch_group(problem.analysis)
    taken = _along(problem, batch, others, []) if others else []
    return _along(problem, weights_group(problem.analysis), (last,), taken)


#: functions that make the usual plans, by name
USUAL_PLANS = {
    "data parallel": data_parallel,
    "fully sharded": fully_sharded,
    "tensor parallel": tensor_parallel,
}


def usual_plans(problem: Problem) -> dict[str, list[Action]]:
    """The actions of each usual plan that the problem allows, by name."""
    usual: dict[str, list[Action]] = {}
    for name, actions in USUAL_PLANS.items():
        with contextlib.suppress(InvalidPlan):
            usual[name] = actions(problem)
    return usual


def _along(
    problem: Problem, group: int, axes: Iterable[str], taken: Sequence[Action]
) -> list[Action]:
    """``taken`` and actions that split a colour group along each of these axes that divides it.

    Raises InvalidPlan if no axis does.
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
    """The colour group of the batch dim.

    A group named "batch", "b" or "n" is the batch. Without one, it is the first dim that can be
    split of the inputs that carry data: integer inputs, else inputs that the program does not
    return (a training step returns parameters and moments), else all. A dim that a loop walks, such
    as the steps of a sequence, is no batch. Of several groups the batch is one that results have,
    on most of the computed values.

    Raises:
        InvalidPlan: no group looks like a batch, or several do; these are listed.
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
        value_counts, returned = _computed_values(analysis)
        likeliest, *others = sorted(
            inputs, key=lambda group: (group not in returned, -value_counts[group], group)
        )
        others = [
            group
            for group in others
            if (group in returned) == (likeliest in returned)
            and value_counts[group] > DOUBTFUL_BATCH_SHARE * value_counts[likeliest]
        ]
        if not others:
            return likeliest
        listed = ", ".join(
            f"{analysis.group_name[group]} (size {analysis.groups[group].size}, of {inputs[group]})"
            for group in (likeliest, *others)
        )
        raise InvalidPlan(
            f"several dims could be the batch: {listed}. Give the right one as an action, for "
            f"instance {analysis.group_name[likeliest]}->data"
        )
    raise InvalidPlan(
        "no dim looks like a batch; give a list of actions instead, for instance batch->data"
    )


def weights_group(analysis: Analysis) -> int:
    """The colour group, other than the batch, that is on most bytes of arguments.

    Raises InvalidPlan if there is no batch, or no other group that can be split.
    """
    batch, program = batch_group(analysis), analysis.program
    group_bytes: Counter[int] = Counter()
    for argument in range(program.n_arguments):
        for group in _groups_of(analysis, argument):
            if group != batch and analysis.groups[group].shardable:
                group_bytes[group] += program.nbytes(argument)
    if not group_bytes:
        raise InvalidPlan("only the batch dim can be split")
    return max(group_bytes, key=lambda group: (group_bytes[group], -group))


#: A group may be the batch too if it is on more than this share as many values as the likeliest.
DOUBTFUL_BATCH_SHARE = 0.9


def _data_arguments(program: Program) -> list[list[int]]:
    """Lists of arguments that may carry the examples: the likeliest, likely ones, and all."""

    def type_of(value: int) -> tuple[str, tuple[int, ...]]:
        return program.value_dtype[value], program.dims(value)

    arguments = list(range(program.n_arguments))
    returned = Counter(type_of(int(value)) for value in program.outputs)
    not_returned = []
    for argument in arguments:
        if returned[type_of(argument)]:
            returned[type_of(argument)] -= 1
        else:
            not_returned.append(argument)
    if 2 * len(not_returned) > len(arguments):
        # The program returns few of them, and these may be activations shaped like an input.
        not_returned = arguments
    integers = [
        argument for argument in not_returned if program.value_dtype[argument].strip("u")[:1] == "i"
    ]
    return [integers, not_returned, arguments]


def _walked_groups(analysis: Analysis) -> set[int]:
    """Colour groups of the dims that loops walk: each iteration reads or writes a slice of them."""
    program = analysis.program
    walked: set[int] = set()
    for op in program.ops():
        if not op_kind(program.kind[op]).picks_slice or program.trips[op] <= 1.0:
            continue
        stacked, *others = program.operands(op)
        updated_operand = op_kind(program.kind[op]).update_operand
        slice_value = (
            others[updated_operand - 1] if updated_operand >= 0 else program.results(op)[0]
        )
        for name, size, slice_size in zip(
            program.use_names(program.uses(op)[0]),
            program.dims(stacked),
            program.dims(slice_value),
            strict=True,
        ):
            if size != slice_size:
                walked.add(int(analysis.group[analysis.colour[name]]))
    return walked


def _leading_group(analysis: Analysis, argument: int, walked: set[int]) -> int | None:
    """The group of an argument's first dim that can be split and is not in ``walked``, or None."""
    for name in analysis.program.def_names(argument):
        group = analysis.groups[int(analysis.group[analysis.colour[name]])]
        if group.shardable and group.n_names > 1 and group.index not in walked:
            return int(group.index)
    return None


def _computed_values(analysis: Analysis) -> tuple[Counter[int], set[int]]:
    """(number of computed values that each colour group is on, colour groups of the results)."""
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

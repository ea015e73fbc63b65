"""Which arguments carry examples, which are caches or random keys, and which dim is the batch.

Nothing but the program is read. An argument is

* a **random key** if it has the type of one and its words are mixed bit by bit or drawn from;
* a **scalar** if no dim has more than one element: a step counter, a position, a rate;
* a **cache** if it is updated at a position and comes back in its own shape;
* **state** if it comes back in its own shape otherwise: parameters and moments;
* **data** if it carries the batch, or is made of integers or truth values;
* a **weight** otherwise.

The program is a training step if most of its arguments come back, or if it has a backward pass
and some come back updated element by element; frozen weights then stay weights. Start reading at
``sort_arguments``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from toast_lab.conflicts.colouring import Colouring
from toast_lab.ir.op_kinds import is_control, op_kind
from toast_lab.ir.program import ELEMENTWISE, Program

#: Several groups may be the batch if each is on more than this share as many values as the first.
DOUBTFUL_BATCH_SHARE = 0.9
#: A dim of inputs is no batch if it is on less than this share as many values as another one.
LEAST_BATCH_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class ArgumentKinds:
    """The arguments of a program by what they carry, and its batch."""

    keys: frozenset[int]
    scalars: frozenset[int]
    caches: dict[int, tuple[int, ...]]  #: for each cache, the dims that are written at a position
    states: frozenset[int]  #: they come back updated, caches apart
    data: frozenset[int]  #: caches included
    weights: frozenset[int]  #: optimiser states included
    trains: bool  #: most arguments come back updated
    #: colour groups of the batch, each with an argument that it leads; several if inputs of
    #: different colours are batched, as in contrastive learning
    batches: dict[int, int | None]
    doubt: str  #: why there is no batch; empty if there is one


def sort_arguments(analysis: Colouring) -> ArgumentKinds:
    """Sort the arguments of a program by what they carry, and choose the batch."""
    program = analysis.program
    root = argument_roots(program)
    keys = random_keys(program, root)
    scalars = frozenset(
        argument
        for argument in range(program.n_arguments)
        if argument not in keys and max(program.dims(argument), default=1) <= 1
    )
    caches = _caches(program, root, keys | scalars)
    others = [
        argument
        for argument in range(program.n_arguments)
        if argument not in keys and argument not in scalars and argument not in caches
    ]
    states = _returned(program, others)
    trains = 2 * len(states) >= len(others) > 0
    if not trains and any("transpose(" in stack for stack in program.name_stack):
        updated_ones = _updated(program) & frozenset(others)
        trains = bool(updated_ones)
        states = updated_ones if trains else states
    updated = states if trains else frozenset()
    nodes = _node_groups(analysis, others)
    nodes -= {group for argument in updated for group in groups_of(analysis, argument)}
    batches, doubt = _batches(analysis, others, updated)
    sizes = {group: analysis.groups[group].size for group in nodes}
    sizes |= {
        group: max(_sizes(analysis, argument, group))
        for group, argument in batches.items()
        if argument is not None
    }
    data = {
        argument
        for argument in others
        if is_whole_number(program, argument)
        or any(size in _sizes(analysis, argument, group) for group, size in sizes.items())
        # Without a batch, what does not come back is more likely data than a frozen weight.
        or (trains and not sizes and argument not in states)
    }
    return ArgumentKinds(
        keys=keys,
        scalars=scalars,
        caches=caches,
        states=states,
        data=frozenset(data | set(caches)),
        weights=frozenset(others) - data,
        trains=trains,
        batches=batches,
        doubt=doubt,
    )


def argument_roots(program: Program) -> np.ndarray:
    """[V] the argument that a value is a view, a part or an updated copy of; -1: none."""
    root = np.full(program.n_values, -1, np.int64)
    root[: program.n_arguments] = np.arange(program.n_arguments)
    for op in program.ops():
        kind = op_kind(program.kind[op])
        operands, results = program.operands(op), program.results(op)
        hands_on = (
            kind.done_while_fetched
            or kind.picks_slice
            or kind.keeps_number
            or kind.update_operand >= 0
            or is_control(program.kind[op])
            or program.kind[op] == "optimization_barrier"
        )
        if hands_on and operands and len(results) == 1:
            root[results[0]] = root[operands[0]]
        elif is_control(program.kind[op]) and len(results) == 1:
            # The result of a loop: what entered it there.
            (entered,) = program.results(int(program.owner[op]))
            root[results[0]] = root[entered]
    return root


def random_keys(program: Program, root: np.ndarray) -> frozenset[int]:
    """Arguments that are random keys, typed ones or their bare words."""
    mixed = {
        int(root[value])
        for op in program.ops()
        if op_kind(program.kind[op]).mixes_keys
        for value in program.operands(op)
    }
    keys = set()
    for argument in range(program.n_arguments):
        row = int(program.shape_ptr[argument])
        is_typed = bool(program.hidden[row : int(program.shape_ptr[argument + 1])].any())
        has_words = program.value_dtype[argument] == "ui32" and program.dims(argument)[-1:] in (
            (2,),
            (4,),
        )
        if is_typed or (has_words and argument in mixed):
            keys.add(argument)
    return frozenset(keys)


def is_whole_number(program: Program, value: int) -> bool:
    """Does a value hold integers or truth values?"""
    return program.value_dtype[value].strip("u")[:1] == "i"


def groups_of(analysis: Colouring, value: int) -> set[int]:
    """Colour groups of the dims of a value."""
    names = analysis.program.def_names(value)
    return {int(analysis.group[analysis.colour[name]]) for name in names}


def walked_groups(analysis: Colouring) -> set[int]:
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


def scattered_groups(analysis: Colouring) -> set[int]:
    """Groups of dims that values are both looked up in and added into, as those of graph nodes."""
    program = analysis.program
    looked_up: set[int] = set()
    added_into: set[int] = set()
    for op in program.ops():
        if not op_kind(program.kind[op]).looks_up or len(program.uses(op)) < 2:
            continue
        is_scatter = op_kind(program.kind[op]).update_operand >= 0
        target = added_into if is_scatter else looked_up
        for name in indexed_names(program, op):
            if analysis.names.size[name] > 1:
                target.add(int(analysis.group[analysis.colour[name]]))
    return looked_up & added_into


def indexed_names(program: Program, op: int) -> set[int]:
    """Names of the dims of a lookup's first operand that its indices point into."""
    uses = program.uses(op)
    updated = op_kind(program.kind[op]).update_operand
    kept = (
        program.use_names(uses[updated])
        if updated >= 0
        else [name for value in program.results(op) for name in program.def_names(value)]
    )
    return set(program.use_names(uses[0])) - set(kept)


def _returned(program: Program, arguments: Iterable[int]) -> frozenset[int]:
    """Arguments for which there is a result of the same type and shape, each result once."""

    def type_of(value: int) -> tuple[str, tuple[int, ...]]:
        return program.value_dtype[value], program.dims(value)

    results = Counter(type_of(int(value)) for value in program.outputs)
    returned = set()
    for argument in arguments:
        if results[type_of(argument)]:
            results[type_of(argument)] -= 1
            returned.add(argument)
    return frozenset(returned)


def _updated(program: Program) -> frozenset[int]:
    """Arguments that come back with something added to each element, as optimizers return them."""
    updated = set()
    for output in program.outputs.tolist():
        dims, reached, pending = program.dims(output), {output}, [output]
        while pending:
            value = pending.pop()
            if value < program.n_arguments:
                if value != output:
                    updated.add(value)
                continue
            op = int(program.value_op[value])
            if program.op_class[op] == ELEMENTWISE:
                nearer = [
                    source
                    for source in program.operands(op)
                    if source not in reached and program.dims(source) == dims
                ]
                reached.update(nearer)
                pending += nearer
    return frozenset(updated)


def _caches(
    program: Program, root: np.ndarray, excluded: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """For each argument that is updated at a position and comes back: the dims of the position."""
    returned = _returned(program, range(program.n_arguments))
    caches: dict[int, set[int]] = {}
    for op in program.ops():
        update = op_kind(program.kind[op]).update_operand
        if update < 0:
            continue
        target = program.operands(op)[0]
        argument = int(root[target])
        if argument not in returned or argument in excluded:
            continue
        names, sizes = program.use_names(program.uses(op)[0]), program.dims(target)
        leading = len(program.dims(argument)) - len(sizes)
        if leading < 0:
            continue
        if op_kind(program.kind[op]).looks_up:
            written = indexed_names(program, op)
            dims = [dim for dim, name in enumerate(names) if name in written]
        else:
            part = program.dims(program.operands(op)[update])
            dims = [dim for dim, size in enumerate(sizes) if size != part[dim]]
        caches.setdefault(argument, set()).update(dim + leading for dim in dims)
    return {argument: tuple(sorted(dims)) for argument, dims in caches.items() if dims}


def _batches(
    analysis: Colouring, arguments: list[int], states: Collection[int]
) -> tuple[dict[int, int | None], str]:
    """(colour groups of the batch, each with an argument that it leads; why there is none).

    A group that the user called "batch", "b" or "n" is the batch. Without one, it is the first dim
    that can be split of the inputs that carry data: integer inputs, else inputs that do not come
    back, else all. A dim that a loop walks, such as the steps of a sequence, is no batch, nor is
    one on few values. Of several groups the batch is one that results have, on most of the
    computed values.
    """
    program = analysis.program
    walked = walked_groups(analysis)
    leading = {}
    for argument in arguments:
        group = _leading_group(analysis, argument, walked)
        if group is not None:
            leading[argument] = group
    for word in ("batch", "b", "n"):
        for named in analysis.groups:
            given = analysis.given_names.of(named.colours[0]).casefold()
            if given == word and named.shardable and named.n_names > 1:
                return {named.index: _widest(analysis, named.arguments, named.index)}, ""
    # The only dim of a vector, such as a bias, is no batch where inputs have more dims.
    wide = {
        argument: group
        for argument, group in leading.items()
        if len(program.dims(argument)) > 1 or is_whole_number(program, argument)
    }
    leading = wide or leading
    on_states = {group for argument in states for group in groups_of(analysis, argument)}
    if not on_states.issuperset(leading.values()):
        # Parameters and moments have no batch, and frozen weights have dims of theirs.
        leading = {key: group for key, group in leading.items() if group not in on_states}
    counts, returned = _computed_values(analysis)
    not_returned = [argument for argument in arguments if argument not in states]
    integers = [argument for argument in not_returned if is_whole_number(program, argument)]
    rivals = [leading[argument] for argument in not_returned if argument in leading]
    most = max((counts[group] for group in rivals), default=0)
    for candidates in (integers, not_returned, arguments):
        groups = dict.fromkeys(leading[argument] for argument in candidates if argument in leading)
        inputs = {
            group: _widest(analysis, candidates, group)
            for group in groups
            if counts[group] >= LEAST_BATCH_SHARE * most
        }
        if inputs:
            batches, doubt = _likeliest(analysis, inputs, counts, returned)
            if states and len(batches) == 1:
                # Other inputs with as many examples, such as the images of captions.
                size = analysis.groups[next(iter(batches))].size
                batches |= {
                    group: argument
                    for argument in not_returned
                    if (group := leading.get(argument, -1)) >= 0
                    and group not in batches
                    and analysis.groups[group].size == size
                    and counts[group] >= LEAST_BATCH_SHARE * most
                }
            return batches, doubt
    return {}, "no dim looks like a batch"


def _likeliest(
    analysis: Colouring,
    inputs: dict[int, int | None],
    counts: Counter[int],
    returned: Collection[int],
) -> tuple[dict[int, int | None], str]:
    """The likeliest batch of several groups, as ``_batches`` returns it.

    Groups of one size that are equally likely are all of them the batch.
    """
    first, *others = sorted(
        inputs, key=lambda group: (group not in returned, -counts[group], group)
    )
    others = [
        group
        for group in others
        if (group in returned) == (first in returned)
        and counts[group] > DOUBTFUL_BATCH_SHARE * counts[first]
    ]
    size = analysis.groups[first].size
    if all(analysis.groups[group].size == size for group in others):
        return {group: inputs[group] for group in (first, *others)}, ""
    listed = ", ".join(
        f"{analysis.group_name[group]} (size {analysis.groups[group].size}, of "
        f"{analysis.program.value_name[argument]})"
        for group in (first, *others)
        if (argument := inputs[group]) is not None
    )
    return {}, f"several dims could be the batch: {listed}"


def _widest(analysis: Colouring, arguments: Iterable[int], group: int) -> int | None:
    """The argument with the largest dim of a group.

    The weights of experts can carry the colour of their tokens, in a smaller size.
    """
    carriers = [argument for argument in arguments if _sizes(analysis, argument, group)]
    return max(
        carriers,
        key=lambda argument: (max(_sizes(analysis, argument, group)), -argument),
        default=None,
    )


def _sizes(analysis: Colouring, argument: int, group: int) -> list[int]:
    """Sizes of the dims of an argument that belong to a group."""
    program = analysis.program
    names = zip(program.def_names(argument), program.dims(argument), strict=True)
    return [size for name, size in names if int(analysis.group[analysis.colour[name]]) == group]


def _node_groups(analysis: Colouring, arguments: Iterable[int]) -> set[int]:
    """Groups of graph nodes: looked up, added into, and the first dim wherever they occur."""
    nodes = scattered_groups(analysis)
    for argument in arguments:
        for name in analysis.program.def_names(argument)[1:]:
            nodes.discard(int(analysis.group[analysis.colour[name]]))
    return nodes


def _leading_group(analysis: Colouring, argument: int, walked: set[int]) -> int | None:
    """The group of an argument's first dim that can be split and is not in ``walked``, or None."""
    for name in analysis.program.def_names(argument):
        group = analysis.groups[int(analysis.group[analysis.colour[name]])]
        if group.shardable and group.n_names > 1 and group.index not in walked:
            return int(group.index)
    return None


def _computed_values(analysis: Colouring) -> tuple[Counter[int], set[int]]:
    """(number of computed values that each colour group is on, colour groups of the results)."""
    program = analysis.program
    counts: Counter[int] = Counter()
    for value in range(program.n_arguments, program.n_values):
        counts.update(groups_of(analysis, value))
    returned = {group for value in program.outputs for group in groups_of(analysis, int(value))}
    return counts, returned

"""A plan carried over to another program of the same function.

JAX lowers a function to different programs for different platforms (``ir.platforms``). They differ
in a few places: a ``ragged_dot`` on a TPU is a dozen ops on a CPU. A plan of one program is carried
over to the other by aligning the two lists of ops. An op with a counterpart takes its shardings;
each of the others takes the factor along which the values around it are cut, if there is only one.

Start reading at ``carry``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.ir.model import Model
from toast_lab.ir.op_kinds import is_constant
from toast_lab.ir.program import NEED_REPLICATION, Program
from toast_lab.sharding import portable
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import line_text


class Carried(NamedTuple):
    """A plan on a platform."""

    model: Model  #: with the program that JAX makes for the platform
    plan: ShardingPlan  #: of this program
    notes: tuple[str, ...]  #: one for each place at which it differs from the plan's own program


def carry(model: Model, plan: ShardingPlan, platform: str) -> Carried:
    """``plan`` for the program that ``model``'s function has on a platform.

    Args:
        model: a model of the function whose program the plan shards.
        plan: a plan of its program for any platform.
        platform: "cpu", "tpu" or "gpu".

    Raises:
        InvalidPlan: the plan is of another function.
        FrontendError: JAX cannot lower the function for the platform.
    """
    own = plan.own_model(model)
    lowered = own.lowered_for(platform)
    # Code of wrapped kernels is made for the platform that a model says
    target = dataclasses.replace(lowered, platforms=frozenset({platform}))
    if target.program is own.program or plan.is_of(target.program):
        return Carried(target, plan, ())
    spans = _spans(own.program, target.program)
    sharding = _carried(plan, target.program, spans)
    carried = dataclasses.replace(
        plan, program=target.program, sharding=sharding.frozen(), analysis=None
    )
    carried.__dict__.pop("lowered", None)
    return Carried(target, carried, _notes(own.program, target.program, spans, platform))


#: (kind of difference, begin and end in one program, begin and end in the other), see ``difflib``
Span = tuple[str, int, int, int, int]


def _spans(own: Program, target: Program) -> list[Span]:
    """Which stretches of ops of the two programs are equal, and which replace each other."""
    own_keys, target_keys = (
        [_key(program, op) for op in range(program.n_arguments, program.n_ops)]
        for program in (own, target)
    )
    start = min(own.n_arguments, target.n_arguments)
    matcher = difflib.SequenceMatcher(a=own_keys, b=target_keys, autojunk=False)
    arguments: list[Span] = [("equal", 0, start, 0, start)]
    return arguments + [
        (
            kind,
            i + own.n_arguments,
            j + own.n_arguments,
            k + target.n_arguments,
            m + target.n_arguments,
        )
        for kind, i, j, k, m in matcher.get_opcodes()
    ]


def _key(program: Program, op: int) -> tuple[object, ...]:
    """What an op and its counterpart have in common: kind, shapes and line."""
    return (
        program.kind[op],
        tuple(map(program.dims, program.operands(op))),
        tuple(map(program.dims, program.results(op))),
        program.where(op),
    )


def _carried(plan: ShardingPlan, target: Program, spans: Sequence[Span]) -> Sharding:
    """The plan's sharding on the ops with a counterpart, completed on the others."""
    deepest = np.full(target.n_ops, -1)
    splits: list[portable.Split | None] = [None] * target.n_ops
    for kind, begin, end, other, _ in spans:
        for op in range(begin, end) if kind == "equal" else ():
            place = other + op - begin
            splits[place] = portable.split(plan.program, plan.mesh, plan.sharding, op)
            deepest[place] = portable.ROUNDS
    sharding = portable.written(target, plan.mesh, splits, deepest).sharding
    _complete(target, plan.mesh, sharding, np.flatnonzero(deepest < 0).tolist())
    return sharding


def _complete(program: Program, mesh: Mesh, sharding: Sharding, unknown: Sequence[int]) -> None:
    """Give each unknown op the one factor along which values around it are cut, in place.

    Twice each way, since a value may be known only to an op before or after.
    """
    for ops in (unknown, unknown[::-1]) * 2:
        for op in ops:
            if program.owner[op] != op:
                continue
            for axis in range(len(mesh.axes)):
                _complete_op(program, mesh, sharding, op, axis=axis)


def _complete_op(program: Program, mesh: Mesh, sharding: Sharding, op: int, *, axis: int) -> None:
    touches = [(value, program.def_names(value)) for value in program.results(op)]
    touches += [(int(program.use_value[use]), program.use_names(use)) for use in program.uses(op)]
    if sharding.op_factor[op, axis] < 0:
        wanted = {
            int(names[sharding.value_dim[value, axis]])
            for value, names in touches
            if sharding.value_dim[value, axis] >= 0
        }
        if len(wanted) == 1:
            (factor,) = wanted
            size = int(program.factor_size[factor])
            ways = mesh.ways_on(factor, sharding.op_factor[op], axis)
            if program.factor_class[factor] < NEED_REPLICATION and size % ways == 0:
                sharding.op_factor[op, axis] = factor
    factor = int(sharding.op_factor[op, axis])
    if factor < 0:
        return
    for value in program.results(op):
        names = list(program.def_names(value))
        if sharding.value_dim[value, axis] < 0 and factor in names:
            dim = names.index(factor)
            size = int(program.dims(value)[dim])
            if size % mesh.ways_on(dim, sharding.value_dim[value], axis) == 0:
                sharding.value_dim[value, axis] = dim


def _notes(own: Program, target: Program, spans: Sequence[Span], platform: str) -> tuple[str, ...]:
    """``ragged_dot (moe.py:31) runs as 12 other ops on the CPU``, a note for each line.

    Ops without a counterpart belong to the last op that was replaced before them, or else to the
    first one after them.
    """
    kinds_of: dict[str, Counter[str]] = {}
    count_of: Counter[str] = Counter()
    line = ""
    unplaced: list[int] = []  # ops of the target
    for kind, begin, end, other_begin, other_end in spans:
        if kind == "equal":
            continue
        ops = [op for op in range(begin, end) if not is_constant(own.kind[op])]
        unplaced += [op for op in range(other_begin, other_end) if not is_constant(target.kind[op])]
        if ops:
            line = line_text(own.where(ops[0]))
            kinds = Counter(own.kind[op].removeprefix("chlo.") for op in ops)
            kinds_of.setdefault(line, Counter()).update(kinds)
        if line:
            count_of[line] += len(unplaced)
            unplaced.clear()
    notes = [
        f"{_kinds_text(kinds)} ({line}) {'runs' if kinds.total() == 1 else 'run'} as "
        f"{count_of[line]} other ops on the {platform.upper()}"
        for line, kinds in kinds_of.items()
    ]
    added: dict[str, Counter[str]] = {}
    for op in unplaced:
        kind = target.kind[op].removeprefix("chlo.")
        added.setdefault(line_text(target.where(op)), Counter())[kind] += 1
    notes += [
        f"{_kinds_text(kinds)} ({line}) {'runs' if kinds.total() == 1 else 'run'} in addition on "
        f"the {platform.upper()}"
        for line, kinds in added.items()
    ]
    return tuple(notes)


def _kinds_text(kinds: Counter[str]) -> str:
    """``2 convert, dot_general``: the most frequent kinds of op."""
    names = [name if count == 1 else f"{count} {name}" for name, count in kinds.most_common(3)]
    return ", ".join([*names, "others"] if len(kinds) > 3 else names)

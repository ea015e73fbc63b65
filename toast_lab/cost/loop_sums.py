"""How often steps on the results of an op run in programs with loops.

A value that enters a loop is handed over once and present in every round. A value that a loop only
accumulates is summed over the devices once, behind the loop, if the compiler moves the sum.

Reference: none; XLA's ``WhileLoopAllReduceCodeMotion``, which runs for GPUs and TPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.packs import Float64Array, Int64Array
from toast_lab.sharding.steps import Tables


class Sums(NamedTuple):
    """How often partial sums that an op leaves on the devices are summed over them."""

    trips: Float64Array  #: [O]
    #: [O] a bit for each dim of the results that has to be whole, or the sum stays in the loop
    whole: Int64Array
    #: [U] additional rounds in which the value is summed if the use takes only a device's part of
    #: it: then the sum stays in the loop
    use_rounds: Float64Array


class Accumulation(NamedTuple):
    """An op that adds to a value that a loop hands on."""

    value: int  #: the value that it adds to
    trips: float  #: how often the loop is entered


def result_trips(program: p.Program) -> np.ndarray:
    """[O] how often an op's results are produced.

    A value that enters a loop is handed over once, and present in every round: a step on it inside,
    such as a gather for all its uses, runs as often as the body.
    """
    trips = np.array(program.trips, np.float64)
    for body in program.regions:
        if body.kind == "body":
            op = program.regions[body.parent].begin
            while program.kind[op] == "while.enter":
                trips[op] *= body.times
                op += 1
    return trips


def sums_in_loops(
    program: p.Program,
    tables: Tables,
    accumulating: Mapping[int, Accumulation],
    trips: Float64Array,
) -> Sums:
    """Find how often the partial sums of an op are summed over the devices.

    This is as often as its results are produced, but once behind a loop that only adds them to a
    value that it hands on, as it does with gradients of weights that every round reads. They may be
    reordered on the way, and several may be slices of one value: then the sliced dims must be
    whole, or devices would exchange slices before adding them. And the value handed on must be
    whole when it is summed: if each device accumulates only a part of it, the sum is made before
    that part is taken, in every round.

    Args:
        program: the program.
        tables: its tables.
        accumulating: see ``accumulating_ops``; none if the compiler leaves such sums in loops.
        trips: see ``result_trips``.
    """
    sums = Sums(
        trips=trips.copy(),
        whole=np.zeros(program.n_ops, np.int64),
        use_rounds=np.zeros(program.n_uses),
    )
    if not accumulating:
        return sums
    passing = set(accumulating)  # ops that only accumulate their operand, or lead to such ops
    for op in range(program.n_ops - 1, program.n_arguments - 1, -1):
        if op in accumulating or len(program.results(op)) != 1:
            continue
        after = users_of(tables, program.results(op)[0])
        if after and passing.issuperset(after):
            sums.trips[op] = max(
                accumulating[user].trips if user in accumulating else sums.trips[user]
                for user in after
            )
            sums.whole[op] = _whole(program, after, sums)
            reorders = op_kind(program.kind[op]).reorders
            if _adds(program, op) or reorders or _slices(program, op):
                passing.add(op)
            uses = _uses(tables, program.results(op)[0])
            sums.use_rounds[uses] = trips[op] - sums.trips[op]
    return sums


def accumulating_ops(program: p.Program, tables: Tables) -> dict[int, Accumulation]:
    """Ops that add to a value that a loop hands on and uses for nothing else."""
    accumulating: dict[int, Accumulation] = {}
    for handed_on in program.ops():
        if program.kind[handed_on] != "while.next":
            continue
        enter = int(program.owner[handed_on])
        total, value = program.operands(handed_on)[0], program.results(enter)[0]
        adds: dict[int, Accumulation] = {}
        while len(users := users_of(tables, value)) == 1 and value != total:
            if not _adds(program, users[0]):
                break
            adds[users[0]] = Accumulation(value, float(program.trips[enter]))
            (value,) = program.results(users[0])
        if value == total and len(users) == 1:
            accumulating |= adds
    return accumulating


def users_of(tables: Tables, value: int) -> list[int]:
    """Ops that use a value, once for each use."""
    users: list[int] = tables.use_op[_uses(tables, value)].tolist()
    return users


def _uses(tables: Tables, value: int) -> np.ndarray:
    return tables.value_use[tables.value_use_ptr[value] : tables.value_use_ptr[value + 1]]


def _adds(program: p.Program, op: int) -> bool:
    return op_kind(program.kind[op]).as_combiner == "add"


def _slices(program: p.Program, op: int) -> bool:
    facts = op_kind(program.kind[op])
    return facts.moves_elements and facts.reads_part


def _whole(program: p.Program, users: list[int], sums: Sums) -> int:
    """Bits of a value's dims that have to be whole: those sliced by a user or further on."""
    whole = 0
    for op in users:
        result = program.results(op)[0]
        names, sizes = program.def_names(result), program.dims(result)
        whole_names = {name for dim, name in enumerate(names) if sums.whole[op] >> dim & 1}
        first = program.uses(op)[0]
        value = int(program.use_value[first])
        for dim, name in enumerate(program.use_names(first)):
            sliced = _slices(program, op) and program.dims(value)[dim] != sizes[dim]
            if sliced or name in whole_names:
                whole |= 1 << dim
    return whole

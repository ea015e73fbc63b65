"""What a comparison of collectives asks their program: what is near, and what is merged."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import Program
from toast_lab.runtime.diff_rows import Side
from toast_lab.runtime.diff_sides import SUMS, axes, close, element_bytes, same_size


class DiffProgram:
    """A program, and what its ops and values have in common where a compiler rewrites them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values = {name: value for value, name in enumerate(program.value_name)}
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for op in program.ops():
            for value in program.operands(op):
                self.users[value].append(op)
        self.reached: dict[int, set[int]] = {}  #: what ``reach`` has found

    def is_narrower(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled one of the same shape in another element type?"""
        value = self.values.get(priced.value, -1)
        width = element_bytes(compiled.dtype)
        if value < 0 or not width:
            return False
        priced_width = float(self.program.itemsize[value])
        return (
            priced_width != width
            and close(priced.bytes * width / priced_width, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_uncast(self, priced: Side, compiled: Side) -> bool:
        """Does the compiled one send float32 where the price sends half as much?"""
        value = self.values.get(priced.value, -1)
        return (
            value >= 0
            and self.program.value_dtype[value] == compiled.dtype == "f32"
            and close(2 * priced.bytes, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_as_large(self, priced: Side, compiled: Side) -> bool:
        """Do both send as many numbers, whatever their element type?"""
        return same_size(priced, compiled) or self.is_narrower(priced, compiled)

    def is_near(self, priced: Side, compiled: Side) -> bool:
        """Does one of the two ops use what the other one makes?

        There may be a few elementwise ops between them.  What one loop hands on is near, too.
        """
        first, second = priced.op, compiled.op
        if not (0 <= first < self.program.n_ops and 0 <= second < self.program.n_ops):
            return False
        if self.program.op_class[first] == self.program.op_class[second] == p.CONTROL:
            return bool(self.program.location[first] == self.program.location[second])
        return bool(self.reach(first) & self.reach(second))

    def reach(self, op: int) -> set[int]:
        """The op and those that its results go to next.

        Results are followed through elementwise ops, views and transposes, four steps at most.
        """
        if op in self.reached:
            return self.reached[op]
        reached, edge = {op}, {op}
        for _ in range(4):
            edge = {
                user
                for current in edge
                for value in self.program.results(current)
                for user in self.users[value]
            } - reached
            reached |= edge
            edge = {user for user in edge if self.is_passed(user)}
        self.reached[op] = reached
        return reached

    def is_passed(self, op: int) -> bool:
        """Does an op hand on the numbers of its operands, one by one?"""
        is_plain = self.program.op_class[op] in (p.ELEMENTWISE, p.VIEW)
        return is_plain or self.program.kind[op] == "transpose"

    def is_product(self, op: int) -> bool:
        """Is the op a matrix product or a convolution?"""
        return 0 <= op < self.program.n_ops and self.program.op_class[op] in (p.DOT, p.CONVOLUTION)

    def has_neighbours(self, op: int) -> bool:
        """Does an op put numbers beside those that stood elsewhere, or read those beside them?"""
        moves = op_kind(self.program.kind[op]).moves_elements
        return moves or bool(self.program.op_class[op] == p.CONVOLUTION)

    def results(self, side: Side) -> Sequence[int]:
        """What the op of a side computes."""
        return self.program.results(side.op) if 0 <= side.op < self.program.n_ops else ()

    def broadcast_of(self, priced: Side) -> Sequence[int]:
        """What was broadcast to make the value of one of ours: a compiler sends that instead."""
        value = self.values.get(priced.value, -1)
        op = self.program.value_op[value]
        is_broadcast = value >= 0 and self.program.kind[op] == "broadcast_in_dim"
        return self.program.operands(op) if is_broadcast else ()

    def merged_form(self, priced: Side) -> tuple[object, ...]:
        """What collectives of ours have in common that a compiler makes one of."""
        number = self.merged_values.get(priced.value, priced.value)
        # What scatters is an all_reduce and a slice where the sum is needed whole too.
        kind = SUMS[0] if priced.kind in SUMS else priced.kind
        return (number, kind, axes(priced), priced.bytes)

    @functools.cached_property
    def merged_values(self) -> dict[str, int]:
        """Value names -> a number that values have in common where a compiler merges their ops.

        They are results of equal ops on equal operands in one region, or sums of the same numbers,
        in one step or in several.
        """
        program = self.program
        number = np.arange(program.n_values)
        merged: dict[tuple[object, ...], int] = {}
        sums: dict[int, tuple[int, tuple[int, ...]]] = {}  # value -> what it sums, and dims left
        for op in program.ops():
            if program.op_class[op] in (p.ARGUMENT, p.OPAQUE, p.CONTROL):
                continue
            operands = tuple(int(number[value]) for value in program.operands(op))
            whole = self.summed(op, sums)
            for index, value in enumerate(program.results(op)):
                work: tuple[object, ...] = (program.kind[op], program.detail[op], operands, index)
                if whole is not None:
                    sums[value] = whole
                    work = ("sum", int(number[whole[0]]), whole[1])
                form = (program.region[op], program.dims(value), program.value_dtype[value])
                number[value] = merged.setdefault((*work, *form), value)
        return dict(zip(program.value_name, number.tolist(), strict=True))

    def summed(
        self, op: int, sums: Mapping[int, tuple[int, tuple[int, ...]]]
    ) -> tuple[int, tuple[int, ...]] | None:
        """The value whose numbers an op sums, and its dims that are left, those of one aside.

        Through ``sums`` of earlier ops, and what adds dims of one to them or drops those.
        """
        program = self.program
        is_sum = program.kind[op] == "reduce" and program.detail[op].endswith("add")
        if not program.operands(op) or not (is_sum or program.op_class[op] == p.VIEW):
            return None
        operand, (result, *others) = program.operands(op)[0], program.results(op)
        long = [dim for dim, size in enumerate(program.dims(operand)) if size > 1]
        source, left = sums.get(operand, (operand, tuple(long)))
        every_name, kept = program.use_names(program.uses(op)[0]), program.def_names(result)
        names = [every_name[dim] for dim in long]
        if not is_sum:
            after = [kept[dim] for dim, size in enumerate(program.dims(result)) if size > 1]
            return (source, left) if operand in sums and names == after else None
        if others:
            return None
        return source, tuple(dim for dim, name in zip(left, names, strict=True) if name in kept)

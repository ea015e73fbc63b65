"""What a comparison of collectives needs from their program: nearby ops and merged values."""

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
    """A program, with predicates on ops and values that a compiler may rewrite or merge."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values = {name: value for value, name in enumerate(program.value_name)}
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for op in program.ops():
            for value in program.operands(op):
                self.users[value].append(op)
        self.reached: dict[int, set[int]] = {}  #: results of ``reach`` so far

    @functools.cached_property
    def element(self) -> dict[str, tuple[float, str]]:
        """Bytes and type of an element of each value, also of those inside shard_maps."""
        bodies = (
            (row.name_inside(value), row.body, value)
            for row in self.program.shard_maps
            for value in range(row.body.n_values)
        )
        own = ((name, self.program, value) for name, value in self.values.items())
        return {
            name: (float(program.itemsize[value]), program.value_dtype[value])
            for name, program, value in (*own, *bodies)
        }

    def is_narrower(self, priced: Side, compiled: Side) -> bool:
        """Does the compiled collective send the same shape in another element type?"""
        width = element_bytes(compiled.dtype)
        if priced.value not in self.element or not width:
            return False
        priced_width, _ = self.element[priced.value]
        return (
            priced_width != width
            and close(priced.bytes * width / priced_width, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_uncast(self, priced: Side, compiled: Side) -> bool:
        """Does the compiled collective send float32 where the priced one sends half the bytes?"""
        _, dtype = self.element.get(priced.value, (0.0, ""))
        return (
            dtype == compiled.dtype == "f32"
            and close(2 * priced.bytes, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_as_large(self, priced: Side, compiled: Side) -> bool:
        """Do both send equally many elements, whatever their type?"""
        return same_size(priced, compiled) or self.is_narrower(priced, compiled)

    def is_near(self, priced: Side, compiled: Side) -> bool:
        """Does one of the two ops use a result of the other, or do their results soon meet?

        There may be a few elementwise ops between them. Pseudo-ops of one loop are near, too.
        """
        first, second = priced.op, compiled.op
        if not (0 <= first < self.program.n_ops and 0 <= second < self.program.n_ops):
            return False
        if self.program.op_class[first] == self.program.op_class[second] == p.CONTROL:
            return bool(self.program.location[first] == self.program.location[second])
        return bool(self.reach(first) & self.reach(second))

    def reach(self, op: int) -> set[int]:
        """The op and the ops that its results go to next.

        Results are followed through elementwise ops, views and transposes, four steps at most.
        """
        if op in self.reached:
            return self.reached[op]
        reached, frontier = {op}, {op}
        for _ in range(4):
            frontier = {
                user
                for current in frontier
                for value in self.program.results(current)
                for user in self.users[value]
            } - reached
            reached |= frontier
            frontier = {user for user in frontier if self.is_passed(user)}
        self.reached[op] = reached
        return reached

    def is_passed(self, op: int) -> bool:
        """Does an op work element by element, or only rearrange its operand?"""
        is_plain = self.program.op_class[op] in (p.ELEMENTWISE, p.VIEW)
        return is_plain or self.program.kind[op] == "transpose"

    def is_product(self, op: int) -> bool:
        """Is the op a matrix product or a convolution?"""
        return 0 <= op < self.program.n_ops and self.program.op_class[op] in (p.DOT, p.CONVOLUTION)

    def has_neighbours(self, op: int) -> bool:
        """Does an op move elements next to others, or read neighbouring elements?"""
        moves = op_kind(self.program.kind[op]).moves_elements
        return moves or bool(self.program.op_class[op] == p.CONVOLUTION)

    def results(self, side: Side) -> Sequence[int]:
        """Values that the op of a side computes."""
        return self.program.results(side.op) if 0 <= side.op < self.program.n_ops else ()

    def broadcast_of(self, priced: Side) -> Sequence[int]:
        """The value that was broadcast to make a priced value: a compiler may send it instead."""
        value = self.values.get(priced.value, -1)
        op = self.program.value_op[value]
        is_broadcast = value >= 0 and self.program.kind[op] == "broadcast_in_dim"
        return self.program.operands(op) if is_broadcast else ()

    def merged_form(self, priced: Side) -> tuple[object, ...]:
        """A key that is equal for priced collectives that a compiler merges into one."""
        merged_number = self.merged_values.get(priced.value, priced.value)
        # A scatter becomes an all_reduce and a slice where the whole sum is needed as well.
        kind = SUMS[0] if priced.kind in SUMS else priced.kind
        return (merged_number, kind, axes(priced), priced.bytes)

    @functools.cached_property
    def merged_values(self) -> dict[str, int]:
        """Value name -> a number that is equal for values whose ops a compiler merges.

        Such values are results of equal ops on equal operands in one region, or sums of the same
        numbers, in one step or in several.
        """
        program = self.program
        merged_number = np.arange(program.n_values)
        first_values: dict[tuple[object, ...], int] = {}
        sums: dict[int, tuple[int, tuple[int, ...]]] = {}  # value -> value it sums, remaining dims
        for op in program.ops():
            if program.op_class[op] in (p.ARGUMENT, p.OPAQUE, p.CONTROL):
                continue
            operands = tuple(int(merged_number[value]) for value in program.operands(op))
            summed = self.summed(op, sums)
            for index, value in enumerate(program.results(op)):
                key: tuple[object, ...] = (program.kind[op], program.detail[op], operands, index)
                if summed is not None:
                    sums[value] = summed
                    key = ("sum", int(merged_number[summed[0]]), summed[1])
                form = (program.region[op], program.dims(value), program.value_dtype[value])
                merged_number[value] = first_values.setdefault((*key, *form), value)
        return dict(zip(program.value_name, merged_number.tolist(), strict=True))

    def summed(
        self, op: int, sums: Mapping[int, tuple[int, tuple[int, ...]]]
    ) -> tuple[int, tuple[int, ...]] | None:
        """The value that an op sums, and which of its dims remain; None if the op sums none.

        Dims of size 1 are left out. The sum is traced through the ``sums`` of earlier ops, and
        through views that only add or drop dims of size 1.
        """
        program = self.program
        is_sum = program.kind[op] == "reduce" and program.detail[op].endswith("add")
        if not program.operands(op) or not (is_sum or program.op_class[op] == p.VIEW):
            return None
        operand, (result, *others) = program.operands(op)[0], program.results(op)
        long_dims = [dim for dim, size in enumerate(program.dims(operand)) if size > 1]
        source, kept_dims = sums.get(operand, (operand, tuple(long_dims)))
        use_names, def_names = program.use_names(program.uses(op)[0]), program.def_names(result)
        long_names = [use_names[dim] for dim in long_dims]
        if not is_sum:
            result_names = [
                def_names[dim] for dim, size in enumerate(program.dims(result)) if size > 1
            ]
            return (source, kept_dims) if operand in sums and long_names == result_names else None
        if others:
            return None
        return source, tuple(
            dim for dim, name in zip(kept_dims, long_names, strict=True) if name in def_names
        )

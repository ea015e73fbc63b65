"""Pairs of a priced and a compiled collective, the surest ones first, and reasons for the rest.

``pair_up`` is all that others need.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import Program
from toast_lab.runtime import diff_rows as reasons
from toast_lab.runtime.diff_rows import CHANGED, EQUAL, EXTRA, MISSING, UNEXPLAINED, DiffRow, Side
from toast_lab.sharding.mesh import Mesh

#: Gathers up to here may be made as sums: the largest one seen has 30 KiB.
SMALL_BYTES = 64 * 1024
MOST_PARTS = 8  #: collectives that one of ours may become
#: Of a shard: an edge is smaller.
EDGE_SHARE = 0.1
_SUMS = ("all_reduce", "reduce_scatter")
# Kinds between which a reshard may be swapped
_MOVES = ("all_to_all", "collective_permute", "all_gather")
Check = Callable[[Side, Side], bool]


def pair_up(
    program: Program,
    mesh: Mesh,
    priced: Sequence[Side],
    compiled: Sequence[Side],
    remats: Iterable[int] = (),
) -> list[DiffRow]:
    """Every collective of both sides in one row, by op.

    ``remats`` are ops that the partitioner rematerialised involuntarily.
    """
    return _Pairs(program, mesh, left=priced, right=compiled, remats=set(remats)).rows()


class _Pairs:
    """Pairs the two sides; ``left`` and ``right`` shrink while pairs are found."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        left: Sequence[Side],
        right: Sequence[Side],
        remats: set[int],
    ) -> None:
        self.program, self.mesh, self.remats = program, mesh, remats
        self.left = list(left)
        self.right = [self.at_product(side) for side in right]
        self.all_left = list(left)
        self.pairs: list[tuple[Side, Side, str]] = []
        self.values = {name: value for value, name in enumerate(program.value_name)}
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for op in program.ops():
            for value in program.operands(op):
                self.users[value].append(op)
        self.reached: dict[int, set[int]] = {}  #: what ``reach`` has found

    def rows(self) -> list[DiffRow]:
        """All rows, by op."""
        self.split(self.halves, reasons.COMPLEX)
        for reason, check in self.checks_on_one_op():
            self.pair(check, reason)
        self.split(self.rings, reasons.WINDOWED)
        self.left, again = self.merged_apart()
        for rest in ([], again):
            self.left += rest
            for reason, check in self.checks_on_any_op():
                self.pair(check, reason)
        self.split(self.parts, reasons.IN_PARTS)
        for reason, check in self.checks_on_other_work():
            self.pair(check, reason)
        paired = [
            self.row(a, b, CHANGED if reason else EQUAL, reason) for a, b, reason in self.pairs
        ]
        missing = [self.row(a, None, MISSING, self.why_missing(a)) for a in self.left]
        extra = [self.row(None, b, EXTRA, self.why_extra(b)) for b in self.right]
        return sorted([*paired, *missing, *extra], key=lambda row: (row.op, row.status))

    def merged_apart(self) -> tuple[list[Side], list[Side]]:
        """Those left, and of them those that a compiler merges with a paired or an earlier one.

        The latter may have no partner, and must not take those of others.
        """
        forms = {self.merged_form(priced) for priced, _, _ in self.pairs}
        first, again = list[Side](), list[Side]()
        for priced in self.left:
            (again if self.merged_form(priced) in forms else first).append(priced)
            forms.add(self.merged_form(priced))
        return first, again

    def at_product(self, compiled: Side) -> Side:
        """What is named after a transpose of a product serves the product: XLA makes one of both.

        Where we have one at the transpose too, it is that one.
        """
        program, op = self.program, compiled.op
        if not 0 <= op < program.n_ops or program.kind[op] != "transpose":
            return compiled
        (operand,) = program.operands(op)
        product = int(program.value_op[operand])
        is_own = any(priced.op == op for priced in self.left)
        return (
            compiled._replace(op=product) if self.is_product(product) and not is_own else compiled
        )

    # -- what makes a pair --------------------------------------------------------------------

    def checks_on_one_op(self) -> list[tuple[str, Check]]:
        """Reasons and checks for pairs that serve the same op, the surest ones first."""
        checks: list[tuple[str, Check]] = [
            (UNEXPLAINED, lambda a, b: _alike(a, b) and _same_size(a, b)),
            (reasons.NARROWER, lambda a, b: _alike(a, b) and self.is_narrower(a, b)),
            (reasons.UNCAST, lambda a, b: _alike(a, b) and self.is_uncast(a, b)),
            (reasons.OTHER_TIMES, lambda a, b: _alike(a, b) and _close(a.bytes, b.bytes)),
            (reasons.IDLE, self.is_cut_more),
            (reasons.SUM_AND_SLICE, lambda a, b: _swapped(a, b, "reduce_scatter", "all_reduce")),
            (reasons.SCATTERED, lambda a, b: _swapped(a, b, "all_reduce", "reduce_scatter")),
            (reasons.PADDED, lambda a, b: _alike(a, b) and _is_padded(a, b)),
            (reasons.ONE_STEP, self.is_one_step),
        ]
        return [(reason, _on_one_op(check)) for reason, check in checks]

    def checks_on_any_op(self) -> list[tuple[str, Check]]:
        """The same for pairs whose compiled side may be named after another op.

        A compiler names a merged or a fused collective after one of the ops that it serves.
        """

        def summed(a: Side, b: Side) -> bool:
            return _swapped(a, b, "reduce_scatter", "all_reduce")

        return [
            # Every device's own copy of one value: what is equal but for the op is the same, unless
            # it may be the way to what we do at its op otherwise.
            (
                reasons.OTHER_OP,
                lambda a, b: (
                    _alike(a, b)
                    and _same_size(a, b)
                    and (self.is_near(a, b) or not self.has_move_at(b))
                ),
            ),
            (
                reasons.NARROWER,
                lambda a, b: _alike(a, b) and self.is_narrower(a, b) and self.is_near(a, b),
            ),
            (reasons.ONE_STEP, self.is_one_step),
            (
                reasons.SUM_AND_SLICE,
                lambda a, b: summed(a, b) and _close(a.bytes, b.bytes) and self.is_near(a, b),
            ),
            (reasons.IDLE, self.is_cut_more),
            (reasons.SUM_AND_SLICE, lambda a, b: summed(a, b) and _same_size(a, b)),
            (reasons.SUM_OF_SHARDS, self.is_sum_of_shards),
            (reasons.WHOLE, lambda a, b: self.is_cut_more(b, a)),
        ]

    def checks_on_other_work(self) -> list[tuple[str, Check]]:
        """The same for pairs that do not send the same numbers, or not between the same devices."""

        def moved(a: Side, b: Side) -> bool:
            return a.kind in _MOVES and b.kind in _MOVES

        return [
            (reasons.OTHER_SIZE, _on_one_op(_alike)),
            (reasons.OTHER_AXES, _on_one_op(lambda a, b: a.kind == b.kind)),
            (reasons.OTHER_ROUTE, _on_one_op(moved)),
            (
                reasons.OTHER_ROUTE,
                lambda a, b: moved(a, b) and self.is_as_large(a, b) and self.is_near(a, b),
            ),
            (reasons.OTHER_OP, lambda a, b: _alike(a, b) and _same_size(a, b)),
        ]

    def pair(self, fits: Check, reason: str) -> None:
        """Take the nearest partner of each priced one that ``fits`` out of both lists."""
        unpaired = []
        for priced in self.left:
            partners = [side for side in self.right if fits(priced, side)]
            if not partners:
                unpaired.append(priced)
                continue
            compiled = min(partners, key=lambda side: abs(side.op - priced.op))
            self.right.remove(compiled)
            self.pairs.append((priced, compiled, reason))
        self.left = unpaired

    def split(self, partners_of: Callable[[Side], list[Side]], reason: str) -> None:
        """Take all partners of each priced one out of both lists, as one compiled side."""
        unpaired = []
        for priced in self.left:
            partners = partners_of(priced)
            if not partners:
                unpaired.append(priced)
                continue
            for side in partners:
                self.right.remove(side)
            total_bytes = sum(side.total_bytes for side in partners)
            whole = partners[0]._replace(bytes=total_bytes / partners[0].times)
            self.pairs.append((priced, whole, reason))
        self.left = unpaired

    def halves(self, priced: Side) -> list[Side]:
        """Two collectives that send the parts of a complex value."""
        value = self.values.get(priced.value, -1)
        if value < 0 or not self.program.value_dtype[value].startswith("complex"):
            return []
        both = [
            side
            for side in self.right
            if side.op == priced.op
            and side.dtype.startswith("f")
            and _alike(priced, side)
            and _same_size(priced, side._replace(bytes=2 * side.bytes))
        ]
        return both[:2] if len(both) >= 2 else []

    def rings(self, priced: Side) -> list[Side]:
        """Permutes that a gather before, or a scatter behind, a matrix product became."""
        if priced.kind not in ("all_gather", "reduce_scatter") or not self.is_product(priced.op):
            return []
        return [
            side
            for side in self.right
            if side.kind == "collective_permute"
            and side.op == priced.op
            and _axes(side) <= _axes(priced)
        ]

    def parts(self, priced: Side) -> list[Side]:
        """Collectives of one size that together send as much, of a kind and over axes alike."""
        alike = [side for side in self.right if _alike(priced, side) and side.times == priced.times]
        for size in sorted({side.bytes for side in alike}, reverse=True):
            n_parts = round(priced.bytes / size) if size else 0
            parts = [side for side in alike if side.bytes == size][:n_parts]
            is_whole = 2 <= n_parts == len(parts) and _close(n_parts * size, priced.bytes)
            if is_whole and n_parts <= MOST_PARTS:
                return parts
        return []

    def has_move_at(self, compiled: Side) -> bool:
        """Is a move of ours left at the op of a compiled one?"""
        return compiled.kind in _MOVES and any(
            priced.op == compiled.op and priced.kind in _MOVES for priced in self.left
        )

    # -- checks on a pair ---------------------------------------------------------------------

    def is_narrower(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled one of the same shape in another element type?"""
        value = self.values.get(priced.value, -1)
        width = _width(compiled.dtype)
        if value < 0 or not width:
            return False
        priced_width = float(self.program.itemsize[value])
        return (
            priced_width != width
            and _close(priced.bytes * width / priced_width, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_uncast(self, priced: Side, compiled: Side) -> bool:
        """Does the compiled one send float32 where the price sends half as much?"""
        value = self.values.get(priced.value, -1)
        return (
            value >= 0
            and self.program.value_dtype[value] == compiled.dtype == "f32"
            and _close(2 * priced.bytes, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_as_large(self, priced: Side, compiled: Side) -> bool:
        """Do both send as many numbers, whatever their element type?"""
        return _same_size(priced, compiled) or self.is_narrower(priced, compiled)

    def is_cut_more(self, first: Side, second: Side) -> bool:
        """Is the second collective the same sum of a value that is cut further?

        It has the same axes; its value is cut along one more axis of the mesh, or a part of it.
        """
        if first.kind not in _SUMS or second.kind not in _SUMS or _axes(first) != _axes(second):
            return False
        times_more = round(first.bytes / second.bytes) if second.bytes else 0
        return (
            times_more > 1
            and _close(first.bytes, second.bytes * times_more)
            and any(
                size % times_more == 0
                for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True)
                if axis not in (first.axes or ())
            )
        )

    def is_one_step(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled all_reduce over the axes of a priced scatter and of the sum after it?"""
        return (
            (priced.kind, compiled.kind) == ("reduce_scatter", "all_reduce")
            and _same_size(priced, compiled)
            and any(
                rest.kind == "all_reduce"
                and _same_value(rest, priced)
                and _axes(rest) | _axes(priced) == _axes(compiled)
                for rest in self.all_left
            )
        )

    def is_sum_of_shards(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled all_reduce a small gather of ours?"""
        return (
            _swapped(priced, compiled, "all_gather", "all_reduce")
            and priced.bytes <= SMALL_BYTES
            and self.is_as_large(priced, compiled)
        )

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

    # -- why the rest is there ----------------------------------------------------------------

    def why_missing(self, missing: Side) -> str:
        """The first reason that holds of a priced collective without a partner."""
        tests: list[tuple[str, Callable[[], bool]]] = [
            (reasons.SHARED, lambda: self.is_shared(missing)),
            (reasons.BROADCAST_LATER, lambda: self.is_broadcast_later(missing)),
            (reasons.REASSOCIATED, lambda: self.is_reassociated(missing)),
            (reasons.ONE_STEP, lambda: self.is_step_of(missing, reasons.ONE_STEP)),
            (reasons.OTHER_AXES, lambda: self.is_step_of(missing, reasons.OTHER_AXES)),
            (reasons.KEPT_WHOLE, lambda: self.is_kept_whole(missing)),
            (reasons.OTHER_ROUTE, lambda: self.is_step_of_route(missing)),
            (reasons.REMATERIALISED, lambda: missing.op in self.remats),
            (reasons.OTHER_SHARDS, lambda: self.is_on_other_shards(missing, self.right)),
        ]
        return next((reason for reason, holds in tests if holds()), UNEXPLAINED)

    def why_extra(self, extra: Side) -> str:
        """The first reason that holds of a compiled collective without a partner."""
        tests: list[tuple[str, Callable[[], bool]]] = [
            (reasons.REMATERIALISED, lambda: extra.op in self.remats),
            (reasons.REPEATED, lambda: self.is_repeated(extra)),
            (reasons.OTHER_AXES, lambda: self.is_step_between(extra)),
            (reasons.REORDER, lambda: self.is_reorder(extra)),
            (reasons.SCATTERED_ONTO, lambda: self.is_scattered_onto(extra)),
            (reasons.EDGES, lambda: self.is_of_edges(extra)),
            (reasons.OTHER_SHARDS, lambda: self.is_on_other_shards(extra, self.left)),
        ]
        return next((reason for reason, holds in tests if holds()), UNEXPLAINED)

    def is_shared(self, missing: Side) -> bool:
        """Is a value paired that a compiler merges with this one, or a broadcast of this one?"""
        form, value = self.merged_form(missing), self.values.get(missing.value, -1)
        return any(
            self.merged_form(priced) == form
            or (_alike(priced, missing) and value in self.broadcast_of(priced))
            for priced, _, _ in self.pairs
        )

    def broadcast_of(self, priced: Side) -> Sequence[int]:
        """What was broadcast to make the value of one of ours: a compiler sends that instead."""
        value = self.values.get(priced.value, -1)
        op = self.program.value_op[value]
        is_broadcast = value >= 0 and self.program.kind[op] == "broadcast_in_dim"
        return self.program.operands(op) if is_broadcast else ()

    def is_broadcast_later(self, missing: Side) -> bool:
        """Does this move what a broadcast reads, or what one made of fewer numbers?"""
        if missing.value not in self.values or missing.kind not in _MOVES:
            return False
        is_read = self.program.kind[missing.op] == "broadcast_in_dim"
        return is_read or bool(self.broadcast_of(missing))

    def is_reassociated(self, missing: Side) -> bool:
        """Is a sum alike paired that soon meets this one?"""
        return missing.kind in _SUMS and any(
            _alike(priced, missing)
            and _close(priced.bytes, missing.bytes)
            and self.reach(missing.op) & self.reach(priced.op) - {missing.op, priced.op}
            for priced, _, _ in self.pairs
        )

    def is_step_of(self, missing: Side, reason: str) -> bool:
        """Is another step on the same value paired, over the axes of this one as well?"""
        return any(
            why == reason and _same_value(priced, missing) and (_axes(missing) <= _axes(compiled))
            for priced, compiled, why in self.pairs
        )

    def is_step_of_route(self, missing: Side) -> bool:
        """Is another move of the same value paired with a move?"""
        return missing.kind in _MOVES and any(
            _same_value(priced, missing) and priced.kind in _MOVES and compiled.kind in _MOVES
            for priced, compiled, _ in self.pairs
        )

    def is_kept_whole(self, missing: Side) -> bool:
        """Does this move put together what a paired sum left whole?"""
        return missing.kind in _MOVES and any(
            (priced.kind, compiled.kind) == ("reduce_scatter", "all_reduce")
            and (
                priced.value == missing.value
                or (
                    missing.kind == "all_gather"
                    and _axes(missing) <= _axes(compiled)
                    and missing.op in self.reach(priced.op)
                )
            )
            for priced, compiled, _ in self.pairs
        )

    def is_repeated(self, extra: Side) -> bool:
        """Is the same collective of the same op, or of what it computes, paired?"""
        own = {self.program.value_name[value] for value in self.results(extra)}
        return any(
            (compiled.op == extra.op or priced.value in own)
            and _alike(compiled, extra)
            and _close(compiled.bytes, extra.bytes)
            for priced, compiled, _ in self.pairs
        )

    def results(self, side: Side) -> Sequence[int]:
        """What the op of a side computes."""
        return self.program.results(side.op) if 0 <= side.op < self.program.n_ops else ()

    def is_step_between(self, extra: Side) -> bool:
        """Is one of ours over more axes paired with another step?"""
        return any(
            why == reasons.OTHER_AXES
            and (priced.op, priced.kind) == (extra.op, extra.kind)
            and _axes(extra) <= _axes(priced)
            for priced, _, why in self.pairs
        )

    def is_reorder(self, extra: Side) -> bool:
        """Is it a permute at an op whose results we sum?"""
        sums = any(priced.op == extra.op and priced.kind in _SUMS for priced in self.all_left)
        return extra.kind == "collective_permute" and sums

    def is_of_edges(self, extra: Side) -> bool:
        """Does it permute a small part of what an op makes whose results have neighbours?"""
        program = self.program
        return extra.kind == "collective_permute" and any(
            self.has_neighbours(extra.op)
            and extra.bytes * self.mesh.n_devices <= EDGE_SHARE * float(program.nbytes(value))
            for value in self.results(extra)
        )

    def has_neighbours(self, op: int) -> bool:
        """Does an op put numbers beside those that stood elsewhere, or read those beside them?"""
        moves = op_kind(self.program.kind[op]).moves_elements
        return moves or bool(self.program.op_class[op] == p.CONVOLUTION)

    def is_scattered_onto(self, extra: Side) -> bool:
        """Does it gather at most as much as a scatter makes, to which something is added?"""
        program = self.program
        return extra.kind == "all_gather" and any(
            program.kind[extra.op] == "scatter"
            and extra.bytes <= float(program.nbytes(value))
            and any(program.kind[user] == "add" for user in self.users[value])
            for value in self.results(extra)
        )

    def is_sum_of_other_shards(self, priced: Side, compiled: Side) -> bool:
        """Are both sums at one op, but not of as many numbers?"""
        are_sums = priced.kind in _SUMS and compiled.kind in _SUMS
        return are_sums and priced.op == compiled.op and not self.is_as_large(priced, compiled)

    def is_on_other_shards(self, left_over: Side, others: Sequence[Side]) -> bool:
        """Does the other side sum at this op where this one moves, or over other axes?"""
        rerouted = [
            side
            for priced, compiled, why in self.pairs
            if why == reasons.OTHER_ROUTE or self.is_sum_of_other_shards(priced, compiled)
            for side in (priced, compiled)
        ]
        opposite = _MOVES if left_over.kind in _SUMS else _SUMS
        return left_over.op >= 0 and any(
            side.kind in opposite or (side.kind in _SUMS and not _axes(side) & _axes(left_over))
            for side in (*others, *rerouted)
            if side.op == left_over.op
        )

    # -- the program --------------------------------------------------------------------------

    def row(self, priced: Side | None, compiled: Side | None, status: str, reason: str) -> DiffRow:
        side = priced or compiled
        op = side.op if side is not None and side.op < self.program.n_ops else -1
        if compiled is not None and status == CHANGED and compiled.op in self.remats:
            reason = reasons.REMATERIALISED
        return DiffRow(
            op=op,
            op_kind=self.program.kind[op] if op >= 0 else "",
            where=self.program.where(op) if op >= 0 else "unknown line",
            predicted=priced,
            compiled=compiled,
            status=status,
            reason=reason,
        )

    def merged_form(self, priced: Side) -> tuple[object, ...]:
        """What collectives of ours have in common that a compiler makes one of."""
        number = self.merged_values.get(priced.value, priced.value)
        # What scatters is an all_reduce and a slice where the sum is needed whole too.
        kind = _SUMS[0] if priced.kind in _SUMS else priced.kind
        return (number, kind, _axes(priced), priced.bytes)

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
        return 0 <= op < self.program.n_ops and self.program.op_class[op] in (p.DOT, p.CONVOLUTION)


def _on_one_op(check: Check) -> Check:
    return lambda a, b: a.op == b.op and check(a, b)


def _alike(priced: Side, compiled: Side) -> bool:
    return priced.kind == compiled.kind and _axes(priced) == _axes(compiled)


def _swapped(priced: Side, compiled: Side, first: str, second: str) -> bool:
    is_swap = (priced.kind, compiled.kind) == (first, second)
    return is_swap and _axes(priced) == _axes(compiled)


def _same_value(first: Side, second: Side) -> bool:
    return (first.op, first.value) == (second.op, second.value)


def _axes(side: Side) -> frozenset[str]:
    return frozenset(side.axes if side.axes is not None else ("?",))


def _same_size(priced: Side, compiled: Side) -> bool:
    return _close(priced.bytes, compiled.bytes) and priced.times == compiled.times


def _close(first: float, second: float) -> bool:
    return abs(first - second) <= 0.01 * max(first, second)


def _is_padded(priced: Side, compiled: Side) -> bool:
    is_larger = priced.bytes < compiled.bytes <= 1.13 * priced.bytes
    return is_larger and priced.times == compiled.times


def _width(dtype: str) -> float:
    """Bytes of an element, 0 if unknown."""
    if dtype == "pred":
        return 1.0
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) / 8 if digits else 0.0

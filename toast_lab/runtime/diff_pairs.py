"""Pairs of a priced and a compiled collective, the surest first.

Other modules need only ``pair_up``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from toast_lab.ir.program import Program
from toast_lab.runtime import diff_rows as reasons
from toast_lab.runtime.diff_program import DiffProgram
from toast_lab.runtime.diff_rows import CHANGED, EQUAL, EXTRA, MISSING, UNEXPLAINED, DiffRow, Side
from toast_lab.runtime.diff_sides import (
    MOVES,
    SUMS,
    Check,
    alike,
    axes,
    close,
    is_padded,
    on_one_op,
    same_size,
    same_value,
    swapped,
)
from toast_lab.runtime.diff_unpaired import UnpairedCollectives
from toast_lab.sharding.mesh import Mesh

#: Largest gather that may be compiled as a sum: the largest one seen has 30 KiB.
SMALL_BYTES = 64 * 1024
MOST_PARTS = 8  #: most compiled collectives that one priced collective may become


def pair_up(
    program: Program,
    mesh: Mesh,
    priced: Sequence[Side],
    compiled: Sequence[Side],
    remats: Iterable[int] = (),
) -> list[DiffRow]:
    """Rows that hold each collective of both sides once, ordered by op.

    ``remats`` are the ops that the partitioner rematerialised involuntarily.
    """
    return _Pairs(program, mesh, left=priced, right=compiled, remats=set(remats)).rows()


class _Pairs:
    """Pairs the two sides; ``left`` and ``right`` shrink as pairs are matched."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        left: Sequence[Side],
        right: Sequence[Side],
        remats: set[int],
    ) -> None:
        self.own, self.mesh, self.remats = DiffProgram(program), mesh, remats
        self.left = list(left)
        self.right = [self.at_product(side) for side in right]
        self.all_left = list(left)
        self.pairs: list[tuple[Side, Side, str]] = []

    def rows(self) -> list[DiffRow]:
        """All rows, ordered by op."""
        self.split(self.halves, reasons.COMPLEX)
        for reason, check in self.checks_on_one_op():
            self.pair(check, reason)
        self.split(self.rings, reasons.WINDOWED)
        self.left, repeats = self.merged_apart()
        for merged in ([], repeats):
            self.left += merged
            for reason, check in self.checks_on_any_op():
                self.pair(check, reason)
        self.split(self.parts, reasons.IN_PARTS)
        for reason, check in self.checks_on_other_work():
            self.pair(check, reason)
        paired = [
            self.row(priced, compiled, CHANGED if reason else EQUAL, reason)
            for priced, compiled, reason in self.pairs
        ]
        unpaired = UnpairedCollectives(
            self.own,
            self.mesh.n_devices,
            pairs=self.pairs,
            priced=self.all_left,
            left=self.left,
            right=self.right,
            remats=self.remats,
        )
        missing = [
            self.row(priced, None, MISSING, unpaired.why_missing(priced)) for priced in self.left
        ]
        extra = [
            self.row(None, compiled, EXTRA, unpaired.why_extra(compiled)) for compiled in self.right
        ]
        return sorted([*paired, *missing, *extra], key=lambda row: (row.op, row.status))

    def merged_apart(self) -> tuple[list[Side], list[Side]]:
        """The unpaired priced collectives, split by whether a compiler merges them with another.

        Gives those that it does not merge, then those that it merges with a paired or an earlier
        one. The latter may have no partner, and must not take the partners of others.
        """
        forms = {self.own.merged_form(priced) for priced, _, _ in self.pairs}
        unmerged, repeats = list[Side](), list[Side]()
        for priced in self.left:
            (repeats if self.own.merged_form(priced) in forms else unmerged).append(priced)
            forms.add(self.own.merged_form(priced))
        return unmerged, repeats

    def at_product(self, compiled: Side) -> Side:
        """Reassign a collective named after a transpose of a product to that product.

        XLA fuses the two into one. The collective stays where it is if there is a priced one at the
        transpose too.
        """
        program, op = self.own.program, compiled.op
        if not 0 <= op < program.n_ops or program.kind[op] != "transpose":
            return compiled
        (operand,) = program.operands(op)
        product = int(program.value_op[operand])
        is_priced = any(priced.op == op for priced in self.left)
        return (
            compiled._replace(op=product)
            if self.own.is_product(product) and not is_priced
            else compiled
        )

    def checks_on_one_op(self) -> list[tuple[str, Check]]:
        """Reasons and checks for pairs that serve the same op, the surest first."""
        checks: list[tuple[str, Check]] = [
            (UNEXPLAINED, lambda a, b: alike(a, b) and same_size(a, b)),
            (reasons.NARROWER, lambda a, b: alike(a, b) and self.own.is_narrower(a, b)),
            (reasons.UNCAST, lambda a, b: alike(a, b) and self.own.is_uncast(a, b)),
            (reasons.OTHER_TIMES, lambda a, b: alike(a, b) and close(a.bytes, b.bytes)),
            (reasons.IDLE, self.is_cut_more),
            (reasons.SUM_AND_SLICE, lambda a, b: swapped(a, b, "reduce_scatter", "all_reduce")),
            (reasons.SCATTERED, lambda a, b: swapped(a, b, "all_reduce", "reduce_scatter")),
            (reasons.PADDED, lambda a, b: alike(a, b) and is_padded(a, b)),
            (reasons.ONE_STEP, self.is_one_step),
        ]
        return [(reason, on_one_op(check)) for reason, check in checks]

    def checks_on_any_op(self) -> list[tuple[str, Check]]:
        """Reasons and checks for pairs whose compiled side may be named after another op.

        A compiler names a merged or fused collective after one of the ops that it serves.
        """

        def summed(a: Side, b: Side) -> bool:
            return swapped(a, b, "reduce_scatter", "all_reduce")

        return [
            # Collectives that differ only in their op are the same, unless the compiled one may
            # stand for other communication that is priced at its own op.
            (
                reasons.OTHER_OP,
                lambda a, b: (
                    alike(a, b)
                    and same_size(a, b)
                    and (self.own.is_near(a, b) or not self.has_move_at(b))
                ),
            ),
            (
                reasons.NARROWER,
                lambda a, b: alike(a, b) and self.own.is_narrower(a, b) and self.own.is_near(a, b),
            ),
            (reasons.ONE_STEP, self.is_one_step),
            (
                reasons.SUM_AND_SLICE,
                lambda a, b: summed(a, b) and close(a.bytes, b.bytes) and self.own.is_near(a, b),
            ),
            (reasons.IDLE, self.is_cut_more),
            (reasons.SUM_AND_SLICE, lambda a, b: summed(a, b) and same_size(a, b)),
            (reasons.SUM_OF_SHARDS, self.is_sum_of_shards),
            (reasons.WHOLE, lambda a, b: self.is_cut_more(b, a)),
        ]

    def checks_on_other_work(self) -> list[tuple[str, Check]]:
        """Reasons and checks for pairs that send other numbers, or between other devices."""

        def moved(a: Side, b: Side) -> bool:
            return a.kind in MOVES and b.kind in MOVES

        return [
            (reasons.OTHER_SIZE, on_one_op(alike)),
            (reasons.OTHER_AXES, on_one_op(lambda a, b: a.kind == b.kind)),
            (reasons.OTHER_ROUTE, on_one_op(moved)),
            (
                reasons.OTHER_ROUTE,
                lambda a, b: moved(a, b) and self.own.is_as_large(a, b) and self.own.is_near(a, b),
            ),
            (reasons.OTHER_OP, lambda a, b: alike(a, b) and same_size(a, b)),
        ]

    def pair(self, fits: Check, reason: str) -> None:
        """Pair each priced collective with the nearest one that ``fits``; both leave the lists."""
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
        """Pair each priced collective with all its partners, combined into one compiled side."""
        unpaired = []
        for priced in self.left:
            partners = partners_of(priced)
            if not partners:
                unpaired.append(priced)
                continue
            for side in partners:
                self.right.remove(side)
            total_bytes = sum(side.total_bytes for side in partners)
            combined = partners[0]._replace(bytes=total_bytes / partners[0].times)
            self.pairs.append((priced, combined, reason))
        self.left = unpaired

    def halves(self, priced: Side) -> list[Side]:
        """The two collectives that send the real and imaginary parts of a complex value."""
        value = self.own.values.get(priced.value, -1)
        if value < 0 or not self.own.program.value_dtype[value].startswith("complex"):
            return []
        halves = [
            side
            for side in self.right
            if side.op == priced.op
            and side.dtype.startswith("f")
            and alike(priced, side)
            and same_size(priced, side._replace(bytes=2 * side.bytes))
        ]
        return halves[:2] if len(halves) >= 2 else []

    def rings(self, priced: Side) -> list[Side]:
        """Permutes that replace a gather before, or a scatter after, a matrix product."""
        if priced.kind not in ("all_gather", "reduce_scatter") or not self.own.is_product(
            priced.op
        ):
            return []
        return [
            side
            for side in self.right
            if side.kind == "collective_permute"
            and side.op == priced.op
            and axes(side) <= axes(priced)
        ]

    def parts(self, priced: Side) -> list[Side]:
        """Collectives of equal size, and of the same kind and axes, that together send as much."""
        candidates = [
            side for side in self.right if alike(priced, side) and side.times == priced.times
        ]
        for size in sorted({side.bytes for side in candidates}, reverse=True):
            n_parts = round(priced.bytes / size) if size else 0
            parts = [side for side in candidates if side.bytes == size][:n_parts]
            is_whole = 2 <= n_parts == len(parts) and close(n_parts * size, priced.bytes)
            if is_whole and n_parts <= MOST_PARTS:
                return parts
        return []

    def has_move_at(self, compiled: Side) -> bool:
        """Is a priced collective that moves data still unpaired at the op of a compiled one?"""
        return compiled.kind in MOVES and any(
            priced.op == compiled.op and priced.kind in MOVES for priced in self.left
        )

    def is_cut_more(self, first: Side, second: Side) -> bool:
        """Is the second collective the same sum, of a value that is cut further?

        It is over the same axes, and its value is cut along one more mesh axis, or a part of one.
        """
        if first.kind not in SUMS or second.kind not in SUMS or axes(first) != axes(second):
            return False
        factor = round(first.bytes / second.bytes) if second.bytes else 0
        return (
            factor > 1
            and close(first.bytes, second.bytes * factor)
            and any(
                size % factor == 0
                for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True)
                if axis not in (first.axes or ())
            )
        )

    def is_one_step(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled all_reduce over the axes of a priced scatter and the sum after it?"""
        return (
            (priced.kind, compiled.kind) == ("reduce_scatter", "all_reduce")
            and same_size(priced, compiled)
            and any(
                later_sum.kind == "all_reduce"
                and same_value(later_sum, priced)
                and axes(later_sum) | axes(priced) == axes(compiled)
                for later_sum in self.all_left
            )
        )

    def is_sum_of_shards(self, priced: Side, compiled: Side) -> bool:
        """Does the compiled all_reduce stand for a small priced gather?"""
        return (
            swapped(priced, compiled, "all_gather", "all_reduce")
            and priced.bytes <= SMALL_BYTES
            and self.own.is_as_large(priced, compiled)
        )

    def row(self, priced: Side | None, compiled: Side | None, status: str, reason: str) -> DiffRow:
        side = priced or compiled
        op = side.op if side is not None and side.op < self.own.program.n_ops else -1
        if compiled is not None and status == CHANGED and compiled.op in self.remats:
            reason = reasons.REMATERIALISED
        return DiffRow(
            op=op,
            op_kind=self.own.program.kind[op] if op >= 0 else "",
            where=self.own.program.where(op) if op >= 0 else "unknown line",
            predicted=priced,
            compiled=compiled,
            status=status,
            reason=reason,
        )

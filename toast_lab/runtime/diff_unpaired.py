"""Why a collective on one side has no partner on the other: the first reason that holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from toast_lab.runtime import diff_rows as reasons
from toast_lab.runtime.diff_program import DiffProgram
from toast_lab.runtime.diff_rows import UNEXPLAINED, Side
from toast_lab.runtime.diff_sides import MOVES, SUMS, alike, axes, close, same_value

#: Largest share of a shard that an exchange of edges sends.
EDGE_SHARE = 0.1


class UnpairedCollectives(NamedTuple):
    """Collectives without a partner, with the pairs that explain them."""

    own: DiffProgram
    n_devices: int
    pairs: Sequence[tuple[Side, Side, str]]  #: priced, compiled, and why they differ
    priced: Sequence[Side]  #: all of them
    left: Sequence[Side]  #: priced ones without a partner
    right: Sequence[Side]  #: compiled ones without a partner
    remats: Set[int]  #: ops that the partitioner rematerialised involuntarily

    def why_missing(self, missing: Side) -> str:
        """The first reason that holds for a priced collective without a partner."""
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
        """The first reason that holds for a compiled collective without a partner."""
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
        """Is a collective paired that merges with this one, or moves a broadcast of its value?"""
        form, value = self.own.merged_form(missing), self.own.values.get(missing.value, -1)
        return any(
            self.own.merged_form(priced) == form
            or (alike(priced, missing) and value in self.own.broadcast_of(priced))
            for priced, _, _ in self.pairs
        )

    def is_broadcast_later(self, missing: Side) -> bool:
        """Does this move the operand of a broadcast, or the result of one?"""
        if missing.value not in self.own.values or missing.kind not in MOVES:
            return False
        is_read = self.own.program.kind[missing.op] == "broadcast_in_dim"
        return is_read or bool(self.own.broadcast_of(missing))

    def is_reassociated(self, missing: Side) -> bool:
        """Is a similar sum paired whose result soon meets the result of this one?"""
        return missing.kind in SUMS and any(
            alike(priced, missing)
            and close(priced.bytes, missing.bytes)
            and self.own.reach(missing.op) & self.own.reach(priced.op) - {missing.op, priced.op}
            for priced, _, _ in self.pairs
        )

    def is_step_of(self, missing: Side, reason: str) -> bool:
        """Is another step on the same value paired, over axes that include those of this one?"""
        return any(
            pair_reason == reason
            and same_value(priced, missing)
            and (axes(missing) <= axes(compiled))
            for priced, compiled, pair_reason in self.pairs
        )

    def is_step_of_route(self, missing: Side) -> bool:
        """Is another move of the same value paired with a move?"""
        return missing.kind in MOVES and any(
            same_value(priced, missing) and priced.kind in MOVES and compiled.kind in MOVES
            for priced, compiled, _ in self.pairs
        )

    def is_kept_whole(self, missing: Side) -> bool:
        """Does this move a value that a paired sum already leaves whole?"""
        return missing.kind in MOVES and any(
            (priced.kind, compiled.kind) == ("reduce_scatter", "all_reduce")
            and (
                priced.value == missing.value
                or (
                    missing.kind == "all_gather"
                    and axes(missing) <= axes(compiled)
                    and missing.op in self.own.reach(priced.op)
                )
            )
            for priced, compiled, _ in self.pairs
        )

    def is_repeated(self, extra: Side) -> bool:
        """Is the same collective paired, for the same op or for its results?"""
        result_names = {self.own.program.value_name[value] for value in self.own.results(extra)}
        return any(
            (compiled.op == extra.op or priced.value in result_names)
            and alike(compiled, extra)
            and close(compiled.bytes, extra.bytes)
            for priced, compiled, _ in self.pairs
        )

    def is_step_between(self, extra: Side) -> bool:
        """Is a priced collective at this op, over these and more axes, paired with another step?"""
        return any(
            pair_reason == reasons.OTHER_AXES
            and (priced.op, priced.kind) == (extra.op, extra.kind)
            and axes(extra) <= axes(priced)
            for priced, _, pair_reason in self.pairs
        )

    def is_reorder(self, extra: Side) -> bool:
        """Is it a permute at an op whose results the plan sums?"""
        is_summed = any(priced.op == extra.op and priced.kind in SUMS for priced in self.priced)
        return extra.kind == "collective_permute" and is_summed

    def is_of_edges(self, extra: Side) -> bool:
        """Does it permute a small part of the results of an op that reads or moves neighbours?"""
        program = self.own.program
        return extra.kind == "collective_permute" and any(
            self.own.has_neighbours(extra.op)
            and extra.bytes * self.n_devices <= EDGE_SHARE * float(program.nbytes(value))
            for value in self.own.results(extra)
        )

    def is_scattered_onto(self, extra: Side) -> bool:
        """Does it gather at most the result of a scatter, to which another value is added?"""
        program = self.own.program
        return extra.kind == "all_gather" and any(
            program.kind[extra.op] == "scatter"
            and extra.bytes <= float(program.nbytes(value))
            and any(program.kind[user] == "add" for user in self.own.users[value])
            for value in self.own.results(extra)
        )

    def is_sum_of_other_shards(self, priced: Side, compiled: Side) -> bool:
        """Are both sums at one op, but of different numbers of elements?"""
        are_sums = priced.kind in SUMS and compiled.kind in SUMS
        return are_sums and priced.op == compiled.op and not self.own.is_as_large(priced, compiled)

    def is_on_other_shards(self, left_over: Side, others: Sequence[Side]) -> bool:
        """Does the other side sum at this op where this one moves, or sum over other axes?"""
        rerouted = [
            side
            for priced, compiled, pair_reason in self.pairs
            if pair_reason == reasons.OTHER_ROUTE or self.is_sum_of_other_shards(priced, compiled)
            for side in (priced, compiled)
        ]
        opposite = MOVES if left_over.kind in SUMS else SUMS
        return left_over.op >= 0 and any(
            side.kind in opposite or (side.kind in SUMS and not axes(side) & axes(left_over))
            for side in (*others, *rerouted)
            if side.op == left_over.op
        )

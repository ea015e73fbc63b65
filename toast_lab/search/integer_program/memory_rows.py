"""Memory at one op as a linear function of the choices, to keep a plan within the limit.

The written values that are alive at an op are known without a plan; so are the copies, except for
the extent to which they are shared, which is taken from an example, a plan that was priced. Work
space and the details of sharing are not linear: their bytes in the example are added as a constant
(``Bytes.unexplained_bytes``). The search prices every plan and asks for a new row wherever one is
over the limit, which corrects the errors of earlier rows.

Start reading at ``bytes_at``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from toast_lab.cost import price_inputs
from toast_lab.cost.problem import Problem
from toast_lab.cost.program_prices import Totals
from toast_lab.search.integer_program.integer_program import Bytes
from toast_lab.search.integer_program.strategies import ClusteredProgram


class MemoryRows:
    """Makes the rows for memory of one problem and one set of choices."""

    def __init__(self, problem: Problem, choices: ClusteredProgram) -> None:
        self.problem, self.choices = problem, choices
        self.axis_size = problem.mesh.array()
        self.whole = problem.prices.inputs.memory
        folded = choices.clusters.folded
        self.like_use, self.like_op = folded.memory.like_use, folded.memory.like_op
        self.like_buffer = folded.memory.buffers.value
        self.tables, self.facts = folded.tables, folded.facts
        self.ways = [
            np.where(menu >= 0, self.axis_size, 1).prod(axis=1).astype(float)
            for menu in choices.menus.values
        ]
        self._copies: dict[int, np.ndarray] = {}

    @functools.cached_property
    def _lifetimes(self) -> tuple[np.ndarray, np.ndarray]:
        """([U] does the use always bring a copy of its own? [U] last op that the copy serves).

        Uses of one value that always want the same layout share the copy of the first one.
        """
        memory = self.whole
        group = self.choices.use_group[self.like_use]
        order = np.lexsort((np.arange(len(group)), group, memory.use_value))
        is_same = np.zeros(len(order), bool)
        is_same[1:] = (memory.use_value[order][1:] == memory.use_value[order][:-1]) & (
            group[order][1:] == group[order][:-1]
        )
        leader = order
        if len(order):
            leader = order[np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))]
        until = memory.runs_at[memory.use_op].astype(np.int64)
        is_inside = memory.use_op[order] < memory.use_until[leader]
        last = until.copy()
        np.maximum.at(last, leader[is_inside], until[order][is_inside])
        has_own = np.ones(len(order), bool)
        has_own[order[is_same & is_inside]] = False
        return has_own & (group >= 0), last

    def _copy_bytes(self, use: int) -> np.ndarray:
        """[W, T] bytes of the copy for a use of the folded program."""
        if use not in self._copies:
            group = self.choices.groups[int(self.choices.use_group[use])]
            self._copies[use] = self.choices.prices.copy_bytes(
                int(self.tables.use_op[use]), use, group.distinct, self.choices.layout[group.value]
            )
        return self._copies[use]

    def bytes_at(
        self,
        at: int,
        priced: Totals,
        ops: np.ndarray,
        values: np.ndarray,
        check: Callable[[], None] = lambda: None,
    ) -> Bytes:
        """The row of op ``at``, exact for the choice whose plan was ``priced``."""
        memory, choices, value_bytes = self.whole, self.choices, priced.lives.size
        by_value = np.zeros(len(choices.layout))
        alive = np.flatnonzero((memory.buffers.start <= at) & (memory.buffers.end >= at))
        # One operand that dies at this op gives its memory to the result.
        dying = alive[(memory.buffers.end[alive] == at) & (memory.buffers.heir[alive] >= 0)]
        reused = dying[
            value_bytes[memory.buffers.value[dying]] == value_bytes[memory.buffers.heir[dying]]
        ][:1]
        folded_values = self.like_buffer[np.setdiff1d(alive, reused)]
        np.add.at(
            by_value, self.tables.value_row[folded_values], self.facts.value.bytes[folded_values]
        )
        held = {
            int(cluster): by_value[cluster] / self.ways[cluster]
            for cluster in np.flatnonzero(by_value)
        }
        has_own, last = self._lifetimes
        is_brought = priced.prices.copied == price_inputs.BROUGHT
        until = np.where(is_brought, np.maximum(priced.lives.last, 0), last)
        uses = np.flatnonzero(
            (has_own | is_brought) & (memory.use_op <= at) & (until >= at) & (self._grouped)
        )
        groups: dict[int, np.ndarray] = {}
        shared: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        folded_uses, counts = np.unique(self.like_use[uses], return_counts=True)
        for use, count in zip(folded_uses.tolist(), counts.tolist(), strict=True):
            check()
            group_number = int(choices.use_group[use])
            size = count * self._copy_bytes(use)
            if not size.any():
                continue
            key = choices.sharers.get(use)
            if key is None:
                groups[group_number] = groups.get(group_number, 0.0) + size
            else:
                shared[group_number, key] = shared.get((group_number, key), 0.0) + size
        # Bytes that exist only while an op runs: results before they are scattered or moved.
        for op in np.flatnonzero(memory.runs_at == at).tolist():
            for group_number, size in choices.passing.get(int(self.like_op[op]), []):
                groups[group_number] = groups.get(group_number, 0.0) + size
        row = Bytes(op=at, values=held, groups=groups, shared=shared, unexplained_bytes=0.0)
        return row._replace(
            unexplained_bytes=float(priced.lives.live[at]) - self.explained(row, ops, values)
        )

    @functools.cached_property
    def _grouped(self) -> np.ndarray:
        return self.choices.use_group[self.like_use] >= 0

    def explained(self, row: Bytes, ops: np.ndarray, values: np.ndarray) -> float:
        """The bytes that the columns of a row explain for a choice."""
        choices = self.choices
        total = sum(float(size[values[cluster]]) for cluster, size in row.values.items())
        for group, size in row.groups.items():
            total += choices.entry(size, group, ops, values)
        for key, size in row.shared.items():
            # A copy that costs no time has no column for sharing and counts always.
            is_free = choices.entry(self._time_s[key], key[0], ops, values) <= 0.0
            if is_free or not choices.is_shared(*key, ops):
                total += choices.entry(size, key[0], ops, values)
        return total

    def bytes_of(self, row: Bytes, ops: np.ndarray, values: np.ndarray) -> float:
        """The bytes of a choice according to a row."""
        return self.explained(row, ops, values) + row.unexplained_bytes

    @functools.cached_property
    def _time_s(self) -> dict[tuple[int, tuple[int, ...]], np.ndarray]:
        """[W, T] seconds of the moves of each term, by its group and the earlier groups."""
        return {(term.group, term.earlier): term.time_s for term in self.choices.terms}


def crowded(live: np.ndarray, limit_bytes: float, most: int = 4) -> list[int]:
    """At most ``most`` ops with memory above the limit, the worst first, no two close together."""
    count = len(live)
    crowding = np.where(live > limit_bytes, live, -np.inf)
    chosen: list[int] = []
    while len(chosen) < most and np.isfinite(crowding.max(initial=-np.inf)):
        worst_op = int(crowding.argmax())
        chosen.append(worst_op)
        crowding[max(0, worst_op - count // 40) : worst_op + count // 40 + 1] = -np.inf
    return chosen

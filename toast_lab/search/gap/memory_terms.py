"""What plans have in memory at least, as prices of single choices.

A plan that fits has at most the limit in memory at each op.  So a price on each byte above the
limit at an op, however high, lowers the time of no plan that fits; and what is in memory is at
least what is written there, each value as it is kept (copies and what stands beside an op are left
out).  The price of a byte at an op then becomes a price of each layout of each value that is alive
there, and what the limit has of bytes is taken off again: Lagrange multipliers of the limit.

Of plans that do not fit, C(s) has a penalty for each byte above the limit at the peak, so all bytes
together may be priced up to that, and the bound holds of every plan.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.search.gap.relaxation import Relaxation
from toast_lab.sharding.steps import LAYOUT_BITS

MOST_PLACES = 24  #: ops at which memory is priced at once


class MemoryTerms:
    """Bytes in memory by op and choice, and what a byte is priced at.

    Args:
        problem: limits and prices.
        relaxation: its choices.
    """

    def __init__(self, problem: Problem, relaxation: Relaxation) -> None:
        folded, n_rows = relaxation.folded, len(relaxation.menus)
        memory, axis_size = folded.memory, folded.axis_size
        # Up to so much of what is written is in vector memory.
        room_bytes = folded.rates.near_room_bytes
        self.limit_bytes = problem.memory_limit_bytes + room_bytes
        self.node = relaxation.value_node[memory.buffer_value]
        self.bytes = folded.facts.value.bytes[memory.buffer_value]
        # What a product makes that may wait is there when it has waited.
        waits = memory.buffer_written_late >= 0
        late = np.where(waits, memory.late_op, 0)
        self.start = np.maximum(memory.buffer_start, late).astype(np.int64)
        # Its place may go to a result one op early.
        self.end = memory.buffer_end.astype(np.int64) - (memory.buffer_heir >= 0)
        self.bytes = np.where(waits & (self.start > self.end), 0.0, self.bytes)
        self.n_ops = len(memory.runs_at)
        #: N of [T] the part of a value that a device has, 1 for rows of ops
        self.share: list[np.ndarray] = [np.ones(len(menu)) for menu in relaxation.menus]
        for layouts in relaxation.layouts:
            ways = np.ones(len(layouts))
            for axis, size in enumerate(axis_size.tolist()):
                ways *= np.where((layouts >> LAYOUT_BITS * axis) & 31, size, 1)
            self.share.append(1.0 / ways)
        assert len(self.share) == n_rows + len(relaxation.layouts)
        finest = np.asarray([share.argmin() for share in self.share])
        self.matters = bool(self.live(np.zeros_like(finest)).max() > self.limit_bytes)
        self.byte_s: dict[int, float] = {}  # op -> seconds for each byte above the limit there

    def live(self, choice: np.ndarray) -> np.ndarray:
        """[O+1] bytes in memory at each op at least, for a choice [N]."""
        kept = np.asarray([share[number] for share, number in zip(self.share, choice, strict=True)])
        size = self.bytes * np.where(self.node >= 0, kept[self.node], 1.0)
        change = np.zeros(self.n_ops + 2)
        np.add.at(change, self.start, size)
        np.add.at(change, np.minimum(self.end, self.n_ops) + 1, -size)
        return np.cumsum(change)[:-1]

    def extra_s(self) -> tuple[list[np.ndarray], float]:
        """(N of seconds to be added to each choice, seconds to be taken off the sum)."""
        weight = np.zeros(len(self.share))
        taken_off = 0.0
        for op, byte_s in self.byte_s.items():
            alive = (self.start <= op) & (op <= self.end)
            variable = alive & (self.node >= 0)
            np.add.at(weight, self.node[variable], byte_s * self.bytes[variable])
            fixed = float(self.bytes[alive & (self.node < 0)].sum())
            taken_off += byte_s * (self.limit_bytes - fixed)
        each = zip(self.share, weight.tolist(), strict=True)
        return [share * seconds for share, seconds in each], taken_off

    def move(self, choice: np.ndarray, gap_s: float, most_byte_s: float) -> None:
        """Price bytes higher where a choice has too many of them, and lower where it has too few.

        Args:
            choice: [N] what is best at the prices so far.
            gap_s: by how much the bound may rise at best.
            most_byte_s: that all prices together may come to.
        """
        live = self.live(choice)
        peak = int(live.argmax())
        if live[peak] > self.limit_bytes and peak not in self.byte_s:
            if len(self.byte_s) >= MOST_PLACES:
                del self.byte_s[min(self.byte_s, key=lambda op: self.byte_s[op])]
            self.byte_s[peak] = 0.0
        ops = np.asarray(list(self.byte_s), np.int64)
        over = live[ops] - self.limit_bytes
        norm = float((over**2).sum())
        if norm <= 0.0:
            return
        new = np.maximum(0.0, np.asarray(list(self.byte_s.values())) + gap_s * over / norm)
        if new.sum() > most_byte_s:
            new *= most_byte_s / new.sum()
        self.byte_s = {int(op): float(byte_s) for op, byte_s in zip(ops, new, strict=True)}

"""A lower bound of the memory of plans, turned into prices of single choices.

A plan that fits has at most the limit in memory at each op. Hence a price on each byte above the
limit at an op, however high, raises no such plan's total, since its bytes above the limit are at
most 0. The bytes in memory are at least those of the written values, each in the layout in which it
is kept (copies and temporary buffers of an op are left out). So the price of a byte at an op
becomes a price of each layout of each value that is alive at the op, and the price of the limit's
bytes is subtracted again. These prices are the Lagrange multipliers of the limit.

For plans that do not fit, C(s) has a penalty for each byte above the limit at the peak. As long as
the prices of a byte at all ops add up to no more than that penalty, the bound holds for every plan.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.memory_tiles import tile_padding
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.problem import Problem
from toast_lab.search.gap.relaxation import Relaxation
from toast_lab.sharding.steps import LAYOUT_BITS

MOST_PLACES = 24  #: most ops at which memory is priced at the same time


class MemoryTerms:
    """Bytes in memory by op and choice, and the price of a byte at each op.

    Args:
        problem: limits and prices.
        relaxation: the choices.
    """

    def __init__(self, problem: Problem, relaxation: Relaxation) -> None:
        folded = relaxation.folded
        memory, axis_size = folded.memory, folded.axis_size
        # As many of the written bytes as this may lie in vector memory.
        self.is_near, self.room_bytes = memory.buffers.near, folded.rates.near_room_bytes
        self.limit_bytes = problem.memory_limit_bytes + self.room_bytes
        self.node = relaxation.value_node[memory.buffers.value]
        self.bytes = folded.facts.value.bytes[memory.buffers.value] * _unfilled(folded)
        # A product's result that may be written late takes memory only from then on.
        waits = memory.buffers.written_late >= 0
        late_op = np.where(waits, memory.late_op, 0)
        self.start = np.maximum(memory.buffers.start, late_op).astype(np.int64)
        # A result may take its place one op early.
        self.end = memory.buffers.end.astype(np.int64) - (memory.buffers.heir >= 0)
        self.bytes = np.where(waits & (self.start > self.end), 0.0, self.bytes)
        self.n_ops = len(memory.runs_at)
        #: J of [T] the share of a value that one device holds, 1 for rows of ops
        self.share: list[np.ndarray] = [np.ones(len(menu)) for menu in relaxation.menus]
        for layouts in relaxation.layouts:
            ways = np.ones(len(layouts))
            for axis, size in enumerate(axis_size.tolist()):
                ways *= np.where((layouts >> LAYOUT_BITS * axis) & 31, size, 1)
            self.share.append(1.0 / ways)
        whole = np.zeros(len(self.share), np.int64)
        self.matters = bool(self.live(whole).max() > self.limit_bytes)
        self.byte_s: dict[int, float] = {}  # op -> seconds for each byte above the limit at the op

    def live(self, choice: np.ndarray) -> np.ndarray:
        """[O+1] the least bytes in memory at each op, for a choice [J]."""
        kept = np.asarray([share[index] for share, index in zip(self.share, choice, strict=True)])
        size = self.bytes * np.where(self.node >= 0, kept[self.node], 1.0)
        change = np.zeros(self.n_ops + 2)
        np.add.at(change, self.start, size)
        np.add.at(change, np.minimum(self.end, self.n_ops) + 1, -size)
        return np.cumsum(change)[:-1]

    def extra_s(self) -> tuple[list[np.ndarray], float]:
        """(J arrays of seconds to add to each choice, seconds to subtract from the sum)."""
        weight = np.zeros(len(self.share))
        taken_off_s = 0.0
        for op, byte_s in self.byte_s.items():
            alive = (self.start <= op) & (op <= self.end)
            variable = alive & (self.node >= 0)
            np.add.at(weight, self.node[variable], byte_s * self.bytes[variable])
            fixed_bytes = float(self.bytes[alive & (self.node < 0)].sum())
            taken_off_s += byte_s * (self.limit_bytes - fixed_bytes)
        weighted = zip(self.share, weight.tolist(), strict=True)
        return [share * seconds for share, seconds in weighted], taken_off_s

    def move(self, choice: np.ndarray, gap_s: float, most_byte_s: float) -> None:
        """Raise the price of a byte at ops where a choice is over the limit, lower it where under.

        Args:
            choice: [J] the best choice of each node at the present prices.
            gap_s: the most by which the bound may still rise.
            most_byte_s: the most that the prices of all ops together may come to.
        """
        live = self.live(choice)
        peak = int(live.argmax())
        if live[peak] > self.limit_bytes and peak not in self.byte_s:
            if len(self.byte_s) >= MOST_PLACES:
                del self.byte_s[min(self.byte_s, key=lambda op: self.byte_s[op])]
            self.byte_s[peak] = 0.0
        ops = np.asarray(list(self.byte_s), np.int64)
        excess_bytes = live[ops] - self.limit_bytes
        norm = float((excess_bytes**2).sum())
        if norm <= 0.0:
            return
        new_byte_s = np.maximum(
            0.0, np.asarray(list(self.byte_s.values())) + gap_s * excess_bytes / norm
        )
        if new_byte_s.sum() > most_byte_s:
            new_byte_s *= most_byte_s / new_byte_s.sum()
        self.byte_s = {int(op): float(byte_s) for op, byte_s in zip(ops, new_byte_s, strict=True)}


def _unfilled(folded: PriceInputs) -> np.ndarray:
    """[B] factor by which written buffers are larger in memory, in whole tiles, however cut."""
    axis_size, buffers = folded.axis_size, folded.memory.buffers.value
    # A value cut in two leaves no fewer tiles unfilled than the whole value; cut in three it may.
    if folded.rates.tile == 0.0 or (axis_size & (axis_size - 1)).any():
        return np.ones(len(buffers))
    begin, end = folded.tables.shape_ptr[buffers], folded.tables.shape_ptr[buffers + 1]
    sizes = folded.facts.dim_size
    return np.asarray(
        [
            tile_padding(sizes, first, last, 0, axis_size)
            for first, last in zip(begin.tolist(), end.tolist(), strict=True)
        ]
    )

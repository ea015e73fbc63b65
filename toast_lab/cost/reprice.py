"""Prices of search states, on the folded program and only for ops that an action changed.

The price of an op depends on its own row of the state, on how its operands and results are kept,
and on what the uses of its operands want. A ``Snapshot`` holds all of these for a state that was
priced, with the prices of every op. To price another state, the layouts are computed anew (they are
few), compared with those of the snapshot, and only ops that a difference affects are lowered and
priced again. How the two states are related does not matter, so undoing and branching need no
special care.

Peak memory is computed anew each time from the sizes, at those places of the program at which it
can peak.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from toast_lab.cost import kernel, price_inputs
from toast_lab.cost.lifetimes import live_bytes
from toast_lab.cost.price_inputs import Lifetimes, PriceInputs, Prices, StepPrices
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.kernels import compiled, copy_row, copy_rows, helper
from toast_lab.packs import Int8Matrix, Int32Array, Int32Matrix, Int64Array, PackMaker, packed
from toast_lab.sharding import steps as st
from toast_lab.sharding.steps import Steps, Tables


@packed
class Snapshot(NamedTuple):
    """A state that was priced (folded): what prices depend on, and the prices.

    It does not change once it is filled.
    """

    op_factor: Int32Matrix  #: [K, A]
    wanted: Int64Array  #: [W]
    kept: Int64Array  #: [V]
    prices: Prices


@packed
class PricingScratch(NamedTuple):
    """Arrays that pricing writes to; each thread has its own."""

    steps: Steps
    each: StepPrices
    ops: Int32Array  #: [O] ops to price again
    lives: Lifetimes


def make_scratch(inputs: PriceInputs) -> PricingScratch:
    """Scratch for programs of this size."""
    steps = st.buffers(inputs.tables, len(inputs.axis_size))
    return PricingScratch(
        steps=steps,
        each=price_inputs.step_prices(len(steps.kind)),
        ops=np.empty(len(inputs.tables.op_row), np.int32),
        lives=price_inputs.lifetimes(inputs),
    )


class Repricer:
    """Prices states of one folded program.

    May be used by several threads at once: each has scratch of its own.
    """

    def __init__(self, inputs: PriceInputs) -> None:
        self.inputs = inputs
        self._local = threading.local()
        self._makers: dict[tuple[int, ...], PackMaker] = {}

    def _scratch(self) -> PricingScratch:
        scratch: PricingScratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = make_scratch(self.inputs)
        return scratch

    def _new_snapshot(self, shape: tuple[int, ...]) -> Snapshot:
        """An empty snapshot for a state with that many rows and axes."""
        if shape not in self._makers:
            tables = self.inputs.tables
            example = Snapshot(
                op_factor=np.zeros(shape, np.int32),
                wanted=np.zeros(len(tables.use_owner), np.int64),
                kept=np.zeros(len(tables.value_op), np.int64),
                prices=price_inputs.prices(tables),
            )
            self._makers[shape] = PackMaker(example)
        snapshot: Snapshot = self._makers[shape]()
        return snapshot

    def price(
        self, op_factor: np.ndarray, value_dim: np.ndarray, before: Snapshot | None
    ) -> tuple[float, float, int, Snapshot]:
        """(time_s, peak_bytes, ops priced, snapshot) of a state given by its classes' rows.

        ``before``: snapshot of a state that differs little from this one; None to price every op.
        """
        after = self._new_snapshot(op_factor.shape)
        time_s, peak_bytes, n_ops = reprice(
            self.inputs,
            op_factor,
            value_dim,
            np.inf,
            before is None,
            after if before is None else before,
            after,
            self._scratch(),
        )
        return time_s, peak_bytes, n_ops, after


@compiled
def reprice(
    inputs: PriceInputs,
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    enough_s: float,
    all_ops: bool,
    before: Snapshot,
    after: Snapshot,
    scratch: PricingScratch,
) -> tuple[float, float, int]:
    """(time_s, peak_bytes, ops priced) of a state; fills ``after``.

    With ``all_ops``, ``before`` is ignored.

    The peak is a good part of the work: for a state that takes more than ``enough_s`` it is given
    as infinite instead of being computed.
    """
    tables, steps, prices = inputs.tables, scratch.steps, after.prices
    n_axes, n_ops = inputs.axis_size.shape[0], tables.op_row.shape[0]
    st.wanted_layouts(tables, op_factor, n_axes, steps.wanted)
    st.kept_layouts_into(tables, op_factor, value_dim, n_axes, steps.wanted, steps.layout)
    copy_rows(after.op_factor, op_factor)
    copy_row(after.wanted, steps.wanted)
    copy_row(after.kept, steps.layout)
    count = 0
    if all_ops:
        for op in range(tables.n_arguments, n_ops):
            scratch.ops[count] = op
            count += 1
    else:
        copy_row(prices.op_time_s, before.prices.op_time_s)
        copy_row(prices.copied, before.prices.copied)
        copy_row(prices.copy_bytes, before.prices.copy_bytes)
        copy_row(prices.passing_bytes, before.prices.passing_bytes)
        copy_row(prices.summed, before.prices.summed)
        count = changed_ops(inputs.facts, tables, before, after, scratch.ops)
    ops = scratch.ops[:count]
    n_steps = st.lower_into(tables, ops, op_factor, inputs.axis_size, steps)
    kernel.price_steps(inputs, ops, steps, n_steps, scratch.each, prices)
    time_s = 0.0
    for op in range(n_ops):
        time_s += inputs.times[op] * prices.op_time_s[op]
    if time_s > enough_s:
        return time_s, np.inf, count
    peak_bytes, _ = live_bytes(inputs, steps, prices, scratch.lives)
    return time_s, peak_bytes, count


@helper
def changed_ops(
    facts: ProgramFacts, tables: Tables, before: Snapshot, after: Snapshot, ops: np.ndarray
) -> int:
    """Fill ``ops`` with those that a difference between two snapshots affects.

    Gives their number.
    """
    n_rows, n_axes = after.op_factor.shape
    row_differs = np.zeros(n_rows, np.bool_)
    for row in range(n_rows):
        for axis in range(n_axes):
            if before.op_factor[row, axis] != after.op_factor[row, axis]:
                row_differs[row] = True
    want_differs = np.empty(after.wanted.shape[0], np.bool_)
    for want in range(want_differs.shape[0]):
        want_differs[want] = before.wanted[want] != after.wanted[want]
    # Is the value kept, or made, in another layout?
    differs = np.empty(after.kept.shape[0], np.bool_)
    for value in range(differs.shape[0]):
        differs[value] = (
            before.kept[value] != after.kept[value] or row_differs[tables.value_owner[value]]
        )
    count = 0
    for op in range(tables.n_arguments, tables.op_row.shape[0]):
        changed = row_differs[tables.op_row[op]]
        for i in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
            changed |= differs[tables.result[i]]
        for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
            changed |= want_differs[tables.use_want[use]]
            changed |= differs[tables.use_value[use]] | differs[facts.root[use]]
            for i in range(tables.earlier_begin[use], tables.earlier_end[use]):
                changed |= want_differs[tables.earlier[i]]
        if changed:
            ops[count] = op
            count += 1
    return count

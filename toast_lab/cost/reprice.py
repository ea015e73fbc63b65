"""Prices of search states: on the folded program, and only what an action changed.

The price of an op depends on its own row of the state, on how its operands and results are kept,
and on what the uses of its operands want.  A ``Snapshot`` holds all of these for a state that was
priced, with the prices of every op.  To price another state, the layouts are worked out anew (they
are few), compared with those of the snapshot, and only ops that saw a difference are lowered and
priced again.  Nothing has to be known of how the two states are related, so undoing and branching
need no care.

Peak memory is worked out anew each time from the sizes, in one pass over the whole program's
buffers.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from toast_lab.cost import kernel
from toast_lab.cost.facts import Facts, Memory
from toast_lab.cost.fold import Folded
from toast_lab.cost.kernel import Prices, Rates, StepPrices
from toast_lab.kernels import compiled, copy_row, copy_rows, helper
from toast_lab.packs import Float64Array, Int8Matrix, Int32Array, Int32Matrix, Int64Array, packed
from toast_lab.sharding import steps as st
from toast_lab.sharding.steps import Steps, Tables


@packed
class Snapshot(NamedTuple):
    """A state that was priced (folded): what prices depend on, and the prices.

    Never changed once it was made.
    """

    op_factor: Int32Matrix  #: [K, A]
    wanted: Int64Array  #: [W]
    kept: Int64Array  #: [V]
    prices: Prices


@packed
class Scratch(NamedTuple):
    """Memory that pricing writes in; one for each thread."""

    steps: Steps
    each: StepPrices
    ops: Int32Array  #: [O] ops to price again
    size: Float64Array
    last: Int32Array
    live: Float64Array


def make_scratch(folded: Folded, axis_size: np.ndarray) -> Scratch:
    """Scratch for programs of this size."""
    t, m = folded.tables, folded.memory
    steps = st.buffers(t, len(axis_size))
    return Scratch(
        steps,
        kernel.step_prices(len(steps.kind)),
        np.empty(len(t.op_row), np.int32),
        np.empty(len(t.value_op)),
        np.empty(len(m.use_op), np.int32),
        np.empty(len(m.like_op) + 2),
    )


class Repricer:
    """Prices states of one folded program.

    May be used by several threads at once: each has scratch of its own.
    """

    def __init__(self, folded: Folded, rates: Rates, axis_size: np.ndarray) -> None:
        self.folded, self.rates, self.axis_size = folded, rates, axis_size
        self._local = threading.local()

    def _scratch(self) -> Scratch:
        found: Scratch | None = getattr(self._local, "scratch", None)
        if found is None:
            found = self._local.scratch = make_scratch(self.folded, self.axis_size)
        return found

    def price(
        self, op_factor: np.ndarray, value_dim: np.ndarray, before: Snapshot | None
    ) -> tuple[float, float, int, Snapshot]:
        """(time_s, peak_bytes, ops priced, snapshot) of a state given by its classes' rows.

        ``before``: snapshot of a state that differs little from this one, None to price every op.
        """
        t = self.folded.tables
        after = Snapshot(
            np.empty_like(op_factor),
            np.empty(len(t.use_owner), np.int64),
            np.empty(len(t.value_op), np.int64),
            kernel.prices(t),
        )
        time_s, peak_bytes, n_ops = reprice(
            self.folded.facts,
            self.rates,
            t,
            self.folded.memory,
            self.folded.times,
            op_factor,
            value_dim,
            self.axis_size,
            np.inf,
            before is None,
            after if before is None else before,
            after,
            self._scratch(),
        )
        return time_s, peak_bytes, n_ops, after


@compiled
def reprice(
    f: Facts,
    r: Rates,
    t: Tables,
    m: Memory,
    times: Float64Array,
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    axis_size: Int64Array,
    enough_s: float,
    all_ops: bool,
    before: Snapshot,
    after: Snapshot,
    scratch: Scratch,
) -> tuple[float, float, int]:
    """(time_s, peak_bytes, ops priced) of a state; fills ``after``.

    With ``all_ops``, ``before`` is not looked at.

    Memory is half the work: the peak of a state that takes more than ``enough_s`` is not worked
    out, but infinite.
    """
    n_axes = axis_size.shape[0]
    n_ops = t.op_row.shape[0]
    steps = scratch.steps
    st.wanted_layouts(t, op_factor, n_axes, steps.wanted)
    st.kept_layouts_into(t, op_factor, value_dim, n_axes, steps.wanted, steps.layout)
    copy_rows(after.op_factor, op_factor)
    copy_row(after.wanted, steps.wanted)
    copy_row(after.kept, steps.layout)
    n = 0
    if all_ops:
        for op in range(t.n_arguments, n_ops):
            scratch.ops[n] = op
            n += 1
    else:
        copy_row(after.prices.op_time_s, before.prices.op_time_s)
        copy_row(after.prices.copied, before.prices.copied)
        copy_row(after.prices.copy_bytes, before.prices.copy_bytes)
        copy_row(after.prices.passing_bytes, before.prices.passing_bytes)
        n = changed_ops(f, t, before, after, scratch.ops)
    ops = scratch.ops[:n]
    n_steps = st.lower_into(t, ops, op_factor, axis_size, steps)
    kernel.price_steps(
        f, r, t, ops, steps, n_steps, op_factor, axis_size, scratch.each, after.prices
    )
    time_s = 0.0
    for op in range(n_ops):
        time_s += times[op] * after.prices.op_time_s[op]
    if time_s > enough_s:
        return time_s, np.inf, n
    peak, _ = kernel.live_bytes(
        f,
        m,
        t,
        after.kept,
        after.wanted,
        after.prices,
        axis_size,
        scratch.size,
        scratch.last,
        scratch.live,
    )
    return time_s, peak, n


@helper
def changed_ops(f: Facts, t: Tables, before: Snapshot, after: Snapshot, ops: np.ndarray) -> int:
    """Fill ``ops`` with those that see a difference between two snapshots.

    Gives their number.
    """
    n_rows, n_axes = after.op_factor.shape
    row = np.zeros(n_rows, np.bool_)
    for i in range(n_rows):
        for a in range(n_axes):
            if before.op_factor[i, a] != after.op_factor[i, a]:
                row[i] = True
    want = np.empty(after.wanted.shape[0], np.bool_)
    for w in range(want.shape[0]):
        want[w] = before.wanted[w] != after.wanted[w]
    value = np.empty(after.kept.shape[0], np.bool_)
    for v in range(value.shape[0]):  # kept, or made, in another layout
        value[v] = before.kept[v] != after.kept[v] or row[t.value_owner[v]]
    n = 0
    for op in range(t.n_arguments, t.op_row.shape[0]):
        changed = row[t.op_row[op]]
        for k in range(t.result_ptr[op], t.result_ptr[op + 1]):
            changed |= value[t.result[k]]
        for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
            changed |= want[t.use_want[use]] | value[t.use_value[use]] | value[f.root[use]]
            for k in range(t.earlier_begin[use], t.earlier_end[use]):
                changed |= want[t.earlier[k]]
        if changed:
            ops[n] = op
            n += 1
    return n

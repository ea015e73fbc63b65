"""What strategies and layouts cost alone: one op at a time, by the evaluator's own kernels.

A kernel lowers one op with the layouts of its operands and results set such that only what is asked
for costs anything, and reads the price of that off the steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost import kernel
from toast_lab.cost.facts import Facts
from toast_lab.cost.fold import Folded
from toast_lab.cost.kernel import Prices, Rates, StepPrices
from toast_lab.cost.problem import Problem
from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.packs import Int32Matrix, Int64Array, packed
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import COMPUTE
from toast_lab.sharding.steps import LAYOUT_BITS, Steps, Tables


@packed
class Bench(NamedTuple):
    """A folded program, a machine and arrays to price one op at a time on."""

    facts: Facts
    rates: Rates
    #: every use is brought a copy of its own; sharing copies is a matter of whoever adds prices up
    tables: Tables
    axis_size: Int64Array  #: [A]
    op_factor: Int32Matrix  #: [K, A] all -1 between calls
    steps: Steps
    each: StepPrices
    prices: Prices


def make_bench(problem: Problem, folded: Folded, n_op_rows: int) -> Bench:
    """A bench for a program folded to ``n_op_rows`` rows of ops."""
    t, axis_size = folded.tables, problem.mesh.array()
    none = np.zeros_like(t.earlier_begin)
    # numba compiles anew for arrays that differ in this
    none.flags.writeable = t.earlier_begin.flags.writeable
    alone = t._replace(earlier_begin=none, earlier_end=none)
    steps = st.buffers(alone, len(axis_size))
    op_factor = np.full((n_op_rows, len(axis_size)), -1, np.int32)
    each, prices = kernel.step_prices(len(steps.kind)), kernel.prices(alone)
    return Bench(
        facts=folded.facts,
        rates=problem._rates,
        tables=alone,
        axis_size=axis_size,
        op_factor=op_factor,
        steps=steps,
        each=each,
        prices=prices,
    )


@helper
def _as_wanted(f: Facts, t: Tables, op_factor: np.ndarray, steps: Steps, op: int) -> None:
    """Let operands come as the strategy of ``op`` wants, and keep results as it leaves them."""
    n_axes = op_factor.shape[1]
    for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
        steps.layout[f.root[use]] = 0  # a view is read as it is wanted
    for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
        want = st.use_layout(t, op_factor, t.use_want[use], n_axes)
        steps.wanted[t.use_want[use]] = want
        steps.layout[t.use_value[use]] = want
    for k in range(t.result_ptr[op], t.result_ptr[op + 1]):
        steps.layout[t.result[k]], _ = st.natural_layout(t, op_factor, t.result[k], n_axes)


@helper
def _unsplit(f: Facts, t: Tables, steps: Steps, op: int) -> None:
    """Let operands and results be whole everywhere, so that nothing is brought anywhere."""
    for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
        steps.layout[f.root[use]] = 0
        steps.layout[t.use_value[use]] = 0
        steps.wanted[t.use_want[use]] = 0
    for k in range(t.result_ptr[op], t.result_ptr[op + 1]):
        steps.layout[t.result[k]] = 0


@helper
def _own_time(steps: Steps, each: StepPrices, n_steps: int) -> float:
    """Time of the op itself, without what is brought to it."""
    total = 0.0
    for i in range(n_steps):
        if steps.kind[i] == COMPUTE:
            total += each.time_s[i]
    return total


@compiled
def compute_times(b: Bench, op: int, menu: Int32Matrix) -> np.ndarray:
    """[S] time of one op under each strategy, operands and results as the strategy wants."""
    f, r, t, axis_size, op_factor = b.facts, b.rates, b.tables, b.axis_size, b.op_factor
    steps, each, prices = b.steps, b.each, b.prices
    ops = np.full(1, op, np.int32)
    out = np.empty(menu.shape[0])
    row = t.op_row[op]
    for s in range(menu.shape[0]):
        copy_row(op_factor[row], menu[s])
        _as_wanted(f, t, op_factor, steps, op)
        n = st.lower_into(t, ops, op_factor, axis_size, steps)
        kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
        out[s] = _own_time(steps, each, n)
    op_factor[row] = -1
    return out


@compiled
def reading_times(b: Bench, op: int, use: int, menu: Int32Matrix) -> np.ndarray:
    """[S] how much longer the op takes under each strategy if it reads a copy of the value."""
    f, r, t, axis_size, op_factor = b.facts, b.rates, b.tables, b.axis_size, b.op_factor
    steps, each, prices = b.steps, b.each, b.prices
    ops = np.full(1, op, np.int32)
    out = np.empty(menu.shape[0])
    row, value, want = t.op_row[op], t.use_value[use], t.use_want[use]
    for s in range(menu.shape[0]):
        copy_row(op_factor[row], menu[s])
        _as_wanted(f, t, op_factor, steps, op)
        n = st.lower_into(t, ops, op_factor, axis_size, steps)
        kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
        as_it_is = _own_time(steps, each, n)
        _as_wanted(f, t, op_factor, steps, op)
        steps.layout[value] = 1 if steps.wanted[want] == 0 else 0  # any other layout
        n = st.lower_into(t, ops, op_factor, axis_size, steps)
        kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
        out[s] = _own_time(steps, each, n) - as_it_is
    op_factor[row] = -1
    return out


@compiled
def use_costs(
    b: Bench, op: int, use: int, wanted: Int64Array, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray]:
    """([W, T] time, [W, T] bytes) to bring a value from each layout kept to each one wanted.

    The bytes are those of the copy that the use is brought, 0 where the value itself will do.
    """
    f, r, t, axis_size, op_factor = b.facts, b.rates, b.tables, b.axis_size, b.op_factor
    steps, each, prices = b.steps, b.each, b.prices
    ops = np.full(1, op, np.int32)
    time_s = np.zeros((wanted.shape[0], kept.shape[0]))
    copy_bytes = np.empty((wanted.shape[0], kept.shape[0]))
    for i in range(wanted.shape[0]):
        for j in range(kept.shape[0]):
            _unsplit(f, t, steps, op)
            steps.layout[t.use_value[use]] = kept[j]
            steps.wanted[t.use_want[use]] = wanted[i]
            n = st.lower_into(t, ops, op_factor, axis_size, steps)
            kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
            for k in range(n):
                if steps.kind[k] != COMPUTE and steps.use[k] == use:
                    time_s[i, j] += each.time_s[k]
            copy_bytes[i, j] = prices.copy_bytes[use]
    return time_s, copy_bytes


@compiled
def made_times(
    b: Bench, op: int, value: int, menu: Int32Matrix, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray]:
    """[W, T] time to bring a result from how each strategy leaves it to each layout kept.

    And the bytes that this takes while the op runs.
    """
    f, r, t, axis_size, op_factor = b.facts, b.rates, b.tables, b.axis_size, b.op_factor
    steps, each, prices = b.steps, b.each, b.prices
    ops = np.full(1, op, np.int32)
    out = np.zeros((menu.shape[0], kept.shape[0]))
    size = np.zeros((menu.shape[0], kept.shape[0]))
    base = 0.0
    row = t.value_owner[value]
    for i in range(menu.shape[0]):
        for j in range(kept.shape[0]):
            _unsplit(f, t, steps, op)
            steps.layout[value] = kept[j]
            copy_row(op_factor[row], menu[i])
            n = st.lower_into(t, ops, op_factor, axis_size, steps)
            kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
            op_factor[row] = -1
            if i == 0 and j == 0:
                # what its operands take, nothing being split or moved
                base = prices.passing_bytes[op]
            for k in range(n):
                if steps.kind[k] != COMPUTE and steps.use[k] < 0 and steps.value[k] == value:
                    out[i, j] += each.time_s[k]
                    size[i, j] = prices.passing_bytes[op] - base
    return out, size


@compiled
def want_labels(b: Bench, want: int, menu: Int32Matrix) -> np.ndarray:
    """[S] layout that each strategy wants of an operand."""
    t, op_factor = b.tables, b.op_factor
    out = np.empty(menu.shape[0], np.int64)
    row = t.use_owner[want]
    for s in range(menu.shape[0]):
        copy_row(op_factor[row], menu[s])
        out[s] = st.use_layout(t, op_factor, want, menu.shape[1])
    op_factor[row] = -1
    return out


@compiled
def made_labels(b: Bench, value: int, menu: Int32Matrix) -> np.ndarray:
    """[S] layout in which each strategy leaves a result, and above it the partial axes."""
    t, op_factor = b.tables, b.op_factor
    out = np.empty(menu.shape[0], np.int64)
    row = t.value_owner[value]
    for s in range(menu.shape[0]):
        copy_row(op_factor[row], menu[s])
        layout, partial = st.natural_layout(t, op_factor, value, menu.shape[1])
        out[s] = layout | (partial << (LAYOUT_BITS * menu.shape[1]))
    op_factor[row] = -1
    return out

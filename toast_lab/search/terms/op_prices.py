"""Prices of single strategies and layouts: one op at a time, by the evaluator's own kernels.

A kernel lowers one op with the layouts of its operands and results set such that only the question
at hand costs time, and reads the price off the steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.one_op import OpPricer, make_op_pricer, price_one
from toast_lab.cost.price_inputs import PriceInputs, StepPrices
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.packs import BoolArray, Int32Matrix, Int64Array, packed
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import COMPUTE
from toast_lab.sharding.steps import LAYOUT_BITS, Steps, Tables


def op_pricer_for(folded: PriceInputs, n_op_rows: int) -> OpPricer:
    """An op pricer on which every use has a copy of its own.

    Callers that add up the prices have to account for shared copies.
    """
    no_uses = np.zeros_like(folded.tables.earlier_begin)
    unshared = folded.tables._replace(earlier_begin=no_uses, earlier_end=no_uses)
    return make_op_pricer(folded._replace(tables=unshared), n_op_rows)


@helper
def _as_wanted(
    facts: ProgramFacts, tables: Tables, op_factor: np.ndarray, steps: Steps, op: int
) -> None:
    """Set operands to the layouts that the strategy of ``op`` wants, results to those it leaves."""
    n_axes = op_factor.shape[1]
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        steps.layout[facts.root[use]] = 0  # a view is read in the layout wanted
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        want = st.use_layout(tables, op_factor, tables.use_want[use], n_axes)
        steps.wanted[tables.use_want[use]] = want
        value = tables.use_value[use]
        steps.layout[value] = 0 if tables.value_constant[value] else want
    for position in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        steps.layout[tables.result[position]], _ = st.natural_layout(
            tables, op_factor, tables.result[position], n_axes
        )


@helper
def _unsplit(facts: ProgramFacts, tables: Tables, steps: Steps, op: int) -> None:
    """Set all operands and results to be whole, so that nothing is moved."""
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        steps.layout[facts.root[use]] = 0
        steps.layout[tables.use_value[use]] = 0
        steps.wanted[tables.use_want[use]] = 0
    for position in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        steps.layout[tables.result[position]] = 0


@helper
def _own_time(steps: Steps, each: StepPrices, n_steps: int) -> float:
    """Time to compute the op, without moves."""
    total_s = 0.0
    for step in range(n_steps):
        if steps.kind[step] == COMPUTE:
            total_s += each.time_s[step]
    return total_s


@compiled
def compute_times(op_pricer: OpPricer, op: int, menu: Int32Matrix) -> np.ndarray:
    """[S] time of one op under each strategy, operands and results as the strategy wants."""
    facts, tables, op_factor = op_pricer.inputs.facts, op_pricer.inputs.tables, op_pricer.op_factor
    steps = op_pricer.steps
    times_s = np.empty(menu.shape[0])
    row = tables.op_row[op]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        _as_wanted(facts, tables, op_factor, steps, op)
        n_steps = price_one(op_pricer, op)
        times_s[strategy] = _own_time(steps, op_pricer.each, n_steps)
    op_factor[row] = -1
    return times_s


@compiled
def whole_time(op_pricer: OpPricer, op: int) -> float:
    """Time of one op that is not split, with whole operands and results."""
    _unsplit(op_pricer.inputs.facts, op_pricer.inputs.tables, op_pricer.steps, op)
    return _own_time(op_pricer.steps, op_pricer.each, price_one(op_pricer, op))


@compiled
def reading_times(op_pricer: OpPricer, op: int, menu: Int32Matrix) -> np.ndarray:
    """[S, U] time that the op takes longer under each strategy if it reads a copy for one use.

    The time is negative if the copy is narrower than the value. Several copies together often save
    only as much as one of them does alone, so savings are scaled to what all of them save together.
    """
    facts, tables, op_factor = op_pricer.inputs.facts, op_pricer.inputs.tables, op_pricer.op_factor
    steps = op_pricer.steps
    begin, end = tables.use_ptr[op], tables.use_ptr[op + 1]
    extra_times_s = np.zeros((menu.shape[0], end - begin))
    row = tables.op_row[op]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        _as_wanted(facts, tables, op_factor, steps, op)
        n_steps = price_one(op_pricer, op)
        base_s = _own_time(steps, op_pricer.each, n_steps)
        saved_s, n_saving = 0.0, 0
        for use in range(begin, end):
            if facts.use.reads[use] > 0.0 and not tables.value_constant[tables.use_value[use]]:
                _as_wanted(facts, tables, op_factor, steps, op)
                _read_copy(tables, steps, use)
                n_steps = price_one(op_pricer, op)
                extra_s = _own_time(steps, op_pricer.each, n_steps) - base_s
                extra_times_s[strategy, use - begin] = extra_s
                saved_s += min(extra_s, 0.0)
                n_saving += extra_s < 0.0
        if n_saving > 1:
            _as_wanted(facts, tables, op_factor, steps, op)
            for use in range(begin, end):
                if extra_times_s[strategy, use - begin] < 0.0:
                    _read_copy(tables, steps, use)
            n_steps = price_one(op_pricer, op)
            together_s = min(_own_time(steps, op_pricer.each, n_steps) - base_s, 0.0)
            if saved_s < together_s:
                for use in range(end - begin):
                    if extra_times_s[strategy, use] < 0.0:
                        extra_times_s[strategy, use] *= together_s / saved_s
    op_factor[row] = -1
    return extra_times_s


@helper
def _read_copy(tables: Tables, steps: Steps, use: int) -> None:
    """Keep a value in another layout than the one that a use wants, so that it reads a copy."""
    is_whole = steps.wanted[tables.use_want[use]] == 0
    steps.layout[tables.use_value[use]] = 1 if is_whole else 0


@compiled
def use_costs(
    op_pricer: OpPricer, op: int, use: int, wanted: Int64Array, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray]:
    """([W, T] time, [W, T] bytes) to bring a value from each layout kept to each one wanted.

    The bytes are those of the copy for the use, 0 if the use reads the value itself.
    """
    facts, tables, steps = op_pricer.inputs.facts, op_pricer.inputs.tables, op_pricer.steps
    time_s = np.zeros((wanted.shape[0], kept.shape[0]))
    copy_bytes = np.empty((wanted.shape[0], kept.shape[0]))
    for i in range(wanted.shape[0]):
        for j in range(kept.shape[0]):
            _unsplit(facts, tables, steps, op)
            steps.layout[tables.use_value[use]] = kept[j]
            steps.wanted[tables.use_want[use]] = wanted[i]
            n_steps = price_one(op_pricer, op)
            for step in range(n_steps):
                if steps.kind[step] != COMPUTE and steps.use[step] == use:
                    time_s[i, j] += op_pricer.each.time_s[step]
            copy_bytes[i, j] = op_pricer.prices.copy_bytes[use]
    return time_s, copy_bytes


@compiled
def result_times(
    op_pricer: OpPricer, op: int, value: int, menu: Int32Matrix, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[S, T] prices of bringing a result from each strategy's layout to each one kept.

    Time to bring it; time that the op computes longer than with the result as the op leaves it
    (negative: less), since the computing time may depend on the layout to which the result goes
    (``collective_matmul``, ``gathered_axes``); and bytes, in use only while the op runs.
    """
    facts, tables, op_factor = op_pricer.inputs.facts, op_pricer.inputs.tables, op_pricer.op_factor
    steps = op_pricer.steps
    time_s = np.zeros((menu.shape[0], kept.shape[0]))
    computing_s = np.zeros((menu.shape[0], kept.shape[0]))
    passing_bytes = np.zeros((menu.shape[0], kept.shape[0]))
    row = tables.value_owner[value]
    for i in range(menu.shape[0]):
        copy_row(op_factor[row], menu[i])
        _as_wanted(facts, tables, op_factor, steps, op)
        n_steps = price_one(op_pricer, op)
        own_s = _own_time(steps, op_pricer.each, n_steps)
        own_bytes = op_pricer.prices.passing_bytes[op]
        for j in range(kept.shape[0]):
            steps.layout[value] = kept[j]
            n_steps = price_one(op_pricer, op)
            is_moved = False
            for step in range(n_steps):
                if (
                    steps.kind[step] != COMPUTE
                    and steps.use[step] < 0
                    and steps.value[step] == value
                ):
                    time_s[i, j] += op_pricer.each.time_s[step]
                    is_moved = True
            if is_moved:
                computing_s[i, j] = _own_time(steps, op_pricer.each, n_steps) - own_s
                passing_bytes[i, j] = op_pricer.prices.passing_bytes[op] - own_bytes
        op_factor[row] = -1
    return time_s, computing_s, passing_bytes


@packed
class Readings(NamedTuple):
    """The layouts of an op's operands, by the ``R`` values (roots) in whose memory they lie."""

    roots: Int64Array  #: [R] values
    layout_ptr: Int64Array  #: [R+1] where the layouts of each root start in ``layouts``
    layouts: Int64Array  #: [T] layouts in which each root may be kept
    #: [uses] of which is it open whether they read a copy? Of views, whose layouts are not told
    #: apart; or of all operands, if there are too many layouts.
    is_open: BoolArray


@compiled
def least_times(
    op_pricer: OpPricer, op: int, menu: Int32Matrix, readings: Readings, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The least time to compute an op under each strategy, whatever the layouts around it.

    The time grows with the bytes that are read, and is convex in them. So it is at least the time
    with every operand read as cheaply as possible, plus, for each operand by itself, the time that
    reading it in another layout adds. Where it is not convex in them, because a product waits for
    operands in windows, ``relaxed_terms`` counts less.

    Args:
        op_pricer: an op pricer without a price list.
        op: an op of the folded program.
        menu: [S, A] its strategies.
        readings: the layouts in which its operands may lie.
        kept: [K] layouts in which its first result may be kept; empty if they do not matter.

    Returns:
        [S] the least seconds; [S, T] seconds that reading a root in each layout adds; [S, K]
        seconds to compute if the result goes to each layout; [S, K] seconds to bring it there.
    """
    roots, layout_ptr, layouts = readings.roots, readings.layout_ptr, readings.layouts
    tables, facts, steps = op_pricer.inputs.tables, op_pricer.inputs.facts, op_pricer.steps
    row, result = tables.op_row[op], tables.result[tables.result_ptr[op]]
    least_s, more_s = np.empty(menu.shape[0]), np.empty((menu.shape[0], layouts.shape[0]))
    own_s, move_s = np.zeros((2, menu.shape[0], kept.shape[0]))
    for strategy in range(menu.shape[0]):
        copy_row(op_pricer.op_factor[row], menu[strategy])
        _as_wanted(facts, tables, op_pricer.op_factor, steps, op)
        _read_least(op_pricer, op, readings)
        natural = steps.layout[result]
        least_s[strategy] = _own_time(steps, op_pricer.each, price_one(op_pricer, op))
        for position in range(kept.shape[0]):
            steps.layout[result] = kept[position]
            n_steps = price_one(op_pricer, op)
            own_s[strategy, position] = _own_time(steps, op_pricer.each, n_steps)
            for step in range(n_steps):
                if steps.kind[step] != COMPUTE and steps.use[step] < 0:
                    move_s[strategy, position] += op_pricer.each.time_s[step]
            if own_s[strategy, position] < least_s[strategy]:
                # What reading adds is least where computing is.
                least_s[strategy], natural = own_s[strategy, position], kept[position]
        steps.layout[result] = natural
        for root in range(roots.shape[0]):
            cheapest = steps.layout[roots[root]]
            for position in range(layout_ptr[root], layout_ptr[root + 1]):
                steps.layout[roots[root]] = layouts[position]
                _read_open(op_pricer, op, readings, roots[root])
                time_s = _own_time(steps, op_pricer.each, price_one(op_pricer, op))
                more_s[strategy, position] = max(0.0, time_s - least_s[strategy])
            steps.layout[roots[root]] = cheapest
            _read_open(op_pricer, op, readings, roots[root])
    op_pricer.op_factor[row] = -1
    return least_s, more_s, own_s, move_s


@helper
def _read_least(op_pricer: OpPricer, op: int, readings: Readings) -> None:
    """Keep every root in the layout in which the fewest bytes are read."""
    roots, steps = readings.roots, op_pricer.steps
    for root in range(roots.shape[0]):
        steps.layout[roots[root]] = readings.layouts[readings.layout_ptr[root]]
    _read_open(op_pricer, op, readings, -1)
    for root in range(roots.shape[0]):
        fewest_bytes, cheapest = np.inf, steps.layout[roots[root]]
        for position in range(readings.layout_ptr[root], readings.layout_ptr[root + 1]):
            steps.layout[roots[root]] = readings.layouts[position]
            _read_open(op_pricer, op, readings, roots[root])
            read_bytes = _bytes_of(op_pricer, op)
            if read_bytes < fewest_bytes:
                fewest_bytes, cheapest = read_bytes, readings.layouts[position]
        steps.layout[roots[root]] = cheapest
        _read_open(op_pricer, op, readings, roots[root])


@helper
def _read_open(op_pricer: OpPricer, op: int, readings: Readings, root: int) -> None:
    """Let open uses of a root (-1: of all) read the value or a copy, whichever is less."""
    tables, steps = op_pricer.inputs.tables, op_pricer.steps
    begin = tables.use_ptr[op]
    for use in range(begin, tables.use_ptr[op + 1]):
        if readings.is_open[use - begin] and (root < 0 or op_pricer.inputs.facts.root[use] == root):
            steps.layout[tables.use_value[use]] = steps.wanted[tables.use_want[use]]
            own_bytes = _bytes_of(op_pricer, op)
            _read_copy(tables, steps, use)
            if _bytes_of(op_pricer, op) >= own_bytes:
                steps.layout[tables.use_value[use]] = steps.wanted[tables.use_want[use]]


@helper
def _bytes_of(op_pricer: OpPricer, op: int) -> float:
    """Bytes that the op moves to compute."""
    total_bytes = 0.0
    for step in range(price_one(op_pricer, op)):
        if op_pricer.steps.kind[step] == COMPUTE:
            total_bytes += op_pricer.each.bytes[step]
    return total_bytes


def equal_rows(label: np.ndarray, *prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([W] first strategy of each row, [S] row of each strategy).

    Strategies share a row if their labels and all of their prices [S, T] are equal: prices may
    depend on more of a strategy than on the layout in which it leaves a result.
    """
    columns = (label[:, None], *(column.view(np.int64) for column in prices))
    _, first, row = np.unique(np.hstack(columns), axis=0, return_index=True, return_inverse=True)
    return first, row.reshape(-1)


@compiled
def want_labels(op_pricer: OpPricer, want: int, menu: Int32Matrix) -> np.ndarray:
    """[S] the packed layout that each strategy wants of an operand."""
    tables, op_factor = op_pricer.inputs.tables, op_pricer.op_factor
    labels = np.empty(menu.shape[0], np.int64)
    row = tables.use_owner[want]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        labels[strategy] = st.use_layout(tables, op_factor, want, menu.shape[1])
    op_factor[row] = -1
    return labels


@compiled
def result_labels(op_pricer: OpPricer, value: int, menu: Int32Matrix) -> np.ndarray:
    """[S] the packed layout in which each strategy leaves a result, partial axes in higher bits."""
    tables, op_factor = op_pricer.inputs.tables, op_pricer.op_factor
    labels = np.empty(menu.shape[0], np.int64)
    row = tables.value_owner[value]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        layout, partial = st.natural_layout(tables, op_factor, value, menu.shape[1])
        labels[strategy] = layout | (partial << (LAYOUT_BITS * menu.shape[1]))
    op_factor[row] = -1
    return labels

"""What strategies and layouts cost alone: one op at a time, by the evaluator's own kernels.

A kernel lowers one op with the layouts of its operands and results set such that only what is asked
for costs anything, and reads the price of that off the steps.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.one_op import Bench, make_bench, price_one
from toast_lab.cost.price_inputs import PriceInputs, StepPrices
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.packs import Int32Matrix, Int64Array
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import COMPUTE
from toast_lab.sharding.steps import LAYOUT_BITS, Steps, Tables


def bench_for(folded: PriceInputs, n_op_rows: int) -> Bench:
    """A bench on which every use is brought a copy of its own.

    Sharing copies is a matter of whoever adds the prices up.
    """
    none = np.zeros_like(folded.tables.earlier_begin)
    alone = folded.tables._replace(earlier_begin=none, earlier_end=none)
    return make_bench(folded._replace(tables=alone), n_op_rows)


@helper
def _as_wanted(
    facts: ProgramFacts, tables: Tables, op_factor: np.ndarray, steps: Steps, op: int
) -> None:
    """Let operands come as the strategy of ``op`` wants, and keep results as it leaves them."""
    n_axes = op_factor.shape[1]
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        steps.layout[facts.root[use]] = 0  # a view is read as it is wanted
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        want = st.use_layout(tables, op_factor, tables.use_want[use], n_axes)
        steps.wanted[tables.use_want[use]] = want
        steps.layout[tables.use_value[use]] = want
    for k in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        steps.layout[tables.result[k]], _ = st.natural_layout(
            tables, op_factor, tables.result[k], n_axes
        )


@helper
def _unsplit(facts: ProgramFacts, tables: Tables, steps: Steps, op: int) -> None:
    """Let operands and results be whole everywhere, so that nothing is brought anywhere."""
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        steps.layout[facts.root[use]] = 0
        steps.layout[tables.use_value[use]] = 0
        steps.wanted[tables.use_want[use]] = 0
    for place in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        steps.layout[tables.result[place]] = 0


def move_facts(folded: PriceInputs, op: int, use: int) -> tuple[float, ...]:
    """What the price of bringing a value to a use depends on, apart from the layouts."""
    tables, facts, listed = folded.tables, folded.facts, folded.listed
    value = int(tables.use_value[use])
    return (
        tables.value_bytes[value],
        facts.value.bytes[value],
        facts.use.sent[use],
        facts.use.cut_out[use],
        facts.use.sum_rounds[use],
        facts.value.compared[value],
        facts.op.trips[op],
        # What is known of an op better than by rule holds for its own uses
        use if listed.begin[op] < listed.end[op] else -1,
    )


@helper
def _own_time(steps: Steps, each: StepPrices, n_steps: int) -> float:
    """Time of the op itself, without what is brought to it."""
    total = 0.0
    for step in range(n_steps):
        if steps.kind[step] == COMPUTE:
            total += each.time_s[step]
    return total


@compiled
def compute_times(bench: Bench, op: int, menu: Int32Matrix) -> np.ndarray:
    """[S] time of one op under each strategy, operands and results as the strategy wants."""
    facts, tables, op_factor = bench.inputs.facts, bench.inputs.tables, bench.op_factor
    steps = bench.steps
    out = np.empty(menu.shape[0])
    row = tables.op_row[op]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        _as_wanted(facts, tables, op_factor, steps, op)
        n_steps = price_one(bench, op)
        out[strategy] = _own_time(steps, bench.each, n_steps)
    op_factor[row] = -1
    return out


@compiled
def reading_times(bench: Bench, op: int, menu: Int32Matrix) -> np.ndarray:
    """[S, U] how much longer the op takes under each strategy if it reads a copy for each use.

    Of a copy that is narrower than the value the op may take less.  What several copies save
    together is often what one of them saves alone, so together they get no more than that.
    """
    facts, tables, op_factor = bench.inputs.facts, bench.inputs.tables, bench.op_factor
    steps = bench.steps
    first, last = tables.use_ptr[op], tables.use_ptr[op + 1]
    out = np.zeros((menu.shape[0], last - first))
    row = tables.op_row[op]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        _as_wanted(facts, tables, op_factor, steps, op)
        n_steps = price_one(bench, op)
        as_it_is = _own_time(steps, bench.each, n_steps)
        saved, n_saving = 0.0, 0
        for use in range(first, last):
            if facts.use.reads[use] > 0.0 and not tables.value_constant[tables.use_value[use]]:
                _as_wanted(facts, tables, op_factor, steps, op)
                _copy(tables, steps, use)
                n_steps = price_one(bench, op)
                extra = _own_time(steps, bench.each, n_steps) - as_it_is
                out[strategy, use - first] = extra
                saved += min(extra, 0.0)
                n_saving += extra < 0.0
        if n_saving > 1:
            _as_wanted(facts, tables, op_factor, steps, op)
            for use in range(first, last):
                if out[strategy, use - first] < 0.0:
                    _copy(tables, steps, use)
            n_steps = price_one(bench, op)
            together = min(_own_time(steps, bench.each, n_steps) - as_it_is, 0.0)
            if saved < together:
                for use in range(last - first):
                    if out[strategy, use] < 0.0:
                        out[strategy, use] *= together / saved
    op_factor[row] = -1
    return out


@helper
def _copy(tables: Tables, steps: Steps, use: int) -> None:
    """Keep a value in any other layout than a use wants it in, so that it reads a copy."""
    is_whole = steps.wanted[tables.use_want[use]] == 0
    steps.layout[tables.use_value[use]] = 1 if is_whole else 0


@compiled
def use_costs(
    bench: Bench, op: int, use: int, wanted: Int64Array, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray]:
    """([W, T] time, [W, T] bytes) to bring a value from each layout kept to each one wanted.

    The bytes are those of the copy that the use is brought, 0 where the value itself will do.
    """
    facts, tables, steps = bench.inputs.facts, bench.inputs.tables, bench.steps
    time_s = np.zeros((wanted.shape[0], kept.shape[0]))
    copy_bytes = np.empty((wanted.shape[0], kept.shape[0]))
    for i in range(wanted.shape[0]):
        for j in range(kept.shape[0]):
            _unsplit(facts, tables, steps, op)
            steps.layout[tables.use_value[use]] = kept[j]
            steps.wanted[tables.use_want[use]] = wanted[i]
            n_steps = price_one(bench, op)
            for step in range(n_steps):
                if steps.kind[step] != COMPUTE and steps.use[step] == use:
                    time_s[i, j] += bench.each.time_s[step]
            copy_bytes[i, j] = bench.prices.copy_bytes[use]
    return time_s, copy_bytes


@compiled
def result_times(
    bench: Bench, op: int, value: int, menu: Int32Matrix, kept: Int64Array
) -> tuple[np.ndarray, np.ndarray]:
    """[W, T] time to bring a result from how each strategy leaves it to each layout kept.

    And the bytes that this takes while the op runs.  How long the op computes may depend on what
    becomes of its result (``collective_matmul``): what it takes more or less than for its result as
    it leaves it is counted here.
    """
    facts, tables, op_factor = bench.inputs.facts, bench.inputs.tables, bench.op_factor
    steps = bench.steps
    out = np.zeros((menu.shape[0], kept.shape[0]))
    size = np.zeros((menu.shape[0], kept.shape[0]))
    row = tables.value_owner[value]
    for i in range(menu.shape[0]):
        copy_row(op_factor[row], menu[i])
        _as_wanted(facts, tables, op_factor, steps, op)
        n_steps = price_one(bench, op)
        own_s = _own_time(steps, bench.each, n_steps)
        own_bytes = bench.prices.passing_bytes[op]
        for j in range(kept.shape[0]):
            steps.layout[value] = kept[j]
            n_steps = price_one(bench, op)
            moved = False
            for step in range(n_steps):
                if (
                    steps.kind[step] != COMPUTE
                    and steps.use[step] < 0
                    and steps.value[step] == value
                ):
                    out[i, j] += bench.each.time_s[step]
                    moved = True
            if moved:
                out[i, j] += _own_time(steps, bench.each, n_steps) - own_s
                size[i, j] = bench.prices.passing_bytes[op] - own_bytes
        op_factor[row] = -1
    return out, size


@compiled
def want_labels(bench: Bench, want: int, menu: Int32Matrix) -> np.ndarray:
    """[S] layout that each strategy wants of an operand."""
    tables, op_factor = bench.inputs.tables, bench.op_factor
    out = np.empty(menu.shape[0], np.int64)
    row = tables.use_owner[want]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        out[strategy] = st.use_layout(tables, op_factor, want, menu.shape[1])
    op_factor[row] = -1
    return out


@compiled
def result_labels(bench: Bench, value: int, menu: Int32Matrix) -> np.ndarray:
    """[S] layout in which each strategy leaves a result, and above it the partial axes."""
    tables, op_factor = bench.inputs.tables, bench.op_factor
    out = np.empty(menu.shape[0], np.int64)
    row = tables.value_owner[value]
    for strategy in range(menu.shape[0]):
        copy_row(op_factor[row], menu[strategy])
        layout, partial = st.natural_layout(tables, op_factor, value, menu.shape[1])
        out[strategy] = layout | (partial << (LAYOUT_BITS * menu.shape[1]))
    op_factor[row] = -1
    return out

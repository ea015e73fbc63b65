"""The compiled cost kernel: device-local steps -> times, buffers and peak memory.

``docs/price.md`` says what a price consists of. Views (reshape, broadcast) are aliases. Values made
of constants alone cost nothing: XLA folds or fuses them. Memory is a live range analysis over
program order. An op counts as often as it runs (``Program.trips``), and a step that moves a value
into a loop as often as the loop's body. What a loop reads from outside lives until the loop ends,
and what it hands on unchanged stays in the buffer that came in. Slices and gathers read no more
than they deliver, and updates in place write no more than they bring; otherwise a loop over stacked
layers would read all layers in every round.

Every formula is written down once. ``price`` runs these functions over the whole program, a search
over the folded one (``fold``, ``reprice``), and a property test keeps the two in agreement. To
change one of them:

* The time and traffic of a step, and the memory that it holds while it runs, are in
  ``price_computing`` and ``price_moving``. These may read everything in ``ProgramFacts``,
  ``Tables`` and the layouts about the op's own operands (and the values in whose memory they are),
  its results and its row of the state, but nothing else: ``fold`` and ``reprice`` would not notice
  any other dependence.
* A new rule is a ``PriceRule`` (see there), and a line here that reads its column. Ops that differ
  in a column are told apart. A column must not be an index: it would differ in every layer, and
  nothing would fold.
* A time from a better source than the rules is an entry of ``ListedTimes``, which replaces theirs.
* Lifetimes are in ``live_bytes``, and in ``Memory`` as far as they do not depend on the plan.
  ``folded_ranges`` has to tell apart everything by which a plan may change them.
* The overlap of steps is in ``clocks``, for whole programs only.

Reference: TOAST section 4.5. We price memory-bound ops too unless ``paper_mode`` is asked for:
free gathers and elementwise ops are a known way for a search to be fooled.
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.computing_prices import price_computing
from toast_lab.cost.moving_prices import price_moving
from toast_lab.cost.price_codes import entry_of, runs_ahead
from toast_lab.cost.price_inputs import (
    AS_KEPT,
    BROUGHT,
    REUSED,
    PriceInputs,
    Prices,
    StepPrices,
)
from toast_lab.kernels import compiled, inlined
from toast_lab.packs import Float64Array, Int32Array
from toast_lab.sharding.step_kinds import COMPUTE, SLICE
from toast_lab.sharding.steps import Steps, Tables


@compiled
def price_steps(
    inputs: PriceInputs,
    ops: Int32Array,
    steps: Steps,
    n_steps: int,
    each: StepPrices,
    prices: Prices,
) -> None:
    """Price every step: the one place where a step's time, traffic and memory are decided.

    ``steps`` are those of ``ops``, either of the whole program or of its folded form. Writes
    ``each`` (rows of steps) and the rows of ``ops`` and of their uses in ``prices``. All that is
    read here about ops, uses and values must be in ``Tables`` or ``ProgramFacts``: ops that differ
    in these are told apart when a program is folded.
    """
    listed = inputs.listed
    for op in ops:
        _begin(inputs, steps, op, prices)
    ahead_s = 0.0
    # The collective that runs beside a product, piece by piece, and how it is priced there.
    beside_row, beside_s, beside_pieces = -1, 0.0, 1.0
    for row in range(n_steps):
        kind, op = steps.kind[row], steps.op[row]
        if row == 0 or steps.op[row - 1] != op:
            ahead_s = 0.0
        each.flops[row], each.bytes[row], each.ahead_s[row] = 0.0, 0.0, 0.0
        each.times[row] = inputs.facts.op.trips[op]
        ring_row, ring_pieces, waiting_s, reordering_s = -1, 1.0, 0.0, 0.0
        if kind == COMPUTE:
            time_s, ring_row, ring_pieces, waiting_s = price_computing(
                inputs, steps, row, n_steps, each, prices
            )
        else:
            pieces = beside_pieces if row == beside_row else 1.0
            time_s, reordering_s = price_moving(inputs, steps, row, n_steps, each, prices, pieces)
        computes = kind == COMPUTE or kind == SLICE
        time_s *= listed.compute_scale if computes else listed.moving_scale
        each.entry[row] = -1
        if listed.begin[op] < listed.end[op]:
            entry = entry_of(inputs, steps, row, n_steps)
            each.entry[row] = entry
            if entry >= 0:
                time_s = listed.time_s[entry]
        if row == beside_row and each.entry[row] < 0:
            time_s = beside_s
        if ring_row >= 0:
            beside_row, beside_pieces = ring_row, ring_pieces
            beside_s = waiting_s * each.times[row] * listed.moving_scale
        if runs_ahead(inputs, steps, row) and each.entry[row] < 0:
            each.ahead_s[row] = time_s - reordering_s * each.times[row] * listed.moving_scale
            ahead_s += each.ahead_s[row]
        elif kind == COMPUTE and ahead_s > 0.0:
            _hide(inputs, steps, row, time_s, ahead_s, each, prices)
        each.time_s[row] = time_s
        prices.op_time_s[op] += time_s


@inlined
def _begin(inputs: PriceInputs, steps: Steps, op: int, prices: Prices) -> None:
    """Reset the prices of an op, and record how each of its uses gets its value."""
    prices.op_time_s[op] = 0.0
    prices.passing_bytes[op] = 0.0
    prices.summed[op] = 0
    for use in range(inputs.tables.use_ptr[op], inputs.tables.use_ptr[op + 1]):
        copied_by = steps.copy[use]
        brought = copied_by >= 0 and steps.use[copied_by] == use
        prices.copied[use] = AS_KEPT if copied_by == -1 else BROUGHT if brought else REUSED
        prices.copy_bytes[use] = 0.0


@inlined
def _hide(
    inputs: PriceInputs,
    steps: Steps,
    row: int,
    time_s: float,
    ahead_s: float,
    each: StepPrices,
    prices: Prices,
) -> None:
    """Hide the gathers of an op behind earlier products, limited by the op's own compute time."""
    rates, op = inputs.rates, steps.op[row]
    hidden_s = rates.gathered_ahead * ahead_s
    if rates.ahead_of < np.inf:
        hidden_s = min(hidden_s, rates.ahead_of * time_s)
    earlier_row = row - 1
    while earlier_row >= 0 and steps.op[earlier_row] == op:
        each.time_s[earlier_row] -= hidden_s * each.ahead_s[earlier_row] / ahead_s
        earlier_row -= 1
    prices.op_time_s[op] -= hidden_s


@compiled
def clocks(
    tables: Tables, steps: Steps, n_steps: int, time_s: Float64Array, start_s: Float64Array
) -> tuple[float, float, float]:
    """(compute_s, comm_s, overlapped_s) of all steps of a program in order.

    Overlapped: collectives run beside compute, one after the other, and every step waits for its
    inputs. ``start_s`` is filled with the start of each step in that case.
    """
    compute_s, comm_s = 0.0, 0.0
    compute_clock, link_clock = 0.0, 0.0
    ready = np.zeros(tables.value_op.shape[0])
    copy_ready = np.zeros(n_steps)
    for row in range(n_steps):
        kind, op = steps.kind[row], steps.op[row]
        if kind == COMPUTE:
            begin = compute_clock
            for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
                copied_by = steps.copy[use]
                arrives = copy_ready[copied_by] if copied_by >= 0 else ready[tables.use_value[use]]
                begin = max(begin, arrives)
            op_ready = begin + time_s[row]
            start_s[row] = begin
            if time_s[row] > 0.0:
                compute_clock = op_ready
            for result_row in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
                ready[tables.result[result_row]] = op_ready
            compute_s += time_s[row]
        else:
            value = steps.value[row]
            chained = (
                row > 0
                and steps.op[row - 1] == op
                and steps.use[row - 1] == steps.use[row]
                and steps.value[row - 1] == value
                and steps.kind[row - 1] != COMPUTE
            )
            start = copy_ready[row - 1] if chained else ready[value]
            if kind != SLICE:
                comm_s += time_s[row]
                start = max(start, link_clock)
                link_clock = start + time_s[row]
            elif time_s[row] > 0.0:
                compute_s += time_s[row]
                start = max(start, compute_clock)
                compute_clock = start + time_s[row]
            copy_ready[row] = start + time_s[row]
            start_s[row] = start
            if steps.use[row] < 0:
                ready[value] = copy_ready[row]
    return compute_s, comm_s, max(compute_clock, link_clock)

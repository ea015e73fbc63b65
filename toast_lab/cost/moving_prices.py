"""The price of moving a value: collectives, cutting out a part, and the memory of both."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.collective_matmul import HELD_PIECES, ring_size
from toast_lab.cost.device_parts import (
    cut_operand_bytes,
    gathered_axes,
    held_padding,
    is_heavy,
)
from toast_lab.cost.price_inputs import (
    ListedTimes,
    MachineRates,
    PriceInputs,
    Prices,
    StepPrices,
)
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.kernels import compiled, helper, inlined
from toast_lab.machines.collectives import collective_time_s
from toast_lab.packs import Int64Array, packed
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
)
from toast_lab.sharding.steps import Steps, Tables, cut_dims, is_spread, reshard, ways


@packed
class BroughtFacts(NamedTuple):
    """All that the time to bring a value to a use depends on, apart from machine and layouts.

    ``_bringing_s`` gets this and no other facts, and searches price uses that are equal here once:
    what the time reads is what tells uses apart.
    """

    whole_bytes: float  #: of the value in full width, by which lowering counts a step's bytes
    kept_bytes: float  #: of the value as it is kept
    numbers: float
    compared: bool  #: these four: see ``ValueFacts`` and ``UseFacts``
    sent: float
    cut_out: bool
    sum_rounds: float
    trips: float  #: how often the op runs


@inlined
def brought_facts(facts: ProgramFacts, tables: Tables, op: int, use: int) -> BroughtFacts:
    """The facts of a use of ``op``; Python calls ``brought_facts.py_func``."""
    value = tables.use_value[use]
    return BroughtFacts(
        tables.value_bytes[value],
        facts.value.bytes[value],
        facts.value.numbers[value],
        facts.value.compared[value],
        facts.use.sent[use],
        facts.use.cut_out[use],
        facts.use.sum_rounds[use],
        facts.op.trips[op],
    )


@packed
class Bringing(NamedTuple):
    """A value that is brought to a use by itself: all that ``bringing_times`` knows of it."""

    facts: BroughtFacts
    ahead: bool  #: may gathers run beside earlier products?
    hidden_s: float  #: most seconds that do


@compiled
def bringing_times(
    bringing: Bringing,
    rates: MachineRates,
    listed: ListedTimes,
    axis_size: Int64Array,
    steps: Steps,
    each: StepPrices,
    wanted: Int64Array,
    kept: Int64Array,
) -> np.ndarray:
    """[W, T] seconds to bring a value from each layout kept to each one wanted, by rule.

    ``steps`` and ``each`` are scratch; of ``listed``, the scales of a price list are used.
    """
    time_s = np.zeros((wanted.shape[0], kept.shape[0]))
    for i in range(wanted.shape[0]):
        for j in range(kept.shape[0]):
            if wanted[i] == kept[j]:
                continue
            whole_bytes = bringing.facts.whole_bytes
            n_steps = reshard(steps, 0, kept[j], wanted[i], 0, whole_bytes, axis_size)
            ahead_s = 0.0
            for row in range(n_steps):
                step_s, reordering_s = _bringing_s(
                    bringing.facts, rates, axis_size, steps, row, each
                )
                scale = listed.compute_scale if steps.kind[row] == SLICE else listed.moving_scale
                time_s[i, j] += step_s * scale
                if bringing.ahead and steps.kind[row] == ALL_GATHER:
                    ahead_s += (step_s - reordering_s * each.times[row]) * scale
            time_s[i, j] -= min(rates.gathered_ahead * ahead_s, bringing.hidden_s)
    return time_s


@inlined
def price_moving(
    inputs: PriceInputs,
    steps: Steps,
    row: int,
    n_steps: int,
    each: StepPrices,
    prices: Prices,
    pieces: float,
) -> tuple[float, float]:
    """Seconds of a step that moves a value, by rule, and of reordering its parts in one round.

    Fills the step's row of ``each``, and in ``prices`` the memory that it holds. ``pieces`` is the
    number of pieces in which the product before it computes what this step sends, 1 if it does not
    work piece by piece.
    """
    facts, kind, op, use = inputs.facts, steps.kind[row], steps.op[row], steps.use[row]
    # Compilers that cast a value before summing it do not scatter the sum, which is then as slow as
    # in full width.
    if use >= 0:
        sent = 1.0 if kind == REDUCE_SCATTER else facts.use.sent[use]
        brought = brought_facts(facts, inputs.tables, op, use)
        time_s, reordering_s = _bringing_s(
            brought, inputs.rates, inputs.axis_size, steps, row, each
        )
        # A copy for uses lives until its last use.
        if steps.copy[use] == row:
            prices.copy_bytes[use] = (
                sent
                * steps.out_bytes[row]
                * held_padding(inputs, steps.value[row], steps.after[row])
            )
        else:
            prices.passing_bytes[op] += sent * steps.out_bytes[row]
        return time_s, reordering_s
    sent = 1.0 if kind == REDUCE_SCATTER else facts.value.moved[steps.value[row]]
    time_s, reordering_s = _leaving_s(inputs, steps, row, n_steps, each, sent)
    # Sums are made in place, and a soft op computes only the part of its result that is cut.
    if kind != ALL_REDUCE and (kind != SLICE or not facts.op.computes_kept_slice[op]):
        held = min(1.0, HELD_PIECES / pieces)
        prices.passing_bytes[op] += held * sent * steps.in_bytes[row]
    return time_s, reordering_s


@inlined
def _bringing_s(
    brought: Any,
    rates: MachineRates,
    axis_size: Int64Array,
    steps: Steps,
    row: int,
    each: StepPrices,
) -> tuple[float, float]:
    """Seconds of a step that brings a value to a use, and of reordering its parts in one round.

    ``brought`` are ``BroughtFacts``, as a tuple or as a pack.
    """
    kind, axes, before, after = (
        steps.kind[row],
        steps.axes[row],
        steps.before[row],
        steps.after[row],
    )
    sent = 1.0 if kind == REDUCE_SCATTER else brought.sent
    each.times[row] = brought.trips
    each.bytes[row] = sent * max(steps.in_bytes[row], steps.out_bytes[row])
    # A sum of which each device accumulates a part only is made in every round.
    rounds = brought.sum_rounds if kind == SLICE else 0.0
    reordering_s = 0.0
    if kind == ALL_GATHER:
        reordering_s = _reordering_s(brought.numbers, rates, axis_size, axes, before, after)
    collective_s, time_s = 0.0, 0.0
    if kind != SLICE or rounds > 0.0:
        sums_all = kind == SLICE or _is_summed_whole(rates, axis_size, kind, axes, after)
        sent_kind = ALL_REDUCE if sums_all else kind
        sent_bytes = sent * steps.in_bytes[row]
        collective_s = collective_time_s(sent_kind, axes, sent_bytes, rates.link_shape)
    if kind != SLICE:
        time_s = collective_s + reordering_s
    elif brought.cut_out:
        # A product cannot start reading where a device's part begins: the part is cut out and
        # written to memory first.
        each.bytes[row] = (brought.kept_bytes / brought.whole_bytes + sent) * steps.out_bytes[row]
        time_s = each.bytes[row] / rates.memory_bytes_per_s
    if kind == SLICE and brought.compared and not rates.paper_mode:
        time_s = _written_whole_s(brought.kept_bytes, rates, axis_size, row, before, each)
    return time_s * brought.trips + rounds * collective_s, reordering_s


@inlined
def _leaving_s(
    inputs: PriceInputs, steps: Steps, row: int, n_steps: int, each: StepPrices, sent: float
) -> tuple[float, float]:
    """Seconds of a step that brings a result to the layout in which it is kept.

    Then those of reordering its parts in one round. ``sent``: bytes on the links over those of the
    value.
    """
    facts, rates, axis_size = inputs.facts, inputs.rates, inputs.axis_size
    kind, op, value = steps.kind[row], steps.op[row], steps.value[row]
    axes, before, after = steps.axes[row], steps.before[row], steps.after[row]
    each.bytes[row] = sent * max(steps.in_bytes[row], steps.out_bytes[row])
    cut_after = cut_dims(after, axis_size.shape[0])
    moved_out = kind == ALL_REDUCE and cut_after & facts.op.sum_whole[op] == 0
    each.times[row] = facts.op.sum_trips[op] if moved_out else facts.op.result_trips[op]
    # A sum of which each device accumulates a part only is made in every round.
    rounds = facts.op.result_trips[op] - facts.op.sum_trips[op] if kind == SLICE else 0.0
    reordering_s = 0.0
    if kind == ALL_GATHER:
        reordering_s = _reordering_s(
            facts.value.numbers[value], rates, axis_size, axes, before, after
        )
    collective_s, time_s = 0.0, 0.0
    if kind != SLICE or rounds > 0.0:
        collective_s = _collective_of_result_s(inputs, steps, row, n_steps, sent)
    if kind != SLICE:
        time_s = collective_s + reordering_s
    elif facts.value.compared[value] and not rates.paper_mode:
        time_s = _written_whole_s(facts.value.bytes[value], rates, axis_size, row, before, each)
    return time_s * each.times[row] + rounds * collective_s, reordering_s


@helper
def _reordering_s(
    numbers: float, rates: MachineRates, axis_size: Int64Array, axes: int, before: int, after: int
) -> float:
    """Seconds of reordering gathered parts, which arrive one after the other."""
    if not is_spread(before, axes, axis_size.shape[0]):
        return 0.0
    return numbers / ways(after, axis_size) / rates.transposed_numbers_per_s


@helper
def _written_whole_s(
    kept_bytes: float,
    rates: MachineRates,
    axis_size: Int64Array,
    row: int,
    before: int,
    each: StepPrices,
) -> float:
    """Seconds of writing all of a value of which no part can be made alone."""
    each.bytes[row] = kept_bytes / ways(before, axis_size)
    return each.bytes[row] / rates.memory_bytes_per_s


@helper
def _is_summed_whole(
    rates: MachineRates, axis_size: Int64Array, kind: int, axes: int, after: int
) -> bool:
    """Does a sum that is to be scattered along two dims leave all of it on every device?

    None of the compilers scatters a sum along two dims: each device cuts out its part.
    """
    return (
        kind == REDUCE_SCATTER
        and not rates.paper_mode
        and is_spread(after, axes, axis_size.shape[0])
    )


@inlined
def _collective_of_result_s(
    inputs: PriceInputs, steps: Steps, row: int, n_steps: int, sent: float
) -> float:
    """Seconds of the collective that XLA makes of a result's step, or its share of a combined one.

    ``sent``: bytes on the links over those of the value.
    """
    facts, rates, axis_size = inputs.facts, inputs.rates, inputs.axis_size
    kind, op = steps.kind[row], steps.op[row]
    sums_all = kind == SLICE or _is_summed_whole(
        rates, axis_size, kind, steps.axes[row], steps.after[row]
    )
    moved_kind, moved_axes = kind, steps.axes[row]
    moved_bytes = steps.in_bytes[row]
    if not rates.paper_mode and is_heavy(facts, op):
        whole_axes = gathered_axes(steps, row, n_steps)
        if whole_axes and kind == REDUCE_SCATTER:
            sums_all = True
            moved_bytes *= ring_size(whole_axes, axis_size)
        elif whole_axes and kind == PERMUTE:
            moved_kind, moved_axes = ALL_GATHER, whole_axes
            moved_bytes = cut_operand_bytes(inputs, steps, op, whole_axes)
    n_combined = 1.0
    if not rates.paper_mode and (kind == ALL_REDUCE or sums_all):
        most_combined = max(1.0, rates.combined_sum_bytes / max(1.0, sent * steps.in_bytes[row]))
        n_combined = min(most_combined, facts.op.sums_together[op])
    if sums_all:
        moved_kind = ALL_REDUCE
    moved_bytes = n_combined * sent * moved_bytes
    return collective_time_s(moved_kind, moved_axes, moved_bytes, rates.link_shape) / n_combined

"""The price of moving a value: collectives, cutting out a part, and the memory of both."""

from __future__ import annotations

from toast_lab.cost.collective_matmul import HELD_PIECES, ring_size
from toast_lab.cost.combined_sums import COMBINED_BYTES
from toast_lab.cost.device_parts import (
    cut_operand_bytes,
    gathered_axes,
    held_padding,
    is_heavy,
)
from toast_lab.cost.price_inputs import PriceInputs, Prices, StepPrices
from toast_lab.kernels import inlined
from toast_lab.machines.collectives import collective_time_s
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
)
from toast_lab.sharding.steps import Steps, cut_dims, is_spread, ways


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
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    n_axes = axis_size.shape[0]
    kind, op, use = steps.kind[row], steps.op[row], steps.use[row]
    # Compilers that cast a value before summing it do not scatter the sum, which is then as slow as
    # in full width.
    sent = (
        1.0
        if kind == REDUCE_SCATTER
        else facts.use.sent[use]
        if use >= 0
        else facts.value.moved[steps.value[row]]
    )
    each.bytes[row] = sent * max(steps.in_bytes[row], steps.out_bytes[row])
    # A sum of which each device accumulates a part only is made in every round.
    rounds = 0.0
    if kind == SLICE:
        rounds = (
            facts.use.sum_rounds[use]
            if use >= 0
            else facts.op.result_trips[op] - facts.op.sum_trips[op]
        )
    collective_s, reordering_s, time_s = 0.0, 0.0, 0.0
    if kind == ALL_GATHER and is_spread(steps.before[row], steps.axes[row], n_axes):
        # The parts arrive one after the other and have to be reordered.
        numbers = facts.value.numbers[steps.value[row]] / ways(steps.after[row], axis_size)
        reordering_s = numbers / rates.transposed_numbers_per_s
    if kind != SLICE or rounds > 0.0:
        collective_s = _collective_s(inputs, steps, row, n_steps, sent)
    if kind != SLICE:
        time_s = collective_s + reordering_s
    if use < 0:
        cut_after = cut_dims(steps.after[row], n_axes)
        moved_out = kind == ALL_REDUCE and cut_after & facts.op.sum_whole[op] == 0
        each.times[row] = facts.op.sum_trips[op] if moved_out else facts.op.result_trips[op]
    elif kind == SLICE and facts.use.cut_out[use]:
        # A product cannot start reading where a device's part begins: the part is cut out and
        # written to memory first.
        value = steps.value[row]
        kept = facts.value.bytes[value] / tables.value_bytes[value]
        each.bytes[row] = (kept + sent) * steps.out_bytes[row]
        time_s = each.bytes[row] / rates.memory_bytes_per_s
    if kind == SLICE and facts.value.compared[steps.value[row]] and not rates.paper_mode:
        # A part cannot be made alone: all of it is written for each use that takes a part.
        whole_bytes = facts.value.bytes[steps.value[row]]
        each.bytes[row] = whole_bytes / ways(steps.before[row], axis_size)
        time_s = each.bytes[row] / rates.memory_bytes_per_s
    # A copy for uses lives until its last use, the input of a definition's reshard only meanwhile.
    if use < 0:
        # Sums are made in place, and a soft op computes only the part of its result that is cut.
        if kind != ALL_REDUCE and (kind != SLICE or not facts.op.computes_kept_slice[op]):
            held = min(1.0, HELD_PIECES / pieces)
            prices.passing_bytes[op] += held * sent * steps.in_bytes[row]
    elif steps.copy[use] == row:
        prices.copy_bytes[use] = (
            sent * steps.out_bytes[row] * held_padding(inputs, steps.value[row], steps.after[row])
        )
    else:
        prices.passing_bytes[op] += sent * steps.out_bytes[row]
    return time_s * each.times[row] + rounds * collective_s, reordering_s


@inlined
def _collective_s(inputs: PriceInputs, steps: Steps, row: int, n_steps: int, sent: float) -> float:
    """Seconds of the collective that XLA makes of a step, or its share of a combined one.

    ``sent``: bytes on the links over those of the value.
    """
    facts, rates, axis_size = inputs.facts, inputs.rates, inputs.axis_size
    kind, op, use = steps.kind[row], steps.op[row], steps.use[row]
    # None of the compilers scatters a sum along two dims: it sums everything, and each device cuts
    # out its part.
    sums_all = kind == SLICE or (
        kind == REDUCE_SCATTER
        and not rates.paper_mode
        and is_spread(steps.after[row], steps.axes[row], axis_size.shape[0])
    )
    moved_kind, moved_axes = kind, steps.axes[row]
    moved_bytes = steps.in_bytes[row]
    if use < 0 and not rates.paper_mode and is_heavy(facts, op):
        whole_axes = gathered_axes(steps, row, n_steps)
        if whole_axes and kind == REDUCE_SCATTER:
            sums_all = True
            moved_bytes *= ring_size(whole_axes, axis_size)
        elif whole_axes and kind == PERMUTE:
            moved_kind, moved_axes = ALL_GATHER, whole_axes
            moved_bytes = cut_operand_bytes(inputs, steps, op, whole_axes)
    n_combined = 1.0
    if use < 0 and not rates.paper_mode and (kind == ALL_REDUCE or sums_all):
        most_combined = max(1.0, COMBINED_BYTES / max(1.0, sent * steps.in_bytes[row]))
        n_combined = min(most_combined, facts.op.sums_together[op])
    return (
        collective_time_s(
            ALL_REDUCE if sums_all else moved_kind,
            moved_axes,
            n_combined * sent * moved_bytes,
            axis_size,
            rates.link_bytes_per_s,
            rates.link_latency_s,
            rates.switched,
            rates.link_shape,
        )
        / n_combined
    )

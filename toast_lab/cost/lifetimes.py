"""Lifetimes of values, copies and work space under a plan, and the peak of memory."""

from __future__ import annotations

import numpy as np

from toast_lab.cost.buffers import NEAR_PRODUCTS
from toast_lab.cost.device_parts import held_bytes
from toast_lab.cost.live_ranges import needed_until
from toast_lab.cost.price_inputs import (
    BROUGHT,
    IN_MEMORY,
    NEAR,
    RESULTS,
    REUSED,
    SMALL,
    Lifetimes,
    PriceInputs,
    Prices,
)
from toast_lab.kernels import compiled, helper
from toast_lab.sharding.steps import Steps


@compiled
def live_bytes(
    inputs: PriceInputs, steps: Steps, prices: Prices, lives: Lifetimes
) -> tuple[float, int]:
    """(peak bytes, place of the peak) of a state; fills ``lives``.

    Lifetimes are decided here and nowhere else. ``inputs``, the layouts of ``steps`` and ``prices``
    may be those of the folded program; ``LiveRanges`` counts the ops of the whole program in either
    case. Without folding, the places are the ops of the program, and its end.
    """
    facts, ranges, rates = inputs.facts, inputs.ranges, inputs.rates
    for value in range(lives.size.shape[0]):
        lives.size[value] = held_bytes(inputs, value, steps.layout[value])
    _needed_copies(inputs, steps, prices, lives.last)
    waits = ranges.late_op > 0 and rates.waiting_room_bytes > 0.0
    if waits:
        for op in range(prices.summed.shape[0]):
            waits &= prices.summed[op] == 0 or facts.op.runs_late[op]
    lives.run_late[0] = int(waits)
    peak, peak_place = _alive(inputs, prices, lives)
    if lives.run_late[0] == 1 and peak > rates.waiting_room_bytes:
        lives.run_late[0] = 0
        peak, peak_place = _alive(inputs, prices, lives)
    return peak, peak_place


@helper
def _alive(inputs: PriceInputs, prices: Prices, lives: Lifetimes) -> tuple[float, int]:
    """(peak bytes, place of the peak); products run late if ``lives.run_late`` says so.

    Memory for the results of the program is reserved from the start. Until they are written, it may
    hold other values: any that is not larger than the largest result is assumed to fit.
    """
    memory, ranges, rates = inputs.memory, inputs.ranges, inputs.rates
    size, last, change, place = lives.size, lives.last, lives.change, ranges.place
    buffers = ranges.buffers
    change[:] = 0.0
    largest, all_results = 0.0, 0.0
    for buffer in ranges.results:
        held_bytes = size[buffers.value[buffer]]
        largest = max(largest, held_bytes)
        all_results += held_bytes * ranges.buffer_times[buffer]
    for copy in range(ranges.copy_use.shape[0]):
        use = ranges.copy_use[copy]
        if prices.copied[use] == BROUGHT:
            begin, end = ranges.copy_from[copy], last[copy] + 1
            held_bytes = prices.copy_bytes[use]
            beside = memory.products[end - 1] - memory.products[begin + 1]
            passed_bytes = memory.passed_bytes[end - 1] - memory.passed_bytes[begin + 1]
            near = (
                held_bytes <= rates.near_bytes
                and beside <= NEAR_PRODUCTS
                and passed_bytes <= inputs.tables.value_bytes[inputs.tables.use_value[use]]
            )
            column = _column(near, held_bytes <= largest)
            held_bytes *= ranges.copy_times[copy]
            change[place[begin], column] += held_bytes
            change[place[end], column] -= held_bytes
    for work in range(ranges.work_op.shape[0]):
        held_bytes = prices.passing_bytes[ranges.work_op[work]]
        if held_bytes > 0.0:
            column = _column(held_bytes <= rates.near_bytes, held_bytes <= largest)
            held_bytes *= ranges.work_times[work]
            runs_at = ranges.work_at[work]
            change[place[runs_at], column] += held_bytes
            change[place[runs_at + 1], column] -= held_bytes
    # Written values: an operand that dies in an elementwise op leaves its memory to the result, one
    # operand for each op.
    heirs = np.zeros(buffers.value.shape[0], np.bool_)
    for buffer in range(buffers.value.shape[0]):
        held_bytes = size[buffers.value[buffer]]
        start, end = buffers.start[buffer], buffers.end[buffer]
        is_read_late = False
        if lives.run_late[0] == 1:
            reader, writer = buffers.read_late[buffer], buffers.written_late[buffer]
            is_read_late = reader >= 0 and prices.summed[reader] == 1 and end < ranges.late_op - 1
            if is_read_late:
                end = ranges.late_op - 1
            if writer >= 0 and prices.summed[writer] == 1:
                start = max(start, ranges.late_op)
                if start > end:
                    continue
        death = -1 if is_read_late else ranges.buffer_death[buffer]
        if death >= 0 and size[buffers.heir[buffer]] == held_bytes and not heirs[death]:
            heirs[death] = True
            end -= 1
        near = buffers.near[buffer] and held_bytes <= rates.near_bytes
        column = _column(near, buffers.computed[buffer] and held_bytes <= largest)
        if buffers.result[buffer]:
            column = RESULTS
        held_bytes *= ranges.buffer_times[buffer]
        change[place[start], column] += held_bytes
        change[place[end + 1], column] -= held_bytes
    peak, peak_place = 0.0, 0
    alive_bytes, near_bytes, small_bytes, result_bytes = 0.0, 0.0, 0.0, 0.0
    for place_index in range(ranges.n_places):
        alive_bytes += change[place_index, IN_MEMORY]
        near_bytes += change[place_index, NEAR]
        small_bytes += change[place_index, SMALL]
        result_bytes += change[place_index, RESULTS]
        # Values for which vector memory has no room are in memory after all.
        lives.near[place_index] = min(near_bytes, rates.near_room_bytes)
        beside_bytes = small_bytes + near_bytes - lives.near[place_index]
        lives.reserved[place_index] = max(0.0, all_results - result_bytes - beside_bytes)
        lives.live[place_index] = (
            alive_bytes + beside_bytes + result_bytes + lives.reserved[place_index]
        )
        # Of equal places take the last, where there are results rather than memory reserved for
        # them.
        if lives.live[place_index] >= peak:
            peak, peak_place = lives.live[place_index], place_index
    return peak, peak_place


@helper
def _column(is_near: bool, is_small: bool) -> int:
    """Column of ``Lifetimes.change`` for everything but results of the program."""
    return NEAR if is_near else SMALL if is_small else IN_MEMORY


@helper
def _needed_copies(inputs: PriceInputs, steps: Steps, prices: Prices, last: np.ndarray) -> None:
    """Fill ``last`` of the copies that are brought: the last op that needs the copy."""
    tables, memory, ranges = inputs.tables, inputs.memory, inputs.ranges
    for copy in range(ranges.copy_use.shape[0]):
        use = ranges.copy_use[copy]
        if prices.copied[use] == BROUGHT:
            last[copy] = ranges.copy_last[copy]
            want = steps.wanted[tables.use_want[use]]
            for sharer in range(ranges.share_ptr[copy], ranges.share_ptr[copy + 1]):
                if steps.wanted[ranges.share_want[sharer]] == want:
                    last[copy] = max(last[copy], ranges.share_last[sharer])
    if not tables.folded:
        for use in range(prices.copied.shape[0]):
            if prices.copied[use] == REUSED:
                maker = steps.use[steps.copy[use]]
                last[maker] = max(last[maker], needed_until(memory, use, memory.use_op[maker]))

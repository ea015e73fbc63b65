"""How long things live, and what is in memory at the peak."""

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

    The one place where it is decided how long things live.  ``inputs``, the layouts of ``steps``
    and ``prices`` may be those of the folded program; ``LiveRanges`` counts the ops of the program
    itself in either case.  Of the program itself, places are its ops, and the end.
    """
    facts, ranges, rates = inputs.facts, inputs.ranges, inputs.rates
    for value in range(lives.size.shape[0]):
        lives.size[value] = held_bytes(inputs, value, steps.layout[value])
    _needed_copies(inputs, steps, prices, lives.last)
    waits = ranges.late_op > 0 and rates.waiting_room_bytes > 0.0
    if waits:
        for op in range(prices.summed.shape[0]):
            waits &= prices.summed[op] == 0 or facts.op.waits[op]
    lives.waiting[0] = int(waits)
    peak, peak_place = _alive(inputs, prices, lives)
    if lives.waiting[0] == 1 and peak > rates.waiting_room_bytes:
        lives.waiting[0] = 0
        peak, peak_place = _alive(inputs, prices, lives)
    return peak, peak_place


@helper
def _alive(inputs: PriceInputs, prices: Prices, lives: Lifetimes) -> tuple[float, int]:
    """(peak bytes, place of the peak); products wait if ``lives.waiting`` says so.

    Results of the program have places of their own from the start.  Until then whatever is not
    larger may lie there: if it is as large as some result, we take it to find a place.
    """
    memory, ranges, rates = inputs.memory, inputs.ranges, inputs.rates
    size, last, change, place = lives.size, lives.last, lives.change, ranges.place
    change[:] = 0.0
    largest, all_results = 0.0, 0.0
    for buffer in ranges.results:
        held_bytes = size[ranges.buffer_value[buffer]]
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
            where = _column(near, held_bytes <= largest)
            held_bytes *= ranges.copy_times[copy]
            change[place[begin], where] += held_bytes
            change[place[end], where] -= held_bytes
    for work in range(ranges.work_op.shape[0]):
        held_bytes = prices.passing_bytes[ranges.work_op[work]]
        if held_bytes > 0.0:
            where = _column(held_bytes <= rates.near_bytes, held_bytes <= largest)
            held_bytes *= ranges.work_times[work]
            runs_at = ranges.work_at[work]
            change[place[runs_at], where] += held_bytes
            change[place[runs_at + 1], where] -= held_bytes
    # Written values; an operand that dies in an elementwise op gives its place to the result, one
    # operand an op.
    heirs = np.zeros(ranges.buffer_value.shape[0], np.bool_)
    for buffer in range(ranges.buffer_value.shape[0]):
        held_bytes = size[ranges.buffer_value[buffer]]
        start, end = ranges.buffer_start[buffer], ranges.buffer_end[buffer]
        waits = False
        if lives.waiting[0] == 1:
            reader, maker = ranges.buffer_read_late[buffer], ranges.buffer_written_late[buffer]
            waits = reader >= 0 and prices.summed[reader] == 1 and end < ranges.late_op - 1
            if waits:
                end = ranges.late_op - 1
            if maker >= 0 and prices.summed[maker] == 1:
                start = max(start, ranges.late_op)
                if start > end:
                    continue
        death = -1 if waits else ranges.buffer_death[buffer]
        if death >= 0 and size[ranges.buffer_heir[buffer]] == held_bytes and not heirs[death]:
            heirs[death] = True
            end -= 1
        near = ranges.buffer_near[buffer] and held_bytes <= rates.near_bytes
        where = _column(near, ranges.buffer_computed[buffer] and held_bytes <= largest)
        if ranges.buffer_result[buffer]:
            where = RESULTS
        held_bytes *= ranges.buffer_times[buffer]
        change[place[start], where] += held_bytes
        change[place[end + 1], where] -= held_bytes
    peak, peak_place = 0.0, 0
    alive_bytes, near_bytes, small_bytes, result_bytes = 0.0, 0.0, 0.0, 0.0
    for asked in range(ranges.n_places):
        alive_bytes += change[asked, IN_MEMORY]
        near_bytes += change[asked, NEAR]
        small_bytes += change[asked, SMALL]
        result_bytes += change[asked, RESULTS]
        # What vector memory has no room for is in memory, too.
        lives.near[asked] = min(near_bytes, rates.near_room_bytes)
        beside_bytes = small_bytes + near_bytes - lives.near[asked]
        lives.reserved[asked] = max(0.0, all_results - result_bytes - beside_bytes)
        lives.live[asked] = alive_bytes + beside_bytes + result_bytes + lives.reserved[asked]
        # Of places with as much the last, where results are rather than what is kept for them.
        if lives.live[asked] >= peak:
            peak, peak_place = lives.live[asked], asked
    return peak, peak_place


@helper
def _column(is_near: bool, is_small: bool) -> int:
    """Where in ``Lifetimes.change`` what is no result of the program counts."""
    return NEAR if is_near else SMALL if is_small else IN_MEMORY


@helper
def _needed_copies(inputs: PriceInputs, steps: Steps, prices: Prices, last: np.ndarray) -> None:
    """Fill ``last`` for the copies that are brought: until the last use that takes the copy."""
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

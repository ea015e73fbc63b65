"""A device's part of a value: its bytes, the memory it is in, and what an op's steps do with it."""

from __future__ import annotations

from toast_lab.cost.memory_tiles import tile_padding
from toast_lab.cost.price_inputs import MachineRates, PriceInputs
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.cost.row_layouts import row_padding
from toast_lab.ir import program as p
from toast_lab.kernels import helper
from toast_lab.packs import Int64Array
from toast_lab.sharding.step_kinds import ALL_REDUCE, PERMUTE, REDUCE_SCATTER
from toast_lab.sharding.steps import Steps, layout_dim, ways


@helper
def kept_bytes(facts: ProgramFacts, value: int, layout: int, axis_size: Int64Array) -> float:
    """Bytes in memory of a device's part of a value."""
    part_bytes = facts.value.bytes[value] / ways(layout, axis_size)
    return part_bytes * part_padding(facts, value, layout, axis_size)


@helper
def part_padding(facts: ProgramFacts, value: int, layout: int, axis_size: Int64Array) -> float:
    """Factor by which a device's part of a value is larger in memory than its numbers."""
    return row_padding(facts.value.row_dim[value], facts.value.row_size[value], layout, axis_size)


@helper
def held_bytes(inputs: PriceInputs, value: int, layout: int) -> float:
    """Bytes of memory that a device's part of a value takes, in whole tiles."""
    part_bytes = inputs.facts.value.bytes[value] / ways(layout, inputs.axis_size)
    return part_bytes * held_padding(inputs, value, layout)


@helper
def held_padding(inputs: PriceInputs, value: int, layout: int) -> float:
    """Factor by which a part is larger in memory: padded rows for gathers, or unfilled tiles."""
    facts, shape_ptr = inputs.facts, inputs.tables.shape_ptr
    padding = part_padding(facts, value, layout, inputs.axis_size)
    if inputs.rates.tile == 0.0:
        return padding
    tiles = tile_padding(
        facts.dim_size, shape_ptr[value], shape_ptr[value + 1], layout, inputs.axis_size
    )
    return max(padding, tiles)


@helper
def used_bytes(inputs: PriceInputs, steps: Steps, use: int) -> tuple[float, float]:
    """Bytes of a device's part of what a use reads, and of each of its numbers."""
    value, tables = inputs.facts.value, inputs.tables
    used = tables.use_value[use]
    parts = ways(steps.wanted[tables.use_want[use]], inputs.axis_size)
    return value.bytes[used] / parts, value.bytes[used] / value.numbers[used]


@helper
def is_near(facts: ProgramFacts, rates: MachineRates, value: int, size: float) -> bool:
    """Is a device's part of a value, of ``size`` bytes, in vector memory?"""
    return facts.value.may_be_near[value] and size <= rates.near_bytes


@helper
def result_layout(steps: Steps, row: int, n_steps: int, value: int) -> int:
    """Layout in which the op writes a result: before its reshard if one follows, else as kept."""
    op = steps.op[row]
    following = row + 1
    while following < n_steps and steps.op[following] == op and steps.use[following] < 0:
        if steps.value[following] == value:
            return steps.before[following]
        following += 1
    return steps.layout[value]


@helper
def is_heavy(facts: ProgramFacts, op: int) -> bool:
    """Does the matrix unit compute the op?"""
    return facts.op.op_class[op] == p.DOT or facts.op.op_class[op] == p.CONVOLUTION


@helper
def result_is_summed(facts: ProgramFacts, steps: Steps, row: int, n_steps: int) -> bool:
    """Is the result of a computing step summed over devices before anything reads it?"""
    following = row + 1
    if facts.op.sum_trips[steps.op[row]] < facts.op.result_trips[steps.op[row]]:
        return False  # the sum is behind the loop
    while following < n_steps and steps.op[following] == steps.op[row] and steps.use[following] < 0:
        kind = steps.kind[following]
        if kind == ALL_REDUCE or kind == REDUCE_SCATTER:
            return True
        following += 1
    return False


@helper
def gathered_axes(steps: Steps, row: int, n_steps: int) -> int:
    """Axes over which a product's operand is gathered, as its sum would be scattered out of order.

    If one axis cuts a dim, a sum cannot be scattered along that dim over another axis that comes
    first in mesh order. We exchange parts afterwards; XLA's partitioner makes the dim whole
    instead: it gathers the operand, multiplies all of it on every device, sums that, and lets each
    device cut out its part. The answer is the same for the steps of the product, of its scattered
    sum and of the exchange, whichever ``row`` is; 0: the op has no such steps.
    """
    op = steps.op[row]
    first = row
    while first > 0 and steps.op[first - 1] == op and steps.use[first] < 0:
        first -= 1
    scattered, value = 0, -1
    for following in range(first, n_steps):
        if steps.op[following] != op:
            break
        if steps.use[following] < 0:
            kind = steps.kind[following]
            if kind == REDUCE_SCATTER:
                scattered, value = steps.axes[following], steps.value[following]
            elif kind == PERMUTE and scattered and steps.value[following] == value:
                return steps.axes[following] & ~scattered
    return 0


@helper
def cut_operand_bytes(inputs: PriceInputs, steps: Steps, op: int, axes: int) -> float:
    """Bytes of a device's part of the first operand that any of these axes cuts."""
    tables, axis_size = inputs.tables, inputs.axis_size
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        wanted = steps.wanted[tables.use_want[use]]
        for axis in range(axis_size.shape[0]):
            if (axes >> axis) & 1 and layout_dim(wanted, axis) >= 0:
                whole_bytes = inputs.facts.value.bytes[tables.use_value[use]]
                return whole_bytes / ways(wanted, axis_size)
    return 0.0

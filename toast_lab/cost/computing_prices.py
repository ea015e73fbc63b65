"""The price of computing an op's local part: traffic, padding, rate, and the ring beside it.

Read from the top: ``price_computing`` prices the op as a whole; the helpers below it price its
results, its operands, the epilogue of a product, and the rate of the matrix unit, in the order of
use.
"""

from __future__ import annotations

from toast_lab.cost.collective_matmul import ring_size
from toast_lab.cost.device_parts import (
    gathered_axes,
    is_heavy,
    is_near,
    kept_bytes,
    part_padding,
    result_is_summed,
    result_layout,
)
from toast_lab.cost.few_images import OVERLAP_FACTOR, are_few
from toast_lab.cost.loop_residents import RESIDENT_TIME_RATIO as RESIDENT_SHARE
from toast_lab.cost.matrix_tiles import (
    BATCH,
    CONTRACTED,
    FREE,
    ROLE_BITS,
    busy,
    lane_padding,
    waves_busy,
    weights_busy,
    windowed_bytes,
)
from toast_lab.cost.price_inputs import PriceInputs, Prices, StepPrices
from toast_lab.cost.ring_products import price_ring
from toast_lab.cost.vector_products import vector_traffic
from toast_lab.ir import program as p
from toast_lab.kernels import inlined
from toast_lab.packs import Int64Array
from toast_lab.sharding.steps import LAYOUT_BITS, Steps, local_size, ways


@inlined
def price_computing(
    inputs: PriceInputs,
    steps: Steps,
    row: int,
    n_steps: int,
    each: StepPrices,
    prices: Prices,
) -> tuple[float, int, float, float]:
    """Seconds of a computing step by rule, and the ring beside its product.

    The ring is given as the row of the collective that runs beside the product piece by piece (-1:
    none), the number of pieces, and the seconds of one round in which the product waits for them.
    Fills the step's row of ``each`` and the op's rows of ``prices``.
    """
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    op = steps.op[row]
    if facts.op.given_s[op] >= 0.0:
        return _given_s(inputs, op, row, each, prices), -1, 1.0, 0.0
    if facts.op.free[op]:
        return 0.0, -1, 1.0, 0.0
    if inputs.ranges.late_op > 0:
        prices.summed[op] = int(result_is_summed(facts, steps, row, n_steps))
    trips, heavy = facts.op.trips[op], is_heavy(facts, op)
    cut = ring_size(steps.axes[row], axis_size)
    moved, result_bytes, written_bytes = _result_bytes(inputs, steps, row, n_steps)
    moved, left_far, left_near, right_far, right_near = _operand_bytes(
        inputs, steps, op, moved, result_bytes
    )
    if facts.op.joins[op]:
        moved *= _share_kept(steps, row, n_steps, tables.result[tables.result_ptr[op]], axis_size)
    waited_bytes, fused_bytes, beside_bytes, end_bytes = 0.0, 0.0, 0.0, 0.0
    if heavy and not rates.paper_mode:
        waited_bytes, fused_bytes, beside_bytes, end_bytes = _epilogue_bytes(
            inputs, steps, row, n_steps, prices
        )
        moved += fused_bytes
    elif not heavy and facts.op.narrow_bytes[op] > 0.0:
        use = tables.use_ptr[op]
        waited_bytes = facts.op.narrow_bytes[op] / cut
        waited_bytes *= part_padding(
            facts, tables.use_value[use], steps.wanted[tables.use_want[use]], axis_size
        )
    flops = facts.op.flops[op] / cut
    each.flops[row] = flops
    each.bytes[row] = (moved + beside_bytes) * trips
    if not heavy and rates.paper_mode:
        return 0.0, -1, 1.0, 0.0
    peak, tail_s, start_s, relaying_s = _product_rate(
        inputs,
        steps,
        row,
        n_steps,
        cut,
        written_bytes,
        left_far + left_near,
        right_far + right_near,
    )
    tail_s += _vector_s(inputs, steps, op, flops)
    rate = rates.product_bytes_per_s
    traffic_s = (moved + waited_bytes) * trips / rate
    time_s = max(flops / peak + tail_s, traffic_s)
    time_s = max(time_s, (left_near + right_near) * trips / rates.near_bytes_per_s)
    if facts.op.shifted_numbers[op] > 0.0 and not rates.paper_mode:
        shifted_s = facts.op.shifted_numbers[op] / rates.shifted_numbers_per_s
        shifted_s -= facts.op.shifted_read_bytes[op] / rate
        time_s = max(time_s, shifted_s / cut * trips)
    whole_axes = 0
    if heavy and not rates.paper_mode:
        whole_axes = gathered_axes(steps, row, n_steps)
        time_s *= ring_size(whole_axes, axis_size)
    time_s += beside_bytes * trips / rate
    ring_row, ring_pieces, waiting_s = -1, 1.0, 0.0
    if (
        rates.ring_devices > 0.0
        and facts.op.ring_left_dims[op] >= 0
        and whole_axes == 0
        and ring_size((1 << axis_size.shape[0]) - 1, axis_size) > rates.ring_devices
    ):
        ring_row, ring_pieces, ring_s, waiting_s = price_ring(
            inputs,
            steps,
            row,
            n_steps,
            flops / peak / trips,
            left_far,
            left_near,
            right_far,
            right_near,
        )
        if ring_row >= 0:
            # The ops behind the product are a kernel of their own.
            time_s = (ring_s + end_bytes / rate) * trips
    time_s += relaying_s * trips
    if facts.op.masked_left[op] > 0.0 and not rates.paper_mode:
        masked_bytes = _masked_bytes(inputs, steps, op)
        prices.passing_bytes[op] += masked_bytes
        each.bytes[row] += 2.0 * masked_bytes * trips  # the product reads what was written
        time_s += masked_bytes * trips / rate
    if facts.op.starts_kernel[op]:
        time_s += start_s * trips
    return time_s, ring_row, ring_pieces, waiting_s


@inlined
def _given_s(inputs: PriceInputs, op: int, row: int, each: StepPrices, prices: Prices) -> float:
    """Seconds of an op whose price no plan changes: see ``GivenPrices``."""
    facts = inputs.facts.op
    each.flops[row] = facts.flops[op] / ring_size(
        (1 << inputs.axis_size.shape[0]) - 1, inputs.axis_size
    )
    each.bytes[row] = facts.given_bytes[op] * facts.trips[op]
    prices.passing_bytes[op] += facts.given_held_bytes[op]
    return facts.given_s[op] * facts.trips[op]


# -- what is read and written ----------------------------------------------------------------------
@inlined
def _result_bytes(
    inputs: PriceInputs, steps: Steps, row: int, n_steps: int
) -> tuple[float, float, float]:
    """Bytes moved by writing the results, bytes of the results, and of those that are written."""
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    op = steps.op[row]
    op_class = facts.op.op_class[op]
    computes_near = is_heavy(facts, op) or op_class == p.ELEMENTWISE or op_class == p.REDUCE
    moved, result_bytes, written_bytes = 0.0, 0.0, 0.0
    for result_row in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        value = tables.result[result_row]
        if facts.value.written[value] or facts.op.slices[op]:
            layout = result_layout(steps, row, n_steps, value)
            size = kept_bytes(facts, value, layout, axis_size)
            result_bytes += size
            if (
                facts.value.written[value]
                and facts.op.update_operand[op] < 0
                and not facts.op.written_with_product[op]
            ):
                stays = 0.0 < facts.op.resident_parts[op] <= ways(layout, axis_size)
                if not computes_near or not is_near(facts, rates, value, size):
                    moved += RESIDENT_SHARE * size if stays else size
                written_bytes += size
    return moved, result_bytes, written_bytes


@inlined
def _operand_bytes(
    inputs: PriceInputs,
    steps: Steps,
    op: int,
    begin_with: float,
    result_bytes: float,
) -> tuple[float, float, float, float, float]:
    """Bytes moved, from ``begin_with`` on.

    Then the bytes that a product reads of its left operand from memory and from vector memory, and
    the same of its right operand.
    """
    facts, tables, axis_size = inputs.facts, inputs.tables, inputs.axis_size
    moved = begin_with
    left_far, left_near, right_far, right_near = 0.0, 0.0, 0.0, 0.0
    first_use = tables.use_ptr[op]
    for use in range(first_use, tables.use_ptr[op + 1]):
        if facts.use.reads[use] > 0.0:
            read_bytes, far, near = _read_operand(inputs, steps, op, use, result_bytes)
            moved += read_bytes
            if use == first_use:
                left_far, left_near = far, near
            else:
                right_far, right_near = far, near
        if use - first_use == facts.op.update_operand[op]:
            wanted = steps.wanted[tables.use_want[use]]
            moved += kept_bytes(facts, tables.use_value[use], wanted, axis_size)
    return moved, left_far, left_near, right_far, right_near


@inlined
def _read_operand(
    inputs: PriceInputs, steps: Steps, op: int, use: int, result_bytes: float
) -> tuple[float, float, float]:
    """Bytes of reading an operand from memory.

    Then the bytes that a product reads of it from memory and from vector memory.
    """
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    value, source = tables.use_value[use], facts.root[use]
    is_copy = steps.copy[use] != -1
    layout = steps.wanted[tables.use_want[use]] if is_copy else steps.layout[value]
    # A copy has the width in which it was sent, whatever the width of the value itself.
    whole_bytes = (
        facts.use.sent[use] * tables.value_bytes[value] if is_copy else facts.value.bytes[value]
    )
    piece_bytes = whole_bytes / ways(layout, axis_size)
    source_bytes = kept_bytes(facts, source, steps.layout[source], axis_size)
    if source == value:
        piece_bytes *= part_padding(facts, value, layout, axis_size)
    if not is_copy:
        piece_bytes = min(piece_bytes, source_bytes)
    if facts.use.delivered[use]:
        piece_bytes = min(piece_bytes, result_bytes)
    stays = not is_copy and 0.0 < facts.use.resident_parts[use] <= ways(layout, axis_size)
    # A product reads operands from vector memory while it multiplies.
    held_bytes = piece_bytes if is_copy else source_bytes
    read_bytes = facts.use.reads[use] * piece_bytes
    heavy = is_heavy(facts, op)
    held_near = heavy and is_near(facts, rates, source, held_bytes)
    memory_bytes = 0.0
    if not held_near:
        memory_bytes = read_bytes * (facts.use.resident_share[use] if stays else 1.0)
    if not heavy:
        return memory_bytes, 0.0, 0.0
    # The copy that a cast in front of a loop makes stays in vector memory.
    cast = facts.use.sent[use] if stays else 1.0
    near = cast * read_bytes if held_near or cast < 1.0 else 0.0
    far = read_bytes if near == 0.0 else 0.0
    return memory_bytes, far, near


@inlined
def _share_kept(steps: Steps, row: int, n_steps: int, value: int, axis_size: Int64Array) -> float:
    """Share of a result, as the op leaves it, that a device cuts out to keep."""
    left, kept = result_layout(steps, row, n_steps, value), steps.layout[value]
    return min(1.0, ways(left, axis_size) / ways(kept, axis_size))


@inlined
def _epilogue_bytes(
    inputs: PriceInputs, steps: Steps, row: int, n_steps: int, prices: Prices
) -> tuple[float, float, float, float]:
    """Bytes that a product waits for, and bytes that the ops fused behind it move.

    The second are read by the product's own kernel beside its result, the third by a kernel of
    their own behind a sum, and the last are all that such a separate kernel moves.
    """
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    op = steps.op[row]
    value = tables.result[tables.result_ptr[op]]
    waited_bytes, end_bytes = 0.0, 0.0
    product_parts = ways(result_layout(steps, row, n_steps, value), axis_size)
    if not is_near(facts, rates, value, facts.value.bytes[value] / product_parts):
        waited_bytes = facts.op.narrow_bytes[op] / product_parts
    # Ops that follow a sum over devices are a kernel of their own, which reads the result as the
    # sum leaves it.
    is_summed = result_is_summed(facts, steps, row, n_steps)
    parts = ways(steps.layout[value], axis_size) if is_summed else product_parts
    size = facts.value.bytes[value] / parts
    if is_summed and not facts.value.written[value]:
        prices.passing_bytes[op] += size
    beside_bytes = facts.op.far_bytes[op] / parts
    if facts.op.widest_bytes[op] > rates.near_bytes * parts:
        beside_bytes += facts.op.near_bytes[op] / parts
    if beside_bytes > 0.0:
        end_bytes = beside_bytes + size + facts.op.narrow_bytes[op] / parts
    if beside_bytes > 0.0 and is_summed:
        return waited_bytes, 0.0, end_bytes, end_bytes
    return waited_bytes, beside_bytes, 0.0, end_bytes


# -- rates of computing ---------------------------------------------------------------------------
@inlined
def _product_rate(
    inputs: PriceInputs,
    steps: Steps,
    row: int,
    n_steps: int,
    cut: float,
    written_bytes: float,
    left_bytes: float,
    right_bytes: float,
) -> tuple[float, float, float, float]:
    """FLOP/s that an op's local part reaches, and the seconds that come on top.

    The latter are spent at the end of the multiplying (all rounds), at the start of a kernel, and
    on bringing a convolution's operands and result into another order (one round each).
    """
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    op = steps.op[row]
    peak, trips = facts.op.peak[op], facts.op.trips[op]
    op_class = facts.op.op_class[op]
    is_convolution = op_class == p.CONVOLUTION
    if not (
        (rates.tile > 0.0 or rates.multiprocessors > 0.0)
        and (
            (op_class == p.DOT and facts.op.rows[op] > 0.0) or (is_convolution and rates.tile > 0.0)
        )
        and tables.use_ptr[op + 1] - tables.use_ptr[op] == 2
    ):
        return peak, 0.0, rates.op_overhead_s, 0.0
    rows, columns, depth, batch = _product_shape(inputs, steps, op)
    if rates.multiprocessors > 0.0:
        share = waves_busy(rows, columns, depth, batch, rates.multiprocessors)
        # The last tiles are written when there is nothing left to multiply.
        tail_s = written_bytes * trips / rates.memory_bytes_per_s
        return (
            peak * (share * rates.sustained),
            tail_s,
            rates.op_overhead_s + rates.product_start_s,
            0.0,
        )
    tail_s, relaying_s = 0.0, 0.0
    if is_convolution:
        left = steps.wanted[tables.use_want[tables.use_ptr[op]]]
        right = steps.wanted[tables.use_want[tables.use_ptr[op] + 1]]
        if are_few(local_size(facts.op.image_count[op], 0, left, axis_size)):
            peak *= weights_busy(columns, depth, rates.tile) / OVERLAP_FACTOR
            value = tables.result[tables.result_ptr[op]]
            layout = result_layout(steps, row, n_steps, value)
            relaid = facts.op.relaid_left[op] / ways(left, axis_size)
            relaid += facts.op.relaid_right[op] / ways(right, axis_size)
            relaid += facts.op.relaid_result[op] / ways(layout, axis_size)
            relaying_s = relaid / rates.transposed_numbers_per_s
        else:
            peak *= weights_busy(columns, depth, rates.tile)
        tail_s += (
            facts.op.vector_bytes[op]
            / cut
            * trips
            * lane_padding(batch, rates.tile)
            / rates.product_bytes_per_s
        )
    else:
        peak *= busy(rows, columns, depth, rates.tile)
        if min(left_bytes, right_bytes) > rates.near_room_bytes > 0.0:
            windowed = windowed_bytes(left_bytes, right_bytes, rows, columns, depth, batch)
            tail_s += windowed * trips / rates.memory_bytes_per_s
    return peak, tail_s, rates.op_overhead_s, relaying_s


@inlined
def _product_shape(inputs: PriceInputs, steps: Steps, op: int) -> tuple[float, float, float, float]:
    """(rows, columns, depth, batch) of a device's part of a product of two operands."""
    facts, tables, axis_size = inputs.facts, inputs.tables, inputs.axis_size
    rows, columns, depth, batch = (
        facts.op.rows[op],
        facts.op.columns[op],
        facts.op.depth[op],
        facts.op.batch[op],
    )
    left = steps.wanted[tables.use_want[tables.use_ptr[op]]]
    right = steps.wanted[tables.use_want[tables.use_ptr[op] + 1]]
    for axis in range(axis_size.shape[0]):
        dim = ((left >> (LAYOUT_BITS * axis)) & 31) - 1
        if dim >= 0:
            role = (facts.op.left[op] >> (ROLE_BITS * dim)) & 3
            if role == FREE:
                rows /= axis_size[axis]
            elif role == CONTRACTED:
                depth /= axis_size[axis]
            elif role == BATCH:
                batch /= axis_size[axis]
        dim = ((right >> (LAYOUT_BITS * axis)) & 31) - 1
        if dim >= 0 and (facts.op.right[op] >> (ROLE_BITS * dim)) & 3 == FREE:
            columns /= axis_size[axis]
    return rows, columns, depth, batch


@inlined
def _masked_bytes(inputs: PriceInputs, steps: Steps, op: int) -> float:
    """Bytes of the copies of a ragged product's operands, see ``ragged_products``."""
    facts, tables = inputs.facts.op, inputs.tables
    use = tables.use_ptr[op]
    left = ways(steps.wanted[tables.use_want[use]], inputs.axis_size)
    right = ways(steps.wanted[tables.use_want[use + 1]], inputs.axis_size)
    return facts.masked_left[op] / left + facts.masked_right[op] / right


@inlined
def _vector_s(inputs: PriceInputs, steps: Steps, op: int, flops: float) -> float:
    """Seconds of a product in the vector unit, on top of those in the matrix unit."""
    facts, tables = inputs.facts, inputs.tables
    if facts.op.vector_use[op] < 0:
        return 0.0
    wanted = steps.wanted[tables.use_want[tables.use_ptr[op] + facts.op.vector_use[op]]]
    rows = local_size(
        facts.op.vector_rows[op], facts.op.vector_row_dim[op], wanted, inputs.axis_size
    )
    return vector_traffic(0.5 * flops, rows) / inputs.rates.product_bytes_per_s

"""A product that runs piece by piece beside a collective (see ``collective_matmul``)."""

from __future__ import annotations

from toast_lab.cost.collective_matmul import (
    adding_bytes,
    cast_first,
    computed_first,
    cut_bytes,
    is_looped,
    kernels_of,
    only_dim,
    passed_on_s,
    ring_size,
    scattering_row,
    waited_bytes,
    written_far_bytes,
)
from toast_lab.cost.device_parts import used_bytes
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.kernels import helper
from toast_lab.machines.topology import HOPS, LATENCY
from toast_lab.sharding.steps import Steps, local_size, ways

#: Share of operands as large as ``near_bytes`` that are not in vector memory after all.
MISSED_AT_MOST = 0.5
#: This many times ``near_bytes`` may be brought to vector memory for a moment.
VECTOR_SHARES = 2.0
#: A transposing copy that is written to vector memory takes this share of the time of one in
#: memory.
TURNED_INTO_VECTOR_MEMORY = 0.5


@helper
def price_ring(
    inputs: PriceInputs,
    steps: Steps,
    row: int,
    n_steps: int,
    multiplying_s: float,
    left_far: float,
    left_near: float,
    right_far: float,
    right_near: float,
) -> tuple[int, float, float, float]:
    """Price a product that runs piece by piece beside a collective.

    Gives the collective's row (-1: the product does not run so), the number of pieces, the seconds
    of the kernels, and those in which they wait for pieces. ``multiplying_s`` is for one round; the
    arguments after it are the bytes of each operand that are read from memory and from vector
    memory.
    """
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    op = steps.op[row]
    ring_row = scattering_row(steps, row, n_steps, axis_size)
    if ring_row < 0:
        return -1, 1.0, 0.0, 0.0
    axes = steps.axes[ring_row]
    pieces = ring_size(axes, axis_size)
    piece_bytes = steps.in_bytes[ring_row] / pieces
    dim = only_dim(steps.after[ring_row], axes, axis_size)
    if (
        pieces < rates.ring_devices
        or dim < facts.op.ring_batch_dims[op]
        or piece_bytes > multiplying_s * rates.ring_bytes_per_s
    ):
        return -1, 1.0, 0.0, 0.0
    pairs = 0.5 * pieces
    value = tables.result[tables.result_ptr[op]]
    numbers = facts.op.ring_numbers[op] / ways(steps.before[ring_row], axis_size)
    number_bytes = facts.value.bytes[value] / facts.op.ring_numbers[op]
    # Each pair of pieces reads its part of one operand, and all of the other: every second pair
    # finds that in vector memory, where it was brought meanwhile.
    is_left = dim < facts.op.ring_left_dims[op]
    in_loop = is_looped(pieces)
    left_use = tables.use_ptr[op]
    left_first, left_far, left_near = _as_pieces_read(
        inputs,
        steps,
        left_use,
        left_far,
        left_near,
        facts.op.ring_left_cast[op],
        facts.op.ring_left_inside[op] and (is_left or in_loop),
    )
    right_first, right_far, right_near = _as_pieces_read(
        inputs,
        steps,
        left_use + 1,
        right_far,
        right_near,
        facts.op.ring_right_cast[op],
        facts.op.ring_right_inside[op] and (not is_left or in_loop),
    )
    first_bytes = left_first + right_first
    if is_left and not in_loop:
        outer_rows = 1.0
        for outer_dim in range(dim):
            size = facts.dim_size[tables.shape_ptr[value] + outer_dim]
            outer_rows *= local_size(size, outer_dim, steps.before[ring_row], axis_size)
        left_own, left_number_bytes = used_bytes(inputs, steps, left_use)
        first_bytes += cut_bytes(left_own, left_number_bytes, outer_rows)
    first_s = first_bytes / rates.product_bytes_per_s
    far, near = (left_far, left_near) if is_left else (right_far, right_near)
    whole_far, whole_near = (right_far, right_near) if is_left else (left_far, left_near)
    written = written_far_bytes(numbers / pieces, number_bytes, rates.near_bytes)
    far += numbers * (waited_bytes(number_bytes) + written)
    product_s = 0.0
    for turn in range(2):
        if turn == 1 and whole_far < VECTOR_SHARES * rates.near_bytes:
            whole_far, whole_near = 0.0, whole_far + whole_near
        traffic_s = (far + pairs * whole_far) / rates.product_bytes_per_s
        near_s = (near + pairs * whole_near) / rates.near_bytes_per_s
        product_s += 0.5 * max(multiplying_s, traffic_s, near_s)
    adding_s = adding_bytes(numbers, number_bytes, pieces, rates.near_bytes)
    adding_s = adding_s / rates.product_bytes_per_s + kernels_of(pieces) * rates.op_overhead_s
    starts_s = (pairs - 1.0) * rates.op_overhead_s
    hop_s = rates.link_shape[:, LATENCY] * rates.link_shape[:, HOPS]
    passing_s = passed_on_s(piece_bytes, axes, rates.ring_bytes_per_s, hop_s)
    waiting_s = pairs * max(0.0, passing_s - product_s / pairs)
    turning_s = 0.0
    if in_loop:
        wanted = steps.wanted[tables.use_want[tables.use_ptr[op]]]
        turned = facts.op.ring_turned[op] / ways(wanted, axis_size)
        turning_s = turned / rates.transposed_numbers_per_s
        if left_far <= 0.0:
            # Within vector memory the copy takes no time, but the larger the operand is, the less
            # often it is there.
            turning_s *= MISSED_AT_MOST * left_near / rates.near_bytes
        elif left_far <= VECTOR_SHARES * rates.near_bytes:
            turning_s *= TURNED_INTO_VECTOR_MEMORY
    product_s += first_s + turning_s
    return ring_row, pieces, product_s + adding_s + starts_s, waiting_s


@helper
def _as_pieces_read(
    inputs: PriceInputs,
    steps: Steps,
    use: int,
    far: float,
    near: float,
    cast: float,
    is_inside: bool,
) -> tuple[float, float, float]:
    """Bytes of preparing an operand in front of the pieces, and those that the pieces read of it.

    The latter are in memory and in vector memory, like ``far`` and ``near``, which the product
    would read if it were not in pieces. ``cast`` is the ratio of the operand's bytes to those of
    what it is cast from.
    """
    near_bytes = inputs.rates.near_bytes
    if not is_inside:
        return cast_first(far, near, cast, near_bytes)
    operand_bytes, number_bytes = used_bytes(inputs, steps, use)
    return computed_first(far, near, operand_bytes, number_bytes, near_bytes)

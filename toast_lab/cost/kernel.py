"""The compiled cost kernel: device-local steps -> times, buffers and peak memory.

Compute is a roofline: the larger of flops over peak and bytes over bandwidth; ``tiles`` says how
much of the peak small shards of a product reach.  Which values are never written is ``fusion``'s
matter, what a TPU holds and sends at half width ``bfloat16``'s.  Views (reshape, broadcast) are
aliases.  Values made of constants alone cost nothing: XLA folds or fuses them.

Memory is a live range analysis over program order: arguments (those that are not donated live
throughout), written values from their definition to their last use, copies that collectives bring
until their last use, the whole result before a reduce_scatter or a sum over devices, a broadcast
that is written down for an op which takes its operands as they are, and in-place reuse of an
operand that dies in an elementwise op.  On TPUs that have the room, small values which are needed
soon stay in vector memory and take none.

Loops and conditionals: an op counts as often as it runs (``Program.trips``), what is done to a
value where it enters a loop as often as the loop's body does, and a sum over devices of what a loop
only adds up once, where the compiler moves it behind the loop; what a loop reads from outside
lives until the loop ends; what it hands on unchanged is the very buffer that came in.
Slices and gathers read no more than they deliver, and updates in place write no more than they
bring, or a loop over stacked layers would read all of them in every round.

Every formula stands here once.  ``price`` runs these functions over the whole program, a search
over the folded one (``fold``, ``reprice``), and a property test holds the two together.  To change
one:

* what a step takes, reads or writes, and what it holds in memory while it runs: ``price_steps``.
  It may look at all of ``ProgramFacts`` and ``Tables`` and at the layouts, but only at the op's
  own operands (and the values in whose memory they are), of its results and of its row of the
  state.  Whatever else a price depended on, ``fold`` and ``reprice`` would not know.
* something new that it needs to know of an op, a use or a value: a field of ``OpFacts``,
  ``UseFacts`` or ``ValueFacts``, filled by ``make_static``.  Ops that differ in it are told apart
  from then on, nothing else has to be done.  No fact may be an index: it would differ in every
  layer, and nothing would be folded.
* what is known better than by rule: an entry of ``ListedTimes``, which stands in place of it.
* how long things live: ``live_bytes``, and ``Memory`` for what does not depend on the plan.  What
  a plan decides with, ``folded_ranges`` has to tell apart.
* what overlaps with what: ``clocks``, for whole programs only.

Reference: TOAST section 4.5.  We price memory-bound ops too unless ``paper_mode`` is asked for:
free gathers and elementwise ops are a known way for a search to be fooled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.collective_matmul import (
    HELD_PIECES,
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
from toast_lab.cost.combined_sums import COMBINED_BYTES
from toast_lab.cost.few_images import OVERLAP, are_few
from toast_lab.cost.live_ranges import LiveRanges, needed_until
from toast_lab.cost.loop_casts import CAST as LOOP_CAST
from toast_lab.cost.loop_casts import READ as LOOP_CAST_READ
from toast_lab.cost.loop_residents import SHARE as RESIDENT_SHARE
from toast_lab.cost.matrix_tiles import (
    BATCH,
    CONTRACTED,
    FREE,
    ROLE_BITS,
    VECTOR_BYTES,
    busy,
    image_padding,
    lane_padding,
    sublane_padding,
    waves_busy,
    weights_busy,
    windowed_bytes,
)
from toast_lab.cost.memory_tiles import tile_padding
from toast_lab.cost.program_facts import NEAR_PRODUCTS, Memory, ProgramFacts
from toast_lab.cost.row_layouts import row_padding, slice_padding
from toast_lab.ir import program as p
from toast_lab.kernels import compiled, helper
from toast_lab.machines.collectives import collective_time_s
from toast_lab.machines.topology import HOPS
from toast_lab.packs import (
    BoolArray,
    Float64Array,
    Float64Matrix,
    Int8Array,
    Int32Array,
    Int64Array,
    packed,
)
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    COMPUTE,
    PERMUTE,
    REDUCE_SCATTER,
    SLICE,
)
from toast_lab.sharding.steps import (
    LAYOUT_BITS,
    Steps,
    Tables,
    cut_dims,
    is_spread,
    layout_dim,
    local_size,
    ways,
)

#: Of a GPU's memory: what XLA's scheduler lets be alive for the sake of order.
WAITING_SHARE = 0.8
#: Of vector memory, for all values that are there at once: libtpu keeps 16 of 128 MiB for kernels.
ROOM_SHARE = 0.875
#: Of vector memory, which a value may take to be there. By libtpu 0.0.42.1 for v5e, in four steps,
#: 6 in 7 results of kernels were there of less than 8 MiB, half from 32 MiB, a quarter from 64 MiB.
NEAR_SHARE = 0.25
MISSED_AT_MOST = 0.5  #: share of those of just that size that are not there
VECTOR_SHARES = 2.0  #: As many of these are what may be brought there for a moment.
#: A transposing copy that is written there takes this share of one in memory.
TURNED_INTO_VECTOR_MEMORY = 0.5
#: Smallest kernel of a single op that takes longer than its traffic, in numbers; and the share of
#: the memory's rate that it reaches then.  libtpu 0.0.42.1 passes 2^17 numbers at a time through
#: such a kernel, and what fits into few passes is no slower.
UNFUSED_FROM = 2.0**19
UNFUSED_SHARE = 0.95
#: At which products read vector memory. By libtpu 0.0.42.1 8 to 32 rows take 8.7 to 9.5 us for a
#: bfloat16 matrix of 4096 squared there, on v5e and v6e alike.
NEAR_BYTES_PER_S = 3.8e12


@packed
class MachineRates(NamedTuple):
    """A machine as numbers."""

    memory_bytes_per_s: float
    product_bytes_per_s: float  #: of memory traffic that products reach
    link_bytes_per_s: Float64Array  #: [A] for each mesh axis
    link_latency_s: Float64Array  #: [A]
    switched: BoolArray  #: [A] bool
    link_shape: Float64Matrix  #: [A, N_COLUMNS], see topology.HOPS
    op_overhead_s: float
    paper_mode: bool
    tile: float  #: side of the matrix unit's array, 0: any size is as good
    multiprocessors: float  #: of a GPU, 0: products do not come in waves; see ``GpuProducts``
    sustained: float
    product_start_s: float
    #: Of memory: products wait behind others, see ``Memory``, as long as not more is alive
    waiting_room_bytes: float
    near_bytes: float  #: most that a value in vector memory takes, 0: there is none
    near_room_bytes: float  #: of vector memory, for all values in it
    ring_devices: float  #: smallest group for ``collective_matmul``, 0: there is none
    ring_bytes_per_s: float  #: that a device sends one way around a ring
    near_bytes_per_s: float  #: at which products read vector memory
    transposed_numbers_per_s: float  #: that a transposing copy in memory takes
    unfused_numbers_per_s: float  #: that a kernel of a single op takes beside its traffic
    vector_steps_per_s: float  #: of the vector unit, see ``vector_work``
    #: share of a gather that runs beside earlier products, as far as the op that needs it computes
    gathered_ahead: float
    ahead_of: float  #: that many times what the op computes can hide it: once; inf, for bounds


@packed
class ListedTimes(NamedTuple):
    """Times that are known better than by rule: ``E`` entries, found by op and ``step_code``.

    The entries of an op stand in a row.  See ``price_list`` for where they come from.
    """

    begin: Int32Array  #: [O] first entry of each op ...
    end: Int32Array  #: [O] ... and the one after its last
    code: Int64Array  #: [E] see ``step_code``
    time_s: Float64Array  #: [E] of one step, trips of loops included
    compute_scale: float  #: what the rules' times of computing are multiplied by
    moving_scale: float  #: what those of collectives are


def no_listed_times(n_ops: int) -> ListedTimes:
    """A list without entries."""
    none = np.zeros(n_ops, np.int32)
    return ListedTimes(
        begin=none,
        end=none,
        code=np.zeros(0, np.int64),
        time_s=np.zeros(0),
        compute_scale=1.0,
        moving_scale=1.0,
    )


@packed
class Prices(NamedTuple):
    """What the steps of a state cost, by op and by use; arrays that the kernel fills."""

    op_time_s: Float64Array  #: [O] compute and collectives of the op's steps
    copied: Int8Array  #: [U] int8 how a use gets its value: AS_KEPT, BROUGHT or REUSED
    #: [U] what a use that is BROUGHT its value adds to memory until the copy's last use
    copy_bytes: Float64Array
    passing_bytes: Float64Array  #: [O] what is in memory at the op alone
    #: [O] int8 1: what the op computes is summed over devices; where products may wait for that
    summed: Int8Array


AS_KEPT, BROUGHT, REUSED = range(3)
#: Bytes that are in memory; that vector memory may do for; that could lie in the place of a result
#: of the program; and of such results themselves.
IN_MEMORY, NEAR, SMALL, RESULTS = range(4)


@packed
class StepPrices(NamedTuple):
    """What each step costs; scratch of the kernel."""

    time_s: Float64Array  #: [S]
    flops: Float64Array  #: [S]
    bytes: Float64Array  #: [S] read and written
    times: Float64Array  #: [S] how often it runs
    entry: Int32Array  #: [S] entry of ``ListedTimes`` that the time is from, -1: the rule
    ahead_s: Float64Array  #: [S] what of it, in its turn, may run beside earlier products


def step_prices(rows: int) -> StepPrices:
    """Scratch for ``rows`` steps."""
    return StepPrices(
        time_s=np.zeros(rows),
        flops=np.zeros(rows),
        bytes=np.zeros(rows),
        times=np.ones(rows),
        entry=np.full(rows, -1, np.int32),
        ahead_s=np.zeros(rows),
    )


def prices(tables: Tables) -> Prices:
    """Arrays for the prices of a program."""
    n_ops, n_uses = len(tables.op_row), len(tables.use_value)
    return Prices(
        op_time_s=np.zeros(n_ops),
        copied=np.zeros(n_uses, np.int8),
        copy_bytes=np.zeros(n_uses),
        passing_bytes=np.zeros(n_ops),
        summed=np.zeros(n_ops, np.int8),
    )


@packed
class PriceInputs(NamedTuple):
    """A program on a mesh of a machine: all that prices depend on beside the plan.

    Op by op, or folded (``fold``): ``O'`` ops, each of which stands for ``times`` ops.
    """

    tables: Tables
    facts: ProgramFacts
    memory: Memory
    ranges: LiveRanges
    times: Float64Array  #: [O'] how many ops each one stands for
    rates: MachineRates
    axis_size: Int64Array  #: [A]
    listed: ListedTimes


@packed
class Lifetimes(NamedTuple):
    """How long things live under a plan; arrays that the kernel fills.

    ``P`` places at which is asked what is in memory, see ``LiveRanges``.
    """

    size: Float64Array  #: [V] bytes of each value as it is kept
    waiting: Int8Array  #: [1] int8 1: products wait, see ``Memory.buffer_read_late``
    last: Int32Array  #: [C] last op at which a copy is needed
    live: Float64Array  #: [P + 1] bytes in memory at each place
    near: Float64Array  #: [P + 1] bytes that are alive as well, in vector memory
    #: [P + 1, 4] what comes and goes at each place, see ``IN_MEMORY`` and the others
    change: Float64Matrix
    reserved: Float64Array  #: [P + 1] bytes of the places of results that nothing uses yet


def lifetimes(inputs: PriceInputs) -> Lifetimes:
    """Arrays for the lifetimes of a program."""
    rows = inputs.ranges.n_places + 1
    return Lifetimes(
        size=np.empty(len(inputs.tables.value_op)),
        waiting=np.zeros(1, np.int8),
        last=np.empty(len(inputs.ranges.copy_use), np.int32),
        live=np.empty(rows),
        near=np.empty(rows),
        change=np.empty((rows, 4)),
        reserved=np.empty(rows),
    )


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

    ``steps`` are those of ``ops``, of the program itself or of its folded form.  Writes ``each``
    (rows of steps) and the rows of ``ops`` and of their uses in ``prices``.  What is read here of
    ops, uses and values must be in ``Tables`` or ``ProgramFacts``: ops that differ in these are
    told apart when a program is folded.
    """
    facts, rates, tables, axis_size = inputs.facts, inputs.rates, inputs.tables, inputs.axis_size
    n_axes = axis_size.shape[0]
    all_devices = ring_size((1 << n_axes) - 1, axis_size)
    beside_row, beside_s, beside_pieces = -1, 0.0, 1.0
    for op in ops:
        prices.op_time_s[op] = 0.0
        prices.passing_bytes[op] = 0.0
        prices.summed[op] = 0
        for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
            copied_by = steps.copy[use]
            brought = copied_by >= 0 and steps.use[copied_by] == use
            prices.copied[use] = AS_KEPT if copied_by == -1 else BROUGHT if brought else REUSED
            prices.copy_bytes[use] = 0.0
    ahead_s = 0.0
    for row in range(n_steps):
        kind, op = steps.kind[row], steps.op[row]
        if row == 0 or steps.op[row - 1] != op:
            ahead_s = 0.0
        time_s = 0.0
        each.flops[row] = 0.0
        each.bytes[row] = 0.0
        each.times[row] = facts.op.trips[op]
        ring_row, ring_pieces, waiting_s = -1, 1.0, 0.0
        reordering_s = 0.0
        if kind == COMPUTE:
            if not facts.op.free[op]:
                if inputs.ranges.late_op > 0:
                    prices.summed[op] = int(_is_summed(facts, steps, row, n_steps))
                cut = 1.0
                for axis in range(n_axes):
                    if (steps.axes[row] >> axis) & 1:
                        cut *= axis_size[axis]
                op_class = facts.op.op_class[op]
                heavy = _is_heavy(facts, op)
                computes_near = heavy or op_class == p.ELEMENTWISE or op_class == p.REDUCE
                moved = 0.0
                result_bytes = 0.0
                written_bytes = 0.0
                filling_s = 0.0
                # Read of a product's operands, in memory and in vector memory
                left_far, left_near, right_far, right_near = 0.0, 0.0, 0.0, 0.0
                for place in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
                    value = tables.result[place]
                    if facts.value.written[value] or facts.op.slices[op]:
                        layout = _result_layout(steps, row, n_steps, value)
                        size = _kept_bytes(facts, value, layout, axis_size)
                        result_bytes += size
                        if (
                            facts.value.written[value]
                            and facts.op.brings[op] < 0
                            and not facts.op.carried[op]
                        ):
                            stays = 0.0 < facts.op.resident_parts[op] <= ways(layout, axis_size)
                            if not computes_near or not _is_near(facts, rates, value, size):
                                moved += RESIDENT_SHARE * size if stays else size
                            written_bytes += size
                for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
                    value = tables.use_value[use]
                    source = facts.root[use]
                    if facts.use.reads[use] > 0.0:
                        is_copy = steps.copy[use] != -1
                        layout = (
                            steps.wanted[tables.use_want[use]] if is_copy else steps.layout[value]
                        )
                        # A copy is as it was sent, whatever the value itself is kept in.
                        whole_bytes = (
                            facts.use.sent[use] * tables.value_bytes[value]
                            if is_copy
                            else facts.value.bytes[value]
                        )
                        piece_bytes = whole_bytes / ways(layout, axis_size)
                        source_bytes = _kept_bytes(facts, source, steps.layout[source], axis_size)
                        if facts.use.spread[use] and not is_copy:
                            prices.passing_bytes[op] += piece_bytes
                            padding = _padding(facts, value, layout, axis_size)
                            filling_s += _unfused_s(
                                rates,
                                padding * facts.value.numbers[value] / ways(layout, axis_size),
                                padding * piece_bytes,
                            )
                        if source == value:
                            piece_bytes *= _padding(facts, value, layout, axis_size)
                        if not is_copy:
                            piece_bytes = min(piece_bytes, source_bytes)
                        if facts.use.delivered[use]:
                            piece_bytes = min(piece_bytes, result_bytes)
                        parts = facts.use.resident_parts[use]
                        stays = not is_copy and 0.0 < parts <= ways(layout, axis_size)
                        # A product's operands come out of vector memory beside the multiplying.
                        held_bytes = piece_bytes if is_copy else source_bytes
                        read_bytes = facts.use.reads[use] * piece_bytes
                        if facts.use.cast_rounds[use] > 1.0 and not stays:
                            # A copy was sent in bfloat16 already.
                            read_bytes *= 1.0 if is_copy else LOOP_CAST_READ
                            moved += LOOP_CAST * source_bytes / facts.use.cast_rounds[use]
                        is_near = heavy and _is_near(facts, rates, source, held_bytes)
                        if not is_near:
                            share = facts.use.resident_share[use] if stays else 1.0
                            moved += read_bytes * share
                        if heavy:
                            # The copy that a cast in front of a loop makes stays where it is made.
                            cast = facts.use.sent[use] if stays else 1.0
                            near = cast * read_bytes if is_near or cast < 1.0 else 0.0
                            far = read_bytes if near == 0.0 else 0.0
                            if use == tables.use_ptr[op]:
                                left_far, left_near = far, near
                            else:
                                right_far, right_near = far, near
                    if use == tables.use_ptr[op] + facts.op.brings[op] and facts.op.brings[op] >= 0:
                        moved += _kept_bytes(
                            facts, value, steps.wanted[tables.use_want[use]], axis_size
                        )
                    if use == tables.use_ptr[op] + facts.op.sorts[op] and facts.op.sorts[op] >= 0:
                        prices.passing_bytes[op] += _kept_bytes(
                            facts, value, steps.wanted[tables.use_want[use]], axis_size
                        )
                if facts.op.slice_row_dim[op] >= 0:
                    moved *= slice_padding(
                        local_size(
                            facts.op.slice_rows[op],
                            facts.op.slice_row_dim[op],
                            _result_layout(
                                steps, row, n_steps, tables.result[tables.result_ptr[op]]
                            ),
                            axis_size,
                        )
                    )
                beside_bytes, waited_bytes, end_bytes = 0.0, 0.0, 0.0
                if facts.op.filled[op]:
                    value = tables.result[tables.result_ptr[op]]
                    layout = _result_layout(steps, row, n_steps, value)
                    size = _kept_bytes(facts, value, layout, axis_size)
                    numbers = facts.value.numbers[value] / facts.value.bytes[value] * size
                    # To write it is among what the op takes, and in vector memory that is all.
                    if size > rates.near_room_bytes:
                        filling_s += _unfused_s(rates, numbers, size)
                        filling_s -= size / rates.product_bytes_per_s
                if heavy and not rates.paper_mode:
                    value = tables.result[tables.result_ptr[op]]
                    product_parts = ways(_result_layout(steps, row, n_steps, value), axis_size)
                    if not _is_near(facts, rates, value, facts.value.bytes[value] / product_parts):
                        waited_bytes = facts.op.narrow_bytes[op] / product_parts
                    # What follows has to wait for a sum: it is a kernel of its own, which reads the
                    # result as it is behind the sum.
                    is_summed = _is_summed(facts, steps, row, n_steps)
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
                        beside_bytes = end_bytes
                    else:
                        moved += beside_bytes
                        beside_bytes = 0.0
                elif not heavy and facts.op.narrow_bytes[op] > 0.0:
                    use = tables.use_ptr[op]
                    waited_bytes = facts.op.narrow_bytes[op] / cut
                    waited_bytes *= _padding(
                        facts, tables.use_value[use], steps.wanted[tables.use_want[use]], axis_size
                    )
                flops = facts.op.flops[op] / cut
                each.flops[row] = flops
                each.bytes[row] = (moved + beside_bytes) * facts.op.trips[op]
                peak = facts.op.peak[op]
                tail_s, start_s, relaying_s = 0.0, rates.op_overhead_s, 0.0
                is_convolution = op_class == p.CONVOLUTION
                if (
                    (rates.tile > 0.0 or rates.multiprocessors > 0.0)
                    and (
                        (op_class == p.DOT and facts.op.rows[op] > 0.0)
                        or (is_convolution and rates.tile > 0.0)
                    )
                    and tables.use_ptr[op + 1] - tables.use_ptr[op] == 2
                ):
                    rows, columns, depth, batch = (
                        facts.op.rows[op],
                        facts.op.columns[op],
                        facts.op.depth[op],
                        facts.op.batch[op],
                    )
                    images = facts.op.images[op]
                    left = steps.wanted[tables.use_want[tables.use_ptr[op]]]
                    right = steps.wanted[tables.use_want[tables.use_ptr[op] + 1]]
                    for axis in range(n_axes):
                        dim = ((left >> (LAYOUT_BITS * axis)) & 31) - 1
                        if dim >= 0:
                            role = (facts.op.left[op] >> (ROLE_BITS * dim)) & 3
                            if role == FREE:
                                rows /= axis_size[axis]
                                if dim == 0:
                                    images /= axis_size[axis]
                            elif role == CONTRACTED:
                                depth /= axis_size[axis]
                            elif role == BATCH:
                                batch /= axis_size[axis]
                        dim = ((right >> (LAYOUT_BITS * axis)) & 31) - 1
                        if dim >= 0 and (facts.op.right[op] >> (ROLE_BITS * dim)) & 3 == FREE:
                            columns /= axis_size[axis]
                    if rates.multiprocessors > 0.0:
                        share = waves_busy(rows, columns, depth, batch, rates.multiprocessors)
                        peak *= share * rates.sustained
                        # The last tiles are written when there is nothing left to multiply.
                        tail_s = written_bytes * facts.op.trips[op] / rates.memory_bytes_per_s
                        start_s += rates.product_start_s
                    elif is_convolution:
                        padding = image_padding(images)
                        if are_few(local_size(facts.op.image_count[op], 0, left, axis_size)):
                            peak *= weights_busy(columns, depth, rates.tile) / OVERLAP
                            value = tables.result[tables.result_ptr[op]]
                            layout = _result_layout(steps, row, n_steps, value)
                            relaid = facts.op.relaid_left[op] / ways(left, axis_size)
                            relaid += facts.op.relaid_right[op] / ways(right, axis_size)
                            relaid += facts.op.relaid_result[op] / ways(layout, axis_size)
                            relaying_s = relaid / rates.transposed_numbers_per_s
                        else:
                            peak *= weights_busy(columns, depth, rates.tile) / padding
                        tail_s += (
                            facts.op.vector_bytes[op]
                            / cut
                            * facts.op.trips[op]
                            * padding
                            * lane_padding(batch, rates.tile)
                            / rates.product_bytes_per_s
                        )
                    else:
                        peak *= busy(rows, columns, depth, rates.tile)
                        left_bytes, right_bytes = left_far + left_near, right_far + right_near
                        if min(left_bytes, right_bytes) > rates.near_room_bytes > 0.0:
                            windowed = windowed_bytes(
                                left_bytes, right_bytes, rows, columns, depth, batch
                            )
                            tail_s += windowed * facts.op.trips[op] / rates.memory_bytes_per_s
                if facts.op.vector_use[op] >= 0:
                    wanted = steps.wanted[
                        tables.use_want[tables.use_ptr[op] + facts.op.vector_use[op]]
                    ]
                    rows = local_size(
                        facts.op.vector_rows[op], facts.op.vector_row_dim[op], wanted, axis_size
                    )
                    numbers = 0.5 * flops * sublane_padding(rows)
                    tail_s += numbers * VECTOR_BYTES / rates.product_bytes_per_s
                if heavy or not rates.paper_mode:
                    rate = rates.product_bytes_per_s
                    traffic_s = (moved + waited_bytes) * facts.op.trips[op] / rate
                    time_s = max(flops / peak + tail_s, traffic_s)
                    near_bytes = left_near + right_near
                    time_s = max(time_s, near_bytes * facts.op.trips[op] / rates.near_bytes_per_s)
                    if facts.op.vector_steps[op] > 0.0 and not rates.paper_mode:
                        vector_s = facts.op.vector_steps[op] / rates.vector_steps_per_s
                        vector_s -= facts.op.vector_read_bytes[op] / rate
                        time_s = max(time_s, vector_s / cut * facts.op.trips[op])
                    whole_axes = 0
                    if heavy and not rates.paper_mode:
                        whole_axes = _gathered_axes(steps, row, n_steps)
                        time_s *= ring_size(whole_axes, axis_size)
                    time_s += beside_bytes * facts.op.trips[op] / rate
                    if (
                        rates.ring_devices > 0.0
                        and whole_axes == 0
                        and all_devices > rates.ring_devices
                        and facts.op.ring_left_dims[op] >= 0
                    ):
                        ring_row, ring_pieces, ring_s, waiting_s = _ring(
                            inputs,
                            steps,
                            row,
                            n_steps,
                            flops / peak / facts.op.trips[op],
                            left_far,
                            left_near,
                            right_far,
                            right_near,
                        )
                        if ring_row >= 0:
                            # What follows the product is a kernel of its own.
                            time_s = (ring_s + end_bytes / rate) * facts.op.trips[op]
                    if facts.op.unfused_numbers[op] / cut > UNFUSED_FROM and not _cuts_out(
                        tables, steps, op, axis_size
                    ):
                        unfused_bytes = facts.op.unfused_bytes[op] / cut + waited_bytes
                        unfused_s = _unfused_s(
                            rates, facts.op.unfused_numbers[op] / cut, unfused_bytes
                        )
                        time_s = max(time_s, unfused_s * facts.op.trips[op])
                    time_s += (filling_s + relaying_s) * facts.op.trips[op]
                    if facts.op.starts[op]:
                        time_s += start_s * facts.op.trips[op]
        else:
            use = steps.use[row]
            # What is cast before it is summed is not scattered by the compilers that cast: as slow
            # as in full width.
            sent = (
                1.0
                if kind == REDUCE_SCATTER
                else facts.use.sent[use]
                if use >= 0
                else facts.value.moved[steps.value[row]]
            )
            each.bytes[row] = sent * max(steps.in_bytes[row], steps.out_bytes[row])
            # A sum of which each device adds up a part is made in every round.
            rounds = 0.0
            if kind == SLICE:
                rounds = (
                    facts.use.sum_rounds[use]
                    if use >= 0
                    else facts.op.result_trips[op] - facts.op.sum_trips[op]
                )
            collective_s = 0.0
            # No compiler of ours scatters a sum along two dims: it sums all, and each device cuts
            # its part out.
            sums_all = kind == SLICE or (
                kind == REDUCE_SCATTER
                and not rates.paper_mode
                and is_spread(steps.after[row], steps.axes[row], n_axes)
            )
            if kind == ALL_GATHER and is_spread(steps.before[row], steps.axes[row], n_axes):
                # The parts come one behind the other, and are put in order.
                value = steps.value[row]
                numbers = facts.value.numbers[value] / ways(steps.after[row], axis_size)
                reordering_s = numbers / rates.transposed_numbers_per_s
            moved_kind, moved_axes = kind, steps.axes[row]
            moved_bytes = steps.in_bytes[row]
            if use < 0 and not rates.paper_mode and _is_heavy(facts, op):
                whole_axes = _gathered_axes(steps, row, n_steps)
                if whole_axes and kind == REDUCE_SCATTER:
                    sums_all = True
                    moved_bytes *= ring_size(whole_axes, axis_size)
                elif whole_axes and kind == PERMUTE:
                    moved_kind, moved_axes = ALL_GATHER, whole_axes
                    moved_bytes = _cut_operand_bytes(inputs, steps, op, whole_axes)
            together = 1.0
            if use < 0 and not rates.paper_mode and (kind == ALL_REDUCE or sums_all):
                most = max(1.0, COMBINED_BYTES / max(1.0, sent * steps.in_bytes[row]))
                together = min(most, facts.op.sums_together[op])
            if kind != SLICE or rounds > 0.0:
                collective_s = collective_time_s(
                    ALL_REDUCE if sums_all else moved_kind,
                    moved_axes,
                    together * sent * moved_bytes,
                    axis_size,
                    rates.link_bytes_per_s,
                    rates.link_latency_s,
                    rates.switched,
                    rates.link_shape,
                )
                collective_s /= together
            if kind != SLICE:
                time_s = collective_s + reordering_s
            if use < 0:
                cut_after = cut_dims(steps.after[row], n_axes)
                moved_out = kind == ALL_REDUCE and cut_after & facts.op.sum_whole[op] == 0
                each.times[row] = facts.op.sum_trips[op] if moved_out else facts.op.result_trips[op]
            elif kind == SLICE and facts.use.cut_out[use]:
                # A product cannot begin to read where a device's part does: the part is cut out and
                # written down before.
                value = steps.value[row]
                kept = facts.value.bytes[value] / tables.value_bytes[value]
                each.bytes[row] = (kept + sent) * steps.out_bytes[row]
                time_s = each.bytes[row] / rates.memory_bytes_per_s
            if kind == SLICE and facts.value.compared[steps.value[row]] and not rates.paper_mode:
                # No part of it is made alone: all of it is written for each use that takes a part.
                whole_bytes = facts.value.bytes[steps.value[row]]
                each.bytes[row] = whole_bytes / ways(steps.before[row], axis_size)
                time_s = each.bytes[row] / rates.memory_bytes_per_s
            time_s = time_s * each.times[row] + rounds * collective_s
            # memory: a copy for uses lives until its last use; the input of a definition's reshard
            # only now
            if use < 0:
                # Sums are made in place, and a part of what a soft op gives is computed alone.
                if kind != ALL_REDUCE and (kind != SLICE or not facts.op.cuts[op]):
                    held = min(1.0, HELD_PIECES / beside_pieces) if row == beside_row else 1.0
                    prices.passing_bytes[op] += held * sent * steps.in_bytes[row]
            elif steps.copy[use] == row:
                prices.copy_bytes[use] = (
                    sent
                    * steps.out_bytes[row]
                    * _held_padding(inputs, steps.value[row], steps.after[row])
                )
            else:
                prices.passing_bytes[op] += sent * steps.out_bytes[row]
        each.entry[row] = -1
        computes = kind == COMPUTE or kind == SLICE
        time_s *= inputs.listed.compute_scale if computes else inputs.listed.moving_scale
        if inputs.listed.begin[op] < inputs.listed.end[op]:
            entry = _entry_of(inputs, steps, row, n_steps)
            each.entry[row] = entry
            if entry >= 0:
                time_s = inputs.listed.time_s[entry]
        if row == beside_row and each.entry[row] < 0:
            time_s = beside_s
        if ring_row >= 0:
            beside_row, beside_pieces = ring_row, ring_pieces
            beside_s = waiting_s * each.times[row] * inputs.listed.moving_scale
        each.ahead_s[row] = 0.0
        if _runs_ahead(inputs, steps, row) and each.entry[row] < 0:
            each.ahead_s[row] = time_s - reordering_s * each.times[row] * inputs.listed.moving_scale
            ahead_s += each.ahead_s[row]
        elif kind == COMPUTE and ahead_s > 0.0:
            hidden_s = rates.gathered_ahead * ahead_s
            if rates.ahead_of < np.inf:
                hidden_s = min(hidden_s, rates.ahead_of * time_s)
            before = row - 1
            while before >= 0 and steps.op[before] == op:
                each.time_s[before] -= hidden_s * each.ahead_s[before] / ahead_s
                before -= 1
            prices.op_time_s[op] -= hidden_s
        each.time_s[row] = time_s
        prices.op_time_s[op] += time_s


@helper
def _ring(
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
    """Run a product piece by piece beside a collective.

    Gives the collective's row, the number of pieces, the seconds of the kernels and those in which
    they wait for pieces.  Row -1: it is not done.  ``multiplying_s`` is of one round; what follows
    it are bytes that are read of the operands in memory and in vector memory.
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
    # Of one operand each pair of pieces reads its part, of the other all: every second pair what
    # was brought to vector memory meanwhile.
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
        outer = 1.0
        for before in range(dim):
            size = facts.dim_size[tables.shape_ptr[value] + before]
            outer *= local_size(size, before, steps.before[ring_row], axis_size)
        left_own, left_number_bytes = _used_bytes(inputs, steps, left_use)
        first_bytes += cut_bytes(left_own, left_number_bytes, outer)
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
    hop_s = rates.link_latency_s * rates.link_shape[:, HOPS]
    passing_s = passed_on_s(piece_bytes, axes, rates.ring_bytes_per_s, hop_s)
    waiting_s = pairs * max(0.0, passing_s - product_s / pairs)
    turning_s = 0.0
    if in_loop:
        wanted = steps.wanted[tables.use_want[tables.use_ptr[op]]]
        turned = facts.op.ring_turned[op] / ways(wanted, axis_size)
        turning_s = turned / rates.transposed_numbers_per_s
        if left_far <= 0.0:
            # The larger it is, the less often it is there: for no time from vector memory to itself
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
    """What an operand of a product in pieces takes in front of them, and where these read it.

    Of what the product itself would read, ``far`` in memory and ``near`` in vector memory; bytes
    all of them.  ``cast`` are those of the operand over those it is cast from.
    """
    near_bytes = inputs.rates.near_bytes
    if not is_inside:
        return cast_first(far, near, cast, near_bytes)
    own, number_bytes = _used_bytes(inputs, steps, use)
    return computed_first(far, near, own, number_bytes, near_bytes)


@helper
def _used_bytes(inputs: PriceInputs, steps: Steps, use: int) -> tuple[float, float]:
    """Bytes of a device's part of what a use reads, and of each of its numbers."""
    value, tables = inputs.facts.value, inputs.tables
    used = tables.use_value[use]
    parts = ways(steps.wanted[tables.use_want[use]], inputs.axis_size)
    return value.bytes[used] / parts, value.bytes[used] / value.numbers[used]


@helper
def _kept_bytes(facts: ProgramFacts, value: int, layout: int, axis_size: Int64Array) -> float:
    """Bytes in memory of a device's part of a value."""
    part_bytes = facts.value.bytes[value] / ways(layout, axis_size)
    return part_bytes * _padding(facts, value, layout, axis_size)


@helper
def _held_bytes(inputs: PriceInputs, value: int, layout: int) -> float:
    """Bytes of memory that a device's part of a value takes, in whole tiles."""
    part_bytes = inputs.facts.value.bytes[value] / ways(layout, inputs.axis_size)
    return part_bytes * _held_padding(inputs, value, layout)


@helper
def _held_padding(inputs: PriceInputs, value: int, layout: int) -> float:
    """By how much a part is larger in memory: rows that gathers need, or tiles that it leaves."""
    facts, shape_ptr = inputs.facts, inputs.tables.shape_ptr
    padding = _padding(facts, value, layout, inputs.axis_size)
    if inputs.rates.tile == 0.0:
        return padding
    tiles = tile_padding(
        facts.dim_size, shape_ptr[value], shape_ptr[value + 1], layout, inputs.axis_size
    )
    return max(padding, tiles)


@helper
def _cuts_out(tables: Tables, steps: Steps, op: int, axis_size: Int64Array) -> bool:
    """Does an op take a device's part of what is there as a whole?"""
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        kept = steps.layout[tables.use_value[use]]
        if ways(steps.wanted[tables.use_want[use]], axis_size) > ways(kept, axis_size):
            return True
    return False


@helper
def _unfused_s(rates: MachineRates, numbers: float, size: float) -> float:
    """Of a kernel of a single op, or one that fills memory, with ``size`` bytes of traffic."""
    if numbers <= UNFUSED_FROM:
        return size / rates.product_bytes_per_s
    traffic_s = size / (UNFUSED_SHARE * rates.memory_bytes_per_s)
    return numbers / rates.unfused_numbers_per_s + traffic_s


@helper
def _is_near(facts: ProgramFacts, rates: MachineRates, value: int, size: float) -> bool:
    """Is a device's part of a value, of ``size`` bytes, in vector memory?"""
    return facts.value.may_be_near[value] and size <= rates.near_bytes


@helper
def _padding(facts: ProgramFacts, value: int, layout: int, axis_size: Int64Array) -> float:
    """By how much a device's part of a value is larger in memory than its numbers are."""
    return row_padding(facts.value.row_dim[value], facts.value.row_size[value], layout, axis_size)


@helper
def _entry_of(inputs: PriceInputs, steps: Steps, row: int, n_steps: int) -> int:
    """Entry of the list for a step, -1 if there is none."""
    listed, op = inputs.listed, steps.op[row]
    code = step_code(inputs, steps, row, n_steps)
    for entry in range(listed.begin[op], listed.end[op]):
        if listed.code[entry] == code:
            return entry
    return -1


@helper
def step_code(inputs: PriceInputs, steps: Steps, row: int, n_steps: int) -> int:
    """63 bits for what, beside its op, decides the time of a step.

    Of computing these are the layouts in which operands are read and results written, of a step
    that moves a value its kind, the layouts before and after, and for which use or result it is.
    The same for all ops of a class, folded or not.
    """
    tables, op, kind = inputs.tables, steps.op[row], steps.kind[row]
    code = _mixed(kind, steps.axes[row])
    if kind == COMPUTE:
        return _computing_code(inputs, steps, row, n_steps, code)
    if _runs_ahead(inputs, steps, row):
        following = row
        while following < n_steps and steps.kind[following] != COMPUTE:
            following += 1
        code = _computing_code(inputs, steps, following, n_steps, code)
    place = -1 - steps.use[row] + tables.use_ptr[op]
    if steps.use[row] < 0:
        place = 0
        for result in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
            if tables.result[result] == steps.value[row]:
                place = result - tables.result_ptr[op]
    return _mixed(_mixed(_mixed(code, steps.before[row]), steps.after[row]), place)


@helper
def _computing_code(
    inputs: PriceInputs, steps: Steps, row: int, n_steps: int, begin_with: int
) -> int:
    """``step_code`` of the computing of an op, which the step ``row`` is."""
    tables, op, code = inputs.tables, steps.op[row], begin_with
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        code = _mixed(code, steps.wanted[tables.use_want[use]])
        # A view is read where it is, unless it was brought here.
        if steps.copy[use] == -1:
            code = _mixed(code, 1 + steps.layout[inputs.facts.root[use]])
    is_summed = _is_summed(inputs.facts, steps, row, n_steps)
    for place in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        result = tables.result[place]
        code = _mixed(code, _result_layout(steps, row, n_steps, result))
        if is_summed:
            code = _mixed(code, steps.layout[result])
    return code


@helper
def _runs_ahead(inputs: PriceInputs, steps: Steps, row: int) -> bool:
    """Does a step gather what was there long before, so that it runs beside earlier products?"""
    use = steps.use[row]
    if steps.kind[row] != ALL_GATHER or use < 0:
        return False
    return inputs.rates.gathered_ahead > 0.0 and inputs.facts.use.ahead[use]


@helper
def _mixed(code: int, more: int) -> int:
    """A hash of both, not negative; products wrap around."""
    code = (code ^ (more * 0x2545F4914F6CDD1D)) * 0x369DEA0F31A53F85
    return (code ^ (code >> 29)) & 0x7FFFFFFFFFFFFFFF


@compiled
def step_codes(inputs: PriceInputs, steps: Steps, n_steps: int, codes: Int64Array) -> None:
    """Fill ``codes[S]`` with the ``step_code`` of each step."""
    for row in range(n_steps):
        codes[row] = step_code(inputs, steps, row, n_steps)


@helper
def _result_layout(steps: Steps, row: int, n_steps: int, value: int) -> int:
    """Layout in which the op writes a result: before its reshard if one follows, else as kept."""
    op = steps.op[row]
    following = row + 1
    while following < n_steps and steps.op[following] == op and steps.use[following] < 0:
        if steps.value[following] == value:
            return steps.before[following]
        following += 1
    return steps.layout[value]


@helper
def _is_heavy(facts: ProgramFacts, op: int) -> bool:
    return facts.op.op_class[op] == p.DOT or facts.op.op_class[op] == p.CONVOLUTION


@helper
def _gathered_axes(steps: Steps, row: int, n_steps: int) -> int:
    """Axes over which a product's operand is gathered, as its sum would be scattered out of order.

    A dim that one axis cuts, and which a sum is to be scattered along over another axis that comes
    before it, cannot be scattered as it lies.  We exchange parts behind it; XLA's partitioner makes
    the dim whole instead: it gathers the operand, multiplies all of it on every device, sums that,
    and lets each device cut its part out.  The same for the steps of the product, its scattered sum
    and the exchange, wherever ``row`` is among them; 0: nothing of the kind.
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
def _cut_operand_bytes(inputs: PriceInputs, steps: Steps, op: int, axes: int) -> float:
    """Bytes of a device's part of the first operand that any of these axes cuts."""
    tables, axis_size = inputs.tables, inputs.axis_size
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        wanted = steps.wanted[tables.use_want[use]]
        for axis in range(axis_size.shape[0]):
            if (axes >> axis) & 1 and layout_dim(wanted, axis) >= 0:
                whole_bytes = inputs.facts.value.bytes[tables.use_value[use]]
                return whole_bytes / ways(wanted, axis_size)
    return 0.0


@helper
def _is_summed(facts: ProgramFacts, steps: Steps, row: int, n_steps: int) -> bool:
    """Is the result of a computing step summed over devices before anything reads it?"""
    following = row + 1
    if facts.op.sum_trips[steps.op[row]] < facts.op.result_trips[steps.op[row]]:
        return False  # behind the loop
    while following < n_steps and steps.op[following] == steps.op[row] and steps.use[following] < 0:
        kind = steps.kind[following]
        if kind == ALL_REDUCE or kind == REDUCE_SCATTER:
            return True
        following += 1
    return False


@compiled
def clocks(
    tables: Tables, steps: Steps, n_steps: int, time_s: Float64Array, start_s: Float64Array
) -> tuple[float, float, float]:
    """(compute_s, comm_s, overlapped_s) of all steps of a program in order.

    Overlapped: collectives run beside compute, one after the other, and everything waits for what
    it needs.  ``start_s`` is filled with when each step then starts.
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
            for place in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
                ready[tables.result[place]] = op_ready
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
        lives.size[value] = _held_bytes(inputs, value, steps.layout[value])
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

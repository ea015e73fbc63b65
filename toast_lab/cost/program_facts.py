"""What prices know of a program on a machine before there is a plan.

Facts of ops, uses and values, and live ranges.

Worked out once per program: which values are fused away, which are views of another's memory, what
is read in part only, and from when to when everything that is written has to be kept.

Reference: TOAST section 4.5.  Start reading at ``make_static``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.bfloat16 import bfloat16_factors, no_factors, widened_factors
from toast_lab.cost.fusion import STYLES, Fusion, fuse
from toast_lab.cost.gpu_passes import gpu_passes
from toast_lab.cost.loop_residents import Residents, no_residents, residents
from toast_lab.cost.loop_sums import accumulating_ops, result_trips, sums_in_loops
from toast_lab.cost.matrix_tiles import products
from toast_lab.cost.tpu_kernels import other_kernels, tpu_kernels
from toast_lab.cost.value_roots import value_roots
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind, ops_where
from toast_lab.packs import BoolArray, Float64Array, Int32Array, Int64Array, packed
from toast_lab.sharding.steps import Tables

#: Products that may run while a value stays in vector memory: what is needed later still goes to
#: memory and comes back.  The forward pass keeps for the backward pass in memory.
NEAR_PRODUCTS = 8
#: How often memory could bring the value while these run.  Where libtpu 0.0.42 leaves values of
#: 8 MiB and more in vector memory it could up to 26 times, and 40 times and more where it does not
#: (``llama`` for v6e).
NEAR_ROUNDS = 30.0
#: Of the numbers of an op's largest operand: less than this is no traffic.
SMALL_SHARE = 1.0 / 64.0


@packed
class OpFacts(NamedTuple):
    """What prices may know of each op apart from the plan.

    Ops that differ here are never folded into one.
    """

    flops: Float64Array  #: [O] whole op, times trips
    peak: Float64Array  #: [O] FLOP/s of the op's element type
    trips: Float64Array  #: [O] how often it runs
    result_trips: Float64Array  #: [O] how often its results come about: see ``loop_sums``
    sum_trips: Float64Array  #: [O] how often they are summed over devices: see ``loop_sums``
    sum_whole: Int64Array  #: [O] dims that must be whole for that, a bit each
    #: [O] how many sums are made at once with that of its results, see ``combined_sums``
    sums_together: Float64Array
    op_class: Int32Array  #: [O]
    free: BoolArray  #: [O] bool: op costs nothing (constants, views, arguments)
    slices: BoolArray  #: [O] bool: reads no more of its first operand than it delivers
    #: [O] position of the operand whose size is what the op writes, -1: its whole result
    brings: Int32Array
    #: [O] position of the operand that is put in order first, in a copy of its own, -1: none
    sorts: Int32Array
    starts: BoolArray  #: [O] bool: a kernel of its own, which takes time to start
    cuts: BoolArray  #: [O] bool: a local slice of its result is all that it computes
    rows: Float64Array  #: [O] float64 these eight: see ``matrix_tiles.Products``
    columns: Float64Array
    depth: Float64Array
    batch: Float64Array
    left: Int64Array
    right: Int64Array
    images: Float64Array
    vector_bytes: Float64Array
    image_count: Float64Array  #: [O] these four: see ``few_images.FewImages``
    relaid_left: Float64Array
    relaid_right: Float64Array
    relaid_result: Float64Array
    waits: BoolArray  #: [O] bool: no product is computed of it, see ``Fusion.waits``
    carried: BoolArray  #: [O] bool: written by the kernel of the product before it
    #: [O] bytes that a product's kernel reads and writes on the way out, see ``epilogues``: of
    #: arguments and results of the program ...
    far_bytes: Float64Array
    near_bytes: Float64Array  #: [O] ... of values that may be in vector memory ...
    widest_bytes: Float64Array  #: [O] ... and the most that one of these has
    #: [O] bytes for which a kernel takes longer that writes nothing of four bytes a number
    narrow_bytes: Float64Array
    resident_parts: Float64Array  #: [O] of what it writes, see ``loop_residents``
    vector_use: Int32Array  #: [O] these three: see ``matrix_tiles.VectorProducts``
    vector_row_dim: Int32Array
    vector_rows: Float64Array
    slice_row_dim: Int32Array  #: [O] these two: see ``row_layouts.SliceRows``
    slice_rows: Float64Array
    ring_batch_dims: Int32Array  #: [O] these eight: see ``collective_matmul.RingFacts``
    ring_left_dims: Int32Array
    ring_numbers: Float64Array
    ring_turned: Float64Array
    ring_left_cast: Float64Array
    ring_right_cast: Float64Array
    ring_left_inside: BoolArray
    ring_right_inside: BoolArray
    unfused_numbers: Float64Array  #: [O] of a kernel of this op alone; 0: something shares it
    unfused_bytes: Float64Array  #: [O] that it reads and writes
    filled: BoolArray  #: [O] bool: a constant is written down for it to update
    vector_steps: Float64Array  #: [O] these two: see ``vector_work.VectorWork``
    vector_read_bytes: Float64Array


@packed
class UseFacts(NamedTuple):
    """What prices may know of each use."""

    reads: Float64Array  #: [U] float64 how often it reads memory: 0 if fused or updated in place
    delivered: BoolArray  #: [U] bool: reads no more than the op's result
    #: [U] float64 factor on the bytes of collectives that bring the value here, see ``bfloat16``
    sent: Float64Array
    cut_out: BoolArray  #: [U] bool: a part of the value is written down before it is read
    spread: BoolArray  #: [U] bool: a broadcast value is written down before it is read
    ahead: BoolArray  #: [U] bool: a product runs between where the value is made and the use
    #: [U] float64 rounds more in which it is summed if only a part is used: see ``loop_sums``
    sum_rounds: Float64Array
    resident_parts: Float64Array  #: [U] these two: see ``loop_residents``
    resident_share: Float64Array
    #: [U] float64 rounds of the loop in front of which it is cast, 0: it is not; see ``loop_casts``
    cast_rounds: Float64Array


@packed
class ValueFacts(NamedTuple):
    """What prices may know of each value."""

    bytes: Float64Array  #: [V] float64
    numbers: Float64Array  #: [V] float64
    written: BoolArray  #: [V] bool: the value is in memory (not fused away, not a view)
    #: [V] float64 factor on the bytes of collectives where the value is made, see ``bfloat16``
    moved: Float64Array
    may_be_near: BoolArray  #: [V] bool: neither argument nor result, so that vector memory may do
    row_dim: Int32Array  #: [V] dim along the lanes of memory, -1: any, see ``row_layouts``
    row_size: Float64Array  #: [V] its size
    compared: BoolArray  #: [V] bool: made by comparing places, see ``Fusion.compared``


@packed
class ProgramFacts(NamedTuple):
    """A program on a machine apart from the plan, op by op or folded.

    Only ``root`` holds indices.
    """

    op: OpFacts
    use: UseFacts
    value: ValueFacts
    root: Int32Array  #: [U] value in whose memory the used value is (views show another one's)
    dim_size: Float64Array  #: [ΣD] sizes of the dims of values, at ``Tables.shape_ptr``


@packed
class Memory(NamedTuple):
    """When what is in memory: for the whole program in its order, however its prices are folded.

    ``B`` buffers are written values; sizes come from the value that stands for each (itself, if
    nothing is folded).
    """

    buffer_value: Int32Array  #: [B] value that it is like
    buffer_start: Int32Array  #: [B] first op at which it is alive
    buffer_end: Int32Array  #: [B] last op at which it is alive; O: to the end
    #: [B] value like the result that may take its place at its last op if of equal size, or -1
    buffer_heir: Int32Array
    buffer_near: BoolArray  #: [B] bool: vector memory may do for it, if it is small enough
    buffer_computed: BoolArray  #: [B] bool: no argument
    buffer_result: BoolArray  #: [B] bool: a result that takes no argument's place
    #: [B] the last product that reads it and that waits if its result is summed over devices, or -1
    buffer_read_late: Int32Array
    buffer_written_late: Int32Array  #: [B] likewise the product that makes it
    late_op: int  #: the last of these products, in front of which the others run
    like_use: Int32Array  #: [U] the use that is priced for each
    like_op: Int32Array  #: [O]
    use_op: Int32Array  #: [U]
    use_value: Int32Array  #: [U]
    use_until: Int32Array  #: [U] see ``Tables``
    use_from: Int32Array  #: [U] op from which on what is brought to the use is in memory
    runs_at: Int32Array  #: [O] op at which a fused op really runs
    ends_at: Int32Array  #: [O] last op in whose kernel it is
    products: Int32Array  #: [O + 2] products before each op
    #: [O + 2] bytes that memory could bring while these run, once in ``NEAR_ROUNDS``
    passed_bytes: Float64Array
    region: Int32Array  #: [O] innermost region, -1 outside all
    region_parent: Int32Array  #: [R + 1]
    region_begin: Int32Array  #: [R + 1]
    region_end: Int32Array  #: [R + 1]; 0 for all but loops, which alone make things live longer


def make_static(
    program: p.Program,
    tables: Tables,
    peak_flops: list[float],
    compiler: str = "cpu",
    *,
    has_bfloat16: bool = True,
    vector_memory_bytes: float = 0.0,
    memory_bytes_per_s: float = 0.0,
) -> tuple[ProgramFacts, Memory]:
    """Work out fusion, aliases and live ranges, once per program.

    Args:
        program: the program.
        tables: its tables.
        peak_flops: FLOP/s of the device by op.
        compiler: whose style of fusion to expect.
        has_bfloat16: has the device bfloat16 arithmetic?
        vector_memory_bytes: of a device, 0: none.  Loops keep there what they read in every round.
        memory_bytes_per_s: rate of the device's memory.
    """
    classes = program.op_class
    roots = value_roots(program, tables, compiler, has_bfloat16=has_bfloat16)
    root = roots.root
    shapes = products(program)
    fusion = fuse(
        program,
        tables,
        shapes,
        root=root,
        view=roots.view,
        free=roots.free,
        style=STYLES[compiler],
    )
    if compiler == "tpu":
        narrowed = bfloat16_factors(program, fusion.narrowed, fusion.written)
    elif compiler == "gpu" and not has_bfloat16:
        narrowed = widened_factors(program, fusion.consumers, tables.value_output)
    else:
        narrowed = no_factors(program)
    kept_bytes = tables.value_bytes * narrowed.kept
    written = fusion.written
    last_op = _last_ops(program, root, fusion.runs_at)
    delivered, brings = _partial_traffic(program, fusion, root, last_op)
    reads = fusion.reads + _beside(fusion, program)
    updated = np.flatnonzero(brings >= 0)
    reads[program.use_ptr[updated]] = 0.0  # in place
    in_place = (np.isin(classes, (p.ELEMENTWISE, p.CONTROL)) | (brings >= 0)) & (
        np.diff(program.result_ptr) > 0
    )
    accumulating = accumulating_ops(program, tables)
    staying = (
        residents(
            program,
            root=root,
            reads=np.where(delivered, 0.0, reads),
            written=written,
            value_bytes=kept_bytes,
            accumulating=accumulating,
            vector_memory_bytes=vector_memory_bytes,
        )
        if vector_memory_bytes > 0.0
        else no_residents(program)
    )
    may_be_near = _may_be_near(
        program,
        written=written,
        root=root,
        is_output=tables.value_output,
        numbers=fusion.elements,
    )
    ends = _product_ends(
        program,
        fusion,
        kept_bytes=kept_bytes,
        root=root,
        may_be_near=may_be_near,
        staying=staying,
    )
    reads -= ends.read
    if compiler == "gpu":
        reads *= gpu_passes(program)
    shapes.rows[~fusion.product] = 0.0  # no product, although it is written as one
    kernels = (
        tpu_kernels(
            program,
            tables,
            fusion,
            roots,
            shapes=shapes,
            kept_bytes=kept_bytes,
            reads_whole=np.where(delivered, 0.0, reads),
        )
        if compiler == "tpu"
        else other_kernels(program, tables)
    )
    trips = result_trips(program)
    sums = sums_in_loops(program, tables, accumulating if compiler != "cpu" else {}, trips)
    facts = ProgramFacts(
        op=OpFacts(
            flops=kernels.flops * program.trips,
            peak=np.asarray(peak_flops, dtype=np.float64) / narrowed.passes,
            trips=program.trips,
            result_trips=trips,
            sum_trips=sums.trips,
            sum_whole=sums.whole,
            op_class=classes,
            free=roots.free,
            slices=ops_where(program.kind, "reads_part"),
            brings=brings,
            starts=fusion.starts,
            # What is free, as a broadcast, is nowhere as a whole.
            cuts=fusion.soft | roots.free,
            **shapes._asdict(),
            waits=fusion.waits,
            carried=ends.carried,
            far_bytes=ends.far_bytes,
            near_bytes=ends.near_bytes,
            widest_bytes=ends.widest_bytes,
            resident_parts=staying.result_parts,
            **kernels.op,
        ),
        use=UseFacts(
            reads=reads,
            delivered=delivered,
            sent=narrowed.sent,
            cut_out=fusion.product[tables.use_op] & written[root[program.use_value]],
            ahead=_ahead(program),
            sum_rounds=sums.use_rounds,
            resident_parts=staying.use_parts,
            resident_share=staying.use_share,
            **kernels.use,
        ),
        value=ValueFacts(
            bytes=kept_bytes,
            numbers=fusion.elements.astype(np.float64),
            written=written,
            moved=narrowed.moved,
            may_be_near=may_be_near,
            compared=fusion.compared,
            **kernels.value,
        ),
        root=root[program.use_value].astype(np.int32),
        dim_size=np.asarray(program.shape, np.float64),
    )
    memory = _memory(
        program=program,
        tables=tables,
        fusion=fusion,
        last_op=last_op,
        root=root,
        in_place=in_place,
        near=_NearFacts(
            may_be_near=may_be_near,
            kept_bytes=kept_bytes,
            product_bytes=memory_bytes_per_s * program.flops / np.asarray(peak_flops),
        ),
        use_from=kernels.use_from,
    )
    return facts, memory


def _last_ops(program: p.Program, root: np.ndarray, runs_at: np.ndarray) -> np.ndarray:
    """[V] the last op for which a value has to be in memory; O: to the end."""
    last = np.array(program.value_op, np.int64)
    last[root[program.outputs]] = program.n_ops
    for op in range(program.n_arguments, program.n_ops):
        for operand in program.operands(op):
            for value in {operand, int(root[operand])}:
                when = program.kept_until(int(program.value_op[value]), int(runs_at[op]))
                last[value] = max(last[value], when)
    return last


def _ahead(program: p.Program) -> np.ndarray:
    """[U] bool: does a product run between where a value is made and a use of it?

    What only casts, cuts out or reorders a value counts as a part of bringing it.
    """
    heavy = np.isin(program.op_class, (p.DOT, p.CONVOLUTION))
    before = np.concatenate([[0], np.cumsum(heavy)])  # products before each op
    maker = np.array(program.value_op, np.int64)
    for op in np.flatnonzero(ops_where(program.kind, "prepares")).tolist():
        for result in program.results(op):
            maker[result] = maker[program.operands(op)[0]]
    source = maker[program.use_value]
    reader = np.repeat(np.arange(program.n_ops), np.diff(program.use_ptr))
    # In a loop only what each round takes of what was there before the loop.
    starts = np.asarray([kind == "while.enter" for kind in program.kind])
    in_round = (program.trips[source] > 1) & ~starts[source]
    source = np.where(source < program.n_arguments, -1, source)
    return np.asarray((before[reader] > before[source + 1]) & ~in_round)


def _may_be_near(
    program: p.Program,
    *,
    written: np.ndarray,
    root: np.ndarray,
    is_output: np.ndarray,
    numbers: np.ndarray,
) -> np.ndarray:
    """[V] bool: neither argument nor result, nor computed of such on the way into a product.

    Scales and shifts of channels are nothing beside what they are multiplied with.
    """
    near = np.zeros(program.n_values, bool)
    picks = ops_where(program.kind, "reads_part")
    for op in range(program.n_arguments, program.n_ops):
        most = max((numbers[root[value]] for value in program.operands(op)), default=0)
        of_near = not picks[op] and all(
            near[root[value]]
            or program.value_is_constant[value]
            or numbers[root[value]] < SMALL_SHARE * most
            for value in program.operands(op)
        )
        for value in program.results(op):
            near[value] = not is_output[value] and (bool(written[value]) or of_near)
    return near


class _Ends(NamedTuple):
    """What kernels of products read and write on the way out."""

    carried: np.ndarray  # [O] these four as in OpFacts
    far_bytes: np.ndarray
    near_bytes: np.ndarray
    widest_bytes: np.ndarray
    read: np.ndarray  # [U] how often uses read memory there


def _beside(fusion: Fusion, program: p.Program) -> np.ndarray:
    """[U] how often uses read memory on the way out of products."""
    reads = np.zeros(program.n_uses)
    np.add.at(reads, [use for use, _ in fusion.beside], 1.0)
    return reads


def _product_ends(
    program: p.Program,
    fusion: Fusion,
    *,
    kept_bytes: np.ndarray,
    root: np.ndarray,
    may_be_near: np.ndarray,
    staying: Residents,
) -> _Ends:
    """Charge to products what their kernels read and write on the way out.

    Not where something of that stays in vector memory from round to round: that is known by op.
    """
    head, ops = fusion.head, np.arange(program.n_ops)
    carried = fusion.product[head] & (head != ops)
    resident_ops = ops[carried & (staying.result_parts > 0.0)]
    apart = {int(head[op]) for op in resident_ops}
    apart |= {op for use, op in fusion.beside if staying.use_parts[use] > 0.0}
    carried &= ~np.isin(head, list(apart))
    none = np.zeros(program.n_ops)
    ends = _Ends(
        carried=carried,
        far_bytes=none,
        near_bytes=none.copy(),
        widest_bytes=none.copy(),
        read=np.zeros(program.n_uses),
    )

    def charge(op: int, value: int) -> None:
        if may_be_near[value]:
            ends.near_bytes[op] += kept_bytes[value]
            ends.widest_bytes[op] = max(ends.widest_bytes[op], kept_bytes[value])
        else:
            ends.far_bytes[op] += kept_bytes[value]

    for use, op in fusion.beside:
        if op not in apart:
            ends.read[use] += 1.0
            charge(op, int(root[program.use_value[use]]))
    for op in np.flatnonzero(carried).tolist():
        for value in program.results(op):
            if fusion.written[value]:
                charge(int(head[op]), value)
    return ends


class _NearFacts(NamedTuple):
    """What decides whether vector memory may do for a value."""

    may_be_near: np.ndarray  #: [V] see ``ValueFacts``
    kept_bytes: np.ndarray  #: [V] of each value
    product_bytes: np.ndarray  #: [O] that memory could bring while an op runs


def _memory(
    program: p.Program,
    tables: Tables,
    fusion: Fusion,
    last_op: np.ndarray,
    root: np.ndarray,
    in_place: np.ndarray,
    near: _NearFacts,
    use_from: np.ndarray,
) -> Memory:
    """Live ranges in program order."""
    n_ops, n_arguments, runs_at = program.n_ops, program.n_arguments, fusion.runs_at
    value = np.flatnonzero(fusion.written)
    maker = program.value_op[value]
    argument = maker < n_arguments
    start = np.where(argument, 0, runs_at[maker])
    # What is computed on the way out of a product is there with it.  Results of the program are
    # written over what they update, and sums over what is added to.
    head = fusion.head[maker]
    if not fusion.style.accumulates:
        is_inside = fusion.product[head] & ~tables.value_output[value]
        start = np.where(is_inside, head, start)
    if fusion.style.fills_at_once:
        start = np.minimum(start, _first_filled(program, fusion)[maker])
    is_result = np.isin(value, _results_apart(program, root[program.outputs]))
    end = np.maximum(last_op[value], start)
    kept = np.zeros(n_ops, bool)
    kept[:n_arguments] = ~program.donated
    end = np.where(kept[maker], n_ops, end)
    inside = (end >= n_arguments) & (end < n_ops) & (end > start)
    at = np.where(inside, end, 0)
    heir = program.result_ptr[at].astype(np.int32)
    inside[inside] = in_place[at[inside]] & fusion.written[heir[inside]]
    if not fusion.style.reuses_places:
        is_elementwise = program.op_class[at] == p.ELEMENTWISE
        inside &= argument | ~is_elementwise | _updates(program, fusion)[at]
    waiting = np.flatnonzero(fusion.waits & fusion.product).tolist()
    read_late = np.full(program.n_values, -1)
    for op in waiting:
        for operand in program.operands(op):
            read_late[root[operand]] = op
    products, passed_bytes = np.zeros(n_ops + 2, np.int32), np.zeros(n_ops + 2)
    products[1 : n_ops + 1] = np.cumsum(fusion.product)
    passed_bytes[1 : n_ops + 1] = np.cumsum(fusion.product * near.product_bytes) / NEAR_ROUNDS
    products[-1], passed_bytes[-1] = products[n_ops], passed_bytes[n_ops]
    last = np.minimum(end, n_ops)
    is_near = (products[last] - products[start + 1] <= NEAR_PRODUCTS) & (
        passed_bytes[last] - passed_bytes[start + 1] <= near.kept_bytes[value]
    )
    uses, ops = np.arange(program.n_uses, dtype=np.int32), np.arange(n_ops, dtype=np.int32)
    # One row more than there are regions, for ops outside all of them.
    regions = program.regions
    loop_ends = [region.end if region.kind == "loop" else 0 for region in regions]
    return Memory(
        buffer_value=value.astype(np.int32),
        buffer_start=start.astype(np.int32),
        buffer_end=end.astype(np.int32),
        buffer_heir=np.where(inside, heir, -1).astype(np.int32),
        buffer_near=near.may_be_near[value] & is_near,
        buffer_computed=~argument,
        buffer_result=is_result,
        buffer_read_late=read_late[value].astype(np.int32),
        buffer_written_late=np.where(np.isin(maker, waiting), maker, -1).astype(np.int32),
        late_op=max(waiting, default=0),
        like_use=uses,
        like_op=ops,
        use_op=tables.use_op,
        use_value=tables.use_value,
        use_until=tables.use_until,
        use_from=use_from,
        runs_at=runs_at.astype(np.int32),
        ends_at=fusion.ends_at.astype(np.int32),
        products=products,
        passed_bytes=passed_bytes,
        region=program.region,
        region_parent=np.asarray([*(region.parent for region in regions), -1], np.int32),
        region_begin=np.asarray([*(region.begin for region in regions), 0], np.int32),
        region_end=np.asarray([*loop_ends, 0], np.int32),
    )


def _updates(program: p.Program, fusion: Fusion) -> np.ndarray:
    """[O] bool: elementwise ops whose result has to lie where an operand did.

    Such is what a loop hands on to its next round.
    """
    updates = np.zeros(program.n_ops, bool)
    updates[list(fusion.updates)] = True
    for op in np.flatnonzero(program.op_class == p.ELEMENTWISE).tolist():
        (result, *_) = program.results(op)
        consumers = fusion.consumers[result]
        updates[op] |= bool(consumers) and all(
            consumer < program.n_ops and program.op_class[consumer] == p.CONTROL
            for consumer in consumers
        )
    return updates


def _first_filled(program: p.Program, fusion: Fusion) -> np.ndarray:
    """[O] of scatters into a constant the first one of that size, whose kernel fills all of them.

    The others: the program's end.
    """
    first = np.full(program.n_ops, program.n_ops)
    sizes: dict[tuple[Any, ...], int] = {}
    for op in np.flatnonzero(ops_where(program.kind, "sorts_updates")).tolist():
        (result, *_), (into, *_) = program.results(op), program.operands(op)
        if program.value_is_constant[into] and fusion.written[result]:
            size = (*program.dims(result), program.value_dtype[result], int(program.region[op]))
            first[op] = sizes.setdefault(size, op)
    return first


def _results_apart(program: p.Program, results: np.ndarray) -> list[int]:
    """Results of the program for which there is no donated argument, whose place they would take.

    What a loop, a branch or an update in place gives was there before, and is left out.
    """
    left: dict[tuple[Any, ...], int] = defaultdict(int)
    for argument in np.flatnonzero(program.donated).tolist():
        for value in program.results(argument):
            left[(*program.dims(value), program.value_dtype[value])] += 1
    apart = []
    for value in dict.fromkeys(results.tolist()):
        op, alike = int(program.value_op[value]), (*program.dims(value), program.value_dtype[value])
        if op < program.n_arguments:
            continue
        if left[alike]:
            left[alike] -= 1
        elif program.op_class[op] != p.CONTROL and op_kind(program.kind[op]).brings < 0:
            apart.append(value)
    return apart


def _partial_traffic(
    program: p.Program, fusion: Fusion, root: np.ndarray, last_op: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``UseFacts.delivered`` and ``OpFacts.brings``."""
    delivered, brings = np.zeros(program.n_uses, bool), np.full(program.n_ops, -1, np.int32)
    for op in program.ops():
        facts, first = op_kind(program.kind[op]), int(program.use_ptr[op])
        if facts.reads_part:
            delivered[first] = True
        elif facts.brings >= 0 and len(program.results(op)) == 1:
            source = int(root[program.use_value[first]])
            maker = int(program.value_op[source])
            owned = maker >= program.n_arguments or bool(program.donated[maker])
            is_added_elsewhere = facts.sorts_updates and not fusion.written[program.results(op)[0]]
            # A buffer that is still needed, or that does not exist yet, is written as a whole.
            if is_added_elsewhere or (
                owned and last_op[source] <= op and not program.value_is_constant[source]
            ):
                brings[op] = facts.brings
    return delivered, brings

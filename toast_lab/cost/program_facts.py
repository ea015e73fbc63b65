"""Facts about a program on a machine that prices use, whatever the plan.

Facts of ops, uses and values are computed once per program: which values are fused away, which are
views of another's memory, and which are read only in part. ``buffers`` adds the live ranges of
everything that is written.

Reference: TOAST section 4.5. Start reading at ``make_program_facts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from toast_lab.cost.buffers import Memory, NearFacts, make_memory
from toast_lab.cost.compiler_styles import STYLES, CompilerStyle
from toast_lab.cost.fused_program import FusedProgram, fused_program
from toast_lab.cost.fusion import Fusion
from toast_lab.cost.gpu_passes import gpu_passes
from toast_lab.cost.loop_copies import loop_copies
from toast_lab.cost.loop_residents import Residents, no_residents, residents
from toast_lab.cost.loop_sums import (
    Accumulation,
    Sums,
    accumulating_ops,
    result_trips,
    sums_in_loops,
)
from toast_lab.cost.matrix_tiles import matrix_unit_flops
from toast_lab.cost.price_rules import declared_columns, rule_columns
from toast_lab.cost.ragged_products import groups_multiplied, masked_copies
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where
from toast_lab.packs import BoolArray, Float64Array, Int32Array, Int64Array, packed
from toast_lab.sharding.steps import Tables

#: An operand with less than this share of the numbers of the op's largest one is no traffic.
SMALL_SHARE = 1.0 / 64.0
#: Type of a column in a pack, by that of its neutral value.
_COLUMN_TYPES = {bool: BoolArray, int: Int32Array, float: Float64Array}

Class = TypeVar("Class", bound=type)


def _with_rule_columns(place: str) -> Callable[[Class], Class]:
    """Decorate a class of columns: rules of the price add theirs, and it becomes a pack.

    Args:
        place: whether it is about an "op", a "use" or a "value".
    """

    def extended(plain: Class) -> Class:
        columns = get_type_hints(plain, include_extras=True)
        for name, value in declared_columns(place).items():
            columns[name] = _COLUMN_TYPES[type(value)]
        longer: Any = NamedTuple(plain.__name__, list(columns.items()))  # type: ignore[misc]
        for name in ("__module__", "__qualname__", "__doc__"):
            setattr(longer, name, getattr(plain, name))
        return packed(longer)  # type: ignore[return-value]

    return extended


@_with_rule_columns("op")
class OpFacts(NamedTuple):
    """All that prices may know of each op apart from the plan.

    Ops that differ here are never folded into one.
    """

    flops: Float64Array  #: [O] whole op, times trips
    peak: Float64Array  #: [O] FLOP/s of the op's element type
    trips: Float64Array  #: [O] how often it runs
    result_trips: Float64Array  #: [O] how often its results are produced: see ``loop_sums``
    sum_trips: Float64Array  #: [O] how often they are summed over devices: see ``loop_sums``
    sum_whole: Int64Array  #: [O] dims that must be whole for that, a bit each
    op_class: Int32Array  #: [O]
    free: BoolArray  #: [O] bool: op costs nothing (constants, views, arguments)
    slices: BoolArray  #: [O] bool: reads no more of its first operand than it delivers
    #: [O] position of the operand whose size is what the op writes, -1: its whole result
    update_operand: Int32Array
    starts_kernel: BoolArray  #: [O] bool: has a kernel of its own, which takes time to start
    computes_kept_slice: (
        BoolArray  #: [O] bool: computes only the slice of its result that a device keeps
    )
    joins: BoolArray  #: [O] bool: reads no more than the part of its result that is kept
    rows: Float64Array  #: [O] float64 these seven: see ``matrix_tiles.Products``
    columns: Float64Array
    depth: Float64Array
    batch: Float64Array
    left: Int64Array
    right: Int64Array
    vector_bytes: Float64Array
    runs_late: BoolArray  #: [O] bool: no product depends on it, see ``Fusion.runs_late``
    written_with_product: BoolArray  #: [O] bool: written by the kernel of the product before it
    #: [O] bytes that a product's kernel reads and writes on the way out, see ``epilogues``: of
    #: arguments and results of the program ...
    far_bytes: Float64Array
    near_bytes: Float64Array  #: [O] ... of values that may be in vector memory ...
    widest_bytes: Float64Array  #: [O] ... and of the largest of these
    resident_parts: Float64Array  #: [O] for what it writes, see ``loop_residents``
    masked_left: Float64Array  #: [O] these two: see ``ragged_products.MaskedCopies``
    masked_right: Float64Array
    given_s: Float64Array  #: [O] these three: see ``GivenPrices``
    given_bytes: Float64Array
    given_held_bytes: Float64Array

    def __getattr__(self, column: str) -> np.ndarray:
        """A column that a rule declares; this is for type checkers."""
        raise AttributeError(column)


@_with_rule_columns("use")
class UseFacts(NamedTuple):
    """All that prices may know of each use apart from the plan."""

    reads: Float64Array  #: [U] float64 how often it reads memory: 0 if fused or updated in place
    delivered: BoolArray  #: [U] bool: reads no more bytes than the op's result has
    #: [U] float64 factor on the bytes of collectives that bring the value here, see ``bfloat16``
    sent: Float64Array
    cut_out: BoolArray  #: [U] bool: a part of the value is written to memory before it is read
    #: [U] float64 additional rounds in which it is summed if only a part is used: see ``loop_sums``
    sum_rounds: Float64Array
    resident_parts: Float64Array  #: [U] these two: see ``loop_residents``
    resident_share: Float64Array

    def __getattr__(self, column: str) -> np.ndarray:
        """A column that a rule declares; this is for type checkers."""
        raise AttributeError(column)


@_with_rule_columns("value")
class ValueFacts(NamedTuple):
    """All that prices may know of each value apart from the plan."""

    bytes: Float64Array  #: [V] float64
    numbers: Float64Array  #: [V] float64
    written: BoolArray  #: [V] bool: the value is in memory (not fused away, not a view)
    #: [V] float64 factor on the bytes of collectives where the value is made, see ``bfloat16``
    moved: Float64Array
    may_be_near: BoolArray  #: [V] bool: may be in vector memory: neither argument nor result
    compared: BoolArray  #: [V] bool: computed by comparing indices, see ``Fusion.compared``

    def __getattr__(self, column: str) -> np.ndarray:
        """A column that a rule declares; this is for type checkers."""
        raise AttributeError(column)


@packed
class ProgramFacts(NamedTuple):
    """A program on a machine apart from the plan, op by op or folded.

    Only ``root`` holds indices.
    """

    op: OpFacts
    use: UseFacts
    value: ValueFacts
    root: Int32Array  #: [U] value in whose memory the used value is (another one for views)
    dim_size: Float64Array  #: [ΣD] sizes of the dims of values; rows start at ``Tables.shape_ptr``


def with_neutral_columns(
    facts: ProgramFacts, columns: Mapping[str, Mapping[str, Any]]
) -> ProgramFacts:
    """Facts with neutral values in some columns.

    Args:
        facts: facts of a program.
        columns: neutral values by name of the column, by "op", "use" and "value".
    """
    for place, values in columns.items():
        pack = getattr(facts, place)
        neutral = {name: np.full_like(getattr(pack, name), value) for name, value in values.items()}
        facts = facts._replace(**{place: pack._replace(**neutral)})
    return facts


class GivenPrices(NamedTuple):
    """Prices of ops that no plan changes: shard_maps, and collectives inside them."""

    time_s: np.ndarray  #: [O] seconds of one run; -1: it depends on the plan
    moved_bytes: np.ndarray  #: [O] bytes that it reads and writes in one run
    held_bytes: np.ndarray  #: [O] bytes in memory while it runs, beside operands and results


def none_given(n_ops: int) -> GivenPrices:
    """No op has a given price."""
    return GivenPrices(np.full(n_ops, -1.0), np.zeros(n_ops), np.zeros(n_ops))


def make_program_facts(
    program: p.Program,
    tables: Tables,
    peak_flops: list[float],
    style: CompilerStyle = STYLES["cpu"],
    *,
    given: GivenPrices | None = None,
    has_bfloat16: bool = True,
    vector_memory_bytes: float = 0.0,
    memory_bytes_per_s: float = 0.0,
) -> tuple[ProgramFacts, Memory]:
    """Compute fusion, aliases and live ranges, once per program.

    Args:
        program: the program.
        tables: its tables.
        peak_flops: FLOP/s of the device by op.
        style: what of the habits of its compiler counts.
        given: prices of ops that no plan changes; None: there are none.
        has_bfloat16: has the device bfloat16 arithmetic?
        vector_memory_bytes: vector memory of a device, 0: none. Loops keep values there that every
            round reads.
        memory_bytes_per_s: rate of the device's memory.
    """
    fused = fused_program(program, tables, style, has_bfloat16=has_bfloat16)
    accumulating = accumulating_ops(program, tables)
    moved = _moved(fused, accumulating, vector_memory_bytes=vector_memory_bytes)
    trips = result_trips(program)
    sums = sums_in_loops(program, tables, accumulating if style.sums_behind_loops else {}, trips)
    peak = np.asarray(peak_flops, dtype=np.float64)
    columns = rule_columns(fused)
    facts = ProgramFacts(
        op=_op_facts(
            fused,
            moved,
            sums,
            trips=trips,
            peak=peak / fused.narrowed.passes,
            given=given or none_given(program.n_ops),
            columns=columns["op"],
        ),
        use=_use_facts(fused, moved, sums, columns["use"]),
        value=_value_facts(fused, moved, columns["value"]),
        root=fused.root[program.use_value].astype(np.int32),
        dim_size=np.asarray(program.shape, np.float64),
    )
    memory = make_memory(
        program=program,
        tables=tables,
        fusion=fused.fusion,
        last_op=fused.last_op,
        root=fused.root,
        in_place=_in_place(fused),
        near=NearFacts(
            may_be_near=moved.may_be_near,
            kept_bytes=fused.kept_bytes,
            product_bytes=memory_bytes_per_s * program.flops / peak,
        ),
    )
    return facts, memory


def _read_as_given(program: p.Program, reads: np.ndarray, kept_bytes: np.ndarray) -> None:
    """Let kernels read their operands as often as the bytes that they move say, in place."""
    for op, moved_bytes in program.moved_bytes:
        uses = program.uses(op)
        written = sum(float(kept_bytes[value]) for value in program.results(op))
        read = float(kept_bytes[program.use_value[uses.start : uses.stop]].sum())
        if read > 0.0:
            reads[uses.start : uses.stop] = max(moved_bytes - written, 0.0) / read


class _Moved(NamedTuple):
    """The memory traffic of a program, and the values that stay in vector memory."""

    reads: np.ndarray  #: [U] how often uses read memory
    may_be_near: np.ndarray  #: [V] as in ``ValueFacts``
    staying: Residents
    ends: _Ends
    #: [O] bool: a loop copies the value that the op takes into it, or hands on, see ``loop_copies``
    copies: np.ndarray


def _moved(
    fused: FusedProgram,
    accumulating: Mapping[int, Accumulation],
    *,
    vector_memory_bytes: float,
) -> _Moved:
    program, tables, fusion = fused.program, fused.tables, fused.fusion
    reads = fusion.reads + _beside(fusion, program)
    reads[program.use_ptr[np.flatnonzero(fused.update_operand >= 0)]] = 0.0  # in place
    _read_as_given(program, reads, fused.kept_bytes)
    staying = (
        residents(
            program,
            root=fused.root,
            reads=np.where(fused.delivered, 0.0, reads),
            written=fusion.written,
            value_bytes=fused.kept_bytes,
            accumulating=accumulating,
            vector_memory_bytes=vector_memory_bytes,
        )
        if vector_memory_bytes > 0.0 and fusion.style.keeps_for_loops
        else no_residents(program)
    )
    may_be_near = _may_be_near(
        program,
        written=fusion.written,
        root=fused.root,
        is_output=tables.value_output,
        numbers=fusion.elements,
    )
    ends = _product_ends(
        program,
        fusion,
        kept_bytes=fused.kept_bytes,
        root=fused.root,
        may_be_near=may_be_near,
        staying=staying,
    )
    reads -= ends.read
    copies = np.zeros(program.n_ops, bool)
    if fusion.style.goes_over_again:
        reads *= gpu_passes(program)
    if fusion.style.copies_into_loops:
        for op in loop_copies(
            program, fusion, root=fused.root, update_operand=fused.update_operand
        ):
            copies[op] = True
            # Of a value that enters a loop, writing the copy counts as writing the result.
            reads[program.uses(op)[0]] = 1.0 if program.results(op) else 2.0
    return _Moved(reads, may_be_near, staying, ends=ends, copies=copies)


def _op_facts(
    fused: FusedProgram,
    moved: _Moved,
    sums: Sums,
    *,
    trips: Float64Array,
    peak: np.ndarray,
    given: GivenPrices,
    columns: Mapping[str, np.ndarray],
) -> OpFacts:
    program, fusion, ends = fused.program, fused.fusion, moved.ends
    free, masks_groups = fused.roots.free, fusion.style.masks_groups
    by_products = fusion.style.transforms_by_products
    flops = matrix_unit_flops(program) if by_products else program.flops
    groups = groups_multiplied(program, fused.compiler) if masks_groups else 1.0
    return OpFacts(
        flops=flops * groups * program.trips,
        peak=peak,
        trips=program.trips,
        result_trips=trips,
        sum_trips=sums.trips,
        sum_whole=sums.whole,
        op_class=program.op_class,
        free=free & ~moved.copies,
        slices=ops_where(program.kind, "reads_part"),
        update_operand=fused.update_operand,
        starts_kernel=fusion.starts_kernel | moved.copies,
        # The result of a free op, such as a broadcast, is nowhere in memory as a whole.
        computes_kept_slice=fusion.computable_in_parts | free,
        joins=fusion.joins,
        **fused.shapes._asdict(),
        runs_late=fusion.runs_late,
        written_with_product=ends.carried,
        far_bytes=ends.far_bytes,
        near_bytes=ends.near_bytes,
        widest_bytes=ends.widest_bytes,
        resident_parts=moved.staying.result_parts,
        given_s=given.time_s,
        given_bytes=given.moved_bytes,
        given_held_bytes=given.held_bytes,
        **masked_copies(program, fused.kept_bytes, fused.compiler, masks=masks_groups)._asdict(),
        **columns,
    )


def _use_facts(
    fused: FusedProgram, moved: _Moved, sums: Sums, columns: Mapping[str, np.ndarray]
) -> UseFacts:
    program, tables, fusion = fused.program, fused.tables, fused.fusion
    return UseFacts(
        reads=moved.reads,
        delivered=fused.delivered,
        sent=fused.narrowed.sent,
        cut_out=fusion.product[tables.use_op] & fusion.written[fused.root[program.use_value]],
        sum_rounds=sums.use_rounds,
        resident_parts=moved.staying.use_parts,
        resident_share=moved.staying.use_share,
        **columns,
    )


def _value_facts(
    fused: FusedProgram, moved: _Moved, columns: Mapping[str, np.ndarray]
) -> ValueFacts:
    fusion = fused.fusion
    return ValueFacts(
        bytes=fused.kept_bytes,
        numbers=fusion.elements.astype(np.float64),
        written=fusion.written,
        moved=fused.narrowed.moved,
        may_be_near=moved.may_be_near,
        compared=fusion.compared,
        **columns,
    )


def _in_place(fused: FusedProgram) -> np.ndarray:
    """[O] bool: may the first result take over the memory of an operand that dies there?"""
    program = fused.program
    is_pointwise = np.isin(program.op_class, (p.ELEMENTWISE, p.CONTROL))
    return np.asarray(
        (is_pointwise | (fused.update_operand >= 0)) & (np.diff(program.result_ptr) > 0)
    )


def _may_be_near(
    program: p.Program,
    *,
    written: np.ndarray,
    root: np.ndarray,
    is_output: np.ndarray,
    numbers: np.ndarray,
) -> np.ndarray:
    """[V] bool: neither argument nor result, nor computed from one on the way into a product.

    Operands as small as the scales and shifts of channels do not count.
    """
    near = np.zeros(program.n_values, bool)
    picks = ops_where(program.kind, "reads_part")
    for op in range(program.n_arguments, program.n_ops):
        largest_count = max((numbers[root[value]] for value in program.operands(op)), default=0)
        reads_near = not picks[op] and all(
            near[root[value]]
            or program.value_is_constant[value]
            or numbers[root[value]] < SMALL_SHARE * largest_count
            for value in program.operands(op)
        )
        for value in program.results(op):
            near[value] = not is_output[value] and (bool(written[value]) or reads_near)
    return near


class _Ends(NamedTuple):
    """What the kernels of products read and write on the way out."""

    carried: np.ndarray  # [O] these four as in OpFacts
    far_bytes: np.ndarray
    near_bytes: np.ndarray
    widest_bytes: np.ndarray
    read: np.ndarray  # [U] how often uses read memory there


def _beside(fusion: Fusion, program: p.Program) -> np.ndarray:
    """[U] how often uses read memory on the way out of products."""
    reads = np.zeros(program.n_uses)
    np.add.at(reads, [use for use, _ in fusion.epilogue_reads], 1.0)
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

    Products are left out if some of that stays in vector memory from round to round, which is known
    by op.
    """
    heads, ops = fusion.head, np.arange(program.n_ops)
    carried = fusion.product[heads] & (heads != ops)
    resident_ops = ops[carried & (staying.result_parts > 0.0)]
    left_out = {int(heads[op]) for op in resident_ops}
    left_out |= {op for use, op in fusion.epilogue_reads if staying.use_parts[use] > 0.0}
    carried &= ~np.isin(heads, list(left_out))
    zeros = np.zeros(program.n_ops)
    ends = _Ends(
        carried=carried,
        far_bytes=zeros,
        near_bytes=zeros.copy(),
        widest_bytes=zeros.copy(),
        read=np.zeros(program.n_uses),
    )

    def charge(op: int, value: int) -> None:
        if may_be_near[value]:
            ends.near_bytes[op] += kept_bytes[value]
            ends.widest_bytes[op] = max(ends.widest_bytes[op], kept_bytes[value])
        else:
            ends.far_bytes[op] += kept_bytes[value]

    for use, op in fusion.epilogue_reads:
        if op not in left_out:
            ends.read[use] += 1.0
            charge(op, int(root[program.use_value[use]]))
    for op in np.flatnonzero(carried).tolist():
        for value in program.results(op):
            if fusion.written[value]:
                charge(int(heads[op]), value)
    return ends

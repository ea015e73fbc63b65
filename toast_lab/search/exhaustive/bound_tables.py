"""The tables of ``bound``: every term of a plan's time, priced by the evaluator's own kernel.

Start reading at ``make_bound``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.cost import kernel
from toast_lab.cost.memory_tiles import tile_padding
from toast_lab.cost.one_op import OpPricer, make_op_pricer, price_one
from toast_lab.cost.problem import Problem
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.ir.program import CONVOLUTION, DOT
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Matrix, Int64Array, packed
from toast_lab.ragged import Ragged, row_starts
from toast_lab.search.exhaustive.bound import Bound, least_of_groups, scratch_of
from toast_lab.sharding import steps as st
from toast_lab.sharding.alike import Effects
from toast_lab.sharding.divides import divides
from toast_lab.sharding.step_kinds import COMPUTE
from toast_lab.sharding.steps import LAYOUT_BITS, OPEN, Tables

MOST_ENTRIES = 30_000_000  # most entries of all tables together: 240 MB
ROUNDS = 60  # rounds of diffusion
_COMPUTE, _PRODUCT, _RESULT, _USE = range(4)


def make_bound(
    problem: Problem,
    min_names: int = 0,
    *,
    rounds: int = ROUNDS,
    check: Callable[[], None] = lambda: None,
) -> Bound | None:
    """Price all tables; None if they would be too large, or if there is a price list.

    Args:
        problem: program, mesh and machine.
        min_names: fewest names of a colour group that is acted on.
        rounds: rounds of diffusion.
        check: called every few milliseconds; may raise to end the work.
    """
    if len(problem.prices.price_list):
        return None  # an entry may be below the bound that follows from the rules
    n_axes = len(problem.mesh.axes)
    tables, facts = problem.folded.tables, problem.folded.facts
    offers = _offers(problem, min_names)
    groups, entries = _entries(tables, facts)
    rank = np.diff(tables.shape_ptr).astype(np.int64)
    n_extra = groups - len(rank)
    radix = np.concatenate([rank + 1, np.ones(n_extra, np.int64)])
    n_kept = radix**n_axes
    sizes = np.asarray(
        [
            (offers.names.lengths[entry.op_class] + 1) ** n_axes * n_kept[entry.group]
            for entry in entries
        ],
        np.int64,
    )
    base_time_s, base_bytes = problem.baseline
    if sizes.sum() > MOST_ENTRIES or not base_time_s > 0:
        return None
    begin = row_starts(sizes)

    none = np.full(n_extra, -1, np.int64)
    variable = ~tables.value_constant
    moved_back = variable & (tables.value_op >= tables.n_arguments) & ~tables.value_output
    owner = np.where(moved_back, tables.value_owner, -1).astype(np.int64)
    natural_ptr, natural = np.zeros(groups, np.int64), [1]
    for value in np.flatnonzero(moved_back).tolist():
        natural_ptr[value] = len(natural)
        natural += _natural_bits(tables, value, offers.names.row(owner[value]).tolist())
    earlier_wants = [
        tables.earlier[tables.earlier_begin[entry.use] : tables.earlier_end[entry.use]].tolist()
        if entry.use >= 0
        else []
        for entry in entries
    ]
    group_of = np.asarray([entry.group for entry in entries], np.int64)
    want_ptr, want_dim = _want_dims(tables, offers.names)
    buffers = _buffers(problem)
    bound = Bound(
        n_candidates=offers.names.lengths,
        candidate=offers.candidate,
        group_ptr=np.searchsorted(group_of, np.arange(groups + 1)).astype(np.int64),
        n_kept=n_kept,
        radix=radix,
        group_row=np.concatenate([np.where(variable, tables.value_row, -1), none]).astype(np.int64),
        group_owner=np.concatenate([owner, none]),
        offered=np.concatenate(
            [np.where(variable, offers.rows[tables.value_row], 1), -none]
        ).astype(np.int64),
        natural_ptr=natural_ptr,
        natural=np.asarray(natural, np.int64),
        table_class=np.asarray([entry.op_class for entry in entries], np.int64),
        table_begin=begin[:-1],
        table_want=np.asarray(
            [tables.use_want[entry.use] if entry.use >= 0 else -1 for entry in entries], np.int64
        ),
        other_ptr=row_starts([len(wants) for wants in earlier_wants]),
        other=np.asarray([want for wants in earlier_wants for want in wants], np.int64),
        want_class=tables.use_owner.astype(np.int64),
        want_ptr=want_ptr,
        want_dim=want_dim,
        table=np.zeros(begin[-1]),
        rest_s=np.zeros(groups + 1),
        buffer_group=buffers.group,
        buffer_bytes=buffers.bytes,
        buffer_start=buffers.start,
        buffer_end=buffers.end,
        buffer_near=problem.folded.memory.buffer_near,
        dim_begin=buffers.dim_begin,
        dim_end=buffers.dim_end,
        dim_size=facts.dim_size,
        tiled=buffers.are_tiled,
        n_ops=buffers.n_ops,
        base_time_s=base_time_s,
        base_bytes=base_bytes,
        limit_bytes=problem.memory_limit_bytes,
        near_room_bytes=problem.folded.rates.near_room_bytes,
        memory_weight=problem.memory_weight,
        memory_matters=buffers.peak_bytes > problem.memory_limit_bytes,
    )
    _fill(problem=problem, bound=bound, entries=entries, names=offers.names, check=check)
    _diffuse(bound, group_of, n_axes, rounds=rounds, check=check)
    return bound


class _OfferedRows(NamedTuple):
    """The names and dims that actions may split.

    Attributes:
        names: for each class of ops the names along which it may be split.
        candidate: [N] index of a name among those of its class; -1: none.
        rows: [rows of values] bit d + 1 for each dim d that may be cut; bit 0 for none.
    """

    names: Ragged
    candidate: np.ndarray
    rows: np.ndarray


def _offers(problem: Problem, min_names: int) -> _OfferedRows:
    """The names and dims split by pins, or by actions on groups of at least ``min_names`` names.

    An action counts if at least one axis divides the size.
    """
    space, alike = problem.space, problem.space.alike
    is_acted_on = space.n_names >= min_names
    axes = np.array([size for size in problem.mesh.sizes if size > 1], np.int64)

    def possible(effects: Effects) -> np.ndarray:
        divided = (effects.size[:, None] % axes == 0).any(axis=1)
        return np.asarray(is_acted_on[effects.move] & divided & (effects.axes > 0))

    start_ops, start_values = space.start
    effects = alike.op_effects
    pinned = np.nonzero(start_ops >= 0)
    offered = np.stack([effects.target, effects.cut]).astype(np.int64)[:, possible(effects)]
    pairs = np.unique(
        np.concatenate([offered, [pinned[0], start_ops[pinned]]], axis=1).astype(np.int64), axis=1
    )
    n_candidates = np.bincount(pairs[0], minlength=len(alike.ops.first)).astype(np.int64)
    names = Ragged(row_starts(n_candidates), np.ascontiguousarray(pairs[1]))
    candidate = np.full(len(space.analysis.names.size), -1, np.int64)
    candidate[names.flat] = np.arange(len(names.flat)) - names.ptr[pairs[0]]

    effects = alike.value_effects
    is_possible = possible(effects)
    rows = np.ones(len(alike.values.first), np.int64)
    np.bitwise_or.at(
        rows, effects.target[is_possible], np.int64(2) << effects.cut[is_possible].astype(np.int64)
    )
    pinned = np.nonzero(start_values >= 0)
    np.bitwise_or.at(rows, pinned[0], np.int64(2) << start_values[pinned].astype(np.int64))
    return _OfferedRows(names, candidate, rows)


class _ClassBuffers(NamedTuple):
    """The buffers in memory, and the ops during which they live.

    Attributes:
        group: [B] the value; -1 for constants.
        bytes: [B] bytes of the whole value.
        start: [B] first op.
        end: [B] last op.
        dim_begin: [B] where the dims of each begin.
        dim_end: [B] where they end.
        n_ops: number of ops in the order in which they run.
        peak_bytes: peak memory of the unsharded program, with tiles filled up.
        are_tiled: does memory come in tiles, of which a cut value leaves no fewer unfilled?
    """

    group: np.ndarray
    bytes: np.ndarray
    start: np.ndarray
    end: np.ndarray
    dim_begin: np.ndarray
    dim_end: np.ndarray
    n_ops: int
    peak_bytes: float
    are_tiled: bool


def _buffers(problem: Problem) -> _ClassBuffers:
    tables, facts, memory = problem.folded.tables, problem.folded.facts, problem.folded.memory
    start, last = memory.buffer_start.astype(np.int64), memory.buffer_end.astype(np.int64)
    last -= memory.buffer_heir >= 0  # a result may take its place one op early
    buffer_bytes = facts.value.bytes[memory.buffer_value]
    dim_begin = tables.shape_ptr[memory.buffer_value].astype(np.int64)
    dim_end = tables.shape_ptr[memory.buffer_value + 1].astype(np.int64)
    axis_size = problem.folded.axis_size
    # A value cut in two leaves no fewer tiles unfilled than the whole value; cut in three it may.
    has_tiles = problem.folded.rates.tile > 0.0
    are_tiled = has_tiles and not (axis_size & (axis_size - 1)).any()
    n_ops = len(memory.runs_at)
    changes = np.zeros(n_ops + 2)
    whole_bytes = buffer_bytes * (
        [
            tile_padding(facts.dim_size, begin, end, 0, axis_size)
            for begin, end in zip(dim_begin.tolist(), dim_end.tolist(), strict=True)
        ]
        if has_tiles
        else 1.0
    )
    np.add.at(changes, start, whole_bytes)
    np.add.at(changes, last + 1, -whole_bytes)
    is_constant = tables.value_constant[memory.buffer_value]
    return _ClassBuffers(
        group=np.where(is_constant, -1, memory.buffer_value).astype(np.int64),
        bytes=buffer_bytes,
        start=start,
        end=last,
        dim_begin=dim_begin,
        dim_end=dim_end,
        n_ops=n_ops,
        peak_bytes=float(np.cumsum(changes).max()),
        are_tiled=bool(are_tiled),
    )


def _diffuse(
    bound: Bound, group_of: np.ndarray, n_axes: int, *, rounds: int, check: Callable[[], None]
) -> None:
    """Make the tables agree, fill the rows with unset axes, and fill ``rest_s``."""
    n_classes = len(bound.n_candidates)
    always = np.flatnonzero(bound.table_want < 0)
    by_class = always[np.argsort(bound.table_class[always], kind="stable")]
    ptr = np.searchsorted(bound.table_class[by_class], np.arange(n_classes + 1))
    for _ in range(rounds):
        check()
        _agree(bound, by_class, ptr, group_of, n_axes)
    _envelopes(bound, group_of, n_axes)
    unsharded = np.full((n_classes, n_axes), -1, np.int32)
    least = least_of_groups(bound, unsharded, scratch_of(bound, n_axes))
    bound.rest_s[:-1] = np.cumsum(least[::-1])[::-1]


class _Entry(NamedTuple):
    """A table: one term, or several that depend on the same rows."""

    group: int
    op_class: int
    use: int  #: the use that may share a copy, -1: the table always counts
    parts: list[tuple[int, int, int]]  #: (kind, op, value or use) of each term


def _entries(tables: Tables, facts: ProgramFacts) -> tuple[int, list[_Entry]]:
    """(number of groups, tables sorted by group, those that always count first in each)."""
    always: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    conditional: list[_Entry] = []
    groups = len(tables.value_op)
    for op in range(tables.n_arguments, len(tables.op_row)):
        op_class = int(tables.op_row[op])
        results = [
            value
            for value in tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]].tolist()
            if not tables.value_constant[value]
        ]
        if facts.op.op_class[op] in (DOT, CONVOLUTION) and len(results) == 1:
            # The layout to which its result is brought affects the time of a product itself.
            always.setdefault((results[0], op_class), []).append((_PRODUCT, op, results[0]))
            results = []
        elif not facts.op.free[op]:
            group = results[0] if len(results) == 1 else groups
            groups += group == groups
            always.setdefault((group, op_class), []).append((_COMPUTE, op, -1))
        for value in results:
            always.setdefault((value, int(tables.value_owner[value])), []).append(
                (_RESULT, op, value)
            )
        for use in range(int(tables.use_ptr[op]), int(tables.use_ptr[op + 1])):
            value, op_class = (
                int(tables.use_value[use]),
                int(tables.use_owner[tables.use_want[use]]),
            )
            if tables.value_constant[value]:
                continue
            if tables.earlier_begin[use] == tables.earlier_end[use]:
                always.setdefault((value, op_class), []).append((_USE, op, use))
            else:
                conditional.append(_Entry(value, op_class, use, [(_USE, op, use)]))
    entries = [_Entry(*rows, -1, parts) for rows, parts in always.items()]
    return groups, sorted(entries + conditional, key=lambda entry: (entry.group, entry.use))


def _natural_bits(tables: Tables, value: int, names: list[int]) -> list[int]:
    """Bits of (1 + dim) that a class of ops leaves a value with on an axis, by digit of the row."""
    dims = tables.def_dim_factor[tables.shape_ptr[value] : tables.shape_ptr[value + 1]].tolist()
    if tables.value_given[value] != OPEN:  # by axis: all of its dims may do no harm in a bound
        return [1 + sum(2 << dim for dim in range(len(dims)))] * (1 + len(names))
    bits = [
        1 if tables.factor_reduction[name] or name not in dims else 2 << dims.index(name)
        for name in names
    ]
    return [int(np.bitwise_or.reduce([1, *bits])), *bits]


def _want_dims(tables: Tables, names: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """The fields ``want_ptr`` and ``want_dim`` of ``Bound``."""
    ptr: list[int] = []
    wanted: list[int] = []
    for want, op_class in enumerate(tables.use_owner.tolist()):
        dims = tables.use_dim_factor[
            tables.use_dim_ptr[want] : tables.use_dim_ptr[want + 1]
        ].tolist()
        ptr.append(len(wanted))
        class_names = names.row(op_class).tolist()
        wanted += [-1, *(dims.index(name) if name in dims else -1 for name in class_names)]
    return np.asarray(ptr, np.int64), np.asarray(wanted, np.int64)


@packed
class TableTerm(NamedTuple):
    """One term of the table of a class of ops and a value."""

    kind: int  #: _COMPUTE, _PRODUCT (compute and bring the result), _RESULT or _USE
    op: int
    item: int  #: the value of _PRODUCT and _RESULT, the use of _USE
    op_class: int  #: row of op_factor
    names: Int64Array  #: names along which the class may be split
    factor_size: Int64Array  #: [F]
    radix: int  #: 1 + rank of the value
    #: bits of (1 + dim) that the value's row may take, if moves of the value may be taken back;
    #: else -1
    offered: int


def _fill(
    problem: Problem,
    bound: Bound,
    entries: list[_Entry],
    names: Ragged,
    check: Callable[[], None],
) -> None:
    """Fill ``bound.table``; ``names`` holds the names of each class of ops."""
    folded, factor_size = problem.folded, problem.space.moves.factor_size
    tables, facts = folded.tables, folded.facts
    # The fewest bytes of an operand: the smaller of those of the value and those of a copy.
    least_sent = np.ones(len(tables.value_op))
    np.minimum.at(least_sent, tables.use_value, facts.use.sent)
    fewest_bytes = np.minimum(facts.value.bytes, least_sent * tables.value_bytes)
    own_share = facts.value.bytes[tables.use_value]
    own_share = own_share / np.maximum(tables.value_bytes[tables.use_value], 1e-300)
    low_facts = facts._replace(
        value=facts.value._replace(bytes=fewest_bytes),
        use=facts.use._replace(sent=np.minimum(facts.use.sent, own_share)),
    )
    op_pricer = make_op_pricer(folded, len(bound.n_candidates))
    low_bench = op_pricer._replace(inputs=folded._replace(facts=low_facts))
    n_axes = len(folded.axis_size)
    for begin, entry in zip(bound.table_begin.tolist(), entries, strict=True):
        group, op_class, _, parts = entry
        check()
        class_names = names.row(op_class)
        rows, n_kept = (len(class_names) + 1) ** n_axes, int(bound.n_kept[group])
        table = bound.table[begin : begin + rows * n_kept].reshape(rows, n_kept)
        for kind, op, item in parts:
            # The time of an op with operands or results of other classes is not known from its row
            # alone; 0 is a lower bound.
            computes = kind in (_COMPUTE, _PRODUCT)
            if computes and not _is_alone(tables, op, op_class):
                continue
            term = TableTerm(
                kind=kind,
                op=op,
                item=item,
                op_class=op_class,
                names=class_names,
                factor_size=factor_size,
                radix=bound.radix[group],
                offered=bound.offered[group] if bound.group_owner[group] >= 0 else -1,
            )
            _fill_one(low_bench if computes else op_pricer, term, table)


def _is_alone(tables: Tables, op: int, op_class: int) -> bool:
    """Does the class of an op decide the layouts of all its operands and results?"""
    uses = slice(tables.use_ptr[op], tables.use_ptr[op + 1])
    results = tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]]
    owners = tables.use_owner[tables.use_want[uses]]
    return bool((owners == op_class).all() and (tables.value_owner[results] == op_class).all())


@compiled
def _fill_one(op_pricer: OpPricer, term: TableTerm, table: Float64Matrix) -> None:
    """Add one term to a table [rows of the class, layouts of the value].

    Rows that do not divide are infinite.
    """
    op_factor, axis_size = op_pricer.op_factor, op_pricer.inputs.axis_size
    n_axes, base, op_class = axis_size.shape[0], term.names.shape[0] + 1, term.op_class
    for row in range(table.shape[0]):
        digits, possible = row, True
        for axis in range(n_axes):
            digit = digits % base
            digits //= base
            op_factor[op_class, axis] = term.names[digit - 1] if digit else -1
            possible &= digit == 0 or axis_size[axis] > 1
        for axis in range(n_axes):
            name = op_factor[op_class, axis]
            possible &= name < 0 or divides(
                term.factor_size[name], op_factor, op_class, name, axis, axis_size
            )
        if not possible:
            for kept in range(table.shape[1]):
                table[row, kept] = np.inf
        elif term.kind == _COMPUTE:
            _lay_around(op_pricer, term.op)
            time_s = _time_of(op_pricer, term.op, False)
            for kept in range(table.shape[1]):
                table[row, kept] += time_s
        elif term.kind == _PRODUCT:
            _add_products(op_pricer, term, row, table)
        else:
            _add_moves(op_pricer, term, row, table)
    for axis in range(n_axes):
        op_factor[op_class, axis] = -1


@helper
def _lay_around(op_pricer: OpPricer, op: int) -> None:
    """Set the layouts of operands as the op wants them, and of results as it leaves them."""
    facts, tables, steps = op_pricer.inputs.facts, op_pricer.inputs.tables, op_pricer.steps
    n_axes = op_pricer.op_factor.shape[1]
    on_every_axis = 0
    for axis in range(n_axes):
        on_every_axis |= 1 << (LAYOUT_BITS * axis)
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        want, value = tables.use_want[use], tables.use_value[use]
        steps.wanted[want] = st.use_layout(tables, op_pricer.op_factor, want, n_axes)
        steps.layout[value] = 0 if tables.value_constant[value] else steps.wanted[want]
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        if facts.root[use] != tables.use_value[use]:
            steps.layout[facts.root[use]] = on_every_axis
    for position in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
        value = tables.result[position]
        steps.layout[value] = 0
        if not tables.value_constant[value]:
            natural, _ = st.natural_layout(tables, op_pricer.op_factor, value, n_axes)
            steps.layout[value] = natural


@helper
def _time_of(op_pricer: OpPricer, op: int, brings: bool) -> float:
    """The time of an op with the layouts as set: of computing, and if ``brings`` of its results."""
    time_s = 0.0
    for step in range(price_one(op_pricer, op)):
        if op_pricer.steps.kind[step] == COMPUTE or (brings and op_pricer.steps.use[step] < 0):
            time_s += op_pricer.inputs.times[op] * op_pricer.each.time_s[step]
    return time_s


@helper
def _layout_of(op_pricer: OpPricer, term: TableTerm, kept: int, left: int) -> int:
    """The layout of a column of a table; -1 if the value cannot be kept in it.

    ``left`` is the layout in which the op leaves the value.
    """
    layout, digits = 0, kept
    for axis in range(op_pricer.op_factor.shape[1]):
        digit = digits % term.radix
        digits //= term.radix
        layout |= digit << (LAYOUT_BITS * axis)
        if term.kind != _USE and term.offered >= 0:
            # Kept as the value's row says, as the op leaves it, or whole if that is partial sums.
            as_left = digit == (left >> (LAYOUT_BITS * axis)) & 31
            if not as_left and (term.offered >> digit) & 1 == 0:
                return -1
    return layout


@helper
def _add_products(op_pricer: OpPricer, term: TableTerm, row: int, table: np.ndarray) -> None:
    """Add to a row of the table the time of a product and of bringing its result to each layout."""
    tables, steps, op, value = op_pricer.inputs.tables, op_pricer.steps, term.op, term.item
    natural, _ = st.natural_layout(tables, op_pricer.op_factor, value, op_pricer.op_factor.shape[1])
    for kept in range(table.shape[1]):
        layout = _layout_of(op_pricer, term, kept, natural)
        if layout < 0:
            table[row, kept] = np.inf
            continue
        _lay_around(op_pricer, op)
        steps.layout[value] = layout
        table[row, kept] += _time_of(op_pricer, op, True)


@helper
def _add_moves(op_pricer: OpPricer, term: TableTerm, row: int, table: np.ndarray) -> None:
    """Add to a row of the table the time of bringing the value from or to each layout."""
    inputs, op_factor, steps = op_pricer.inputs, op_pricer.op_factor, op_pricer.steps
    tables, n_axes, op = inputs.tables, op_factor.shape[1], term.op
    ops = np.full(1, op, np.int32)
    for use in range(tables.use_ptr[op], tables.use_ptr[op + 1]):
        steps.copy[use] = -1
    before, after, partial, value, use = 0, 0, 0, term.item, -1
    if term.kind == _RESULT:
        before, partial = st.natural_layout(tables, op_factor, value, n_axes)
    else:
        use, value = term.item, tables.use_value[term.item]
        after = st.use_layout(tables, op_factor, tables.use_want[use], n_axes)
    for kept in range(table.shape[1]):
        layout = _layout_of(op_pricer, term, kept, before)
        if layout < 0:
            table[row, kept] = np.inf
            continue
        if term.kind == _RESULT:
            after = layout
        else:
            before = layout
        if before == after and not partial:
            continue
        n_steps = st.reshard(
            steps,
            0,
            op,
            value,
            use,
            before,
            after,
            partial,
            tables.value_bytes[value],
            inputs.axis_size,
        )
        kernel.price_steps(inputs, ops, steps, n_steps, op_pricer.each, op_pricer.prices)
        for step in range(n_steps):
            # The most of a gather ahead that computing can hide, however much there is to compute.
            hidden_s = inputs.rates.gathered_ahead * op_pricer.each.ahead_s[step]
            table[row, kept] += inputs.times[op] * (op_pricer.each.time_s[step] - hidden_s)


@helper
def _least_by_kept(bound: Bound, table: int, n_kept: int, out: np.ndarray) -> None:
    """Add the minimum of each column of a table to ``out`` [n_kept]."""
    rows = (
        bound.table_begin[table + 1]
        if table + 1 < bound.table_begin.shape[0]
        else bound.table.shape[0]
    ) - bound.table_begin[table]
    rows //= n_kept
    for kept in range(n_kept):
        best = np.inf
        for row in range(rows):
            best = min(best, bound.table[bound.table_begin[table] + row * n_kept + kept])
        out[kept] += best


@compiled
def _agree(
    bound: Bound, by_class: Int64Array, ptr: Int64Array, group_of: Int64Array, n_axes: int
) -> None:
    """Do one round of min-sum diffusion.

    It equalises the least price of every row of a class of ops over all tables of the class. One
    table gains what another loses, so the sum over the tables stays the same for every row. Only
    tables that always count take part.
    """
    for op_class in range(ptr.shape[0] - 1):
        count = ptr[op_class + 1] - ptr[op_class]
        if count < 2:
            continue
        rows = 1
        for _ in range(n_axes):
            rows *= bound.n_candidates[op_class] + 1
        least = np.full((count, rows), np.inf)
        for index in range(count):
            table = by_class[ptr[op_class] + index]
            group = group_of[table]
            n_kept, radix = bound.n_kept[group], bound.radix[group]
            allowed = bound.offered[group]
            if bound.group_owner[group] >= 0:
                allowed |= bound.natural[bound.natural_ptr[group]]
            others_s = np.zeros(n_kept)
            for other_table in range(bound.group_ptr[group], bound.group_ptr[group + 1]):
                if other_table != table and bound.table_want[other_table] < 0:
                    _least_by_kept(bound, other_table, n_kept, others_s)
            for kept in range(n_kept):
                digits, possible = kept, True
                for _ in range(n_axes):
                    possible &= (allowed >> (digits % radix)) & 1 == 1
                    digits //= radix
                if possible:
                    for row in range(rows):
                        price = (
                            bound.table[bound.table_begin[table] + row * n_kept + kept]
                            + others_s[kept]
                        )
                        least[index, row] = min(least[index, row], price)
        for row in range(rows):
            mean = 0.0
            for index in range(count):
                mean += least[index, row] / count
            if mean == np.inf:  # does not divide
                continue
            for index in range(count):
                table = by_class[ptr[op_class] + index]
                n_kept = bound.n_kept[group_of[table]]
                for kept in range(n_kept):
                    bound.table[bound.table_begin[table] + row * n_kept + kept] += (
                        mean - least[index, row]
                    )


@compiled
def _envelopes(bound: Bound, group_of: Int64Array, n_axes: int) -> None:
    """Fill rows with unset axes with the minimum over the rows that they may become."""
    for table in range(group_of.shape[0]):
        n_kept, base = (
            bound.n_kept[group_of[table]],
            bound.n_candidates[bound.table_class[table]] + 1,
        )
        rows = 1
        for _ in range(n_axes):
            rows *= base
        stride = 1
        for _ in range(n_axes):
            for row in range(rows):
                if (row // stride) % base == 0:
                    for digit in range(1, base):
                        for kept in range(n_kept):
                            entry = bound.table_begin[table] + row * n_kept + kept
                            finer = (
                                bound.table_begin[table] + (row + digit * stride) * n_kept + kept
                            )
                            bound.table[entry] = min(bound.table[entry], bound.table[finer])
            stride *= base

"""A program folded for pricing.

One op for each class of ops that cost the same under every plan of a search.

The layers of a network differ in nothing that a price depends on, and an action treats them all
alike (``sharding.alike``). So ops are sorted into classes by everything that lowering and pricing
read, one op of each class is lowered and priced, and its price counts as often as the class has
members. Classes are made from the inside out, each time by comparing whole rows of numbers, so that
no collision of hashes can merge two of them. They are told apart by these columns:

* a *want*, the layout that a use asks for: the op's row of the state, and the op's name of each
  dim, or the layout that a ``shard_map`` asks for;
* a value: its row of the state, the row and names of the op that defines it, its shape, its facts,
  and the set of its uses' wants;
* a use: its want, its value, the value in whose memory that is, and the set of earlier wants whose
  copies it may share;
* an op: its row of the state, its kind and facts, its uses and its results.

Lifetimes depend on the place in the program: they are kept for the program's own ops, with sizes
from the classes, and ``folded_ranges`` keeps those that decide the peak.

Reference: TOAST section 4.4, where repeated layers are treated alike. Start reading at ``fold``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.folded_ranges import folded_ranges
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.program_facts import OpFacts, ProgramFacts, UseFacts, ValueFacts
from toast_lab.hashing import Classes, classes, numbers
from toast_lab.ir.program import Program
from toast_lab.kernels import compiled, copy_row
from toast_lab.packs import BoolArray, Int32Array, Int64Array
from toast_lab.ragged import Ragged, gather, row_numbers, row_starts
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.steps import Tables

NEVER_ENDS = np.iinfo(np.int32).max


def fold(program: Program, alike: Alike, whole: PriceInputs) -> PriceInputs:
    """Sort the ops of a program into classes of equal price.

    ``tables`` and ``facts`` of the result count classes, ``memory`` maps the program onto them.

    Args:
        program: the program to fold.
        alike: classes of ops and values that no plan of the search tells apart.
        whole: price inputs of the program op by op.
    """
    tables, facts, memory = whole.tables, whole.facts, whole.memory
    classes_of = _sort(program, alike, whole)
    wants, values, ops = classes_of.wants, classes_of.values, classes_of.ops
    folded_tables = _folded_tables(program, alike, tables, classes_of)
    first_ops, first_values, use_ptr = ops.first, values.first, folded_tables.use_ptr
    use = gather(tables.use_ptr, first_ops)
    folded_facts = ProgramFacts(
        op=OpFacts._make(column[first_ops] for column in facts.op),
        use=UseFacts._make(column[use] for column in facts.use),
        value=ValueFacts._make(column[first_values] for column in facts.value),
        root=values.label[facts.root[use]],
        dim_size=Ragged(tables.shape_ptr, facts.dim_size).take(first_values).flat,
    )
    # Each use is priced as the use at the same position in the first op of its op's class.
    like_op = ops.label
    position = np.arange(program.n_uses) - tables.use_ptr[tables.use_op]
    like_use = (use_ptr[like_op[tables.use_op]] + position).astype(np.int32)
    buffers = memory.buffers
    folded_memory = memory._replace(
        buffers=buffers._replace(
            value=values.label[buffers.value],
            heir=_labelled(values.label, buffers.heir),
            read_late=_labelled(ops.label, buffers.read_late),
            written_late=_labelled(ops.label, buffers.written_late),
        ),
        like_use=like_use,
        like_op=like_op,
    )
    ranges = folded_ranges(
        tables,
        folded_memory,
        whole.ranges,
        want=wants.label,
        may_bring=_may_bring(tables, classes_of.earlier, wants.label),
    )
    # With the element types of the whole program's arrays, for which kernels are compiled.
    return PriceInputs(
        tables=_typed(folded_tables, tables),
        facts=folded_facts,
        memory=_typed(folded_memory, memory),
        ranges=_typed(ranges, whole.ranges),
        times=ops.sizes.astype(np.float64),
        rates=whole.rates,
        axis_size=whole.axis_size,
        # Entries belong to classes of ops, and all ops that are folded into one share them.
        listed=whole.listed._replace(
            begin=whole.listed.begin[first_ops], end=whole.listed.end[first_ops]
        ),
    )


class _ProgramClasses(NamedTuple):
    """The classes of a program, and the rows of numbers by which they were told apart.

    Attributes:
        wants: classes of uses, by the layouts that they ask for.
        values: classes of values.
        ops: classes of ops.
        use_names: by use, the names of its dims, counted from its op's first.
        def_names: by value, the same.
        wanted: by value, the wants of its uses.
        earlier: by use, the wants whose copies it may share.
    """

    wants: Classes
    values: Classes
    ops: Classes
    use_names: Ragged
    def_names: Ragged
    wanted: Ragged
    earlier: Ragged


def _sort(program: Program, alike: Alike, whole: PriceInputs) -> _ProgramClasses:
    """Sort wants, values, uses and ops into classes, from the inside out."""
    tables, facts = whole.tables, whole.facts
    row = alike.ops.label  # [O] row of op_factor
    first_name = program.factor_ptr[:-1]
    by_dim_of_use = np.diff(tables.use_dim_ptr)
    use_names = Ragged(
        tables.use_dim_ptr,
        tables.use_dim_factor - np.repeat(first_name[tables.use_owner], by_dim_of_use),
    )
    wants = classes(program.n_uses, row[tables.use_owner], use_names, tables.use_given)
    rank = np.diff(tables.shape_ptr)
    def_names = Ragged(
        tables.shape_ptr, tables.def_dim_factor - np.repeat(first_name[tables.value_owner], rank)
    )
    # The wants of uses do not affect how arguments, results and constants are kept.
    depends_on_wants = ~(
        tables.value_constant | tables.value_output | (tables.value_op < tables.n_arguments)
    )
    wanted = _sets(Ragged(tables.value_use_ptr, wants.label[tables.value_use]), depends_on_wants)
    values = classes(
        program.n_values,
        alike.values.label,
        row[tables.value_owner],
        def_names,
        tables.value_given,
        Ragged(tables.shape_ptr, program.shape),
        tables.value_constant,
        tables.value_output,
        tables.value_op < tables.n_arguments,
        *facts.value,
        wanted,
    )
    earlier = _earlier(tables, wants.label)
    uses = classes(
        program.n_uses,
        wants.label,
        values.label[tables.use_value],
        values.label[facts.root],
        earlier,
        *facts.use,
    )
    owner = program.owner
    ops = classes(
        program.n_ops,
        row,
        row[owner],
        numbers(program.kind),
        *facts.op,
        Ragged(tables.use_ptr, uses.label),
        Ragged(tables.result_ptr, values.label[tables.result]),
    )
    return _ProgramClasses(
        wants=wants,
        values=values,
        ops=ops,
        use_names=use_names,
        def_names=def_names,
        wanted=wanted,
        earlier=earlier,
    )


def _folded_tables(
    program: Program, alike: Alike, tables: Tables, classes_of: _ProgramClasses
) -> Tables:
    """Tables of the first op of each class, with its uses in a row.

    Values and wants are represented by the first of their class.
    """
    wants, values, ops = classes_of.wants, classes_of.values, classes_of.ops
    row, first_name = alike.ops.label, program.factor_ptr[:-1]
    first_ops, first_values, first_wants = ops.first, values.first, wants.first
    name_of_row = first_name[alike.ops.first]
    want_row, maker_row = row[tables.use_owner[first_wants]], row[tables.value_owner[first_values]]
    use, result = gather(tables.use_ptr, first_ops), gather(tables.result_ptr, first_ops)
    want_dims = classes_of.use_names.take(first_wants)
    value_dims = classes_of.def_names.take(first_values)
    value_wants, use_earlier = classes_of.wanted.take(first_values), classes_of.earlier.take(use)
    use_ptr = row_starts(np.diff(tables.use_ptr)[first_ops])
    return Tables(
        shape_ptr=value_dims.ptr,
        value_bytes=tables.value_bytes[first_values],
        value_op=ops.label[tables.value_op[first_values]],
        value_constant=tables.value_constant[first_values],
        value_output=tables.value_output[first_values],
        value_use_ptr=value_wants.ptr,
        value_use=value_wants.flat,
        value_row=alike.values.label[first_values],
        value_owner=maker_row,
        def_dim_factor=value_dims.flat + np.repeat(name_of_row[maker_row], value_dims.lengths),
        result_ptr=row_starts(np.diff(tables.result_ptr)[first_ops]),
        result=values.label[tables.result[result]],
        op_row=row[first_ops],
        use_ptr=use_ptr,
        use_value=values.label[tables.use_value[use]],
        use_op=row_numbers(use_ptr),
        use_want=wants.label[use],
        earlier_begin=use_earlier.ptr[:-1],
        earlier_end=use_earlier.ptr[1:],
        earlier=use_earlier.flat,
        use_owner=want_row,
        use_dim_ptr=want_dims.ptr,
        use_dim_factor=want_dims.flat + np.repeat(name_of_row[want_row], want_dims.lengths),
        use_until=np.full(len(first_wants), NEVER_ENDS, np.int32),
        factor_reduction=tables.factor_reduction,
        use_given=tables.use_given[first_wants],
        value_given=tables.value_given[first_values],
        n_arguments=int((first_ops < tables.n_arguments).sum()),
        folded=True,
    )


def _may_bring(tables: Tables, earlier: Ragged, want: np.ndarray) -> np.ndarray:
    """[U] bool: may a plan bring a copy for the use?

    Not for scalars and constants, nor if an earlier use always wants the same layout.
    """
    use = earlier.row_numbers
    shares = np.bincount(use[earlier.flat == want[use]], minlength=len(want)) > 0
    value, rank = tables.use_value, np.diff(tables.shape_ptr)
    return ~shares & ~tables.value_constant[value] & (rank[value] > 0)


def _typed(field: Any, like: Any) -> Any:
    """A pack with its arrays cast to the element types of those in ``like``."""
    if isinstance(field, tuple):
        return type(like)._make(map(_typed, field, like))
    return field.astype(like.dtype) if isinstance(field, np.ndarray) else field


def _labelled(label: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Label of each index; -1 stays -1."""
    return np.where(number >= 0, label[number], -1)


def _sets(rows: Ragged, is_kept: np.ndarray) -> Ragged:
    """Rows without repeats, ascending; those that are not to be kept are empty."""
    row = rows.row_numbers
    count = int(rows.flat.max(initial=0)) + 1
    pairs = np.unique((row * count + rows.flat)[is_kept[row]])
    return Ragged(row_starts(np.bincount(pairs // count, minlength=len(is_kept))), pairs % count)


def _earlier(tables: Tables, want: np.ndarray) -> Ragged:
    """For each use, the wants of earlier uses that it may share a copy with.

    Only uses of the same value count; the wants are ascending.
    """
    length, data = _earlier_sets(
        tables.value_use_ptr,
        tables.value_use,
        want,
        tables.use_op,
        tables.use_until,
        np.array(tables.value_constant),
    )
    # The rows are ordered by value; put them in the order of uses.
    row_of_use = np.empty(len(tables.use_op), np.int64)
    row_of_use[tables.value_use] = np.arange(len(tables.use_op))
    return Ragged(row_starts(length), data).take(row_of_use)


@compiled
def _earlier_sets(
    value_use_ptr: Int64Array,
    value_use: Int32Array,
    want: Int32Array,
    use_op: Int32Array,
    use_until: Int32Array,
    constant: BoolArray,
) -> tuple[np.ndarray, np.ndarray]:
    length = np.zeros(value_use.shape[0], np.int64)
    data = np.empty(max(16, 2 * value_use.shape[0]), np.int64)
    count = 0
    for value in range(value_use_ptr.shape[0] - 1):
        if constant[value]:
            continue
        begin, end = value_use_ptr[value], value_use_ptr[value + 1]
        # Distinct (want, until) so far, ascending by want
        seen = np.empty((end - begin, 2), np.int64)
        n_seen = 0
        for row in range(begin, end):
            use = value_use[row]
            last_want = -1
            for i in range(n_seen):
                if seen[i, 1] > use_op[use] and seen[i, 0] != last_want:
                    last_want = seen[i, 0]
                    if count == data.shape[0]:
                        larger = np.empty(2 * count, np.int64)
                        copy_row(larger[:count], data)
                        data = larger
                    data[count] = last_want
                    count += 1
                    length[row] += 1
            insert_at, known = n_seen, False
            for i in range(n_seen):
                if seen[i, 0] == want[use] and seen[i, 1] == use_until[use]:
                    known = True
                    break
                if seen[i, 0] > want[use]:
                    insert_at = i
                    break
            if not known:
                for i in range(n_seen, insert_at, -1):
                    seen[i, 0], seen[i, 1] = (
                        seen[i - 1, 0],
                        seen[i - 1, 1],
                    )
                seen[insert_at, 0], seen[insert_at, 1] = want[use], use_until[use]
                n_seen += 1
    return length, data[:count]

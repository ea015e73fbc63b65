"""A program folded for pricing.

One op for each class of ops that cost the same under every plan of a search.

The layers of a network differ in nothing that a price depends on, and an action treats them all
alike (``sharding.alike``).  So ops are sorted into classes by everything that lowering and pricing
look at, one op of each class is lowered and priced, and its price counts as often as the class has
members.  Classes are made from the inside out, each step by comparing whole rows of numbers, so
that nothing rests on luck:

* a *want* is what a use asks for: the op's row of the state, and which of its names each dim has;
* a value is its row of the state, the row and names of its maker, its shape, its facts, and the set
  of its wants;
* a use is a want, a value, the value in whose memory that is, and the set of wants that came before
  it and whose copies it may take;
* an op is its row of the state, its kind and facts, its uses and its results.

What depends on the place in the program, when things come to life and die, is not folded:
``Memory`` counts the program's own ops and takes sizes from the classes.

Reference: TOAST section 4.4, where repeated layers are treated alike.  Start reading at ``fold``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.facts import Facts, Memory, OpFacts, UseFacts, ValueFacts
from toast_lab.hashing import Ragged, classes, gather, numbers
from toast_lab.ir.program import Program
from toast_lab.kernels import compiled, copy_row
from toast_lab.packs import BoolArray, Int32Array, Int64Array
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.steps import Tables

ALWAYS = np.iinfo(np.int32).max


class Folded(NamedTuple):
    """A folded program.

    ``tables`` and ``facts`` count classes, ``memory`` maps the program onto them.
    """

    tables: Tables
    facts: Facts
    memory: Memory
    times: np.ndarray  #: [O'] float64 members of each class of ops


def fold(program: Program, alike: Alike, t: Tables, f: Facts, m: Memory) -> Folded:
    """Sort the ops of a program into classes of equal price.

    ``t``, ``f`` and ``m`` are those of the whole program.
    """
    row = alike.ops.label  # [O] row of op_factor
    first_name = program.factor_ptr[:-1]
    by_dim_of_use = np.diff(t.use_dim_ptr)
    use_names = t.use_dim_factor - np.repeat(first_name[t.use_owner], by_dim_of_use)
    wants = classes(program.n_uses, row[t.use_owner], (t.use_dim_ptr, use_names))
    rank = np.diff(t.shape_ptr)
    def_names = t.def_dim_factor - np.repeat(first_name[t.value_owner], rank)
    # What uses want does not bear on how arguments, results and constants are kept.
    free = ~(t.value_constant | t.value_output | (t.value_op < t.n_arguments))
    values = classes(
        program.n_values,
        alike.values.label,
        row[t.value_owner],
        (t.shape_ptr, def_names),
        (t.shape_ptr, program.shape),
        t.value_constant,
        t.value_output,
        t.value_op < t.n_arguments,
        *f.value,
        _sets(t.value_use_ptr, wants.label[t.value_use], free),
    )
    earlier = _earlier(t, wants.label)
    uses = classes(
        program.n_uses,
        wants.label,
        values.label[t.use_value],
        values.label[f.root],
        earlier,
        *f.use,
    )
    owner = program.owner
    ops = classes(
        program.n_ops,
        row,
        row[owner],
        numbers(program.kind),
        *f.op,
        (t.use_ptr, uses.label),
        (t.result_ptr, values.label[t.result]),
    )

    # The first op of each class, with its uses in a row; values and wants by their first ones.
    lead, value_lead, want_lead = ops.first, values.first, wants.first
    name_of_row = first_name[alike.ops.first]
    want_row, maker_row = row[t.use_owner[want_lead]], row[t.value_owner[value_lead]]
    use, result = gather(t.use_ptr, lead), gather(t.result_ptr, lead)
    want_dims, value_dims = gather(t.use_dim_ptr, want_lead), gather(t.shape_ptr, value_lead)
    set_ptr, set_data = _sets(t.value_use_ptr, wants.label[t.value_use], free)
    use_ptr = _ptr(np.diff(t.use_ptr)[lead])
    earlier_ptr = _ptr(np.diff(earlier[0])[use])
    tables = Tables(
        shape_ptr=_ptr(rank[value_lead]),
        value_bytes=t.value_bytes[value_lead],
        value_op=ops.label[t.value_op[value_lead]],
        value_constant=t.value_constant[value_lead],
        value_output=t.value_output[value_lead],
        value_use_ptr=_ptr(np.diff(set_ptr)[value_lead]),
        value_use=set_data[gather(set_ptr, value_lead)].astype(np.int32),
        value_row=alike.values.label[value_lead],
        value_owner=maker_row,
        def_dim_factor=(
            def_names[value_dims] + np.repeat(name_of_row[maker_row], rank[value_lead])
        ).astype(np.int32),
        result_ptr=_ptr(np.diff(t.result_ptr)[lead]),
        result=values.label[t.result[result]],
        op_row=row[lead],
        use_ptr=use_ptr,
        use_value=values.label[t.use_value[use]],
        use_op=np.repeat(np.arange(len(lead), dtype=np.int32), np.diff(use_ptr)),
        use_want=wants.label[use],
        earlier_begin=earlier_ptr[:-1],
        earlier_end=earlier_ptr[1:],
        earlier=earlier[1][gather(earlier[0], use)].astype(np.int32),
        use_owner=want_row,
        use_dim_ptr=_ptr(by_dim_of_use[want_lead]),
        use_dim_factor=(
            use_names[want_dims] + np.repeat(name_of_row[want_row], by_dim_of_use[want_lead])
        ).astype(np.int32),
        use_until=np.full(len(want_lead), ALWAYS, np.int32),
        factor_reduction=t.factor_reduction,
        n_arguments=int((lead < t.n_arguments).sum()),
        folded=True,
    )
    facts = Facts(
        OpFacts._make([a[lead] for a in f.op]),
        UseFacts._make([a[use] for a in f.use]),
        ValueFacts._make([a[value_lead] for a in f.value]),
        values.label[f.root[use]],
    )
    # Each use is priced as the use at its place in the first op of its op's class.
    like_op = ops.label
    place = np.arange(program.n_uses) - t.use_ptr[t.use_op]
    like_use = (use_ptr[like_op[t.use_op]] + place).astype(np.int32)
    member_ptr, member = _members(like_use, len(use))
    op_member_ptr, op_member = _members(like_op, len(lead))
    memory = m._replace(
        buffer_value=values.label[m.buffer_value],
        buffer_heir=np.where(m.buffer_heir >= 0, values.label[m.buffer_heir], np.int32(-1)),
        member_ptr=member_ptr,
        member=member,
        like_use=like_use,
        like_op=like_op,
        op_member_ptr=op_member_ptr,
        op_member=op_member,
    )
    # Of the very types of the whole program's, so that kernels are compiled once for both.
    return Folded(
        Tables._make(_typed(tables, t)),
        Facts(
            OpFacts._make(_typed(facts.op, f.op)),
            UseFacts._make(_typed(facts.use, f.use)),
            ValueFacts._make(_typed(facts.value, f.value)),
            _typed([facts.root], [f.root])[0],
        ),
        Memory._make(_typed(memory, m)),
        ops.sizes.astype(np.float64),
    )


def _typed(made: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    found = []
    for array, other in zip(made, like, strict=True):
        if isinstance(array, np.ndarray):
            array = array.astype(other.dtype)
            array.flags.writeable = other.flags.writeable
        found.append(array)
    return found


def _ptr(length: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(length)]).astype(np.int64)


def _members(like: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(like, kind="stable").astype(np.int32)
    return _ptr(np.bincount(like, minlength=n)).astype(np.int32), order


def _sets(ptr: np.ndarray, label: np.ndarray, wanted: np.ndarray) -> Ragged:
    """Ragged rows without repeats, ascending; rows that are not wanted are empty."""
    row = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    n = int(label.max(initial=0)) + 1
    pairs = np.unique((row * n + label)[wanted[row]])
    return _ptr(np.bincount(pairs // n, minlength=len(ptr) - 1)), pairs % n


def _earlier(t: Tables, want: np.ndarray) -> Ragged:
    """For each use, the wants of earlier uses that it may share a copy with.

    Those are uses of its own value before it; their wants are ascending.
    """
    length, data = _earlier_sets(
        t.value_use_ptr, t.value_use, want, t.use_op, t.use_until, np.array(t.value_constant)
    )
    # The rows were made value by value.
    made = _ptr(length)
    place = np.empty(len(t.use_op), np.int64)
    place[t.value_use] = np.arange(len(t.use_op))
    return _ptr(length[place]), data[gather(made, place)]


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
    n = 0
    for v in range(value_use_ptr.shape[0] - 1):
        if constant[v]:
            continue
        begin, end = value_use_ptr[v], value_use_ptr[v + 1]
        # Distinct (want, until) so far, ascending by want
        seen = np.empty((end - begin, 2), np.int64)
        n_seen = 0
        for k in range(begin, end):
            use = value_use[k]
            last = -1
            for j in range(n_seen):
                if seen[j, 1] > use_op[use] and seen[j, 0] != last:
                    last = seen[j, 0]
                    if n == data.shape[0]:
                        more = np.empty(2 * n, np.int64)
                        copy_row(more[:n], data)
                        data = more
                    data[n] = last
                    n += 1
                    length[k] += 1
            at, known = n_seen, False
            for j in range(n_seen):
                if seen[j, 0] == want[use] and seen[j, 1] == use_until[use]:
                    known = True
                    break
                if seen[j, 0] > want[use]:
                    at = j
                    break
            if not known:
                for j in range(n_seen, at, -1):
                    seen[j, 0], seen[j, 1] = seen[j - 1, 0], seen[j - 1, 1]
                seen[at, 0], seen[at, 1] = want[use], use_until[use]
                n_seen += 1
    return length, data[:n]

"""The tables of ``bound``: every term of a plan's time, priced by the evaluator's own kernel.

Start reading at ``make_bound``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toast_lab.cost import kernel
from toast_lab.cost.facts import Facts
from toast_lab.cost.kernel import Prices, Rates, StepPrices
from toast_lab.cost.problem import Problem
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Matrix, Int32Matrix, Int64Array
from toast_lab.search.exhaustive.bound import Bound, least_of_groups, scratch_of
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import COMPUTE
from toast_lab.sharding.steps import LAYOUT_BITS, Steps, Tables

MOST_ENTRIES = 30_000_000  # of all tables: 240 MB
ROUNDS = 60  # of diffusion
_COMPUTE, _MADE, _USE = range(3)


def make_bound(
    problem: Problem,
    min_names: int = 0,
    *,
    rounds: int = ROUNDS,
    check: Callable[[], None] = lambda: None,
) -> Bound | None:
    """Price all tables; None where they would be too large (see ``MOST_ENTRIES``).

    Args:
        problem: program, mesh and machine.
        min_names: smallest colour group that is acted on.
        rounds: of diffusion.
        check: called every few milliseconds; may raise to end this.
    """
    space, alike, n_axes = problem.space, problem.space.alike, len(problem.mesh.axes)
    t, f = problem.folded.tables, problem.folded.facts
    acted = space.n_names >= min_names
    # Names along which each class of ops may be split, and what rows of values may become.
    move = np.repeat(np.arange(space.n_moves), np.diff(alike.op_ptr))
    axes = [size for size in problem.mesh.sizes if size > 1]

    def cuts(sizes: np.ndarray) -> np.ndarray:
        """Does any axis divide?"""
        if not axes:
            return np.zeros(len(sizes), bool)
        return np.any([sizes % size == 0 for size in axes], axis=0)

    kept = acted[move] & cuts(space.analysis.names.size[alike.move_factor]) & (alike.op_axes > 0)
    start_ops, start_values = space.start
    pinned = np.nonzero(start_ops >= 0)
    offered = np.stack([alike.op, alike.move_factor]).astype(np.int64)[:, kept]
    pairs = np.unique(
        np.concatenate([offered, [pinned[0], start_ops[pinned]]], axis=1).astype(np.int64), axis=1
    )
    n_classes = len(alike.ops.first)
    n_candidates = np.bincount(pairs[0], minlength=n_classes).astype(np.int64)
    class_ptr = np.concatenate([[0], np.cumsum(n_candidates)]).astype(np.int64)
    names = np.ascontiguousarray(pairs[1])
    candidate = np.full(len(space.analysis.names.size), -1, np.int64)
    candidate[names] = np.arange(len(names)) - class_ptr[pairs[0]]
    move = np.repeat(np.arange(space.n_moves), np.diff(alike.value_ptr))
    offered_row = np.ones(len(alike.values.first), np.int64)
    kept = acted[move] & cuts(alike.move_dim_size) & (alike.value_axes > 0)
    np.bitwise_or.at(
        offered_row, alike.value[kept], np.int64(2) << alike.move_dim[kept].astype(np.int64)
    )
    pinned = np.nonzero(start_values >= 0)
    np.bitwise_or.at(offered_row, pinned[0], np.int64(2) << start_values[pinned].astype(np.int64))

    groups, entries = _entries(t, f)
    rank = np.diff(t.shape_ptr).astype(np.int64)
    n_extra = groups - len(rank)
    radix = np.concatenate([rank + 1, np.ones(n_extra, np.int64)])
    n_kept = radix**n_axes
    sizes = np.asarray(
        [(n_candidates[k] + 1) ** n_axes * n_kept[g] for g, k, _, _ in entries], np.int64
    )
    base_time_s, base_bytes = problem.baseline
    if sizes.sum() > MOST_ENTRIES or not base_time_s > 0:
        return None
    begin = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    none = np.full(n_extra, -1, np.int64)
    variable = ~t.value_constant
    moved_back = variable & (t.value_op >= t.n_arguments) & ~t.value_output
    owner = np.where(moved_back, t.value_owner, -1).astype(np.int64)
    natural_ptr, natural = np.zeros(groups, np.int64), [1]
    for v in np.flatnonzero(moved_back).tolist():
        natural_ptr[v] = len(natural)
        natural += _natural_bits(
            t, v, names[class_ptr[owner[v]] : class_ptr[owner[v] + 1]].tolist()
        )
    other = [
        t.earlier[t.earlier_begin[u] : t.earlier_end[u]].tolist() if u >= 0 else []
        for _, _, u, _ in entries
    ]
    want_ptr, want_dim = _want_dims(t, names, class_ptr)
    m = problem.folded.memory
    start, last = m.buffer_start.astype(np.int64), m.buffer_end.astype(np.int64)
    last -= m.buffer_heir >= 0  # its place may go to a result one op early
    size = f.value.bytes[m.buffer_value]
    n_ops = len(m.runs_at)
    whole = np.zeros(n_ops + 2)
    np.add.at(whole, start, size)
    np.add.at(whole, last + 1, -size)
    b = Bound(
        n_candidates=n_candidates,
        candidate=candidate,
        group_ptr=np.searchsorted(
            np.asarray([e[0] for e in entries], np.int64), np.arange(groups + 1)
        ).astype(np.int64),
        n_kept=n_kept,
        radix=radix,
        group_row=np.concatenate([np.where(variable, t.value_row, -1), none]).astype(np.int64),
        group_owner=np.concatenate([owner, none]),
        offered=np.concatenate([np.where(variable, offered_row[t.value_row], 1), -none]).astype(
            np.int64
        ),
        natural_ptr=natural_ptr,
        natural=np.asarray(natural, np.int64),
        table_class=np.asarray([k for _, k, _, _ in entries], np.int64),
        table_begin=begin[:-1],
        table_want=np.asarray(
            [t.use_want[u] if u >= 0 else -1 for _, _, u, _ in entries], np.int64
        ),
        other_ptr=np.cumsum([0, *map(len, other)]).astype(np.int64),
        other=np.asarray([w for o in other for w in o], np.int64),
        want_class=t.use_owner.astype(np.int64),
        want_ptr=want_ptr,
        want_dim=want_dim,
        table=np.zeros(begin[-1]),
        rest_s=np.zeros(groups + 1),
        buffer_group=np.where(t.value_constant[m.buffer_value], -1, m.buffer_value).astype(
            np.int64
        ),
        buffer_bytes=size,
        buffer_start=start,
        buffer_end=last,
        n_ops=n_ops,
        base_time_s=base_time_s,
        base_bytes=base_bytes,
        limit_bytes=problem.memory_limit_bytes,
        memory_weight=problem.memory_weight,
        memory_matters=bool(np.cumsum(whole).max() > problem.memory_limit_bytes),
    )
    _fill(problem=problem, b=b, entries=entries, names=names, class_ptr=class_ptr, check=check)
    always = np.flatnonzero(b.table_want < 0)
    by_class = always[np.argsort(b.table_class[always], kind="stable")]
    ptr = np.searchsorted(b.table_class[by_class], np.arange(n_classes + 1))
    group_of = np.asarray([e[0] for e in entries], np.int64)
    for _ in range(rounds):
        check()
        _agree(b, by_class, ptr, group_of, n_axes)
    _envelopes(b, group_of, n_axes)
    unsharded = np.full((n_classes, n_axes), -1, np.int32)
    least = least_of_groups(b, unsharded, scratch_of(b, n_axes))
    b.rest_s[:-1] = np.cumsum(least[::-1])[::-1]
    return b


# Group, class of ops, use that may share a copy, parts
_Entry = tuple[int, int, int, list[tuple[int, int, int]]]


def _entries(t: Tables, f: Facts) -> tuple[int, list[_Entry]]:
    """(groups, tables by group, those that always count first).

    Parts are (kind, op, value or use).
    """
    always: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    sometimes: list[_Entry] = []
    groups = len(t.value_op)
    for op in range(t.n_arguments, len(t.op_row)):
        k = int(t.op_row[op])
        results = [
            v
            for v in t.result[t.result_ptr[op] : t.result_ptr[op + 1]].tolist()
            if not t.value_constant[v]
        ]
        if not f.op.free[op]:
            group = results[0] if len(results) == 1 else groups
            groups += group == groups
            always.setdefault((group, k), []).append((_COMPUTE, op, -1))
        for v in results:
            always.setdefault((v, int(t.value_owner[v])), []).append((_MADE, op, v))
        for use in range(int(t.use_ptr[op]), int(t.use_ptr[op + 1])):
            v, k = int(t.use_value[use]), int(t.use_owner[t.use_want[use]])
            if t.value_constant[v]:
                continue
            if t.earlier_begin[use] == t.earlier_end[use]:
                always.setdefault((v, k), []).append((_USE, op, use))
            else:
                sometimes.append((v, k, use, [(_USE, op, use)]))
    entries: list[_Entry] = [(g, k, -1, parts) for (g, k), parts in always.items()]
    return groups, sorted(entries + sometimes, key=lambda e: (e[0], e[2]))


def _natural_bits(t: Tables, v: int, names: list[int]) -> list[int]:
    """Bits of (1 + dim) in which a class of ops leaves a value on an axis, by digit of the row."""
    dims = t.def_dim_factor[t.shape_ptr[v] : t.shape_ptr[v + 1]].tolist()
    bits = [1 if t.factor_reduction[n] or n not in dims else 2 << dims.index(n) for n in names]
    return [int(np.bitwise_or.reduce([1, *bits])), *bits]


def _want_dims(
    t: Tables, names: np.ndarray, class_ptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``want_ptr`` and ``want_dim``."""
    ptr: list[int] = []
    wanted: list[int] = []
    for w, k in enumerate(t.use_owner.tolist()):
        dims = t.use_dim_factor[t.use_dim_ptr[w] : t.use_dim_ptr[w + 1]].tolist()
        ptr.append(len(wanted))
        own = names[class_ptr[k] : class_ptr[k + 1]].tolist()
        wanted += [-1, *(dims.index(n) if n in dims else -1 for n in own)]
    return np.asarray(ptr, np.int64), np.asarray(wanted, np.int64)


def _fill(
    problem: Problem,
    b: Bound,
    entries: list[_Entry],
    names: np.ndarray,
    class_ptr: np.ndarray,
    check: Callable[[], None],
) -> None:
    folded, axis_size, rates = problem.folded, problem.mesh.array(), problem.pricer().repricer.rates
    t, f, name_size = folded.tables, folded.facts, problem.space.name_size
    # What an operand has of bytes, at least: the value's own or those of a copy, whichever is less.
    sent = np.ones(len(t.value_op))
    np.minimum.at(sent, t.use_value, f.use.sent)
    fewest = np.minimum(f.value.bytes, sent * t.value_bytes)
    own = f.value.bytes[t.use_value] / np.maximum(t.value_bytes[t.use_value], 1e-300)
    low = f._replace(
        value=f.value._replace(bytes=fewest), use=f.use._replace(sent=np.minimum(f.use.sent, own))
    )
    steps = st.buffers(t, len(axis_size))
    each, prices = kernel.step_prices(len(steps.kind)), kernel.prices(t)
    op_factor = np.full((len(b.n_candidates), len(axis_size)), -1, np.int32)
    for c, (g, k, _, parts) in enumerate(entries):
        check()
        own_names = names[class_ptr[k] : class_ptr[k + 1]]
        rows, n_kept = (len(own_names) + 1) ** len(axis_size), int(b.n_kept[g])
        out = b.table[b.table_begin[c] : b.table_begin[c] + rows * n_kept].reshape(rows, n_kept)
        for kind, op, item in parts:
            if kind == _COMPUTE:
                own_only = all(
                    t.use_owner[t.use_want[u]] == k for u in range(t.use_ptr[op], t.use_ptr[op + 1])
                ) and all(
                    t.value_owner[v] == k for v in t.result[t.result_ptr[op] : t.result_ptr[op + 1]]
                )
                if not own_only:
                    continue  # nothing is known of it, and no time is below 0
            _fill_one(
                low if kind == _COMPUTE else f,
                rates,
                t,
                kind,
                op,
                item,
                k,
                own_names,
                axis_size,
                name_size,
                b.radix[g],
                b.offered[g] if b.group_owner[g] >= 0 else -1,
                folded.times[op],
                steps,
                each,
                prices,
                op_factor,
                out,
            )


@compiled
def _fill_one(
    f: Facts,
    r: Rates,
    t: Tables,
    kind: int,
    op: int,
    item: int,
    k: int,
    names: Int64Array,
    axis_size: Int64Array,
    name_size: Int64Array,
    radix: int,
    offered: int,
    times: float,
    steps: Steps,
    each: StepPrices,
    prices: Prices,
    op_factor: Int32Matrix,
    out: Float64Matrix,
) -> None:
    """Add one term to a table ``out[rows of class k, layouts of the value]``.

    Rows that do not divide are infinite.

    ``offered``: bits of (1 + dim) that the value's row may become, if moves of the value may be
    taken back, else -1.
    """
    n_axes = axis_size.shape[0]
    ops = np.empty(1, np.int32)
    ops[0] = op
    everywhere = 0
    for a in range(n_axes):
        everywhere |= 1 << (LAYOUT_BITS * a)
    memo = np.full(out.shape[1] if kind == _USE else 1, -1)  # first row that wants a layout
    for row in range(out.shape[0]):
        rest, divides = row, True
        for a in range(n_axes):
            digit = rest % (names.shape[0] + 1)
            rest //= names.shape[0] + 1
            op_factor[k, a] = names[digit - 1] if digit else -1
            divides &= digit == 0 or axis_size[a] > 1
        for a in range(n_axes):
            ways = 1
            for c in range(n_axes):
                if op_factor[k, a] >= 0 and op_factor[k, c] == op_factor[k, a]:
                    ways *= axis_size[c]
            divides &= op_factor[k, a] < 0 or name_size[op_factor[k, a]] % ways == 0
        if not divides:
            for kept in range(out.shape[1]):
                out[row, kept] = np.inf
            continue
        if kind == _COMPUTE:
            for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                want, value = t.use_want[use], t.use_value[use]
                steps.wanted[want] = st.use_layout(t, op_factor, want, n_axes)
                steps.layout[value] = 0 if t.value_constant[value] else steps.wanted[want]
            for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                if f.root[use] != t.use_value[use]:
                    steps.layout[f.root[use]] = everywhere
            for i in range(t.result_ptr[op], t.result_ptr[op + 1]):
                value = t.result[i]
                steps.layout[value] = 0
                if not t.value_constant[value]:
                    steps.layout[value] = st.natural_layout(t, op_factor, value, n_axes)[0]
            n = st.lower_into(t, ops, op_factor, axis_size, steps)
            kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
            for i in range(n):
                if steps.kind[i] == COMPUTE:
                    for kept in range(out.shape[1]):
                        out[row, kept] += times * each.time_s[i]
            continue
        for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
            steps.copy[use] = -1
        before, after, partial, value, use = 0, 0, 0, item, -1
        known = -1
        if kind == _MADE:
            before, partial = st.natural_layout(t, op_factor, value, n_axes)
        else:
            use, value = item, t.use_value[item]
            after = st.use_layout(t, op_factor, t.use_want[use], n_axes)
            number, stride = 0, 1
            for a in range(n_axes):
                number += (st.layout_dim(after, a) + 1) * stride
                stride *= radix
            known = memo[number]
            if known < 0:
                memo[number] = row
        for kept in range(out.shape[1]):
            rest, layout, possible = kept, 0, True
            for a in range(n_axes):
                layout |= (rest % radix) << (LAYOUT_BITS * a)
                if kind == _MADE and offered >= 0:
                    # As the value's row says, as the op leaves it, or whole where the op leaves
                    # partial sums.
                    left = (before >> (LAYOUT_BITS * a)) & 31
                    possible &= rest % radix == left or (offered >> (rest % radix)) & 1 == 1
                rest //= radix
            if not possible:
                out[row, kept] = np.inf
                continue
            if kind == _MADE:
                after = layout
            else:
                before = layout
            if before == after and not partial:
                continue
            n = st._reshard(
                steps, 0, op, value, use, before, after, partial, t.value_bytes[value], axis_size
            )
            kernel.price_steps(f, r, t, ops, steps, n, op_factor, axis_size, each, prices)
            total = 0.0
            for i in range(n):
                total += each.time_s[i]
            out[row, kept] += times * total
    for a in range(n_axes):
        op_factor[k, a] = -1


@helper
def _least_by_kept(b: Bound, c: int, n_kept: int, out: np.ndarray) -> None:
    """Add to ``out[n_kept]`` the least of each column of table ``c``."""
    rows = (
        b.table_begin[c + 1] if c + 1 < b.table_begin.shape[0] else b.table.shape[0]
    ) - b.table_begin[c]
    rows //= n_kept
    for kept in range(n_kept):
        best = np.inf
        for row in range(rows):
            best = min(best, b.table[b.table_begin[c] + row * n_kept + kept])
        out[kept] += best


@compiled
def _agree(
    b: Bound, by_class: Int64Array, ptr: Int64Array, group_of: Int64Array, n_axes: int
) -> None:
    """One round of min-sum diffusion.

    It makes the least price of every row of a class of ops the same in all its tables.

    What one table loses another gains, so that the sum over tables is kept for every row.  Only
    tables that always count take part.
    """
    for k in range(ptr.shape[0] - 1):
        count = ptr[k + 1] - ptr[k]
        if count < 2:
            continue
        rows = 1
        for _ in range(n_axes):
            rows *= b.n_candidates[k] + 1
        least = np.full((count, rows), np.inf)
        for i in range(count):
            c = by_class[ptr[k] + i]
            g = group_of[c]
            n_kept, radix = b.n_kept[g], b.radix[g]
            allowed = b.offered[g]
            if b.group_owner[g] >= 0:
                allowed |= b.natural[b.natural_ptr[g]]
            rest = np.zeros(n_kept)
            for j in range(b.group_ptr[g], b.group_ptr[g + 1]):
                if j != c and b.table_want[j] < 0:
                    _least_by_kept(b, j, n_kept, rest)
            for kept in range(n_kept):
                left, possible = kept, True
                for _ in range(n_axes):
                    possible &= (allowed >> (left % radix)) & 1 == 1
                    left //= radix
                if possible:
                    for row in range(rows):
                        price = b.table[b.table_begin[c] + row * n_kept + kept] + rest[kept]
                        least[i, row] = min(least[i, row], price)
        for row in range(rows):
            mean = 0.0
            for i in range(count):
                mean += least[i, row] / count
            if mean == np.inf:  # does not divide
                continue
            for i in range(count):
                c = by_class[ptr[k] + i]
                n_kept = b.n_kept[group_of[c]]
                for kept in range(n_kept):
                    b.table[b.table_begin[c] + row * n_kept + kept] += mean - least[i, row]


@compiled
def _envelopes(b: Bound, group_of: Int64Array, n_axes: int) -> None:
    """Put into rows with unset axes the least of what they may become."""
    for c in range(group_of.shape[0]):
        n_kept, base = b.n_kept[group_of[c]], b.n_candidates[b.table_class[c]] + 1
        rows = 1
        for _ in range(n_axes):
            rows *= base
        stride = 1
        for _ in range(n_axes):
            for row in range(rows):
                if (row // stride) % base == 0:
                    for digit in range(1, base):
                        for kept in range(n_kept):
                            at = b.table_begin[c] + row * n_kept + kept
                            more = b.table_begin[c] + (row + digit * stride) * n_kept + kept
                            b.table[at] = min(b.table[at], b.table[more])
            stride *= base

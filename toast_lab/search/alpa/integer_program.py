"""The integer program of ``alpa``: sparse matrices from prices, and HiGHS in a child process.

Columns, all between 0 and 1:

* ``x``: one for each choice of each cluster of ops and of values, binary, one of each cluster is 1;
* ``e``: one for each pair of (label, layout) of a group, continuous.  Its sums over layouts are the
  choices with that label, its sums over labels the choice of that layout, so that it is the product
  of the two wherever they are binary;
* ``z``: one for each pair that costs something unless an earlier use asked for the same: at least
  ``e`` less the ``e`` of the same pair of earlier groups;
* ``over``: bytes above the limit, in units of it; 0 unless the limit may be passed.

HiGHS cannot be interrupted from Python, hence the child.  This module loads neither numba nor the
rest of the search, so that the child starts quickly.  Reference: Alpa (OSDI 2022) section 4.2,
equations 1 to 5 in spirit.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toast_lab.ragged import row_starts

if TYPE_CHECKING:
    import scipy.sparse

    from toast_lab.search.alpa.strategies import ClusteredProgram


class Bytes(NamedTuple):
    """Memory in use at one op, as far as it is linear in the columns, and what is beside that."""

    at: int  #: op of the program
    values: dict[int, np.ndarray]  #: value cluster -> [T] bytes
    groups: dict[int, np.ndarray]  #: group -> [W, T] bytes of copies
    #: the same for uses that may share an earlier one's copy
    shared: dict[tuple[int, tuple[int, ...]], np.ndarray]
    beside: float  #: bytes at the op that the columns do not explain


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerProgram:
    """``minimise cost @ x  with  low <= rows @ x <= high  and  0 <= x <= upper``.

    The first ``n_binary`` columns are binary.
    """

    cost: np.ndarray
    rows: scipy.sparse.csr_array
    low: np.ndarray
    high: np.ndarray
    upper: np.ndarray
    n_binary: int
    unit_s: float  #: seconds that one unit of cost stands for

    def __str__(self) -> str:
        return f"{len(self.cost)} columns ({self.n_binary} binary), {self.rows.shape[0]} rows"


class Layout(NamedTuple):
    """The first column of every kind of choice."""

    ops: np.ndarray  #: [K+1] first column of each op cluster
    values: np.ndarray  #: [L+1]
    groups: dict[int, int]  #: group -> first of its W * T columns
    #: (first column, [n] pairs that have one)
    shared: dict[tuple[int, tuple[int, ...]], tuple[int, np.ndarray]]
    over: int


class _Rows:
    """Rows of a sparse matrix as they come."""

    def __init__(self) -> None:
        self.row: list[np.ndarray] = []
        self.column: list[np.ndarray] = []
        self.value: list[np.ndarray] = []
        self.low: list[np.ndarray] = []
        self.high: list[np.ndarray] = []
        self.n = 0

    def add(self, count: int, low: float, high: float) -> int:
        """Add ``count`` rows with the same bounds and give the first one's number."""
        self.low.append(np.full(count, low))
        self.high.append(np.full(count, high))
        self.n += count
        return self.n - count

    def put(self, row: Any, column: np.ndarray, value: Any) -> None:
        """Set entries."""
        column = np.asarray(column, np.int64)
        self.row.append(np.broadcast_to(np.asarray(row, np.int64), column.shape))
        self.column.append(column)
        self.value.append(np.broadcast_to(np.asarray(value, np.float64), column.shape))

    def matrix(self, n_columns: int) -> scipy.sparse.csr_array:
        """All rows as one sparse matrix."""
        # Loaded late: every search imports this module, and few come to a program.
        import scipy.sparse

        parts = [
            np.concatenate(pieces) if pieces else np.zeros(0)
            for pieces in (self.value, self.row, self.column)
        ]
        where = (parts[1].astype(np.int64), parts[2].astype(np.int64))
        return scipy.sparse.csr_array(
            scipy.sparse.coo_array((parts[0], where), shape=(self.n, n_columns))
        )


def assemble(
    choices: ClusteredProgram,
    tie: list[np.ndarray],
    *,
    bytes_rows: list[Bytes],
    limit_bytes: float,
    over_s: float | None,
    known_s: float | None,
    check: Callable[[], None] = lambda: None,
) -> tuple[IntegerProgram, Layout]:
    """Write the program down.

    Args:
        choices: prices.
        tie: L of [T] seconds that tell layouts of equal price apart.
        bytes_rows: ops at which memory is bounded.
        limit_bytes: bound.
        over_s: seconds that ``limit_bytes`` above the limit cost; None: they are forbidden.
        known_s: objective of a choice, ties and bytes above the limit included: whatever costs more
            is ruled out.
        check: called now and then; may raise to end the work.
    """
    layout = _lay_out(choices, check)
    seconds = _objective(choices, layout, tie)
    seconds[layout.over] = over_s or 0.0
    upper = np.ones(len(seconds))
    if known_s is not None:
        _rule_out(choices, layout, upper, known_s)
    upper[layout.over] = 0.0 if over_s is None else np.inf
    rows = _Rows()
    _add_choices(rows, layout)
    _add_pairs(rows, layout, choices, check)
    _add_contested(rows, layout, choices, check)
    _add_bytes(rows, layout, bytes_rows, limit_bytes)
    unit_s = (
        max(known_s or 0.0, sum(float(times.min()) for times in choices.compute_s), 1e-12) / 1e3
    )
    program = IntegerProgram(
        cost=seconds / unit_s,
        rows=rows.matrix(len(seconds)),
        low=np.concatenate(rows.low),
        high=np.concatenate(rows.high),
        upper=upper,
        n_binary=int(layout.values[-1]),
        unit_s=unit_s,
    )
    return program, layout


def _lay_out(choices: ClusteredProgram, check: Callable[[], None]) -> Layout:
    """Give every variable its column."""
    ops = row_starts([*map(len, choices.compute_s)])
    values = ops[-1] + row_starts([*map(len, choices.layout)])
    n_columns = int(values[-1])
    groups: dict[int, int] = {}
    shared: dict[tuple[int, tuple[int, ...]], tuple[int, np.ndarray]] = {}
    for number in sorted({each for term in choices.terms for each in (term.group, *term.earlier)}):
        group = choices.groups[number]
        groups[number] = n_columns
        n_columns += len(group.distinct) * len(choices.layout[group.value])
    for term in choices.terms:
        if term.earlier:
            check()
            pairs = _contested(choices, term)
            shared[term.group, term.earlier] = (n_columns, pairs)
            n_columns += len(pairs)
    return Layout(ops=ops, values=values, groups=groups, shared=shared, over=n_columns)


def _objective(choices: ClusteredProgram, layout: Layout, tie: list[np.ndarray]) -> np.ndarray:
    """Seconds by column, but for what is over the limit."""
    seconds = np.zeros(layout.over + 1)
    for cluster, compute_s in enumerate(choices.compute_s):
        seconds[layout.ops[cluster] : layout.ops[cluster + 1]] = compute_s
    for cluster, tie_s in enumerate(tie):
        seconds[layout.values[cluster] : layout.values[cluster + 1]] = tie_s
    for term in choices.terms:
        flat = term.time_s.ravel()
        if term.earlier:
            begin, pairs = layout.shared[term.group, term.earlier]
            seconds[begin : begin + len(pairs)] = flat[pairs]
            flat = flat.copy()
            flat[pairs] = 0.0
        begin = layout.groups[term.group]
        seconds[begin : begin + len(flat)] += flat
    return seconds


def _add_choices(rows: _Rows, layout: Layout) -> None:
    """Each cluster of ops has one strategy, each cluster of values one layout."""
    for first in (layout.ops, layout.values):
        begin = rows.add(len(first) - 1, 1.0, 1.0)
        columns = np.arange(first[0], first[-1])
        rows.put(begin + np.repeat(np.arange(len(first) - 1), np.diff(first)), columns, 1.0)


def _add_pairs(
    rows: _Rows, layout: Layout, choices: ClusteredProgram, check: Callable[[], None]
) -> None:
    """The pair of a label and a layout is that of the strategy and the layout that are chosen."""
    for number, first in layout.groups.items():
        check()
        group = choices.groups[number]
        n_labels, n_layouts = len(group.distinct), len(choices.layout[group.value])
        entries = first + np.arange(n_labels * n_layouts).reshape(n_labels, n_layouts)
        begin = rows.add(n_labels, 0.0, 0.0)
        rows.put(np.repeat(begin + np.arange(n_labels), n_layouts), entries.ravel(), 1.0)
        rows.put(begin + group.place, layout.ops[group.op] + np.arange(len(group.place)), -1.0)
        begin = rows.add(n_layouts, 0.0, 0.0)
        rows.put(np.tile(begin + np.arange(n_layouts), n_labels), entries.ravel(), 1.0)
        first_layout = layout.values[group.value]
        rows.put(begin + np.arange(n_layouts), first_layout + np.arange(n_layouts), -1.0)


def _add_contested(
    rows: _Rows, layout: Layout, choices: ClusteredProgram, check: Callable[[], None]
) -> None:
    """A contested pair is paid for, unless an earlier use has brought the same copy."""
    for (number, earlier), (first, pairs) in layout.shared.items():
        check()
        group = choices.groups[number]
        n_layouts = len(choices.layout[group.value])
        begin = rows.add(len(pairs), 0.0, np.inf)
        rows.put(begin + np.arange(len(pairs)), first + np.arange(len(pairs)), 1.0)
        rows.put(begin + np.arange(len(pairs)), layout.groups[number] + pairs, -1.0)
        wanted = group.distinct[pairs // n_layouts]
        for other in earlier:
            distinct = choices.groups[other].distinct
            place = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
            same = distinct[place] == wanted
            rows.put(
                begin + np.flatnonzero(same),
                layout.groups[other] + place[same] * n_layouts + pairs[same] % n_layouts,
                1.0,
            )


def _add_bytes(rows: _Rows, layout: Layout, bytes_rows: list[Bytes], limit_bytes: float) -> None:
    """What is in memory at each of some ops is at most the limit and what is over it."""
    for held in bytes_rows:
        begin = rows.add(1, -np.inf, (limit_bytes - held.beside) / limit_bytes)
        for value, size in held.values.items():
            columns = layout.values[value] + np.arange(len(size))
            rows.put(begin, columns, size / limit_bytes)
        for number, size in held.groups.items():
            if number in layout.groups:
                columns = layout.groups[number] + np.arange(size.size)
                rows.put(begin, columns, size.ravel() / limit_bytes)
        for key, size in held.shared.items():
            if key in layout.shared:
                first, pairs = layout.shared[key]
                rows.put(begin, first + np.arange(len(pairs)), size.ravel()[pairs] / limit_bytes)
                rest = size.ravel() / limit_bytes
                rest[pairs] = 0.0
                rows.put(begin, layout.groups[key[0]] + np.arange(len(rest)), rest)
        rows.put(begin, np.asarray([layout.over]), -1.0)


def _rule_out(choices: ClusteredProgram, layout: Layout, upper: np.ndarray, known_s: float) -> None:
    """Let columns be 0 that no choice of at most ``known_s`` has.

    What an op asks for costs at least what it computes and, of each value that it reads or writes,
    the cheapest layout; what all others cost at least is taken off ``known_s``.
    """
    added: dict[int, np.ndarray] = {}  # group -> [W, T] seconds, whichever copies are shared
    paid: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}  # [n] of pairs that may be shared
    for term in choices.terms:
        flat = term.time_s.ravel()
        if term.earlier:
            pairs = layout.shared[term.group, term.earlier][1]
            paid[term.group, term.earlier] = flat[pairs]
            flat = flat.copy()
            flat[pairs] = 0.0
        added[term.group] = added.get(term.group, 0.0) + flat.reshape(term.time_s.shape)
    seen = [compute_s.copy() for compute_s in choices.compute_s]
    for number, table in added.items():
        group = choices.groups[number]
        seen[group.op] += table.min(axis=1)[group.place]
    slack = known_s * (1 + 1e-6) - sum(float(times.min()) for times in seen)
    more = [times - times.min() for times in seen]
    for cluster, begin in enumerate(layout.ops[:-1]):
        upper[begin : layout.ops[cluster + 1]][more[cluster] > slack] = 0.0
    entries: dict[int, np.ndarray] = {}
    for number, table in added.items():
        group = choices.groups[number]
        by_label = np.full(len(group.distinct), np.inf)
        np.minimum.at(by_label, group.place, more[group.op])
        entry = entries[number] = (by_label - table.min(axis=1))[:, None] + table
        begin = layout.groups[number]
        upper[begin : begin + entry.size][entry.ravel() > slack] = 0.0
    for key, (begin, pairs) in layout.shared.items():
        # An e stays where its z goes: nothing is to pay where an earlier use shares.
        entry = entries[key[0]].ravel()[pairs] + paid[key]
        upper[begin : begin + len(pairs)][entry > slack] = 0.0


def _contested(choices: ClusteredProgram, term: Any) -> np.ndarray:
    """Flat (label, layout) pairs that cost something and that an earlier use might share."""
    group = choices.groups[term.group]
    asked = np.isin(
        group.distinct, np.concatenate([choices.groups[other].distinct for other in term.earlier])
    )
    return np.flatnonzero(((term.time_s > 0) & asked[:, None]).ravel())


def chosen(layout: Layout, assignment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The choice of each op cluster and of each value cluster in an assignment."""

    def pick(first: np.ndarray) -> np.ndarray:
        return np.asarray(
            [int(np.argmax(assignment[begin:end])) for begin, end in itertools.pairwise(first)],
            np.int64,
        )

    return pick(layout.ops), pick(layout.values)


class IntegerSolution(NamedTuple):
    """What HiGHS returned."""

    x: np.ndarray | None  #: None: no solution was found in time, or there is none
    optimal: bool
    gap: float  #: between the solution and what is proven of all others, relative
    out_of_time: bool


_WHOLE = 1e-6  # a column so near to 0 or 1 is that
_WIDER = 16.0  # where too few columns were left for a solution, the margin grows so many times
_UNSOLVED = IntegerSolution(x=None, optimal=False, gap=math.inf, out_of_time=False)


def solve(
    program: IntegerProgram, time_limit_s: float, gap: float, nodes: int | None = None
) -> IntegerSolution:
    """Solve by HiGHS; for a child process, as this cannot be interrupted.

    Most of these programs are nearly trees, whose linear relaxation is already whole: it is solved
    first, and where it is whole it is the solution.  Otherwise a column that costs more than a
    margin in the relaxation is ruled out, since no solution within that margin of the relaxation
    has it.  What little is left is branched on.  If that brings nothing within the margin, it is
    widened to what was found, and then nothing better is ruled out.

    Args:
        program: what to solve.
        time_limit_s: seconds.
        gap: relative gap at which it may stop.
        nodes: of branch and bound, each time; None: as many as it takes.
    """
    until_s = time.monotonic() + time_limit_s
    relaxed = _relaxation(program, time_limit_s)
    if relaxed.x is None or relaxed.status != 0:
        return _UNSOLVED._replace(out_of_time=relaxed.status == 1)
    whole = relaxed.x[: program.n_binary]
    if (np.minimum(whole, 1.0 - whole) <= _WHOLE).all():
        return IntegerSolution(x=relaxed.x, optimal=True, gap=0.0, out_of_time=False)
    more = relaxed.lower.marginals
    margin = max(gap, _WHOLE) * max(abs(relaxed.fun), 1.0)
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0.0:
            return _UNSOLVED._replace(out_of_time=True)
        # What may be more than 1 is bytes above the limit, and no choice.
        out = (more > margin) & (program.upper <= 1.0)
        upper = np.where(out, 0.0, program.upper)
        answer = _branched(program, upper, left_s, gap=gap, nodes=nodes)
        if answer.x is not None:
            lower = relaxed.fun + (margin if out.any() else math.inf)
            if answer.mip_dual_bound is not None:
                lower = min(lower, answer.mip_dual_bound)
            left_open = max(0.0, answer.fun - lower) / max(abs(answer.fun), 1e-300)
            if left_open <= gap or answer.status != 0 or margin >= answer.fun - relaxed.fun:
                return IntegerSolution(
                    x=answer.x,
                    optimal=answer.status == 0 and left_open <= max(gap, _WHOLE),
                    gap=left_open,
                    # HiGHS stops for nodes with the same status.
                    out_of_time=answer.status == 1 and time.monotonic() >= until_s,
                )
            margin = (answer.fun - relaxed.fun) * (1.0 + _WHOLE) + _WHOLE
        elif answer.status == 1 or not out.any():
            return _UNSOLVED._replace(out_of_time=time.monotonic() >= until_s)
        else:
            margin *= _WIDER


def _relaxation(program: IntegerProgram, time_limit_s: float) -> Any:
    """The program with parts of a choice allowed, by the dual simplex method."""
    import scipy.optimize
    import scipy.sparse

    equal = program.low == program.high
    below, above = (
        np.flatnonzero(~equal & np.isfinite(bound)) for bound in (program.high, program.low)
    )
    return scipy.optimize.linprog(
        program.cost,
        A_ub=scipy.sparse.vstack([program.rows[below], -program.rows[above]]),
        b_ub=np.concatenate([program.high[below], -program.low[above]]),
        A_eq=program.rows[np.flatnonzero(equal)],
        b_eq=program.low[equal],
        bounds=np.stack([np.zeros(len(program.cost)), program.upper], axis=1),
        method="highs-ds",
        options={"time_limit": time_limit_s},
    )


def _branched(
    program: IntegerProgram,
    upper: np.ndarray,
    time_limit_s: float,
    *,
    gap: float,
    nodes: int | None,
) -> Any:
    """The program with these bounds, by branch and bound."""
    import scipy.optimize

    integrality = np.zeros(len(program.cost))
    integrality[: program.n_binary] = 1
    return scipy.optimize.milp(
        program.cost,
        integrality=integrality,
        bounds=scipy.optimize.Bounds(0.0, upper),
        constraints=scipy.optimize.LinearConstraint(program.rows, program.low, program.high),
        options={
            "time_limit": time_limit_s,
            "mip_rel_gap": gap,
            **({} if nodes is None else {"node_limit": nodes}),
        },
    )

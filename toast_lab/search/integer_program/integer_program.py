"""The integer program of ``alpa``: sparse matrices from prices, and HiGHS in a child process.

Columns, all between 0 and 1:

* ``x``: one for each choice of each cluster of ops and of values, binary; one per cluster is 1;
* ``e``: one for each pair (label, layout) of a group, continuous. Its sum over layouts equals the
  sum of the choices with that label, and its sum over labels equals the choice of that layout, so
  ``e`` is the product of the two if they are binary;
* ``z``: one for each pair that costs time unless an earlier use asked for the same: at least ``e``
  less the ``e`` of the same pair in earlier groups;
* ``over``: bytes above the limit, in units of the limit; 0 unless the limit may be exceeded.

HiGHS cannot be interrupted from Python, hence the child process. This module imports neither numba
nor the rest of the search, so that the child starts quickly. Reference: Alpa (OSDI 2022) section
4.2, equations 1 to 5 in spirit.
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

    from toast_lab.search.integer_program.strategies import ClusteredProgram


class Bytes(NamedTuple):
    """Memory in use at one op: the part that is linear in the columns, and the remainder."""

    op: int  #: op of the program
    values: dict[int, np.ndarray]  #: value cluster -> [T] bytes
    groups: dict[int, np.ndarray]  #: group -> [W, T] bytes of copies
    #: the same for uses that may share the copy of an earlier use
    shared: dict[tuple[int, tuple[int, ...]], np.ndarray]
    unexplained_bytes: float  #: bytes at the op that the columns do not explain


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
    """The columns of all variables."""

    ops: np.ndarray  #: [K+1] first column of each op cluster
    values: np.ndarray  #: [L+1] first column of each value cluster
    groups: dict[int, int]  #: group -> first of its W * T columns
    #: (group, earlier groups) -> (first column, [n] flat pairs that have a column)
    shared: dict[tuple[int, tuple[int, ...]], tuple[int, np.ndarray]]
    over: int  #: column of ``over``


class _Rows:
    """Collects the rows of a sparse matrix."""

    def __init__(self) -> None:
        self.row: list[np.ndarray] = []
        self.column: list[np.ndarray] = []
        self.value: list[np.ndarray] = []
        self.low: list[np.ndarray] = []
        self.high: list[np.ndarray] = []
        self.n = 0

    def add(self, count: int, low: float, high: float) -> int:
        """Add ``count`` rows with the same bounds and give the index of the first."""
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
        # Imported late: every search imports this module, but few solve a program.
        import scipy.sparse

        arrays = [
            np.concatenate(pieces) if pieces else np.zeros(0)
            for pieces in (self.value, self.row, self.column)
        ]
        coordinates = (arrays[1].astype(np.int64), arrays[2].astype(np.int64))
        return scipy.sparse.csr_array(
            scipy.sparse.coo_array((arrays[0], coordinates), shape=(self.n, n_columns))
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
    """Build the integer program of some choices.

    Args:
        choices: the choices and their prices.
        tie: L of [T] seconds that break ties between layouts of equal price.
        bytes_rows: rows for the ops at which memory is bounded.
        limit_bytes: the bound.
        over_s: cost in seconds of ``limit_bytes`` above the limit; None: bytes above it are
            forbidden.
        known_s: objective of a known choice, with ties and bytes above the limit; choices that cost
            more are ruled out.
        check: called regularly; may raise to end the work.
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
    for group_index in sorted(
        {index for term in choices.terms for index in (term.group, *term.earlier)}
    ):
        group = choices.groups[group_index]
        groups[group_index] = n_columns
        n_columns += len(group.distinct) * len(choices.layout[group.value])
    for term in choices.terms:
        if term.earlier:
            check()
            pairs = _contested(choices, term)
            shared[term.group, term.earlier] = (n_columns, pairs)
            n_columns += len(pairs)
    return Layout(ops=ops, values=values, groups=groups, shared=shared, over=n_columns)


def _objective(choices: ClusteredProgram, layout: Layout, tie: list[np.ndarray]) -> np.ndarray:
    """Seconds by column, without the cost of bytes above the limit."""
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
    """Add the rows by which each cluster has exactly one strategy or layout."""
    for first_columns in (layout.ops, layout.values):
        begin = rows.add(len(first_columns) - 1, 1.0, 1.0)
        columns = np.arange(first_columns[0], first_columns[-1])
        rows.put(
            begin + np.repeat(np.arange(len(first_columns) - 1), np.diff(first_columns)),
            columns,
            1.0,
        )


def _add_pairs(
    rows: _Rows, layout: Layout, choices: ClusteredProgram, check: Callable[[], None]
) -> None:
    """Add the rows that tie each pair of a label and a layout to the choices of both."""
    for group_index, first in layout.groups.items():
        check()
        group = choices.groups[group_index]
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
    """Add the rows by which a pair is paid for unless an earlier use has brought the same copy."""
    for (group_index, earlier), (first, pairs) in layout.shared.items():
        check()
        group = choices.groups[group_index]
        n_layouts = len(choices.layout[group.value])
        begin = rows.add(len(pairs), 0.0, np.inf)
        rows.put(begin + np.arange(len(pairs)), first + np.arange(len(pairs)), 1.0)
        rows.put(begin + np.arange(len(pairs)), layout.groups[group_index] + pairs, -1.0)
        wanted = group.distinct[pairs // n_layouts]
        for other in earlier:
            distinct = choices.groups[other].distinct
            position = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
            is_same = distinct[position] == wanted
            rows.put(
                begin + np.flatnonzero(is_same),
                layout.groups[other] + position[is_same] * n_layouts + pairs[is_same] % n_layouts,
                1.0,
            )


def _add_bytes(rows: _Rows, layout: Layout, bytes_rows: list[Bytes], limit_bytes: float) -> None:
    """Add the rows by which memory at some ops is at most the limit plus ``over``."""
    for bytes_row in bytes_rows:
        begin = rows.add(1, -np.inf, (limit_bytes - bytes_row.unexplained_bytes) / limit_bytes)
        for value, size in bytes_row.values.items():
            columns = layout.values[value] + np.arange(len(size))
            rows.put(begin, columns, size / limit_bytes)
        for group, size in bytes_row.groups.items():
            if group in layout.groups:
                columns = layout.groups[group] + np.arange(size.size)
                rows.put(begin, columns, size.ravel() / limit_bytes)
        for key, size in bytes_row.shared.items():
            if key in layout.shared:
                first, pairs = layout.shared[key]
                rows.put(begin, first + np.arange(len(pairs)), size.ravel()[pairs] / limit_bytes)
                unshared = size.ravel() / limit_bytes
                unshared[pairs] = 0.0
                rows.put(begin, layout.groups[key[0]] + np.arange(len(unshared)), unshared)
        rows.put(begin, np.asarray([layout.over]), -1.0)


def _rule_out(choices: ClusteredProgram, layout: Layout, upper: np.ndarray, known_s: float) -> None:
    """Fix columns at 0 that no choice with a cost of at most ``known_s`` uses.

    A strategy costs at least its compute time plus the cheapest layout of each value that it reads
    or writes. The slack is ``known_s`` less the least cost of every op cluster; a column that costs
    more than the slack above the least of its cluster is ruled out.
    """
    unshared_s: dict[
        int, np.ndarray
    ] = {}  # group -> [W, T] seconds that no sharing of copies saves
    shared_s: dict[
        tuple[int, tuple[int, ...]], np.ndarray
    ] = {}  # [n] seconds of pairs that may be shared
    for term in choices.terms:
        flat = term.time_s.ravel()
        if term.earlier:
            pairs = layout.shared[term.group, term.earlier][1]
            shared_s[term.group, term.earlier] = flat[pairs]
            flat = flat.copy()
            flat[pairs] = 0.0
        unshared_s[term.group] = unshared_s.get(term.group, 0.0) + flat.reshape(term.time_s.shape)
    least_s = [compute_s.copy() for compute_s in choices.compute_s]
    for group_index, table in unshared_s.items():
        group = choices.groups[group_index]
        least_s[group.op] += table.min(axis=1)[group.place]
    slack = known_s * (1 + 1e-6) - sum(float(times.min()) for times in least_s)
    above_least_s = [times - times.min() for times in least_s]
    for cluster, begin in enumerate(layout.ops[:-1]):
        upper[begin : layout.ops[cluster + 1]][above_least_s[cluster] > slack] = 0.0
    extra_of_group: dict[int, np.ndarray] = {}
    for group_index, table in unshared_s.items():
        group = choices.groups[group_index]
        by_label = np.full(len(group.distinct), np.inf)
        np.minimum.at(by_label, group.place, above_least_s[group.op])
        extra_s = extra_of_group[group_index] = (by_label - table.min(axis=1))[:, None] + table
        begin = layout.groups[group_index]
        upper[begin : begin + extra_s.size][extra_s.ravel() > slack] = 0.0
    for key, (begin, pairs) in layout.shared.items():
        # Only z is ruled out, not e: the pair costs nothing if an earlier use shares its copy.
        extra_s = extra_of_group[key[0]].ravel()[pairs] + shared_s[key]
        upper[begin : begin + len(pairs)][extra_s > slack] = 0.0


def _contested(choices: ClusteredProgram, term: Any) -> np.ndarray:
    """Flat (label, layout) pairs that cost time and whose copy an earlier use may share."""
    group = choices.groups[term.group]
    is_asked = np.isin(
        group.distinct, np.concatenate([choices.groups[other].distinct for other in term.earlier])
    )
    return np.flatnonzero(((term.time_s > 0) & is_asked[:, None]).ravel())


def chosen(layout: Layout, assignment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(choice of each op cluster, choice of each value cluster) in an assignment of columns."""

    def pick(first_columns: np.ndarray) -> np.ndarray:
        return np.asarray(
            [
                int(np.argmax(assignment[begin:end]))
                for begin, end in itertools.pairwise(first_columns)
            ],
            np.int64,
        )

    return pick(layout.ops), pick(layout.values)


class Answer(NamedTuple):
    """The choices that solve a program, of all clusters of ops and of values."""

    ops: np.ndarray  #: [K] int64
    values: np.ndarray  #: [L] int64
    optimal: bool
    gap: float  #: relative gap between the solution and the proven bound


class IntegerSolution(NamedTuple):
    """The result of HiGHS."""

    x: np.ndarray | None  #: columns; None: no solution was found in time, or there is none
    optimal: bool
    gap: float  #: relative gap between the solution and the proven bound
    out_of_time: bool


def told(layout: Layout, outcome: IntegerSolution) -> list[Any] | None:
    """What HiGHS found as plain data: choices, is it the optimum, gap; None: nothing."""
    if outcome.x is None:
        return None
    ops, values = chosen(layout, outcome.x)
    return [ops.tolist() + values.tolist(), bool(outcome.optimal), float(outcome.gap)]


def is_answer(layout: Layout, told: Any) -> bool:
    """Can ``told`` have given this?"""
    if told is None:
        return True
    if not (
        isinstance(told, list)
        and len(told) == 3
        and isinstance(told[0], list)
        and isinstance(told[1], bool)
        and isinstance(told[2], int | float)
    ):
        return False
    widths = np.concatenate([np.diff(layout.ops), np.diff(layout.values)])
    return len(told[0]) == len(widths) and all(
        isinstance(choice, int) and 0 <= choice < width
        for choice, width in zip(told[0], widths.tolist(), strict=True)
    )


def answer(layout: Layout, told: list[Any] | None) -> Answer | None:
    """The choices that ``told`` gave; None: there are none."""
    if told is None:
        return None
    choices, n_ops = np.asarray(told[0], np.int64), len(layout.ops) - 1
    return Answer(choices[:n_ops], choices[n_ops:], told[1], told[2])


_WHOLE = 1e-6  # distance from 0 or 1 within which a column counts as integral
_WIDER = 16.0  # factor by which the margin grows if too few columns were left for a solution
_UNSOLVED = IntegerSolution(x=None, optimal=False, gap=math.inf, out_of_time=False)


def solve(
    program: IntegerProgram, time_limit_s: float, gap: float, nodes: int | None = None
) -> IntegerSolution:
    """Solve a program by HiGHS; best in a child process, since HiGHS cannot be interrupted.

    Most of these programs are nearly trees, whose linear relaxation has an integral optimum. So the
    relaxation is solved first, and is the solution if it is integral. Otherwise columns with a
    reduced cost above a margin are ruled out, since no solution within that margin of the
    relaxation uses them, and the few columns left are branched on. If the solution is not within
    the margin, the margin is widened to its objective, which rules out no better solution.

    Args:
        program: the program to solve.
        time_limit_s: time limit.
        gap: relative gap at which HiGHS may stop.
        nodes: most nodes of each branch and bound; None: no limit.
    """
    until_s = time.monotonic() + time_limit_s
    relaxed = _relaxation(program, time_limit_s)
    if relaxed.x is None or relaxed.status != 0:
        return _UNSOLVED._replace(out_of_time=relaxed.status == 1)
    binary = relaxed.x[: program.n_binary]
    if (np.minimum(binary, 1.0 - binary) <= _WHOLE).all():
        return IntegerSolution(x=relaxed.x, optimal=True, gap=0.0, out_of_time=False)
    reduced_costs = relaxed.lower.marginals
    margin = max(gap, _WHOLE) * max(abs(relaxed.fun), 1.0)
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0.0:
            return _UNSOLVED._replace(out_of_time=True)
        # A column that may exceed 1 is ``over``, bytes above the limit, and no choice.
        is_ruled_out = (reduced_costs > margin) & (program.upper <= 1.0)
        upper = np.where(is_ruled_out, 0.0, program.upper)
        answer = _branched(program, upper, left_s, gap=gap, nodes=nodes)
        if answer.x is not None:
            lower = relaxed.fun + (margin if is_ruled_out.any() else math.inf)
            if answer.mip_dual_bound is not None:
                lower = min(lower, answer.mip_dual_bound)
            final_gap = max(0.0, answer.fun - lower) / max(abs(answer.fun), 1e-300)
            if final_gap <= gap or answer.status != 0 or margin >= answer.fun - relaxed.fun:
                return IntegerSolution(
                    x=answer.x,
                    optimal=answer.status == 0 and final_gap <= max(gap, _WHOLE),
                    gap=final_gap,
                    # HiGHS also gives status 1 when it stops at the limit on nodes.
                    out_of_time=answer.status == 1 and time.monotonic() >= until_s,
                )
            margin = (answer.fun - relaxed.fun) * (1.0 + _WHOLE) + _WHOLE
        elif answer.status == 1 or not is_ruled_out.any():
            return _UNSOLVED._replace(out_of_time=time.monotonic() >= until_s)
        else:
            margin *= _WIDER


def _relaxation(program: IntegerProgram, time_limit_s: float) -> Any:
    """The optimum of the linear relaxation, by the dual simplex method."""
    import scipy.optimize
    import scipy.sparse

    is_equality = program.low == program.high
    with_high, with_low = (
        np.flatnonzero(~is_equality & np.isfinite(bound)) for bound in (program.high, program.low)
    )
    return scipy.optimize.linprog(
        program.cost,
        A_ub=scipy.sparse.vstack([program.rows[with_high], -program.rows[with_low]]),
        b_ub=np.concatenate([program.high[with_high], -program.low[with_low]]),
        A_eq=program.rows[np.flatnonzero(is_equality)],
        b_eq=program.low[is_equality],
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
    """The optimum under these upper bounds, by branch and bound."""
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

"""The choices of every cluster of ops and values, and the price of each choice and pair of choices.

A program is clustered first (``cluster``): ops of one cluster get one strategy, values of one
cluster one layout. Then each cluster has a *menu*: for ops, the name that is split on every mesh
axis (all axes at once), for values the dim. Prices are those of ``PricedTerms``, one op at a time:
of an op with all operands and results in the layouts of its strategy, of each move of a value from
the layout in which it is kept to the one that a use wants, and of each move from the layout in
which it is made to the one in which it is kept. Hence a sum of these prices is the evaluator's time
wherever prices are additive. One price is known not to be: a copy brought for one use serves later
ones too, which ``Term.earlier`` keeps apart.

Start reading at ``price_choices``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.problem import Problem
from toast_lab.hashing import Classes
from toast_lab.search.terms.grain_rows import rows_of_grain
from toast_lab.search.terms.menus import make_menus, packed_layouts
from toast_lab.search.terms.op_prices import equal_rows
from toast_lab.search.terms.priced_terms import PricedTerms


class Clusters(NamedTuple):
    """Clusters of ops (``K``) and of values (``L``), and the program folded to them."""

    ops: Classes
    values: Classes
    folded: PriceInputs


def cluster(problem: Problem, grain: str) -> Clusters:
    """Sort ops and values into clusters: the rows of a grain (``rows_of_grain``)."""
    rows = rows_of_grain(problem, grain)
    return Clusters(rows.ops, rows.values, problem.prices.folded(rows))


class Menus(NamedTuple):
    """The choices of each cluster; the first one splits nothing but what is pinned."""

    #: K of [S, A] int32 name of the cluster's first op on each axis, -1: none
    ops: list[np.ndarray]
    values: list[np.ndarray]  #: L of [T, A] int8 dim on each axis, -1: none
    left_out: int  #: number of strategies and layouts beyond the limit, which are not considered


class Group(NamedTuple):
    """The layout in which each strategy of an op cluster wants (or leaves) a value, as a label."""

    op: int  #: cluster
    value: int  #: cluster
    #: [S] int64 packed layout, with the axes over which it is partial in the bits above
    label: np.ndarray
    distinct: np.ndarray  #: [W] labels without repeats
    place: np.ndarray  #: [S] index of each strategy's label in ``distinct``


def _group(op: int, value: int, label: np.ndarray) -> Group:
    distinct, place = np.unique(label, return_inverse=True)
    return Group(op=op, value=value, label=label, distinct=distinct, place=place)


def rows_at(arrays: Sequence[np.ndarray], numbers: Iterable[Any]) -> list[np.ndarray]:
    """For each cluster the rows, or the one row, of its array at the given index or indices."""
    return [array[number] for array, number in zip(arrays, numbers, strict=True)]


class Term(NamedTuple):
    """Time of the moves between an op cluster's labels and a value cluster's layouts."""

    group: int
    #: groups of earlier uses: the move costs nothing if one of them has the same label
    earlier: tuple[int, ...]
    time_s: np.ndarray  #: [W, T]


class ClusteredProgram(NamedTuple):
    """A clustered program with every price that an additive model has."""

    clusters: Clusters
    prices: PricedTerms
    menus: Menus
    #: K of [S] time of the cluster's ops, with their operands as the strategy wants them
    compute_s: list[np.ndarray]
    layout: list[np.ndarray]  #: L of [T] int64 packed layouts
    groups: list[Group]
    terms: list[Term]
    use_group: np.ndarray  #: [U'] group of each use of the folded program, -1: of a constant
    #: op of the folded program -> (group, [W, T] bytes in use only while the op runs)
    passing: dict[int, list[tuple[int, np.ndarray]]]
    #: use of the folded program -> groups that may have brought its copy before
    sharers: dict[int, tuple[int, ...]]

    def time_s(self, ops: np.ndarray, values: np.ndarray) -> float:
        """Time of one choice for each cluster: the integer program's objective, without ties."""
        total = sum(
            float(times[strategy])
            for times, strategy in zip(self.compute_s, ops.tolist(), strict=True)
        )
        for term in self.terms:
            if not self.is_shared(term.group, term.earlier, ops):
                total += self.entry(term.time_s, term.group, ops, values)
        return total

    def is_shared(self, number: int, earlier: tuple[int, ...], ops: np.ndarray) -> bool:
        """Does a group have the same label as one of ``earlier``, so that it shares its copy?"""
        label, *others = (
            group.label[ops[group.op]] for group in map(self.groups.__getitem__, (number, *earlier))
        )
        return label in others

    def entry(self, table: np.ndarray, number: int, ops: np.ndarray, values: np.ndarray) -> float:
        """The entry of a group's [W, T] table for one choice of each cluster."""
        group = self.groups[number]
        return float(table[group.place[ops[group.op]], values[group.value]])

    @property
    def has_no_choice(self) -> bool:
        """Is there nothing to choose?"""
        return max(map(len, (*self.compute_s, *self.layout)), default=1) == 1

    def restricted_to(self, ops: list[np.ndarray], values: list[np.ndarray]) -> ClusteredProgram:
        """The same program with fewer choices: for each cluster those at the given indices."""
        terms = []
        groups = [
            _group(group.op, group.value, group.label[ops[group.op]]) for group in self.groups
        ]
        places = [
            np.searchsorted(group.distinct, fewer.distinct)
            for group, fewer in zip(self.groups, groups, strict=True)
        ]
        for term in self.terms:
            fewer = term.time_s[np.ix_(places[term.group], values[self.groups[term.group].value])]
            if fewer.any():
                terms.append(Term(term.group, term.earlier, fewer))
        return self._replace(
            menus=self.menus._replace(
                ops=rows_at(self.menus.ops, ops), values=rows_at(self.menus.values, values)
            ),
            compute_s=rows_at(self.compute_s, ops),
            layout=rows_at(self.layout, values),
            groups=groups,
            terms=terms,
        )

    def choice_of(
        self, op_factor: np.ndarray, value_dim: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The choices nearest to a plan: those of the first member of each cluster."""
        ops = [
            _nearest_row(menu, op_factor[first])
            for menu, first in zip(self.menus.ops, self.clusters.ops.first, strict=True)
        ]
        values = [
            _nearest_row(menu, value_dim[first])
            for menu, first in zip(self.menus.values, self.clusters.values.first, strict=True)
        ]
        return np.asarray(ops, np.int64), np.asarray(values, np.int64)


def _nearest_row(menu: np.ndarray, row: np.ndarray) -> int:
    """The index of a row in a menu.

    If the menu lacks the row, the index of the choice that agrees with it on most axes and splits
    nothing else.
    """
    agrees = (menu == row).sum(axis=1) - len(row) * ((menu != row) & (menu >= 0)).any(axis=1)
    return int(agrees.argmax())


def price_choices(
    problem: Problem, grain: str, max_strategies: int, check: Callable[[], None] = lambda: None
) -> ClusteredProgram:
    """Price every strategy of every op cluster, and every move between labels and layouts.

    Args:
        problem: the program, mesh and machine.
        grain: see ``cluster``.
        max_strategies: most strategies of an op cluster, of which the quickest are kept, and most
            layouts of a value cluster, of which those that cut it most are kept.
        check: called regularly; may raise to end the work.
    """
    clusters = cluster(problem, grain)
    folded = clusters.folded
    tables = folded.tables
    # Gathers ahead are priced beside the op's computing as if it were split over all devices.
    ahead_of = 1.0 / problem.mesh.n_devices
    menus = Menus(*make_menus(problem, clusters.ops, clusters.values), left_out=0)
    terms = PricedTerms(folded, menus.ops, ahead_of)
    compute_s = [np.zeros(len(menu)) for menu in menus.ops]
    for op in range(tables.n_arguments, len(tables.op_row)):
        if not folded.facts.op.free[op]:
            check()
            compute_s[tables.op_row[op]] += folded.times[op] * terms.computing_s(op)
    menus, compute_s = _shortened(menus, compute_s, max_strategies, folded.axis_size)
    choices = _ChoicePrices(PricedTerms(folded, menus.ops, ahead_of), menus, compute_s)
    for op in range(tables.n_arguments, len(tables.op_row)):
        check()
        choices.price_operands(op)
        choices.price_results(op)
    return ClusteredProgram(
        clusters=clusters,
        prices=choices.prices,
        menus=menus,
        compute_s=compute_s,
        layout=choices.layout,
        groups=choices.groups,
        terms=[Term(*key, time_s) for key, time_s in choices.time_of_term.items()],
        use_group=choices.use_group,
        passing=choices.passing,
        sharers=choices.sharers,
    )


class _ChoicePrices:
    """Collects the groups and terms of a clustered program, op by op.

    The attributes are those of ``ClusteredProgram``; ``time_of_term`` has the times of terms by
    their group and earlier groups.
    """

    def __init__(self, prices: PricedTerms, menus: Menus, compute_s: Sequence[np.ndarray]) -> None:
        self.prices, self._folded, self._compute_s = prices, prices.folded, compute_s
        self.layout = [packed_layouts(menu) for menu in menus.values]
        self.groups: list[Group] = []
        self.time_of_term: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self.use_group = np.full(len(self._folded.tables.use_value), -1, np.int64)
        self.sharers: dict[int, tuple[int, ...]] = {}
        self.passing: dict[int, list[tuple[int, np.ndarray]]] = {}
        self._group_indices: dict[tuple[int, int, bytes], int] = {}

    def price_operands(self, op: int) -> None:
        """Price reading the operands of an op, and bringing them to it."""
        facts, tables, times = self._folded.facts, self._folded.tables, self._folded.times[op]
        uses = range(tables.use_ptr[op], tables.use_ptr[op + 1])
        reading_s = None
        if not facts.op.free[op] and any(facts.use.reads[use] > 0 for use in uses):
            reading_s = self.prices.reading_s(op)
        for use in uses:
            if tables.value_constant[tables.use_value[use]]:
                continue
            number = self.use_group[use] = self._wanted(use, int(tables.use_want[use]))
            if reading_s is not None and reading_s[:, use - uses.start].any():
                self._add_reading(op, use, reading_s[:, use - uses.start])
            earlier_wants = tables.earlier[tables.earlier_begin[use] : tables.earlier_end[use]]
            earlier = tuple(sorted({self._wanted(use, want) for want in earlier_wants.tolist()}))
            if earlier:
                self.sharers[use] = earlier
            if number not in earlier:
                group = self.groups[number]
                move_s = self.prices.bringing_s(op, use, group.distinct, self.layout[group.value])
                self._add(int(number), earlier, times * move_s)

    def price_results(self, op: int) -> None:
        """Price bringing the results of an op to the layouts in which they are kept."""
        tables = self._folded.tables
        for value in tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]].tolist():
            if tables.value_constant[value]:
                continue
            row, owner = int(tables.value_row[value]), int(tables.value_owner[value])
            move_s, computing_s, size = self.prices.leaving(op, value, self.layout[row])
            first, alike = equal_rows(self.prices.left(value), move_s, computing_s, size)
            group = self._group_of(owner, row, alike)
            self._add(group, (), self._folded.times[op] * (move_s + computing_s)[first])
            if size.any():
                self.passing.setdefault(op, []).append((group, size[first]))

    def _wanted(self, use: int, want: int) -> int:
        """The group of the value that a use reads and of one of the wants of that value."""
        tables = self._folded.tables
        row = int(tables.value_row[tables.use_value[use]])
        return self._group_of(int(tables.use_owner[want]), row, self.prices.wants[want])

    def _group_of(self, op: int, value: int, label: np.ndarray) -> int:
        key = (op, value, label.tobytes())
        index = self._group_indices.setdefault(key, len(self.groups))
        if index == len(self.groups):
            self.groups.append(_group(op, value, label))
        return index

    def _add(self, group: int, earlier: tuple[int, ...], time_s: np.ndarray) -> None:
        if (group, earlier) in self.time_of_term:
            self.time_of_term[group, earlier] += time_s
        elif time_s.any():
            self.time_of_term[group, earlier] = time_s

    def _add_reading(self, op: int, use: int, reading_s: np.ndarray) -> None:
        """Add the time that reading a copy adds.

        A copy is read as a whole, even if the value itself is a view of a small value. The time
        added depends on the strategy too; of those with equal labels the quickest one counts.
        """
        tables, group = self._folded.tables, int(self.use_group[use])
        want, row = int(tables.use_want[use]), int(tables.value_row[tables.use_value[use]])
        quickest = _quickest(self.prices.wants[want], self._compute_s[int(tables.use_owner[want])])
        copied = self.groups[group].distinct[:, None] != self.layout[row]
        extra_s = np.where(copied, reading_s[quickest][:, None], 0.0)
        self._add(group, (), self._folded.times[op] * extra_s)


def _quickest(label: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """[W] the quickest strategy of each distinct label."""
    order = np.argsort(time_s, kind="stable")
    _, first = np.unique(label[order], return_index=True)
    return order[first]


def _shortened(
    menus: Menus, compute_s: list[np.ndarray], most: int, axis_size: np.ndarray
) -> tuple[Menus, list[np.ndarray]]:
    """Keep at most ``most`` strategies and layouts of each cluster, always the first choice."""
    ops, values, times, left_out = [], [], [], 0
    for menu, time_s in zip(menus.ops, compute_s, strict=True):
        kept = np.sort(np.concatenate([[0], 1 + np.argsort(time_s[1:], kind="stable")[: most - 1]]))
        ops.append(menu[kept])
        times.append(time_s[kept])
        left_out += len(menu) - len(kept)
    for menu in menus.values:
        cut = np.where(menu >= 0, np.log(axis_size), 0.0).sum(axis=1)
        kept = np.sort(np.concatenate([[0], 1 + np.argsort(-cut[1:], kind="stable")[: most - 1]]))
        values.append(menu[kept])
        left_out += len(menu) - len(kept)
    return Menus(ops, values, left_out), times


def spread(
    problem: Problem, choices: ClusteredProgram, ops: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``([O, A] op_factor, [V, A] value_dim)`` of the program for one choice of each cluster."""
    program, clusters = problem.analysis.program, choices.clusters
    op_rows = np.asarray(rows_at(choices.menus.ops, ops))
    value_rows = np.asarray(rows_at(choices.menus.values, values))
    alike = problem.space.alike._replace(ops=clusters.ops, values=clusters.values)
    op_factor, value_dim = alike.whole(program, op_rows, value_rows)
    # The op of an argument is split as the argument is kept.
    for op in range(program.n_arguments):
        (value,) = program.results(op)
        names = np.asarray([*program.def_names(value), -1], np.int32)
        op_factor[op] = names[value_dim[value]]
    return op_factor, value_dim

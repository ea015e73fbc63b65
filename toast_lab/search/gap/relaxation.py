"""A problem as a graph of small choices whose prices add up to no more than any plan's time.

A node stands for a choice: for each row of ops the names along which it is split on all axes, for
each value the layout in which it is kept. A node has a price for each of its choices, an edge has
one for each pair of choices of a row of ops and a value. ``relaxed_terms`` says which prices.

For every plan of the space, the prices of its choices add up to at most its time;
``tests/search/gap/test_price_keys.py`` tests this on many programs.

**The space** holds all plans that treat alike the ops and values that cost the same under every
plan (``terms.grain_rows``: repeated layers go together, arguments and results as their colours do),
that split only names and dims that colour actions may split, and that keep to the pins. All plans
that ``mcts``, ``beam``, ``exhaustive``, ``random`` and ``alpa`` can return lie in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.problem import Problem
from toast_lab.search.terms.menus import packed_layouts
from toast_lab.search.terms.priced_terms import PricedTerms
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.steps import LAYOUT_BITS

Check = Callable[[], None]
_MOST_ENTRIES = 40_000_000  # most entries of all edges: 320 MB; further prices are left out


class ChoiceEdge(NamedTuple):
    """The prices of pairs of choices of a row of ops and a value."""

    op: int  #: node
    value: int  #: node
    label: np.ndarray  #: [S] 0 to W - 1, by choice of the op: equal labels have equal prices
    time_s: np.ndarray  #: [W, T] seconds; infinite: impossible


class SharedUse(NamedTuple):
    """A use that may share the copy of an earlier one, or whose copy a later one may share."""

    edge: int
    times: float  #: number of uses that it stands for
    wanted: np.ndarray  #: [labels of the edge] index in ``cost_s`` of the layout that it wants
    cost_s: np.ndarray  #: [W, T] seconds to bring one copy; infinite: never wanted
    #: [W, T] the part of ``cost_s`` in the prices of the edge, once for each use that it stands for
    part_s: np.ndarray


class Sharing(NamedTuple):
    """The uses of one value that may share copies.

    The parts for which the uses count are free within limits. The earliest use that wants a copy
    pays for it, and is among the earlier uses of each later one that shares the copy. So the parts
    are valid if ``shares @ part_s <= cost_s`` for each layout wanted and kept.
    """

    value: int  #: node
    uses: list[SharedUse]
    shares: np.ndarray  #: [uses, uses] ``[i, j]``: how many uses like j may share the copy of i


@dataclasses.dataclass(frozen=True, eq=False)
class Relaxation:
    """Choices (``K`` rows of ops, then ``J - K`` values) and their prices, in seconds."""

    alike: Alike  #: the rows of the space
    folded: PriceInputs  #: the program folded to these rows
    menus: list[np.ndarray]  #: K of [S, A] int32 names of the row's first op, -1: none
    layouts: list[np.ndarray]  #: J - K of [T] int64 packed layouts, ascending
    value_node: np.ndarray  #: [V'] node of each value of the folded program, -1: constant
    value_menus: list[np.ndarray]  #: L of [T, A] int8 dims that each row of values may have
    layout_row: np.ndarray  #: [J - K] row of values of each value node
    maker: np.ndarray  #: [J - K] row of the op that makes it; -1: kept as its row says
    #: J - K of [S] ``PricedTerms.left`` of the value, empty if it is kept as its row says
    left: list[np.ndarray]
    time_s: list[np.ndarray]  #: J of [S] or [T] prices of the choices of each node
    edges: list[ChoiceEdge]
    sharings: list[Sharing]
    rank: np.ndarray  #: [J] position of each node in the program
    whole: bool  #: False: some prices were left out to save time or memory

    @property
    def inner(self) -> np.ndarray:
        """The values, counted from ``K``, that are not kept as their row says."""
        return np.flatnonzero(self.maker >= 0)


class CopyPart(NamedTuple):
    """The prices of a use whose copy others may share, as they are added to a relaxation."""

    nodes: tuple[int, int]  #: row of ops, value
    label: np.ndarray  #: [S]
    wanted: np.ndarray  #: [labels] these four: see ``SharedUse``
    times: float
    cost_s: np.ndarray
    part_s: np.ndarray
    place: int = -1  #: of these prices among those of the pair of nodes


class RelaxationBuilder:
    """Collects the choices and the prices of a ``Relaxation``; terms add prices to it.

    Attributes:
        exact: prices of moves, with gathers ahead hidden as far as they can be, however long their
            ops compute.
        time_s: see ``Relaxation``.
    """

    def __init__(
        self,
        problem: Problem,
        rows: Alike,
        menus: tuple[list[np.ndarray], list[np.ndarray]],
        *,
        check: Check,
        enough: Callable[[], bool],
    ) -> None:
        self.problem, self.rows, self.check, self.enough = problem, rows, check, enough
        self.menus, self.value_menus = menus
        self.n_entries, self.whole = 0, True
        self.folded = problem.prices.folded(rows)
        self.tables, self.facts = self.folded.tables, self.folded.facts
        self.axis_size = problem.mesh.array()
        self.exact = PricedTerms(self.folded, self.menus, ahead_of=np.inf)
        #: (op node, value node) -> prices by row and layout
        self.pairs: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        self.sharings: list[tuple[int, list[CopyPart], np.ndarray]] = []
        self._list_layouts()
        self.time_s = [np.zeros(len(menu)) for menu in (*self.menus, *self.layouts)]

    def relaxation(self) -> Relaxation:
        """The relaxation with all prices that were added."""
        rank = np.full(len(self.time_s), np.inf)
        tables = self.tables
        for op in range(len(tables.op_row)):
            row = int(tables.op_row[op])
            rank[row] = min(rank[row], op)
        for value, node in enumerate(self.value_node.tolist()):
            if node >= 0:
                rank[node] = min(rank[node], tables.value_op[value] + 0.5)
        edges: list[ChoiceEdge] = []
        edge_of: dict[tuple[int, int], int] = {}
        labels: dict[tuple[int, int], np.ndarray] = {}
        for nodes, parts in self.pairs.items():
            edge_of[nodes] = len(edges)
            edge, labels[nodes] = _edge(*nodes, parts)
            edges.append(edge)
        sharings = [
            Sharing(
                value,
                [
                    SharedUse(
                        edge_of[part.nodes],
                        part.times,
                        part.wanted[labels[part.nodes][:, part.place]],
                        part.cost_s,
                        part_s=part.part_s,
                    )
                    for part in parts
                ],
                shares,
            )
            for value, parts, shares in self.sharings
        ]
        return Relaxation(
            alike=self.rows,
            folded=self.folded,
            menus=self.menus,
            layouts=self.layouts,
            value_node=self.value_node,
            value_menus=self.value_menus,
            layout_row=np.asarray(self.layout_row, np.int64),
            maker=np.asarray(self.maker, np.int64),
            left=self.left,
            time_s=self.time_s,
            edges=edges,
            sharings=sharings,
            rank=rank,
            whole=self.whole,
        )

    def goes_on(self) -> bool:
        """Is there time and memory for more prices?"""
        self.whole = self.whole and not self.enough() and self.n_entries < _MOST_ENTRIES
        return self.whole

    def _list_layouts(self) -> None:
        """Find the node of each value and the layouts in which it may be kept.

        Arguments and results of the program are kept as their row says. All other values are kept
        as their row says, or as their op leaves them, or whole on axes on which the op leaves
        partial sums (``steps.kept_layouts_into``).
        """
        tables = self.tables
        is_inner = (
            ~tables.value_constant & (tables.value_op >= tables.n_arguments) & ~tables.value_output
        )
        self.value_node = np.full(len(tables.value_op), -1, np.int64)
        self.layouts: list[np.ndarray] = []
        self.layout_row: list[int] = []
        self.maker: list[int] = []
        self.left: list[np.ndarray] = []
        self.by_row: dict[int, np.ndarray] = {}  # layouts to which each value may be brought
        node_of_row: dict[int, int] = {}
        for value in np.flatnonzero(~tables.value_constant).tolist():
            row = int(tables.value_row[value])
            layouts = packed_layouts(self.value_menus[row])
            node = len(self.menus) + len(self.layouts)
            if not is_inner[value]:
                self.value_node[value] = node_of_row.setdefault(row, node)
                if node_of_row[row] == node:
                    self._add_node(row, -1, np.zeros(0, np.int64), np.unique(layouts))
                continue
            label = self.exact.left(value)
            natural, partial = self.split_labels(label)
            masks = np.unique(partial)
            whole_layouts = [
                layouts & ~self._digits(int(mask) & axes)
                for mask in masks.tolist()
                for axes in range(1, 1 << len(self.axis_size))
                if mask & axes
            ]
            offered = np.unique(np.concatenate([layouts, *whole_layouts]))
            self.by_row[value], self.value_node[value] = offered, node
            owner = int(tables.value_owner[value])
            self._add_node(row, owner, label, np.unique(np.concatenate([offered, natural])))

    def _add_node(self, row: int, maker: int, left: np.ndarray, layouts: np.ndarray) -> None:
        self.layout_row.append(row)
        self.maker.append(maker)
        self.left.append(left)
        self.layouts.append(layouts)

    def _digits(self, mask: int) -> int:
        """The bits of a packed layout that hold the dims of the axes of a mask."""
        return sum(
            31 << LAYOUT_BITS * axis for axis in range(len(self.axis_size)) if mask >> axis & 1
        )

    def split_labels(self, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split labels of ``PricedTerms.left`` into (layouts, masks of partial axes)."""
        n_bits = LAYOUT_BITS * len(self.axis_size)
        return label & ((1 << n_bits) - 1), label >> n_bits

    def layouts_of(self, value: int) -> np.ndarray:
        """[T] the layouts in which a value of the folded program may be kept."""
        return self.layouts[self.value_node[value] - len(self.menus)]

    def add_to(self, node: int, time_s: np.ndarray) -> None:
        """Add prices of the choices of a node."""
        self.time_s[node] += time_s

    def add(self, row: int, node: int, label: np.ndarray, time_s: np.ndarray) -> None:
        """Add prices [W, T] of labels [S] of a row of ops and layouts of a value."""
        if time_s.any():
            self._append((row, node), label, time_s)

    def add_shared(self, node: int, parts: list[CopyPart], shares: np.ndarray) -> None:
        """Add the prices of uses of a value that may share copies, see ``Sharing``."""
        indexed = []
        for part in parts:
            place = len(self.pairs.get(part.nodes, []))
            indexed.append(part._replace(place=place))
            self._append(part.nodes, part.label, part.times * part.part_s[part.wanted])
        self.sharings.append((node, indexed, shares))

    def _append(self, nodes: tuple[int, int], label: np.ndarray, time_s: np.ndarray) -> None:
        self.n_entries += time_s.size
        self.pairs.setdefault(nodes, []).append((label, time_s))


def _edge(
    op: int, value: int, parts: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[ChoiceEdge, np.ndarray]:
    """The edge with the sum of some prices, and the label [W, parts] of each price in it."""
    labels = np.stack([label for label, _ in parts], axis=1)
    distinct, inverse = np.unique(labels, axis=0, return_inverse=True)
    total = sum(time_s[distinct[:, index]] for index, (_, time_s) in enumerate(parts))
    edge = ChoiceEdge(
        op=op, value=value, label=inverse.reshape(-1), time_s=np.asarray(total, np.float64)
    )
    return edge, distinct

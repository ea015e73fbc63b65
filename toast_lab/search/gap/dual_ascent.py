"""A lower bound on the least price of a graph of choices, raised step by step.

Every edge of a ``Relaxation`` may hand a part of its prices to its two nodes, and take back: the
sum over all choices stays what it is.  Whatever was handed over, the sum of the least prices of
each node and each edge is no more than the price of any choice.  A sweep goes through the nodes in
the order of the program and back: each node takes all that its edges can give, and gives it to
those of its edges that lead on, so that what a plan pays in one place is known in the next.  No
sweep lowers the bound.

The dual of the linear program over local polytopes is what this climbs; it may stop a little below
its optimum.  Reference: Kolmogorov, A new look at reweighted message passing, IEEE PAMI 37(5),
2015.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Array, Int64Array, packed
from toast_lab.ragged import row_starts
from toast_lab.search.gap.relaxation import Relaxation


@packed
class ChoiceGraph(NamedTuple):
    """A ``Relaxation`` as kernels read it; the nodes are numbered in the order of the program.

    ``E`` edges, each with a side 0, the row of ops, and a side 1, the value.
    """

    node_ptr: Int64Array  #: [N+1] row starts into price
    price: Float64Array  #: of each choice of each node, with what edges handed over
    edge_node: Int64Array  #: [2 E] node of side 0 and of side 1
    edge_ptr: Int64Array  #: [E+1] row starts into table, [W, T] each
    n_labels: Int64Array  #: [E] W
    n_layouts: Int64Array  #: [E] T
    table: Float64Array
    label_ptr: Int64Array  #: [E+1] row starts into label
    label: Int64Array  #: of each choice of side 0
    handed_ptr: Int64Array  #: [2 E + 1] row starts into handed
    handed: Float64Array  #: to each label of side 0 and each choice of side 1
    near_ptr: Int64Array  #: [N+1] row starts into near
    near: Int64Array  #: 2 * edge + side


def choice_graph(relaxation: Relaxation, extra_s: list[np.ndarray] | None = None) -> ChoiceGraph:
    """The graph of a relaxation, with ``extra_s`` added to the prices of its nodes.

    Its nodes keep their numbers.
    """
    edges = relaxation.edges
    price = [
        times if extra_s is None else times + extra_s[node]
        for node, times in enumerate(relaxation.time_s)
    ]
    ends = np.asarray([[edge.op, edge.value] for edge in edges], np.int64).reshape(-1)
    shapes = np.asarray([edge.time_s.shape for edge in edges], np.int64).reshape(-1, 2)
    n_nodes = len(price)
    order = np.argsort(ends, kind="stable")
    return ChoiceGraph(
        node_ptr=row_starts([*map(len, price)]),
        price=np.concatenate([*price, np.zeros(0)]),
        edge_node=ends,
        edge_ptr=row_starts(shapes.prod(axis=1)),
        n_labels=np.ascontiguousarray(shapes[:, 0]),
        n_layouts=np.ascontiguousarray(shapes[:, 1]),
        table=np.concatenate([*(edge.time_s.ravel() for edge in edges), np.zeros(0)]),
        label_ptr=row_starts([len(edge.label) for edge in edges]),
        label=np.concatenate([*(edge.label for edge in edges), np.zeros(0, np.int64)]).astype(
            np.int64
        ),
        handed_ptr=row_starts(shapes.reshape(-1)),
        handed=np.zeros(int(shapes.sum())),
        near_ptr=row_starts(np.bincount(ends, minlength=n_nodes)),
        near=order.astype(np.int64),
    )


@helper
def _least_of_side(graph: ChoiceGraph, edge: int, side: int, least: np.ndarray) -> None:
    """Fill ``least`` with the least that an edge has left for each label, or layout, of a side."""
    n_labels, n_layouts = graph.n_labels[edge], graph.n_layouts[edge]
    to_labels, to_layouts = graph.handed_ptr[2 * edge], graph.handed_ptr[2 * edge + 1]
    at = graph.edge_ptr[edge]
    for place in range(n_labels if side == 0 else n_layouts):
        least[place] = np.inf
    for label in range(n_labels):
        taken = graph.handed[to_labels + label]
        for layout in range(n_layouts):
            left = graph.table[at] - taken - graph.handed[to_layouts + layout]
            at += 1
            place = label if side == 0 else layout
            if left < least[place]:
                least[place] = left


@helper
def _hand(graph: ChoiceGraph, edge: int, side: int, amount: np.ndarray) -> None:
    """Hand ``amount`` of an edge to its node on a side: to its labels, or layouts."""
    node = graph.edge_node[2 * edge + side]
    begin, first = graph.handed_ptr[2 * edge + side], graph.node_ptr[node]
    if side == 1:
        for layout in range(graph.n_layouts[edge]):
            graph.handed[begin + layout] += amount[layout]
            graph.price[first + layout] += amount[layout]
    else:
        for label in range(graph.n_labels[edge]):
            graph.handed[begin + label] += amount[label]
        start = graph.label_ptr[edge]
        for choice in range(graph.node_ptr[node + 1] - first):
            graph.price[first + choice] += amount[graph.label[start + choice]]


@compiled
def sweep(graph: ChoiceGraph, order: Int64Array, rank: Int64Array, amount: Float64Array) -> None:
    """Go through the nodes once.

    Args:
        graph: ``price`` and ``handed`` change.
        order: [N] nodes.
        rank: [N] the place of each in ``order``.
        amount: scratch, as long as the most choices of a node.
    """
    for node in order:
        begin, end = graph.near_ptr[node], graph.near_ptr[node + 1]
        ahead, behind = 0, 0
        for place in range(begin, end):
            edge, side = graph.near[place] // 2, graph.near[place] % 2
            _least_of_side(graph, edge, side, amount)
            _hand(graph, edge, side, amount)
            if rank[graph.edge_node[2 * edge + 1 - side]] > rank[node]:
                ahead += 1
            else:
                behind += 1
        if ahead == 0:
            continue
        first, last = graph.node_ptr[node], graph.node_ptr[node + 1]
        share = 1.0 / max(ahead, behind)
        total = np.empty(last - first)
        lowest = np.inf
        for choice in range(first, last):
            lowest = min(lowest, graph.price[choice])
        for choice in range(last - first):
            # What is the same for all choices stays: it bounds as well here as there.
            total[choice] = share * (graph.price[first + choice] - lowest)
        for place in range(begin, end):
            edge, side = graph.near[place] // 2, graph.near[place] % 2
            if rank[graph.edge_node[2 * edge + 1 - side]] > rank[node]:
                if side == 1:
                    for layout in range(graph.n_layouts[edge]):
                        amount[layout] = -total[layout]
                else:
                    start = graph.label_ptr[edge]
                    for label in range(graph.n_labels[edge]):
                        amount[label] = np.inf
                    for choice in range(last - first):
                        label = graph.label[start + choice]
                        amount[label] = min(amount[label], total[choice])
                    for label in range(graph.n_labels[edge]):
                        amount[label] = -amount[label]
                _hand(graph, edge, side, amount)


@compiled
def least_sum(graph: ChoiceGraph, amount: Float64Array) -> float:
    """The bound: the sum of the least prices of all nodes and edges."""
    total = 0.0
    for node in range(graph.node_ptr.shape[0] - 1):
        least = np.inf
        for choice in range(graph.node_ptr[node], graph.node_ptr[node + 1]):
            least = min(least, graph.price[choice])
        total += least
    for edge in range(graph.n_labels.shape[0]):
        _least_of_side(graph, edge, 1, amount)
        least = np.inf
        for layout in range(graph.n_layouts[edge]):
            least = min(least, amount[layout])
        total += least
    return total


class Ascent:
    """A graph with its bound.

    Args:
        relaxation: what is bounded.
        extra_s: added to the prices of its nodes.
    """

    def __init__(
        self, relaxation: Relaxation, extra_s: list[np.ndarray] | None = None
    ) -> None:
        self.graph = choice_graph(relaxation, extra_s)
        order = np.argsort(relaxation.rank, kind="stable").astype(np.int64)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.orders = [(order, rank), (order[::-1].copy(), len(order) - 1 - rank)]
        longest = np.diff(self.graph.node_ptr).max(initial=1)
        self.amount = np.empty(max(int(longest), int(self.graph.n_labels.max(initial=1))))

    @property
    def bound_s(self) -> float:
        """Seconds that no choice is below."""
        return float(least_sum(self.graph, self.amount))

    def sweep(self) -> None:
        """Go through the program, and back."""
        for order, rank in self.orders:
            sweep(self.graph, order, rank, self.amount)

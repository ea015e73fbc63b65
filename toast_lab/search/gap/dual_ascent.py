"""A lower bound of the least price of a graph of choices, raised step by step.

Every edge of a ``Relaxation`` may hand a part of its prices to its two nodes, and take it back: the
price of a choice for all nodes stays the same. However prices were moved, the sum of the least
prices of all nodes and all edges is at most the price of any choice. A sweep goes through the nodes
in the order of the program and back: each node takes as much as its edges can give, and hands it to
those of its edges that lead on, so that the price paid in one place of a plan is known in the next.
No sweep lowers the bound.

The sweeps climb the dual of the linear program over local polytopes, and may stop a little below
its optimum. Reference: Kolmogorov, A new look at reweighted message passing, IEEE PAMI 37(5), 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Array, Int64Array, packed
from toast_lab.ragged import row_starts
from toast_lab.search.gap.relaxation import Relaxation

_SETTLED = 1e-6  # least rise in ``_SWEEPS`` sweeps, as a share of the bound, that counts as one
_SWEEPS = 8


@packed
class ChoiceGraph(NamedTuple):
    """A ``Relaxation`` in the arrays that kernels read; nodes and edges keep their indices.

    There are ``E`` edges, each with a side 0, the row of ops, and a side 1, the value.
    """

    node_ptr: Int64Array  #: [J+1] where the choices of each node start in ``price``
    price: Float64Array  #: price of each choice of each node, with the amounts handed by edges
    edge_node: Int64Array  #: [2 E] node of side 0 and of side 1
    edge_ptr: Int64Array  #: [E+1] where the prices [W, T] of each edge start in ``table``
    n_labels: Int64Array  #: [E] W
    n_layouts: Int64Array  #: [E] T
    table: Float64Array  #: prices of the edges, without the amounts handed over
    label_ptr: Int64Array  #: [E+1] where the labels of each edge start in ``label``
    label: Int64Array  #: label of each choice of side 0
    handed_ptr: Int64Array  #: [2 E + 1] where the amounts of each side start in ``handed``
    handed: Float64Array  #: amount handed to each label of side 0 and each choice of side 1
    incident_ptr: Int64Array  #: [J+1] where the edges of each node start in ``incident_edge``
    incident_edge: Int64Array  #: edges of each node, as 2 * edge + side of the node


def choice_graph(relaxation: Relaxation) -> ChoiceGraph:
    """The graph of a relaxation, with nothing handed over yet."""
    edges = relaxation.edges
    price = relaxation.time_s
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
        incident_ptr=row_starts(np.bincount(ends, minlength=n_nodes)),
        incident_edge=order.astype(np.int64),
    )


@packed
class SharedCopies(NamedTuple):
    """The ``Sharing``s of a relaxation in arrays; there are ``H`` of them with ``U`` uses."""

    node_ptr: Int64Array  #: [J+1] where the sharings of each node start; they are sorted by node
    use_ptr: Int64Array  #: [H+1] where the uses of each sharing start
    n_wanted: Int64Array  #: [H] W
    share_ptr: Int64Array  #: [H+1] where the matrix [uses, uses] of each starts in ``share``
    share: Float64Array
    edge: Int64Array  #: [U] edge of each use
    times: Float64Array  #: [U] number of uses that each stands for
    wanted_ptr: Int64Array  #: [U+1] where the entries of each use start in ``wanted``
    wanted: Int64Array  #: index of the layout wanted, for each label of the edge
    cost_ptr: Int64Array  #: [U+1] where the matrix [W, T] of each starts in ``cost_s``, ``part_s``
    cost_s: Float64Array
    part_s: Float64Array


def shared_copies(relaxation: Relaxation) -> SharedCopies:
    """The sharings of a relaxation in arrays."""
    sharings = sorted(relaxation.sharings, key=lambda sharing: sharing.value)
    uses = [use for sharing in sharings for use in sharing.uses]
    nodes = np.asarray([sharing.value for sharing in sharings], np.int64)
    n_nodes = len(relaxation.time_s)
    empty = np.zeros(0)
    return SharedCopies(
        node_ptr=row_starts(np.bincount(nodes, minlength=n_nodes)),
        use_ptr=row_starts([len(sharing.uses) for sharing in sharings]),
        n_wanted=np.asarray([len(sharing.uses[0].cost_s) for sharing in sharings], np.int64),
        share_ptr=row_starts([sharing.shares.size for sharing in sharings]),
        share=np.concatenate([*(sharing.shares.ravel() for sharing in sharings), empty]),
        edge=np.asarray([use.edge for use in uses], np.int64),
        times=np.asarray([use.times for use in uses], np.float64),
        wanted_ptr=row_starts([len(use.wanted) for use in uses]),
        wanted=np.concatenate([*(use.wanted for use in uses), empty]).astype(np.int64),
        cost_ptr=row_starts([use.cost_s.size for use in uses]),
        cost_s=np.concatenate([*(use.cost_s.ravel() for use in uses), empty]),
        part_s=np.concatenate([*(use.part_s.ravel() for use in uses), empty]),
    )


@helper
def _redistribute(graph: ChoiceGraph, copies: SharedCopies, sharing: int, unit_s: float) -> None:
    """Move the cost of shared copies between their uses to where it raises the bound.

    Each edge has at least 0 left of its prices, before and after. A use that has more than 0 left
    gives it up, to the uses of the same copy that have nothing left.
    """
    first, end = copies.use_ptr[sharing], copies.use_ptr[sharing + 1]
    count = end - first
    n_wanted = copies.n_wanted[sharing]
    n_layouts = graph.n_layouts[copies.edge[first]]
    left_s = np.empty((count, n_wanted))
    is_tight = np.empty(count, np.bool_)
    change, added = np.empty(n_wanted), np.empty((count, n_wanted))
    for layout in range(n_layouts):
        left_s[:] = np.inf
        for index in range(count):
            use = first + index
            edge = copies.edge[use]
            to_labels = graph.handed_ptr[2 * edge]
            to_layout = graph.handed[graph.handed_ptr[2 * edge + 1] + layout]
            for label in range(graph.n_labels[edge]):
                wanted = copies.wanted[copies.wanted_ptr[use] + label]
                entry = graph.edge_ptr[edge] + label * n_layouts + layout
                amount = graph.table[entry] - graph.handed[to_labels + label] - to_layout
                left_s[index, wanted] = min(left_s[index, wanted], amount)
            for wanted in range(n_wanted):
                change[wanted] = 0.0
                if left_s[index, wanted] > unit_s and left_s[index, wanted] < np.inf:
                    position = copies.cost_ptr[use] + wanted * n_layouts + layout
                    given_up_s = min(
                        copies.part_s[position], left_s[index, wanted] / copies.times[use]
                    )
                    copies.part_s[position] -= given_up_s
                    change[wanted] = -given_up_s
            # Immediately, since another use may belong to the same edge.
            _add_parts(graph, copies, use, layout, change)
        for wanted in range(n_wanted):
            any_tight = False
            for index in range(count):
                is_tight[index] = left_s[index, wanted] <= unit_s
                any_tight |= is_tight[index]
            # If no use is tight, all get the same part back.
            for index in range(count):
                if not any_tight and left_s[index, wanted] < np.inf:
                    is_tight[index] = True
            for index in range(count):
                added[index, wanted] = 0.0
                if is_tight[index]:
                    more_s = _room(copies, sharing, index, wanted * n_layouts + layout, is_tight)
                    position = copies.cost_ptr[first + index] + wanted * n_layouts + layout
                    copies.part_s[position] += more_s
                    added[index, wanted] = more_s
        for index in range(count):
            for wanted in range(n_wanted):
                change[wanted] = added[index, wanted]
            _add_parts(graph, copies, first + index, layout, change)


@helper
def _room(copies: SharedCopies, sharing: int, taker: int, cell: int, is_tight: np.ndarray) -> float:
    """How much more one use may count for, if all later tight uses of the sharing get as much."""
    first, end = copies.use_ptr[sharing], copies.use_ptr[sharing + 1]
    count, shares = end - first, copies.share_ptr[sharing]
    more_s = np.inf
    for payer in range(count):
        cost_s = copies.cost_s[copies.cost_ptr[first + payer] + cell]
        if copies.share[shares + payer * count + taker] > 0.0 and cost_s < np.inf:
            room_s, taken_share = cost_s, 0.0
            for other in range(count):
                share = copies.share[shares + payer * count + other]
                room_s -= share * copies.part_s[copies.cost_ptr[first + other] + cell]
                if is_tight[other] and other >= taker:
                    taken_share += share
            more_s = min(more_s, room_s / taken_share)
    return max(more_s, 0.0)


@helper
def _add_parts(
    graph: ChoiceGraph, copies: SharedCopies, use: int, layout: int, change: np.ndarray
) -> None:
    """Add the changes [W] of a use's part to the prices of its edge, at one layout kept."""
    edge = copies.edge[use]
    for label in range(graph.n_labels[edge]):
        wanted = copies.wanted[copies.wanted_ptr[use] + label]
        graph.table[graph.edge_ptr[edge] + label * graph.n_layouts[edge] + layout] += (
            copies.times[use] * change[wanted]
        )


@helper
def _least_of_side(graph: ChoiceGraph, edge: int, side: int, least: np.ndarray) -> None:
    """Fill ``least`` with the least price left in an edge for each label, or layout, of a side."""
    n_labels, n_layouts = graph.n_labels[edge], graph.n_layouts[edge]
    to_labels, to_layouts = graph.handed_ptr[2 * edge], graph.handed_ptr[2 * edge + 1]
    position = graph.edge_ptr[edge]
    for index in range(n_labels if side == 0 else n_layouts):
        least[index] = np.inf
    for label in range(n_labels):
        taken = graph.handed[to_labels + label]
        for layout in range(n_layouts):
            left = graph.table[position] - taken - graph.handed[to_layouts + layout]
            position += 1
            index = label if side == 0 else layout
            if left < least[index]:
                least[index] = left


@helper
def _hand(graph: ChoiceGraph, edge: int, side: int, amount: np.ndarray) -> None:
    """Hand ``amount`` from an edge to its node on a side, for each label or layout."""
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
def sweep(
    graph: ChoiceGraph,
    copies: SharedCopies,
    order: Int64Array,
    rank: Int64Array,
    unit_s: float,
    amount: Float64Array,
) -> None:
    """Go through the nodes once.

    Args:
        graph: ``price``, ``table`` and ``handed`` change.
        copies: ``part_s`` changes.
        order: [J] nodes.
        rank: [J] the position of each node in ``order``.
        unit_s: seconds below which an amount counts as 0.
        amount: scratch, as long as the most choices of a node.
    """
    for node in order:
        begin, end = graph.incident_ptr[node], graph.incident_ptr[node + 1]
        ahead, behind = 0, 0
        for position in range(begin, end):
            edge, side = graph.incident_edge[position] // 2, graph.incident_edge[position] % 2
            _least_of_side(graph, edge, side, amount)
            _hand(graph, edge, side, amount)
            if rank[graph.edge_node[2 * edge + 1 - side]] > rank[node]:
                ahead += 1
            else:
                behind += 1
        if copies.node_ptr[node + 1] > copies.node_ptr[node]:
            for sharing in range(copies.node_ptr[node], copies.node_ptr[node + 1]):
                _redistribute(graph, copies, sharing, unit_s)
            for position in range(begin, end):
                edge, side = graph.incident_edge[position] // 2, graph.incident_edge[position] % 2
                _least_of_side(graph, edge, side, amount)
                _hand(graph, edge, side, amount)
        first_choice, end_choice = graph.node_ptr[node], graph.node_ptr[node + 1]
        share = 1.0 / max(1, ahead, behind)
        total = np.empty(end_choice - first_choice)
        lowest = np.inf
        for choice in range(first_choice, end_choice):
            lowest = min(lowest, graph.price[choice])
        for choice in range(end_choice - first_choice):
            # The amount common to all choices stays here: it counts for the bound all the same.
            total[choice] = share * (graph.price[first_choice + choice] - lowest)
        for position in range(begin, end):
            edge, side = graph.incident_edge[position] // 2, graph.incident_edge[position] % 2
            if rank[graph.edge_node[2 * edge + 1 - side]] > rank[node]:
                if side == 1:
                    for layout in range(graph.n_layouts[edge]):
                        amount[layout] = -total[layout]
                else:
                    start = graph.label_ptr[edge]
                    for label in range(graph.n_labels[edge]):
                        amount[label] = np.inf
                    for choice in range(end_choice - first_choice):
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


@compiled
def best_choices(graph: ChoiceGraph, amount: Float64Array) -> np.ndarray:
    """[J] the best choice of each node, by its price and the least prices left in its edges."""
    best = np.zeros(graph.node_ptr.shape[0] - 1, np.int64)
    for node in range(best.shape[0]):
        first = graph.node_ptr[node]
        total = graph.price[first : graph.node_ptr[node + 1]].copy()
        for position in range(graph.incident_ptr[node], graph.incident_ptr[node + 1]):
            edge, side = graph.incident_edge[position] // 2, graph.incident_edge[position] % 2
            _least_of_side(graph, edge, side, amount)
            for choice in range(total.shape[0]):
                index = choice if side == 1 else graph.label[graph.label_ptr[edge] + choice]
                total[choice] += amount[index]
        for choice in range(total.shape[0]):
            if total[choice] < total[best[node]]:
                best[node] = choice
    return best


class Ascent:
    """The graph of a relaxation and its bound, which ``sweep`` raises.

    Args:
        relaxation: the relaxation to bound.
    """

    def __init__(self, relaxation: Relaxation) -> None:
        self.relaxation = relaxation
        self.graph = choice_graph(relaxation)
        self.copies = shared_copies(relaxation)
        self.extra_s = np.zeros(len(self.graph.price))
        self.unit_s = 1e-12 * max(1e-30, float(self.graph.price.max(initial=0.0)))
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
        """Go through the program and back. The bound does not fall."""
        for order, rank in self.orders:
            sweep(self.graph, self.copies, order, rank, self.unit_s, self.amount)

    def add(self, extra_s: list[np.ndarray]) -> None:
        """Replace the extra prices of the nodes, beyond those of the relaxation, by ``extra_s``."""
        extra = np.concatenate([*extra_s, np.zeros(0)])
        self.graph.price[:] += extra - self.extra_s
        self.extra_s = extra

    def choice(self) -> np.ndarray:
        """[J] the best choice for each node and its edges by itself."""
        return best_choices(self.graph, self.amount)

    def settle(self, check: Callable[[], None] = lambda: None) -> None:
        """Sweep until the bound hardly rises any more; ``check`` may raise to end the work."""
        before_s, after_s = -np.inf, self.bound_s
        while after_s - before_s > _SETTLED * abs(after_s):
            before_s = after_s
            for _ in range(_SWEEPS):
                check()
                self.sweep()
            after_s = self.bound_s

    def restated(self) -> ChoiceGraph:
        """The graph after the sweeps, computed again from the relaxation and the amounts handed.

        Sums that were updated over many sweeps, with their rounding errors, do not enter. The
        amounts are in ``price`` and ``table``, and ``handed`` is 0.
        """
        graph, copies, relaxation = self.graph, self.copies, self.relaxation
        fresh = choice_graph(relaxation)
        fresh.price[:] += self.extra_s
        for edge, ends in enumerate(relaxation.edges):
            first, middle, last = fresh.handed_ptr[2 * edge : 2 * edge + 3]
            to_labels, to_layouts = graph.handed[first:middle], graph.handed[middle:last]
            for node, amounts in ((ends.op, to_labels[ends.label]), (ends.value, to_layouts)):
                begin = fresh.node_ptr[node]
                fresh.price[begin : begin + len(amounts)] += amounts
            table = fresh.table[fresh.edge_ptr[edge] : fresh.edge_ptr[edge + 1]]
            table -= np.add.outer(to_labels, to_layouts).ravel()
        use_index = 0
        for sharing in sorted(relaxation.sharings, key=lambda sharing: sharing.value):
            first_use, use_index = use_index, use_index + len(sharing.uses)
            part = copies.part_s[copies.cost_ptr[first_use] : copies.cost_ptr[use_index]]
            part = np.maximum(part.reshape(len(sharing.uses), -1), 0.0)
            cost = np.stack([use.cost_s.ravel() for use in sharing.uses])
            counted_s = sharing.shares @ part
            # No copy counts for more than it costs, whatever the rounding errors.
            scale = np.where(counted_s > cost, cost / np.maximum(counted_s, 1e-300), 1.0)
            part = np.where(np.isfinite(cost), part * scale.min(axis=0), 0.0)
            for use, use_part_s in zip(sharing.uses, part, strict=True):
                change = use_part_s.reshape(use.cost_s.shape) - use.part_s
                begin, end = fresh.edge_ptr[use.edge], fresh.edge_ptr[use.edge + 1]
                fresh.table[begin:end] += (use.times * change[use.wanted]).ravel()
        return fresh

    def stated_anew(self) -> float:
        """The bound, computed from ``restated``."""
        return float(least_sum(self.restated(), self.amount))

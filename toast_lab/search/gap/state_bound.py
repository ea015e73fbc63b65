"""A lower bound of C(s') for every state s' that further actions may reach from a state s.

Actions only add: a row of ops or values that has an entry on an axis keeps it. So of the choices of
a relaxation over the rows of the tree search, those that contradict an entry of s are out, and the
least prices of all nodes and edges over the choices that are left add up to no more than the time
of any s'. Sweeps have moved prices to where they raise this sum for the unsharded state.

The peak of s' is at least that of the written values, cut as finely as they may still be, without
copies (``MemoryTerms``). Hence C(s') is at least the bound of its time plus the penalty of that
peak.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.kernels import compiled
from toast_lab.packs import BoolMatrix, Float64Array
from toast_lab.ragged import gather, row_numbers, row_starts
from toast_lab.search.gap.dual_ascent import Ascent, ChoiceGraph
from toast_lab.search.gap.memory_terms import MemoryTerms
from toast_lab.search.gap.relaxed_terms import relax
from toast_lab.sharding.steps import LAYOUT_BITS

#: Allows for sums that are rounded in another order than the evaluator's.
_ROUNDING = 1.0 - 1e-9


class StateBound:
    """A relaxed problem, and the bounds of its states.

    ``C`` choices are those of all nodes, rows of ops first, then values.

    Args:
        problem: program, mesh and machine; its unsharded program takes time.
        min_names: fewest names of a colour group that is acted on.
        check: called regularly; may raise to end the work.
    """

    def __init__(
        self, problem: Problem, min_names: int = 0, check: Callable[[], None] = lambda: None
    ) -> None:
        self.problem = problem
        relaxation = relax(problem, check, grain="colours", min_names=min_names)
        ascent = Ascent(relaxation)
        ascent.settle(check)
        graph = self.graph = ascent.restated()
        self.node_ptr, self.memory = graph.node_ptr, MemoryTerms(problem, relaxation)
        n_rows, axes = len(relaxation.menus), range(len(problem.mesh.axes))
        self.menu = np.concatenate(relaxation.menus)  # [S, A] names
        self.menu_row = row_numbers(self.node_ptr[: n_rows + 1])
        layouts = np.concatenate([*relaxation.layouts, np.zeros(0, np.int64)])
        self.layout_value = row_numbers(self.node_ptr[n_rows:])
        #: A of [C - S] 1 + dim of each layout
        self.dims = [(layouts >> (LAYOUT_BITS * axis)) & 31 for axis in axes]
        self.value_row, self.inner = relaxation.layout_row, relaxation.inner
        makers = relaxation.maker[self.inner]
        self.maker_ptr = row_starts(np.diff(self.node_ptr)[makers])
        self.maker_choice = gather(self.node_ptr, makers)
        left = np.concatenate([*(relaxation.left[value] for value in self.inner), layouts[:0]])
        partial = left >> (LAYOUT_BITS * len(axes))
        #: A of bits of 1 + dim in which each choice of a maker leaves its value, or 0 for whole
        self.left_dims = [
            (1 << ((left >> (LAYOUT_BITS * axis)) & 31)) | ((partial >> axis) & 1) for axis in axes
        ]
        #: least sum of all edges from each one on, in any state
        least_s = _least(graph.table[None], graph.edge_ptr)[0]
        self.rest_s = np.append(np.cumsum(least_s[::-1])[::-1], 0.0)
        self.share = np.concatenate([*self.memory.share[n_rows:], np.zeros(0)])
        self.n_rows = n_rows
        whole_bytes = self._peaks_of(np.ones((1, len(self.value_row))))
        #: is there a plan that does not fit, as far as written values tell?
        self.memory_matters = bool(whole_bytes[0] > problem.memory_limit_bytes)

    def of(
        self, ops: np.ndarray, values: np.ndarray, cutoff: float = np.inf
    ) -> tuple[np.ndarray, np.ndarray]:
        """([N] scores, [N] peak bytes) that no state reached from N states is below.

        Args:
            ops: [N, K, A] names, as in ``State``.
            values: [N, L, A] dims, as in ``State``.
            cutoff: a score; bounds above it may be lower than they could be.
        """
        base_time_s, base_bytes = self.problem.baseline
        is_left = self._left(ops, values)
        peaks = self._peaks(is_left[:, self.node_ptr[self.n_rows] :])
        penalty = np.maximum(0.0, peaks - self.problem.memory_limit_bytes)
        penalty *= self.problem.memory_weight / base_bytes if base_bytes > 0.0 else 0.0
        time_s = _least(np.where(is_left, self.graph.price, np.inf), self.node_ptr).sum(axis=1)
        enough_s = (cutoff - penalty) * base_time_s * (1.0 + 1e-9)
        _add_edges(self.graph, is_left, self.rest_s, enough_s, time_s)
        return np.maximum(time_s, 0.0) / base_time_s * _ROUNDING + penalty, peaks

    def _left(self, ops: np.ndarray, values: np.ndarray) -> np.ndarray:
        """[N, C] which choices contradict no entry of each state.

        On each axis a value is kept as its row says, or as its op leaves it, or whole if that is
        partial.
        """
        names = ops[:, self.menu_row]
        of_ops = ((names < 0) | (names == self.menu)).all(axis=2)
        of_values = np.ones((len(ops), len(self.layout_value)), bool)
        for axis, (dims, left_dims) in enumerate(zip(self.dims, self.left_dims, strict=True)):
            row_dims = values[:, self.value_row, axis].astype(np.int64)
            possible = 1 << (row_dims + 1)
            if len(self.inner):
                bits = np.where(of_ops[:, self.maker_choice], left_dims, 0)
                possible[:, self.inner] |= np.bitwise_or.reduceat(bits, self.maker_ptr[:-1], axis=1)
            is_possible = (possible[:, self.layout_value] >> dims) & 1 == 1
            of_values &= is_possible | (row_dims < 0)[:, self.layout_value]
        return np.concatenate([of_ops, of_values], axis=1)

    def _peaks(self, is_left: np.ndarray) -> np.ndarray:
        """[N] bytes that are in memory at some op at least; 0 if all plans fit."""
        if not self.memory_matters:
            return np.zeros(len(is_left))
        value_ptr = self.node_ptr[self.n_rows :] - self.node_ptr[self.n_rows]
        return self._peaks_of(_least(np.where(is_left, self.share, np.inf), value_ptr))

    def _peaks_of(self, share: np.ndarray) -> np.ndarray:
        """[N] bytes in memory if devices hold the shares [N, values]."""
        memory, is_near = self.memory, self.memory.is_near
        share = np.append(share, np.ones((len(share), 1)), axis=1)  # the last one for constants
        size = memory.bytes * share[:, np.maximum(memory.node - self.n_rows, -1)]
        live = []
        for counts in (~is_near, is_near):
            change = np.zeros((memory.n_ops + 2, len(share)))
            np.add.at(change, memory.start[counts], size.T[counts])
            np.add.at(change, np.minimum(memory.end, memory.n_ops)[counts] + 1, -size.T[counts])
            live.append(np.cumsum(change, axis=0))
        return (live[0] + np.maximum(0.0, live[1] - memory.room_bytes)).max(axis=0) * _ROUNDING


def _least(prices: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """[N, rows] the least of each row of ``ptr``; none is empty."""
    if len(ptr) == 1:
        return np.zeros((len(prices), 0))
    return np.minimum.reduceat(prices, ptr[:-1], axis=1)


@compiled
def _add_edges(
    graph: ChoiceGraph,
    is_left: BoolMatrix,
    rest_s: Float64Array,
    enough_s: Float64Array,
    time_s: Float64Array,
) -> None:
    """Add to the seconds of each state the least price of each edge over the choices left.

    Once a state has more than ``enough_s``, the remaining edges count with ``rest_s``.
    """
    seen = np.empty(graph.label.shape[0], np.bool_)
    for state in range(is_left.shape[0]):
        for edge in range(graph.n_labels.shape[0]):
            if time_s[state] + rest_s[edge] > enough_s[state]:
                time_s[state] += rest_s[edge]
                break
            first = graph.node_ptr[graph.edge_node[2 * edge]]
            first_layout = graph.node_ptr[graph.edge_node[2 * edge + 1]]
            n_layouts, least = graph.n_layouts[edge], np.inf
            seen[: graph.n_labels[edge]] = False
            for position in range(graph.label_ptr[edge], graph.label_ptr[edge + 1]):
                label = graph.label[position]
                if seen[label] or not is_left[state, first + position - graph.label_ptr[edge]]:
                    continue
                seen[label] = True
                begin = graph.edge_ptr[edge] + label * n_layouts
                for layout in range(n_layouts):
                    if is_left[state, first_layout + layout]:
                        least = min(least, graph.table[begin + layout])
            time_s[state] += least

"""Branch and bound over distinct shardings: the proven optimum of small programs.

States are identified by their keys, so the search goes over final shardings, not over sequences of
actions. It is best first: the open state with the lowest bound (``StateBound``) is priced and
extended by every legal action. A new state whose bound is no lower than the best price known is
left out, with all states that follow from it. When the lowest bound of the open states reaches the
best price, no plan of the space is better. A narrow beam search comes first, for a good price to
compare with.

A plan that fits is preferred to any that does not. Once one is known, states that cannot lead to
another one that fits are left out too, and the proof is that no plan *that fits* is better. With
``bounded=False`` every state is priced. Not in the paper.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.kernels import compiled, copy_rows
from toast_lab.packs import Int8Matrix, Int32Matrix, Int64Matrix, UInt64Array
from toast_lab.search.beam import BeamSearch
from toast_lab.search.gap.state_bound import StateBound
from toast_lab.search.limits import Status
from toast_lab.search.pruning import smallest_group
from toast_lab.search.recorder import Recorder
from toast_lab.search.trace_columns import Columns
from toast_lab.sharding.moves import Moves
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State, apply_move, legal_rows

if TYPE_CHECKING:
    from toast_lab.search.method_options import ExhaustiveOptions

_BEAM_WIDTH = 8
# States of a round; if shorter sequences come first, a round is all states of one length instead.
_ROUND = 256


def run(recorder: Recorder, seed: int, options: ExhaustiveOptions) -> Status:
    """Search until the optimum is proved.

    Args:
        recorder: prices and reports.
        seed: seed of the beam search that comes first; nothing else is random.
        options: see ``methods.Exhaustive``.
    """
    problem, depth = recorder.problem, options.depth
    min_names = smallest_group(problem, options.min_names)
    if not len(legal_rows(State(problem.space), min_names)):
        assert recorder.best is not None
        recorder.prove(recorder.best.score)
        return Status.NO_ACTIONS
    recorder.check()
    beam = BeamSearch(recorder, np.random.default_rng(seed), depth or 30, min_names)
    # Without time there is nothing to bound.
    bounded = options.bounded and problem.baseline[0] > 0.0
    bound = StateBound(problem, min_names, recorder.check) if bounded else None
    open_states = _OpenStates(recorder, min_names, depth, bound=bound, nodes=beam.nodes)
    recorder.round = 1
    try:
        if bound is not None:
            beam.descend(_BEAM_WIDTH)
        open_states.search()
    finally:
        recorder.prove(open_states.proved())
    return Status.COMPLETE


class _OpenStates:
    """The states reached so far, each stored as its last action and the state before it.

    The rows of a state are rebuilt by applying its actions.
    """

    def __init__(
        self,
        recorder: Recorder,
        min_names: int,
        depth: int | None,
        *,
        bound: StateBound | None,
        nodes: dict[int, int],
    ) -> None:
        self.recorder, self.depth, self.bound = recorder, depth, bound
        self.space, self.least = recorder.problem.space, min_names
        self.seen = {0}  # keys; 0 is that of the unsharded state
        self.n_visited = 0
        self.nodes = nodes  # trace nodes of states that the beam priced, by key
        self.states = Columns(parent=np.int32, move=np.int32, axis=np.int8, node=np.int32)
        self.states.append(parent=-1, move=0, axis=0, node=0)
        root = State(self.space)
        (score,), (peak,) = self._bounds(root.ops[None], root.values[None])
        # (rank, bound of the score, bound of the peak, state). With a limit on the depth, shorter
        # sequences rank first, so that every state is reached by its shortest sequence first.
        self.open: list[tuple[float, float, float, int]] = [(0.0, score, peak, 0)]

    def proved(self) -> float:
        """A score that no plan is below (no plan that fits, if the best one does)."""
        assert self.recorder.best is not None
        bounds = [score for _, score, peak, _ in self.open if not self.needless(score, peak)]
        return min([self.recorder.best.score, *bounds])

    def needless(self, score: float, peak: float) -> bool:
        """Do these bounds rule out any plan that is better than the best one known?"""
        best, limit = self.recorder.best, self.recorder.problem.memory_limit_bytes
        assert best is not None
        if best.fits:
            return score >= best.score or peak > limit
        return score >= best.score and peak > limit

    def search(self) -> None:
        """Visit states until no open one can lead to a better plan. Raises Stop."""
        while self.open:
            self.recorder.check()
            _, score, peak, index = self.open[0]
            if not self.needless(score, peak):
                self._visit(index)
            heapq.heappop(self.open)

    def _retake(self, index: int, state: State) -> list[Action]:
        """Apply the actions of the state with this index to ``state``; gives these actions."""
        columns, actions = self.states.array, []
        while index > 0:
            actions.append((int(columns["move"][index]), int(columns["axis"][index])))
            index = int(columns["parent"][index])
        for move, axis in reversed(actions):
            state.apply_row(move, axis)
        return [self.space.action(move, axis) for move, axis in reversed(actions)]

    def _visit(self, index: int) -> None:
        """Price a state and open the new states one action further."""
        recorder = self.recorder
        state = State(self.space)
        actions = self._retake(index, state)
        by_length = self.bound is None or self.depth is not None
        recorder.round = max(
            recorder.round, len(actions) if by_length else 2 + self.n_visited // _ROUND
        )
        self.n_visited += 1
        if index > 0:
            self._price(index, state, actions)
        if self.depth is not None and len(actions) >= self.depth:
            return
        pairs = legal_rows(state, self.least)
        ops, values, keys = _children(
            self.space.moves, state.ops, state.values, state._key, pairs=pairs
        )
        new = []
        for row, key in enumerate(keys.tolist()):
            if key not in self.seen:
                self.seen.add(key)
                new.append(row)
        bounds = zip(*self._bounds(ops[new], values[new]), pairs[new].tolist(), strict=True)
        for score, peak, (move, axis) in bounds:
            if not self.needless(score, peak):
                rank = score if self.depth is None else len(actions) + 1.0
                heapq.heappush(self.open, (rank, score, peak, self.states.n))
                self.states.append(parent=index, move=move, axis=axis, node=0)

    def _bounds(self, ops: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
        """Bounds of the scores and peaks of states, which are given in one array."""
        if self.bound is None:
            return [0.0] * len(ops), [0.0] * len(ops)
        best = self.recorder.best
        cutoff = best.score if best is not None and best.fits else math.inf
        scores, peaks = self.bound.of(ops, values, cutoff)
        return scores.tolist(), peaks.tolist()

    def _price(self, index: int, state: State, actions: list[Action]) -> None:
        """Price a state, unless the beam search has priced it, and write it into the trace."""
        recorder, columns = self.recorder, self.states.array
        node = self.nodes.get(state.key)
        if node is None:
            parent = int(columns["node"][columns["parent"][index]])
            depth = int(recorder.trace.node.array["depth"][parent]) + 1
            node = recorder.add_node(parent, self.space.text(actions[-1]), depth, state.key)
            quick = recorder.record(state, actions, (parent, node))
            trace_nodes = recorder.trace.node.array
            trace_nodes["visits"][node], trace_nodes["score"][node] = 1, quick.score
            trace_nodes["best_score"][node] = quick.score
        columns["node"][index] = node


@compiled
def _children(
    moves: Moves, ops: Int32Matrix, values: Int8Matrix, key: UInt64Array, pairs: Int64Matrix
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows of ops, rows of values, keys) of the states that ``pairs`` lead to."""
    count = pairs.shape[0]
    next_ops = np.empty((count, *ops.shape), np.int32)
    next_values = np.empty((count, *values.shape), np.int8)
    keys = np.empty(count, np.uint64)
    for row in range(count):
        copy_rows(next_ops[row], ops)
        copy_rows(next_values[row], values)
        keys[row] = key[0]
        apply_move(
            moves,
            next_ops[row],
            next_values[row],
            keys[row : row + 1],
            pairs[row, 0],
            pairs[row, 1],
            False,
        )
    return next_ops, next_values, keys

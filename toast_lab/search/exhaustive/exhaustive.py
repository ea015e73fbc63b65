"""Branch and bound over distinct shardings: the proven optimum of small programs.

States are identified by their keys, so the search goes over final shardings, not over sequences of
actions. It is best first: the open state with the lowest bound (see ``bound``) is priced and
extended by every legal action. A new state whose bound is no lower than the best price known is
left out, with all states that follow from it. When the lowest bound of the open states reaches the
best price, no plan of the space is better. A narrow beam search comes first, for a good price to
compare with.

A plan that fits is preferred to any that does not. Once one is known, states that cannot lead to
another one that fits are left out too, and the proof is that no plan *that fits* is better.

If the tables of the bound would be too large, or with ``bounded=False``, every state is priced.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import Int8Matrix, Int32Matrix, Int64Matrix, UInt64Array
from toast_lab.search.beam import BeamSearch
from toast_lab.search.exhaustive.bound import Bound, BoundScratch, lower_bound, scratch_of
from toast_lab.search.exhaustive.bound_tables import make_bound
from toast_lab.search.limits import Status, Stop
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
    bound = make_bound(problem, min_names, check=recorder.check) if options.bounded else None
    tree = _StateTree(
        recorder=recorder, min_names=min_names, depth=depth, bound=bound, nodes=beam.nodes
    )
    recorder.round = 1
    try:
        if bound is not None:
            beam.descend(_BEAM_WIDTH)
        tree.search()
    except Stop:
        recorder.prove(tree.proved())
        raise
    recorder.prove(tree.proved())
    return Status.COMPLETE


class _StateTree:
    """The states reached so far, each stored as its last action and the state before it.

    The rows of a state are rebuilt by applying its actions.
    """

    def __init__(
        self,
        recorder: Recorder,
        min_names: int,
        depth: int | None,
        bound: Bound | None,
        nodes: dict[int, int],
    ) -> None:
        self.recorder, self.depth, self.bound = recorder, depth, bound
        self.space = recorder.problem.space
        self.least = min_names
        self.axis_size = recorder.problem.mesh.array()
        # A hash set with open addressing; 0 marks a free slot, and is the unsharded state's key
        self.seen = np.zeros(1 << 12, np.uint64)
        self.n_seen = self.n_visited = 0
        self.nodes = nodes  # trace nodes of states that the beam priced, by key
        self.states = Columns(
            parent=np.int32,
            move=np.int32,
            axis=np.int8,
            depth=np.int16,
            node=np.int32,
            key=np.uint64,
        )
        self.states.append(parent=-1, move=0, axis=0, depth=0, node=0, key=0)
        root = State(self.space)
        score, peak = 0.0, 0.0
        if bound is not None:
            self.scratch = scratch_of(bound, len(self.axis_size))
            score, peak = lower_bound(
                bound, root.ops, root.values, self.axis_size, math.inf, self.scratch
            )
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

    def _depth(self, node: int) -> int:
        return int(self.recorder.trace.node.array["depth"][node])

    def _retake(self, index: int, state: State) -> list[Action]:
        """Apply the actions of the state with this index to ``state``; gives these actions."""
        columns, rows = self.states.array, []
        while index > 0:
            rows.append((int(columns["move"][index]), int(columns["axis"][index])))
            index = int(columns["parent"][index])
        rows.reverse()
        for move, axis in rows:
            state.apply_row(move, axis)
        return [self.space.action(move, axis) for move, axis in rows]

    def _visit(self, index: int) -> None:
        """Price a state and open the new states one action further."""
        recorder, space = self.recorder, self.space
        columns = self.states.array
        state = State(space)
        actions = self._retake(index, state)
        by_length = self.bound is None or self.depth is not None
        recorder.round = max(
            recorder.round, len(actions) if by_length else 2 + self.n_visited // _ROUND
        )
        self.n_visited += 1
        if index > 0:
            parent = int(columns["node"][columns["parent"][index]])
            node = self.nodes.get(state.key)
            if node is None:  # the beam search has not priced this state
                node = recorder.add_node(
                    parent, space.text(actions[-1]), self._depth(parent) + 1, state.key
                )
                quick = recorder.record(state, actions, (parent, node))
                trace_nodes = recorder.trace.node.array
                trace_nodes["visits"][node], trace_nodes["score"][node] = 1, quick.score
                trace_nodes["best_score"][node] = quick.score
            columns["node"][index] = node
        if self.depth is not None and len(actions) >= self.depth:
            return
        pairs = legal_rows(state, self.least)
        if 2 * (self.n_seen + len(pairs)) > len(self.seen):
            self.seen = _larger(self.seen)
        best = recorder.best
        assert best is not None
        cutoff = best.score if best.fits else math.inf
        kept, keys = _new_states(space.moves, state.ops, state.values, state._key, pairs, self.seen)
        self.n_seen += len(kept)
        if self.bound is None:
            scores, peaks = np.zeros(len(kept)), np.zeros(len(kept))
        else:
            scores, peaks = _bounds(
                self.bound, self.scratch, cutoff, space.moves, state.ops, state.values, pairs[kept]
            )
        first, depth = self.states.n, len(actions) + 1
        promising = [row for row in range(len(kept)) if not self.needless(scores[row], peaks[row])]
        self.states.reserve(len(promising))
        new = slice(first, first + len(promising))
        columns = self.states.array
        columns["parent"][new] = index
        columns["depth"][new] = depth
        columns["key"][new] = keys[promising]
        columns["move"][new], columns["axis"][new] = (
            pairs[kept[promising], 0],
            pairs[kept[promising], 1],
        )
        self.states.n += len(promising)
        for offset, row in enumerate(promising):
            rank = float(scores[row]) if self.depth is None else float(depth)
            heapq.heappush(self.open, (rank, float(scores[row]), float(peaks[row]), first + offset))


@helper
def _is_new(seen: np.ndarray, key: np.uint64) -> bool:
    """Add a key to the hash set; False if it was there already, or is 0."""
    mask = np.uint64(seen.shape[0] - 1)
    slot = key & mask
    while seen[slot] != 0:
        if seen[slot] == key:
            return False
        slot = (slot + np.uint64(1)) & mask
    seen[slot] = key
    return key != 0


@compiled
def _larger(seen: UInt64Array) -> np.ndarray:
    larger = np.zeros(4 * seen.shape[0], np.uint64)
    for key in seen:
        if key != 0:
            _is_new(larger, key)
    return larger


@compiled
def _new_states(
    moves: Moves,
    ops: Int32Matrix,
    values: Int8Matrix,
    key: UInt64Array,
    pairs: Int64Matrix,
    seen: UInt64Array,
) -> tuple[np.ndarray, np.ndarray]:
    """(rows of ``pairs`` that lead to new states, keys of these), which are added to ``seen``."""
    kept, keys = np.empty(pairs.shape[0], np.int64), np.empty(pairs.shape[0], np.uint64)
    count = 0
    for row in range(pairs.shape[0]):
        keys[count] = key[0]
        apply_move(
            moves,
            ops.copy(),
            values.copy(),
            keys[count : count + 1],
            pairs[row, 0],
            pairs[row, 1],
            False,
        )
        if _is_new(seen, keys[count]):
            kept[count] = row
            count += 1
    return kept[:count], keys[:count]


@compiled
def _bounds(
    bound: Bound,
    scratch: BoundScratch,
    cutoff: float,
    moves: Moves,
    ops: Int32Matrix,
    values: Int8Matrix,
    pairs: Int64Matrix,
) -> tuple[np.ndarray, np.ndarray]:
    """(bounds of the score, bounds of the peak) of the states that ``pairs`` lead to."""
    scores, peaks = np.empty(pairs.shape[0]), np.empty(pairs.shape[0])
    key = np.zeros(1, np.uint64)
    for row in range(pairs.shape[0]):
        next_ops, next_values = ops.copy(), values.copy()
        apply_move(moves, next_ops, next_values, key, pairs[row, 0], pairs[row, 1], False)
        scores[row], peaks[row] = lower_bound(
            bound, next_ops, next_values, moves.axis_size, cutoff, scratch
        )
    return scores, peaks

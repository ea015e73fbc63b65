"""Beam search over the colour actions, then local search around the best sequences.

The beam keeps the ``width`` best distinct states of each length and extends each of them by every
legal action, so that an action that pays only together with the next one survives.

Local search then refines sequences of actions: it removes, replaces or inserts one action at any
position, or swaps two, and applies the whole sequence again from the unsharded program, without the
actions that have lost their effect. It keeps the first change that improves the plan, and repeats
until none does. While the budget lasts, refinement starts again from sequences that are changed at
random (iterated local search), which leads out of local optima.

References: Lowerre, The Harpy speech recognition system, 1976 (beam search); Lourenço, Martin,
Stützle, Iterated local search, Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.cost.problem import Quick
from toast_lab.search.limits import Status
from toast_lab.search.pruning import smallest_group
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.state import State, legal_rows

if TYPE_CHECKING:
    from toast_lab.search.method_options import BeamOptions

Row = tuple[int, int]  #: (move, axis)
_ELITE = 4  # number of best sequences from which restarts begin


def run(recorder: Recorder, seed: int, options: BeamOptions) -> Status:
    """Search until the budget ends or ``patience`` restarts in a row bring no better plan.

    Args:
        recorder: prices, records and stops the search.
        seed: seed of the order in which changes are tried, and of the random changes.
        options: see ``methods.Beam``.
    """
    smallest = smallest_group(recorder.problem, options.min_names)
    beam = BeamSearch(recorder, np.random.default_rng(seed), options.depth, smallest)
    if not beam.choices:
        return Status.NO_ACTIONS
    recorder.round = 1
    # With many actions the beam takes long; local search alone finds a good plan sooner.
    elite = [beam.refine(()), beam.refine(())]
    width = options.width or max(1, min(16, 400 // len(beam.choices)))
    elite += [beam.refine(rows) for rows in beam.descend(width)[:_ELITE]]
    stale = 0
    while stale < options.patience:
        recorder.round += 1
        before = recorder.best_rank
        elite.sort(key=beam.rank)
        # Half of the restarts begin from the best sequence, the others from a worse one.
        start = elite[min(len(elite) - 1, int(beam.rng.geometric(0.5)) - 1)]
        refined = beam.refine(beam.disturbed(start))
        if beam.rank(refined) < beam.rank(elite[-1]) and refined not in elite:
            elite = [*elite[: _ELITE - 1], refined]
        stale = 0 if recorder.best_rank < before else stale + 1
    return Status.CONVERGED


class BeamSearch:
    """Beam search and local search with one recorder; sequences are tuples of (move, axis)."""

    def __init__(
        self, recorder: Recorder, rng: np.random.Generator, depth: int, least: int
    ) -> None:
        self.recorder, self.rng, self.depth, self.least = recorder, rng, depth, least
        self.space = recorder.problem.space
        self.root = State(self.space)
        recorder.price(self.root)
        self.choices: list[Row] = [
            (move, axis) for move, axis in legal_rows(self.root, least).tolist()
        ]
        keys = recorder.trace.node.array["key"][: recorder.trace.node.n].tolist()
        # Trace nodes by the keys of their states
        self.nodes: dict[int, int] = {key: index for index, key in enumerate(keys)}

    def rank(self, rows: Sequence[Row]) -> tuple[float, float, float]:
        """The rank of the state that a sequence leads to; lower is better."""
        return self.recorder.rank(self.recorder.price(self.state_after(rows)[0]), len(rows))

    def state_after(self, rows: Sequence[Row]) -> tuple[State, tuple[Row, ...]]:
        """The state after ``rows``, and the rows that had an effect."""
        state = self.root.copy()
        effective = tuple((move, axis) for move, axis in rows if state.apply_row(move, axis))
        return state, effective

    def _record(self, state: State, rows: Sequence[Row], parent: int) -> Quick:
        """Price a state; the first time also write it into the trace."""
        node = self.nodes.get(state.key)
        if node is not None:
            return self.recorder.price(state)
        actions = [self.space.action(move, axis) for move, axis in rows]
        depth = int(self.recorder.trace.node.array["depth"][parent]) + 1
        label = " ".join(map(self.space.text, actions[-1:] if len(actions) == depth else actions))
        node = self.nodes[state.key] = self.recorder.add_node(parent, label, depth, state.key)
        return self.recorder.record(state, actions, (parent, node))

    def descend(self, width: int) -> list[tuple[Row, ...]]:
        """Beam search from the unsharded program; gives the best sequences, the best first."""
        level: list[tuple[State, tuple[Row, ...]]] = [(self.root, ())]
        best_sequences: list[tuple[tuple[float, float, float], tuple[Row, ...]]] = [
            (self.recorder.rank(self.recorder.price(self.root), 0), ())
        ]
        seen = {self.root.key}
        while level and len(level[0][1]) < self.depth:
            children = []
            for state, rows in level:
                for move, axis in legal_rows(state, self.least).tolist():
                    child = state.copy()
                    child.apply_row(move, axis)
                    if child.key in seen:
                        continue
                    self.recorder.check()
                    seen.add(child.key)
                    longer = (*rows, (move, axis))
                    quick = self._record(child, longer, self.nodes[state.key])
                    children.append((self.recorder.rank(quick, len(longer)), longer, child))
            children.sort(key=lambda child: child[:2])
            level = [(child, rows) for _, rows, child in children[:width]]
            best_sequences = sorted(
                [*best_sequences, *((rank, rows) for rank, rows, _ in children[:width])]
            )[: 4 * _ELITE]
        return [rows for _, rows in best_sequences]

    def disturbed(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """``rows`` with two to four random changes."""
        changed = list(rows)
        for _ in range(int(self.rng.integers(2, 5))):
            position = int(self.rng.integers(len(changed) + 1))
            kind = self.rng.random()
            if kind < 0.4 and position < len(changed):
                del changed[position]
            elif kind < 0.8 or len(changed) < 2:
                changed.insert(position, self.choices[self.rng.integers(len(self.choices))])
            else:
                i, j = self.rng.integers(len(changed), size=2).tolist()
                changed[i], changed[j] = changed[j], changed[i]
        return self.state_after(changed[: self.depth])[1]

    def refine(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Local search from a sequence; gives a sequence that no single change improves."""
        state, rows = self.state_after(rows)
        rank = self.recorder.rank(self._record(state, rows, 0), len(rows))
        improved = True
        while improved:
            improved = False
            tried = {state.key}
            for changed in self._changes(rows):
                self.recorder.check()
                neighbour, effective = self.state_after(changed)
                if neighbour.key in tried:
                    continue
                tried.add(neighbour.key)
                neighbour.priced = state.priced  # so that only the difference is priced
                new_rank = self.recorder.rank(
                    self._record(neighbour, effective, self.nodes[state.key]), len(effective)
                )
                if new_rank < rank:
                    state, rows, rank, improved = neighbour, effective, new_rank, True
                    break
        return rows

    def _changes(self, rows: tuple[Row, ...]) -> Iterator[tuple[Row, ...]]:
        """All sequences that are one change away, in random order."""
        row_count, choice_count = len(rows), len(self.choices)
        changes = [("remove", i, 0) for i in range(row_count)]
        changes += [("swap", i, j) for i in range(row_count) for j in range(i)]
        changes += [("replace", i, j) for i in range(row_count) for j in range(choice_count)]
        changes += [
            ("insert", i, j)
            for i in range(row_count + 1)
            for j in range(choice_count)
            if row_count < self.depth
        ]
        for change in self.rng.permutation(len(changes)).tolist():
            kind, i, j = changes[change]
            if kind == "remove":
                yield rows[:i] + rows[i + 1 :]
            elif kind == "swap":
                yield (*rows[:j], rows[i], *rows[j + 1 : i], rows[j], *rows[i + 1 :])
            elif kind == "replace":
                yield (*rows[:i], self.choices[j], *rows[i + 1 :])
            else:
                yield (*rows[:i], self.choices[j], *rows[i:])

"""Uniformly random actions, a random number of them: the baseline that every search must beat.

No walk learns from earlier ones. The search ends by itself only when walks keep ending in states
that earlier walks reached, that is on programs so small that all states have been seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from toast_lab.search.limits import Status
from toast_lab.search.pruning import smallest_group
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State, legal_rows

if TYPE_CHECKING:
    from toast_lab.search.method_options import RandomWalkOptions


def run(recorder: Recorder, seed: int, options: RandomWalkOptions) -> Status:
    """Walk until the budget ends or ``patience`` walks in a row bring no new sharding.

    Args:
        recorder: prices and records the end of every walk.
        seed: seed of the random choices.
        options: see ``methods.RandomWalk``.
    """
    space = recorder.problem.space
    min_names = smallest_group(recorder.problem, options.min_names)
    start = State(space)
    if not len(legal_rows(start, min_names)):
        return Status.NO_ACTIONS
    rng = np.random.default_rng(seed)
    known_keys = {start.key}
    longest, stale_walks, is_first = 1, 0, True
    while stale_walks < options.patience:
        recorder.check()
        state, taken = start.copy(), list[Action]()
        # The first walk goes on until no action is left, so that later ones draw only lengths that
        # a walk can reach.
        length = options.depth
        if not is_first:
            length = int(rng.integers(1, min(options.depth, longest + 1) + 1))
        is_first = False
        while len(taken) < length:
            rows = legal_rows(state, min_names)
            if not len(rows):
                break
            move, axis = rows[rng.integers(len(rows))].tolist()
            state.apply_row(move, axis)
            taken.append(space.action(move, axis))
        longest = max(longest, len(taken))
        stale_walks += 1
        if state.key not in known_keys:
            stale_walks = 0
            known_keys.add(state.key)
            node = recorder.add_node(0, " ".join(map(space.text, taken)), 1, state.key)
            recorder.record(state, taken, (0, node))
    return Status.CONVERGED

"""Uniformly random actions, a random number of them: the baseline that every search must beat.

Nothing is learnt from one walk for the next.  The search ends by itself only when walks keep ending where earlier ones
did, that is on programs so small that all has been seen.
"""

from __future__ import annotations

from toast_lab.errors import InvalidProblem
from toast_lab.search.contract import Recorder, Status
from toast_lab.search.pruning import generator, pruning_threshold
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State, legal_rows


def run(
    recorder: Recorder, seed: int, *, depth: int = 30, patience: int = 1000, min_names: int | None = None
) -> Status:
    """Walk until the budget ends or ``patience`` walks in a row bring no sharding that was not priced before.

    Args:
        recorder: prices and records the end of every walk.
        seed: of the random choices.
        depth: longest walk; lengths are uniform from 1 to it, or to one more than any walk so far had actions for.
        patience: walks without anything new after which to stop.
        min_names: smallest colour group to act on; by default as in ``mcts``.
    """
    wrong = [f"{k}={v}" for k, v in (("depth", depth), ("patience", patience)) if v < 1]
    if wrong:
        raise InvalidProblem(f"random: {', '.join(wrong)} must be at least 1")
    space = recorder.problem.space
    least = pruning_threshold(recorder.problem) if min_names is None else min_names
    start = State(space)
    if not len(legal_rows(start, least)):
        return Status.NO_ACTIONS
    rng = generator(recorder, seed)
    known = set(recorder.trace.node.array["key"][: recorder.trace.node.n].tolist())
    longest, stale, first = 1, 0, True
    while stale < patience:
        recorder.check()
        state, taken = start.copy(), list[Action]()
        # The first walk goes on until no action is left, or lengths that no walk reaches would be drawn.
        length, first = depth if first else int(rng.integers(1, min(depth, longest + 1) + 1)), False
        while len(taken) < length:
            rows = legal_rows(state, least)
            if not len(rows):
                break
            move, axis = rows[rng.integers(len(rows))].tolist()
            state.apply_row(move, axis)
            taken.append(Action(int(space.group[move]), int(space.bits[move]), axis))
        longest = max(longest, len(taken))
        stale += 1
        if state.key not in known:
            stale = 0
            known.add(state.key)
            node = recorder.add_node(0, " ".join(space.text(a) for a in taken), 1, state.key)
            recorder.record(state, taken, (0, node))
    return Status.CONVERGED

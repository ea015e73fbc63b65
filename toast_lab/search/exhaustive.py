"""Every distinct sharding that action sequences reach, breadth first.  For small programs and as a yardstick.

States are told apart by their key, so what is enumerated are final shardings, not sequences.  Without a depth limit
the enumeration is complete; with one it covers all sequences up to that length.
"""

from __future__ import annotations

from toast_lab.errors import InvalidProblem
from toast_lab.search.actions import pruning_threshold
from toast_lab.search.contract import Recorder, Status
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State, legal_actions


def run(recorder: Recorder, seed: int, *, depth: int | None = None, min_names: int | None = None) -> Status:
    """Enumerate distinct shardings.

    Args:
        recorder: prices and reports.
        seed: not used, nothing here is random.
        depth: longest action sequence, None for no limit.
        min_names: smallest colour group to act on; by default as in ``mcts``.
    """
    if depth is not None and depth < 1:
        raise InvalidProblem(f"depth must be at least 1, got {depth}")
    problem = recorder.problem
    least = pruning_threshold(problem) if min_names is None else min_names
    root = State(problem.space)
    frontier: list[tuple[State, tuple[Action, ...], int]] = [(root, (), 0)]
    seen = {root.key}
    level = 0
    while frontier and (depth is None or level < depth):
        level += 1
        recorder.round = level
        deeper = []
        for state, taken, node in frontier:
            for action in legal_actions(state, least):
                recorder.check()
                child = state.copy()
                child.apply(action)
                if child.key in seen:
                    continue
                seen.add(child.key)
                path = (*taken, action)
                new = recorder.add_node(node, problem.space.text(action), len(path), child.key)
                quick = recorder.record(child, path, (node, new))
                columns = recorder.trace.node.array
                columns["visits"][new], columns["score"][new], columns["best_score"][new] = 1, quick.score, quick.score
                deeper.append((child, path, new))
        frontier = deeper
    if len(recorder.trace.nodes) == 1:
        return Status.NO_ACTIONS
    if depth is None:
        assert recorder.best is not None
        recorder.prove(recorder.best.score)
    return Status.COMPLETE

"""Monte-Carlo tree search over colours, conflict resolutions and mesh axes.

A node is a state, told apart by its key, so sequences that end in one sharding share it.  A simulation walks down
by upper confidence bounds, adds one state, prices it, rolls out a few random actions from there and prices the end
as well; every state on the way also has a *stop* choice, worth its own price.  The reward is -log C(s) less a little
for every action, which favours short trajectories and credits the actions that mattered.  Rewards are rescaled to
[0, 1] by the range seen so far, because C spans decades between models.

Simulations come in rounds; when ``patience`` rounds in a row bring no improvement the search stops early.  Subtrees
whose every state has been priced are closed and not walked again, so small spaces end in complete enumeration.

Where we differ from the paper: it applies the best trajectory after each round; we keep one tree over all rounds, so
that nothing learnt is thrown away.  Actions on fewer than 10 names are pruned as in the paper, the limit being scaled
down for programs of fewer than 500 names.  Reference: TOAST sections 4.1 to 4.3.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from toast_lab.errors import InvalidProblem
from toast_lab.search.actions import pruning_threshold
from toast_lab.search.contract import Recorder, Status
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State, legal_rows


@dataclasses.dataclass
class _State:
    """A node of the search tree (``trace.nodes[id]`` is its record)."""

    id: int
    rows: np.ndarray  #: [n, 2] (move, axis) of each choice but stop
    visits: np.ndarray  #: [n+1] the last choice is stop
    total: np.ndarray  #: [n+1] summed reward
    best: np.ndarray  #: [n+1] best reward
    child: list[int]  #: key of the state behind each choice, -1 if not tried
    closed: np.ndarray  #: [n+1] bool: nothing new below
    reward: float  #: of stopping here


def run(
    recorder: Recorder,
    seed: int,
    *,
    trajectories: int | None = None,
    patience: int = 4,
    depth: int = 30,
    exploration: float = 0.7,
    length_penalty: float = 0.002,
    min_names: int | None = None,
) -> Status:
    """Search until the budget ends, a few rounds in a row bring nothing, or everything has been priced.

    Args:
        recorder: prices, records and stops the search.
        seed: of the random choices.
        trajectories: simulations a round; by default 16 for each action of the root, at least 256.
        patience: rounds without improvement after which to stop.
        depth: longest trajectory.
        exploration: weight of the confidence bound against the value.
        length_penalty: reward lost per action.
        min_names: smallest colour group to act on; 10 by default, fewer for tiny programs.
    """
    wrong = [f"{k}={v}" for k, v in (("patience", patience), ("depth", depth)) if v < 1]
    if trajectories is not None and trajectories < 1:
        wrong.append(f"trajectories={trajectories}")
    if wrong:
        raise InvalidProblem(f"mcts: {', '.join(wrong)} must be at least 1")
    least = pruning_threshold(recorder.problem) if min_names is None else min_names
    tree = _Tree(recorder, np.random.default_rng(seed), depth, exploration, length_penalty, least)
    if not len(tree.root.rows):
        return Status.NO_ACTIONS
    size = trajectories or max(256, 16 * len(tree.root.rows))
    stale = 0
    while stale < patience:
        recorder.round += 1
        before = recorder.best_rank[:2]
        for _ in range(size):
            recorder.check()
            if tree.root.closed.all():
                return Status.COMPLETE
            tree.simulate()
        stale = stale + 1 if recorder.best_rank[:2] == before else 0
    return Status.CONVERGED


class _Tree:
    def __init__(
        self,
        recorder: Recorder,
        rng: np.random.Generator,
        depth: int,
        exploration: float,
        length_penalty: float,
        least: int,
    ) -> None:
        self.recorder, self.rng, self.depth = recorder, rng, depth
        self.exploration, self.length_penalty, self.least = exploration, length_penalty, least
        self.low, self.high = math.inf, -math.inf
        self.states: dict[int, _State] = {}
        self.space = recorder.problem.space
        self.root_state = State(self.space)
        self.root = self._add(self.root_state, 0, 0)

    def _reward(self, score: float, length: int) -> float:
        reward = -math.log(max(score, 1e-12)) - self.length_penalty * length
        self.low, self.high = min(self.low, reward), max(self.high, reward)
        return reward

    def _add(self, state: State, node: int, length: int) -> _State:
        quick = self.recorder.price(state)
        self.recorder.trace.node.array["score"][node] = quick.score
        rows = legal_rows(state, self.least) if length < self.depth else np.zeros((0, 2), np.int64)
        n = len(rows)
        made = _State(
            node, rows, np.zeros(n + 1), np.zeros(n + 1), np.full(n + 1, -math.inf), [-1] * n,
            np.zeros(n + 1, bool), self._reward(quick.score, length),
        )  # fmt: skip
        made.closed[n] = True  # stopping was priced just now
        self.states[state.key] = made
        return made

    def _action(self, row: np.ndarray) -> Action:
        return Action(int(self.space.group[row[0]]), int(self.space.bits[row[0]]), int(row[1]))

    def _choose(self, node: _State) -> int:
        """Choice by upper confidence bound; untried ones first, in random order; closed ones never."""
        n = len(node.rows)
        untried = np.flatnonzero((node.visits[:n] == 0) & ~node.closed[:n])
        if len(untried):
            return int(untried[self.rng.integers(len(untried))])
        visits = node.visits[:n]
        span = max(self.high - self.low, 1e-9)
        value = (0.5 * node.total[:n] / np.maximum(visits, 1) + 0.5 * node.best[:n] - self.low) / span
        bound = value + self.exploration * np.sqrt(math.log(node.visits.sum() + 1) / np.maximum(visits, 1))
        bound[node.closed[:n]] = -math.inf
        return int(np.argmax(bound))

    def simulate(self) -> None:
        """One trajectory: select, expand, evaluate, back up."""
        state, node = self.root_state.copy(), self.root
        path: list[tuple[_State, int]] = []
        actions: list[Action] = []
        ids = [node.id]
        while True:
            choice = self._choose(node)
            action = self._action(node.rows[choice])
            state.apply_row(int(node.rows[choice][0]), action.axis)
            actions.append(action)
            path.append((node, choice))
            known = self.states.get(state.key)
            node.child[choice] = state.key
            new = known is None
            if known is None:
                record = self.recorder.add_node(node.id, self.space.text(action), len(actions), state.key)
                known = self._add(state, record, len(actions))
            node = known
            ids.append(node.id)
            if new or node.closed.all() or len(actions) >= self.depth:
                break
        quick = self.recorder.record(state, actions, ids)
        reward = max(node.reward, self._rollout(state, node, actions, ids))
        self._back_up(path, ids, reward, quick.score)

    def _rollout(self, state: State, node: _State, actions: list[Action], ids: list[int]) -> float:
        """Random actions from a new state; gives the reward of where they end."""
        rows, taken = node.rows, list(actions)
        state = state.copy()
        length = int(self.rng.geometric(0.35))
        while len(rows) and len(taken) < self.depth and length > 0:
            row = rows[self.rng.integers(len(rows))]
            state.apply_row(int(row[0]), int(row[1]))
            taken.append(self._action(row))
            length -= 1
            rows = legal_rows(state, self.least) if length else rows
        if len(taken) == len(actions):
            return node.reward
        return self._reward(self.recorder.record(state, taken, ids).score, len(taken))

    def _back_up(self, path: list[tuple[_State, int]], ids: list[int], reward: float, score: float) -> None:
        nodes = self.recorder.trace.node.array
        for id_ in ids:
            nodes["visits"][id_] += 1
            nodes["value"][id_] += (reward - nodes["value"][id_]) / nodes["visits"][id_]
            nodes["best_score"][id_] = min(nodes["best_score"][id_], score)
        for node, choice in reversed(path):
            node.visits[choice] += 1
            node.total[choice] += reward
            node.best[choice] = max(node.best[choice], reward)
            child = self.states[node.child[choice]]
            if child.closed.all():
                node.closed[choice] = True

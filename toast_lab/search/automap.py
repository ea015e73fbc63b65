"""AutoMap, a baseline: tree search over shardings of arguments, propagated after every action.

An action shards one dim of an argument, and of the arguments that repeated layers use like it, on
one mesh axis; propagation (``sharding.propagate``) carries that through the whole program. The
sharding of the arguments alone identifies a state. Propagation stops at a conflict, and no action
can resolve the conflict: an intermediate tensor is sharded only as the arguments imply.

A simulation walks down by upper confidence bounds to a state that has room for another child, adds
that child, takes further actions from there, many on average, and prices the final state; stopping
is worth the state's own price. The reward and the early stop are those of ``mcts``. Programs have
many arguments and most actions help a little, so a state's children are added a few at a time as
its visits grow (progressive widening). Actions that have paid off elsewhere in the tree are added
first, and rollouts prefer them too. When no better plan has been found for a while, the states that
the best rollout passed become nodes, and the search goes on from them. Walking down known states
propagates nothing: states come from a cache, or are rebuilt from the actions that first led to
them. A sharding that splits alike ops alike is priced on the folded program, as in ``mcts``, any
other op by op.

The published form has two parts that this one lacks: the learned ranker that filters arguments
(Automap) and tactics given by a user (automap-reloaded). This one adds widening, learnt preferences
and adopted rollouts, one tree over all rounds, an analysis that finds the groups of arguments,
propagation in memory instead of a compiler's rewriting, and incremental prices. Two things differ:
members of a group are sharded one after another, each with its own propagation, so that chains of
equal square weights come out as alternating columns and rows instead of blocking each other; and
actions on fewer than 10 ops and values are discarded, as ``mcts`` discards actions on fewer than 10
names.

Two orders of actions may shard the arguments alike and the inside differently. The published state
cannot tell them apart, and neither can the tree here: a node keeps the sharding that reached it
first (``_AutomapTree.ambiguous`` counts how often another one did). A plan's price is always that
of its own sharding.

Reference: TOAST sections 2.2, 4.3 and 5.3; Automap (arXiv 2112.02958), automap-reloaded (arXiv
2210.06352). Start reading at ``run``.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.hashing import digest
from toast_lab.kernels import compiled
from toast_lab.packs import Int8Matrix, Int32Array, Int32Matrix, Int64Array
from toast_lab.ragged import Ragged, row_starts
from toast_lab.search.limits import Status
from toast_lab.search.pruning import smallest_group
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.divides import divides
from toast_lab.sharding.propagate import Flow, Propagation
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.state import State

if TYPE_CHECKING:
    from toast_lab.search.method_options import AutomapOptions

CACHE_BYTES = 256 * 2**20  #: memory for shardings of states that may be visited again
CHILDREN_POWER = 0.6  #: a state has at most CHILDREN_FACTOR * visits ** CHILDREN_POWER children
CHILDREN_FACTOR = 1.0
#: simulations without a better plan after which the states of the best rollout become nodes
ADOPT_AFTER = 50
#: share of a rollout's actions, and of new children, that are chosen by gains elsewhere in the tree
GAIN_SHARE = 0.85
STOP_CHANCE = 0.05  #: chance that a rollout ends after an action


def run(recorder: Recorder, seed: int, options: AutomapOptions) -> Status:
    """Search until the budget ends, a few rounds bring nothing, or all states were priced.

    Args:
        recorder: prices, records and stops the search.
        seed: seed of the random choices.
        options: see ``methods.Automap``.
    """
    least = smallest_group(recorder.problem, options.min_names)
    moves = argument_moves(recorder, least)
    if not len(moves.legal(moves.propagation.start())):
        return Status.NO_ACTIONS
    # A resumed search makes a new tree, with other random choices, over the nodes of the trace.
    tree = _AutomapTree(
        recorder=recorder,
        moves=moves,
        rng=np.random.default_rng(seed),
        depth=options.depth,
        exploration=options.exploration,
        length_penalty=options.length_penalty,
    )
    round_size = options.trajectories or max(256, 16 * len(moves.axis))
    stale_rounds = 0
    while stale_rounds < options.patience:
        recorder.round += 1
        before = recorder.best_rank[:2]
        for _ in range(round_size):
            recorder.check()
            if tree.root.closed:
                # The best plan is proven to be the best only if no two orders of actions led to
                # different shardings of one state, no trajectory was cut off and no action was
                # discarded.
                is_proven = not (tree.ambiguous or tree.cut_off or moves.discarded)
                return Status.COMPLETE if is_proven else Status.CONVERGED
            tree.simulate()
        stale_rounds = stale_rounds + 1 if recorder.best_rank[:2] == before else 0
    return Status.CONVERGED


@dataclasses.dataclass(frozen=True, eq=False)
class ArgumentMoves:
    """All actions (``M``): each splits a dim of a group of arguments on a mesh axis."""

    propagation: Propagation
    text: tuple[str, ...]  #: [M]
    members: Ragged  #: [M] arguments of the group, in the order in which they are sharded
    dim: np.ndarray  #: [M]
    axis: np.ndarray  #: [M]
    discarded: int  #: number of other actions that reach too few ops and values

    def take(self, state: Sharding, move: int) -> int:
        """Take a move in place; gives the number of ops and values that it changed."""
        return self.propagation.shard(
            state, self.members.row(move), int(self.dim[move]), int(self.axis[move])
        )

    def legal(self, state: Sharding) -> np.ndarray:
        """The moves that would change the state."""
        members = self.members
        return _legal(
            state.value_dim,
            members.ptr,
            members.flat,
            self.dim,
            self.axis,
            self.propagation.flow,
        )


def argument_moves(recorder: Recorder, least: int = 0) -> ArgumentMoves:
    """The actions of every dim of every group of arguments on every axis.

    Actions that reach fewer than ``least`` ops and values are left out.
    """
    problem = recorder.problem
    analysis, mesh = problem.analysis, problem.mesh
    program, propagation = analysis.program, Propagation(analysis, mesh, problem.pins)
    rows = []
    for group in analysis.argument_groups:
        path = program.value_name[group[0]]
        alike = f" and {len(group) - 1} alike" if len(group) > 1 else ""
        for dim, size in enumerate(program.dims(group[0])):
            for axis, ways in enumerate(mesh.sizes):
                if ways > 1 and size > 1 and size % ways == 0:
                    rows.append((group, dim, axis, f"{path}{alike}, dim {dim}->{mesh.axes[axis]}"))
    kept_rows = []
    for row in rows:
        recorder.check()
        if (
            least <= 1
            or propagation.shard(propagation.start(), np.asarray(row[0]), row[1], row[2]) >= least
        ):
            kept_rows.append(row)
    return ArgumentMoves(
        propagation=propagation,
        text=tuple(text for *_, text in kept_rows),
        members=Ragged(
            row_starts([len(group) for group, *_ in kept_rows]),
            np.asarray([argument for group, *_ in kept_rows for argument in group], dtype=np.int32),
        ),
        dim=np.asarray([dim for _, dim, *_ in kept_rows], dtype=np.int32),
        axis=np.asarray([axis for _, _, axis, _ in kept_rows], dtype=np.int32),
        discarded=len(rows) - len(kept_rows),
    )


@compiled
def _legal(
    value_dim: Int8Matrix,
    member_ptr: Int64Array,
    member: Int32Array,
    dims: Int32Array,
    axes: Int32Array,
    flow: Flow,
) -> np.ndarray:
    legal = np.empty(dims.shape[0], np.int32)
    count = 0
    for move in range(dims.shape[0]):
        dim, axis = dims[move], axes[move]
        for position in range(member_ptr[move], member_ptr[move + 1]):
            value = member[position]
            if value_dim[value, axis] >= 0:
                continue
            size = flow.value_size[axis, flow.value_dim_ptr[value] + dim]
            if divides(size, value_dim, value, dim, axis, flow.axis_size):
                legal[count] = move
                count += 1
                break
    return legal[:count]


@dataclasses.dataclass
class _Node:
    """A state of the arguments (its record is ``trace.nodes[id]``)."""

    id: int
    parent: _Node | None
    move: int  #: the move that first led from the parent to this state
    length: int
    print: int  #: hash of the whole sharding
    reward: float  #: reward of stopping in this state
    untried: np.ndarray  #: moves not tried yet
    moves: list[int] = dataclasses.field(
        default_factory=list
    )  #: [n] tried moves, one for each child
    children: list[_Node] = dataclasses.field(default_factory=list)  #: [n]
    visits: list[int] = dataclasses.field(default_factory=list)  #: [n]
    total: list[float] = dataclasses.field(default_factory=list)  #: [n] summed reward
    best: list[float] = dataclasses.field(default_factory=list)  #: [n] best reward
    passed: int = 1
    closed: bool = False  #: every state below was priced


class _AutomapTree:
    def __init__(
        self,
        recorder: Recorder,
        moves: ArgumentMoves,
        rng: np.random.Generator,
        depth: int,
        exploration: float,
        length_penalty: float,
    ) -> None:
        self.recorder, self.moves, self.rng = recorder, moves, rng
        self.depth, self.exploration, self.length_penalty = depth, exploration, length_penalty
        self.evaluator = Evaluator(recorder.problem)
        self.low, self.high = math.inf, -math.inf
        self.gain = np.zeros(len(moves.axis))  # [M] reward gained by taking the move, summed
        self.taken = np.zeros(len(moves.axis))  # [M] number of times that the move was taken
        self.best_rollout: tuple[list[int], list[tuple[_Node, int]], list[int], float] | None = None
        self.waited = 0  # simulations since that rollout
        self.ambiguous = 0  # times that a node was reached with another sharding of the inside
        self.cut_off = False  # did the depth limit end a trajectory that could have gone on?
        self.prices: dict[int, Quick] = {}  # by hash of the whole sharding
        self.nodes: dict[int, _Node] = {}
        self.cache: OrderedDict[int, Sharding] = OrderedDict()
        start = moves.propagation.start()
        self.room = max(8, CACHE_BYTES // (start.op_factor.nbytes + start.value_dim.nbytes))
        # The unsharded program (sharded only where it is pinned) is priced already and must not be
        # counted twice.
        unsharded = State(recorder.problem.space)
        self.prices[int(_fingerprint(*unsharded.sharding))] = recorder.price(unsharded)
        self.root = self._add(start, None, -1, self._key(start))

    # -- states -----------------------------------------------------------------------------------
    def _key(self, state: Sharding) -> int:
        arguments = state.value_dim[: self.recorder.problem.analysis.program.n_arguments]
        return int.from_bytes(digest(arguments), "little")

    def _add(self, state: Sharding, parent: _Node | None, move: int, key: int) -> _Node:
        """Add a node for ``state``, and price it."""
        length = parent.length + 1 if parent else 0
        untried = self.moves.legal(state)
        if length >= self.depth and len(untried):
            self.cut_off, untried = True, untried[:0]
        if parent is None:
            id_ = 0
        else:
            id_ = self.recorder.add_node(parent.id, self.moves.text[move], length, key)
        fingerprint = int(_fingerprint(*state))
        quick = self._price(state, fingerprint)
        self.recorder.trace.node.array["score"][id_] = quick.score
        node = _Node(
            id=id_,
            parent=parent,
            move=move,
            length=length,
            print=fingerprint,
            reward=self._reward(quick.score, length),
            untried=untried,
        )
        node.closed = not len(untried)
        self.nodes[key] = node
        self._keep(node, state)
        return node

    def _keep(self, node: _Node, state: Sharding) -> None:
        self.cache[node.id] = state
        self.cache.move_to_end(node.id)
        if len(self.cache) > self.room:
            self.cache.popitem(last=False)

    def _state(self, node: _Node) -> Sharding:
        """The sharding of a node, from the cache or rebuilt; callers must not change it."""
        state = self.cache.get(node.id)
        if state is None:
            if node.parent is None:
                state = self.moves.propagation.start()
            else:
                state = self._state(node.parent).copy()
                self.moves.take(state, node.move)
        self._keep(node, state)
        return state

    def _price(self, state: Sharding, fingerprint: int) -> Quick:
        quick = self.prices.get(fingerprint)
        if quick is None:
            quick = self.prices[fingerprint] = self.evaluator.price(state)
            self.recorder.ledger.priced_by_method += 1
        return quick

    def _reward(self, score: float, length: int) -> float:
        reward = -math.log(max(score, 1e-12)) - self.length_penalty * length
        self.low, self.high = min(self.low, reward), max(self.high, reward)
        return reward

    # -- one trajectory ---------------------------------------------------------------------------
    def simulate(self) -> None:
        """Select, expand, roll out, back up."""
        self.waited += 1
        if self.best_rollout is not None and self.waited > ADOPT_AFTER:
            self._adopt()
        node, ids = self.root, [0]
        path: list[tuple[_Node, int]] = []
        while True:
            best = self._choose(node)
            widens = len(node.untried) > 0 and (
                best < 0 or len(node.children) < CHILDREN_FACTOR * node.passed**CHILDREN_POWER
            )
            choice = self._try(node, self._prefer(node.untried)) if widens else best
            if choice < 0 and widens:  # the move leads to a state that is a child already
                continue
            if choice < 0:
                node.closed = True
                break
            path.append((node, choice))
            node = node.children[choice]
            ids.append(node.id)
            if widens:
                break
        self._finish(node, path, ids)

    def _prefer(self, moves: np.ndarray) -> int:
        """One of ``moves``: the one that gained most elsewhere in the tree, or a random one."""
        if self.rng.random() < GAIN_SHARE:
            # Each move counts as taken once more, with the best mean gain, which favours new ones.
            best_gain = np.max(self.gain / np.maximum(self.taken, 1.0))
            mean = (self.gain[moves] + max(0.0, best_gain)) / (self.taken[moves] + 1.0)
            return int(moves[np.argmax(mean + 1e-9 * self.rng.random(len(moves)))])
        return int(moves[self.rng.integers(len(moves))])

    def _try(self, node: _Node, move: int) -> int:
        """Try an untried move of ``node``.

        Gives its index among the children, -1 if it leads to a child that is there already.
        """
        node.untried = node.untried[node.untried != move]
        state = self._state(node).copy()
        self.moves.take(state, move)
        key = self._key(state)
        child = self.nodes.get(key)
        if child is None:
            child = self._add(state, node, move, key)
        elif child.print != int(_fingerprint(*state)):
            self.ambiguous += 1
        self.taken[move] += 1
        self.gain[move] += child.reward - node.reward
        if any(child is other for other in node.children):
            return -1
        node.moves.append(move)
        node.children.append(child)
        node.visits.append(0)
        node.total.append(0.0)
        node.best.append(-math.inf)
        return len(node.children) - 1

    def _choose(self, node: _Node) -> int:
        """The open child with the highest upper confidence bound; -1 if no child is open."""
        visits = np.asarray(node.visits, float)
        span = max(self.high - self.low, 1e-9)
        value = (
            0.5 * np.asarray(node.total) / np.maximum(visits, 1)
            + 0.5 * np.asarray(node.best)
            - self.low
        ) / span
        bound = value + self.exploration * np.sqrt(
            math.log(node.passed + 1) / np.maximum(visits, 1)
        )
        bound[[child.closed for child in node.children]] = -math.inf
        if not len(bound) or np.max(bound) == -math.inf:
            return -1
        return int(np.argmax(bound))

    def _finish(self, node: _Node, path: list[tuple[_Node, int]], ids: list[int]) -> None:
        """Roll out from ``node``, record the node and the end, and back up along the path."""
        state, moves, before = self._state(node), self._way(node), self.recorder.best
        reward, score = node.reward, self._record(state, moves, ids)
        length = min(int(self.rng.geometric(STOP_CHANCE)), self.depth - len(moves))
        rollout: list[int] = []
        state = state.copy()
        while len(rollout) < length and len(legal := self.moves.legal(state)):
            self.recorder.check()
            rollout.append(self._prefer(legal))
            self.moves.take(state, rollout[-1])
        if rollout:
            end_score = self._record(state, moves + rollout, ids)
            reward = max(reward, self._reward(end_score, len(moves + rollout)))
            score = min(score, end_score)
            if self.recorder.best is not before:
                self.best_rollout, self.waited = (rollout, list(path), list(ids), reward), 0
        self._back_up(path, ids, reward, score)

    def _back_up(
        self, path: list[tuple[_Node, int]], ids: list[int], reward: float, score: float
    ) -> None:
        rows = self.recorder.trace.node.array
        for id_ in ids:
            rows["visits"][id_] += 1
            rows["value"][id_] += (reward - rows["value"][id_]) / rows["visits"][id_]
            rows["best_score"][id_] = min(rows["best_score"][id_], score)
        for parent, choice in reversed(path):
            parent.passed += 1
            parent.visits[choice] += 1
            parent.total[choice] += reward
            parent.best[choice] = max(parent.best[choice], reward)
            self._close(parent)

    def _adopt(self) -> None:
        """Make the states of the best rollout nodes of the tree, to go on from them."""
        assert self.best_rollout is not None
        (moves, path, ids, reward), self.best_rollout = self.best_rollout, None
        node = path[-1][0].children[path[-1][1]] if path else self.root
        for move in moves:
            self.recorder.check()
            if move in node.untried:
                choice = self._try(node, move)
            else:
                choice = node.moves.index(move) if move in node.moves else -1
            if choice < 0:
                break
            path.append((node, choice))
            node = node.children[choice]
            ids.append(node.id)
        self._back_up(path, ids, reward, math.inf)

    def _way(self, node: _Node) -> list[int]:
        """The moves that first led to a node, which define its sharding."""
        moves: list[int] = []
        while node.parent is not None:
            moves.append(node.move)
            node = node.parent
        return moves[::-1]

    def _record(self, state: Sharding, moves: list[int], ids: list[int]) -> float:
        quick = self._price(state, int(_fingerprint(*state)))
        self.recorder.record_plan(*state, [self.moves.text[move] for move in moves], ids, quick)
        return quick.score

    def _close(self, node: _Node) -> None:
        node.closed = not len(node.untried) and all(child.closed for child in node.children)


class Evaluator:
    """Prices propagated shardings: folded if alike ops are split alike, else op by op."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.pricer = problem, problem.pricer()
        self.folded = self.whole = 0  #: number of shardings priced folded, and op by op
        self._priced: object = None

    def price(self, state: Sharding) -> Quick:
        """Price a sharding."""
        folded_state = State.from_arrays(self.problem.space, *state)
        if folded_state is not None:
            self.folded += 1
            folded_state.priced = self._priced
            quick = self.pricer.quick(folded_state)
            self._priced = folded_state.priced
            return quick
        self.whole += 1
        return self.pricer.of_sharding(*state)


@compiled
def _fingerprint(op_factor: Int32Matrix, value_dim: Int8Matrix) -> np.uint64:
    """A hash of a whole sharding."""
    digest = np.uint64(14695981039346656037)
    for array in (op_factor.reshape(-1), value_dim.reshape(-1).astype(np.int32)):
        for element in array:
            digest = (digest ^ np.uint64(np.uint32(element))) * np.uint64(1099511628211)
    return digest

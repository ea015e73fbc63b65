"""AutoMap, a rival: tree search over shardings of arguments, propagated after every action.

An action shards one dim of an argument, and of those that repeated layers use like it, on one mesh
axis; propagation (``sharding.propagate``) carries that through the whole program.  A state is told
from another by the shardings of its arguments alone.  Where a propagated sharding meets a conflict
it stops, and no action can settle it: an intermediate tensor is sharded only as arguments imply it.

A simulation walks down by upper confidence bounds to a state that has room for another child, adds
that child, takes further actions from there, many on average, and prices where it ends; stopping is
worth the state's own price.  The reward and the early stop are those of ``mcts``.  Programs have
many arguments and most actions help a little, so a state's children are added a few at a time as
its visits grow (progressive widening), actions first that have paid off elsewhere in the tree, and
rollouts prefer these too.  When the best plan has stood for a while, the states that its rollout
passed become nodes, and the search goes on from them.  Walking down known states propagates
nothing: states come from a cache, or are made again from the actions that first led there.  Where
alike ops have come to be split alike, a sharding is priced on the folded program, as ``mcts`` does
it, else op by op.

What the published form has and this one lacks: the learned ranker that filters arguments (Automap)
and tactics given by a user (automap-reloaded).  What this one has beyond it: widening, learnt
preferences and adopted rollouts, one tree over all rounds, an analysis that finds the groups of
arguments, a propagation in memory instead of a compiler's rewriting, and prices that are
incremental.  Where they differ: members of a group are sharded one after another, each with its own
propagation, so that chains of equal square weights come out as alternating columns and rows instead
of blocking each other; actions on fewer than 10 ops and values are discarded, as ``mcts`` discards
those on fewer than 10 names.

Two orders of actions may shard the arguments alike and the inside differently.  The published state
cannot tell them apart, and neither does the tree of this one: a node goes on from the first one met
(``_Tree.ambiguous`` counts how often that mattered).  A plan's price is always that of its own
sharding.

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

CACHE_BYTES = 256 * 2**20  #: for states that may be walked from again
WIDENING = 0.6  #: children of a state: at most WIDTH * visits ** WIDENING
WIDTH = 1.0
#: simulations without a better plan after which the states of the best rollout become nodes
ADOPT = 50
#: share of a rollout's actions, and of new children, that are taken by what paid off elsewhere
GREED = 0.85
STOP = 0.05  #: chance that a rollout ends after an action


def run(recorder: Recorder, seed: int, options: AutomapOptions) -> Status:
    """Search until the budget ends, a few rounds in a row bring nothing, or all was priced.

    Args:
        recorder: prices, records and stops the search.
        seed: of the random choices.
        options: see ``methods.Automap``.
    """
    least = smallest_group(recorder.problem, options.min_names)
    moves = argument_moves(recorder, least)
    if not len(moves.legal(moves.propagation.start())):
        return Status.NO_ACTIONS
    # A search that goes on makes a new tree, with other random choices, over the nodes that the
    # trace has.
    tree = _AutomapTree(
        recorder=recorder,
        moves=moves,
        rng=recorder.generator(seed),
        depth=options.depth,
        exploration=options.exploration,
        length_penalty=options.length_penalty,
    )
    size = options.trajectories or max(256, 16 * len(moves.axis))
    stale = 0
    while stale < options.patience:
        recorder.round += 1
        before = recorder.best_rank[:2]
        for _ in range(size):
            recorder.check()
            if tree.root.closed:
                # Other orders of actions may reach shardings that this state cannot tell apart, and
                # some actions were discarded: only without either is the best one known to be the
                # best.
                whole = not (tree.ambiguous or tree.cut_off or moves.discarded)
                return Status.COMPLETE if whole else Status.CONVERGED
            tree.simulate()
        stale = stale + 1 if recorder.best_rank[:2] == before else 0
    return Status.CONVERGED


@dataclasses.dataclass(frozen=True, eq=False)
class ArgumentMoves:
    """Actions (``M``): a dim of a group of arguments on an axis."""

    propagation: Propagation
    text: tuple[str, ...]  #: [M]
    members: Ragged  #: [M] arguments, in the order in which they are sharded
    dim: np.ndarray  #: [M]
    axis: np.ndarray  #: [M]
    discarded: int  #: how many more would do something, but too little

    def take(self, state: Sharding, move: int) -> int:
        """Take a move in place; gives how many ops and values it changed."""
        return self.propagation.shard(
            state, self.members.row(move), int(self.dim[move]), int(self.axis[move])
        )

    def legal(self, state: Sharding) -> np.ndarray:
        """Moves that would change the state."""
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
    """Every dim of every group of arguments on every axis.

    Those that reach fewer than ``least`` ops and values are left out.
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
        for place in range(member_ptr[move], member_ptr[move + 1]):
            value = member[place]
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
    move: int  #: that first led here from the parent
    length: int
    print: int  #: hash of the whole sharding
    reward: float  #: of stopping here
    untried: np.ndarray  #: moves
    moves: list[int] = dataclasses.field(
        default_factory=list
    )  #: [n] tried moves, one for each child
    children: list[_Node] = dataclasses.field(default_factory=list)  #: [n]
    visits: list[int] = dataclasses.field(default_factory=list)  #: [n]
    total: list[float] = dataclasses.field(default_factory=list)  #: [n] summed reward
    best: list[float] = dataclasses.field(default_factory=list)  #: [n] best reward
    passed: int = 1
    closed: bool = False  #: nothing new below


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
        self.gain = np.zeros(len(moves.axis))  # [M] summed reward gained by taking the move ...
        self.taken = np.zeros(len(moves.axis))  # ... so many times
        self.best_rollout: tuple[list[int], list[tuple[_Node, int]], list[int], float] | None = None
        self.waited = 0  # simulations since it was found
        self.ambiguous = 0  # how often one state of the arguments stood for another sharding inside
        self.cut_off = False  # did the depth end a trajectory that could have gone on?
        self.prices: dict[int, Quick] = {}  # by hash of the whole sharding
        self.nodes: dict[int, _Node] = {}
        self.cache: OrderedDict[int, Sharding] = OrderedDict()
        trace = recorder.trace.node
        self.known: dict[int, int] = {}  # nodes of a resumed trace by key
        if recorder.is_resumed:
            self.known = dict(zip(trace["key"].tolist(), range(trace.n), strict=True))
        start = moves.propagation.start()
        self.room = max(8, CACHE_BYTES // (start.op_factor.nbytes + start.value_dim.nbytes))
        # The unsharded program (or what pins leave of it) is priced already, and is not to be
        # counted twice.
        given = State(recorder.problem.space)
        self.prices[int(_print(*given.sharding))] = recorder.price(given)
        self.root = self._add(start, None, -1, self._key(start))

    # -- states -----------------------------------------------------------------------------------
    def _key(self, state: Sharding) -> int:
        arguments = state.value_dim[: self.recorder.problem.analysis.program.n_arguments]
        return int.from_bytes(digest(arguments), "little")

    def _add(self, state: Sharding, parent: _Node | None, move: int, key: int) -> _Node:
        """A new node for ``state``, priced."""
        length = parent.length + 1 if parent else 0
        untried = self.moves.legal(state)
        if length >= self.depth and len(untried):
            self.cut_off, untried = True, untried[:0]
        if parent is None:
            id_ = 0
        elif key in self.known:
            id_ = self.known[key]
        else:
            id_ = self.recorder.add_node(parent.id, self.moves.text[move], length, key)
        print_ = int(_print(*state))
        quick = self._price(state, print_)
        self.recorder.trace.node.array["score"][id_] = quick.score
        node = _Node(
            id=id_,
            parent=parent,
            move=move,
            length=length,
            print=print_,
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
        """The sharding of a node, not to be changed: from the cache, or by its actions again."""
        state = self.cache.get(node.id)
        if state is None:
            if node.parent is None:
                state = self.moves.propagation.start()
            else:
                state = self._state(node.parent).copy()
                self.moves.take(state, node.move)
        self._keep(node, state)
        return state

    def _price(self, state: Sharding, print_: int) -> Quick:
        quick = self.prices.get(print_)
        if quick is None:
            quick = self.prices[print_] = self.evaluator.price(state)
            self.recorder.ledger.counted += 1
        return quick

    def _reward(self, score: float, length: int) -> float:
        reward = -math.log(max(score, 1e-12)) - self.length_penalty * length
        self.low, self.high = min(self.low, reward), max(self.high, reward)
        return reward

    # -- one trajectory ---------------------------------------------------------------------------
    def simulate(self) -> None:
        """Select, expand, roll out, back up."""
        self.waited += 1
        if self.best_rollout is not None and self.waited > ADOPT:
            self._adopt()
        node, ids = self.root, [0]
        path: list[tuple[_Node, int]] = []
        while True:
            best = self._choose(node)
            widens = len(node.untried) > 0 and (
                best < 0 or len(node.children) < WIDTH * node.passed**WIDENING
            )
            choice = self._try(node, self._prefer(node.untried)) if widens else best
            if choice < 0 and widens:  # the move tried leads where another one does
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
        """One of ``moves`` that has paid off elsewhere in the tree, or any."""
        if self.rng.random() < GREED:
            # An action that was never taken counts as one that gained as much as the best.
            best_gain = np.max(self.gain / np.maximum(self.taken, 1.0))
            mean = (self.gain[moves] + max(0.0, best_gain)) / (self.taken[moves] + 1.0)
            return int(moves[np.argmax(mean + 1e-9 * self.rng.random(len(moves)))])
        return int(moves[self.rng.integers(len(moves))])

    def _try(self, node: _Node, move: int) -> int:
        """Try an untried move of ``node``.

        Gives its place among the children, -1 if it leads where another one does.
        """
        node.untried = node.untried[node.untried != move]
        state = self._state(node).copy()
        self.moves.take(state, move)
        key = self._key(state)
        child = self.nodes.get(key)
        if child is None:
            child = self._add(state, node, move, key)
        elif child.print != int(_print(*state)):
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
        """Child of the highest upper confidence bound, closed ones never; -1: there is none."""
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
        """Roll out from ``node``, record both it and the end, and tell the nodes passed."""
        state, way, before = self._state(node), self._way(node), self.recorder.best
        reward, score = node.reward, self._record(state, way, ids)
        length = min(int(self.rng.geometric(STOP)), self.depth - len(way))
        rollout: list[int] = []
        state = state.copy()
        while len(rollout) < length and len(legal := self.moves.legal(state)):
            self.recorder.check()
            rollout.append(self._prefer(legal))
            self.moves.take(state, rollout[-1])
        if rollout:
            end_score = self._record(state, way + rollout, ids)
            reward = max(reward, self._reward(end_score, len(way + rollout)))
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
        """Make the states of the best rollout nodes of the tree, to go on from there."""
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
        """The moves that first led to a node, and that its sharding comes from."""
        way: list[int] = []
        while node.parent is not None:
            way.append(node.move)
            node = node.parent
        return way[::-1]

    def _record(self, state: Sharding, way: list[int], ids: list[int]) -> float:
        quick = self._price(state, int(_print(*state)))
        self.recorder.record_plan(*state, [self.moves.text[move] for move in way], ids, quick)
        return quick.score

    def _close(self, node: _Node) -> None:
        node.closed = not len(node.untried) and all(child.closed for child in node.children)


class Evaluator:
    """Prices propagated shardings: folded where alike ops have come out alike, else op by op."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.pricer = problem, problem.pricer()
        self.folded = self.whole = 0  #: how many were priced either way
        self._priced: object = None

    def price(self, state: Sharding) -> Quick:
        """Price a sharding."""
        alike = State.from_arrays(self.problem.space, *state)
        if alike is not None:
            self.folded += 1
            alike.priced = self._priced
            quick = self.pricer.quick(alike)
            self._priced = alike.priced
            return quick
        self.whole += 1
        totals = self.pricer.totals(*state)
        return self.pricer.judged(totals.time_s, totals.peak_bytes)


@compiled
def _print(op_factor: Int32Matrix, value_dim: Int8Matrix) -> np.uint64:
    """Hash of a whole sharding."""
    digest = np.uint64(14695981039346656037)
    for array in (op_factor.reshape(-1), value_dim.reshape(-1).astype(np.int32)):
        for number in array:
            digest = (digest ^ np.uint64(np.uint32(number))) * np.uint64(1099511628211)
    return digest

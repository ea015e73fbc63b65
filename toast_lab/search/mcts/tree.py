"""The search tree as flat arrays, and small functions on them.

A batch of trajectories goes through three steps, each of them a kernel:

    select     (``selection``) walk down from the root once for each trajectory of the batch; a
                               state reached for the first time becomes a new node. Quick, and done
                               in order, since each walk depends on those before it (virtual
                               visits).
    evaluate   (``rollout``)   price the new nodes, roll out and price the ends. Takes nearly all of
                               the time; trajectories are independent of each other, so threads
                               share them.
    back_up    (``backup``)    write prices, rewards and simulations back, again in order.

The result depends on the seed and the size of the batch but not on the number of threads: each
trajectory has random numbers of its own, prices do not depend on the thread that computes them, and
all writing is done in order.

No step holds Python's global lock or makes a Python object. Reference: TOAST sections 4.1 and 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    BoolArray,
    Float64Array,
    Float64Matrix,
    Int8Cube,
    Int16Array,
    Int32Array,
    Int32Cube,
    Int32Matrix,
    Int64Array,
    Int64Matrix,
    UInt64,
    UInt64Array,
    UInt64Matrix,
    packed,
)
from toast_lab.sharding.moves import Moves
from toast_lab.sharding.state import apply_move, mix

#: Indices of the counters in ``Tree.number``.
NODES, CHOICES, SIMULATIONS, TRAJECTORIES, WORDS, PASSED, PRICED, ELITES, BEST, START = range(10)
MAX_ELITES = 16  #: most elites, the best distinct states of a start


@packed
class SteeringSettings(NamedTuple):
    """The options that steer the search; see ``mcts.run``."""

    seed: UInt64
    depth: int
    exploration: float
    length_penalty: float
    prior_visits: float
    vary: float  #: share of the trajectories that vary an elite
    boldness: float  #: chance of each further change to an elite
    min_names: int  #: fewest names of a colour group on which a move is taken
    usable: Int64Array  #: actions that change the state that every trajectory starts from


@packed
class Tree(NamedTuple):
    """Nodes (``N``), choices (``C``), prices by key, and the rewards of actions over all nodes.

    An action is encoded as ``move * A + axis``. ``parent`` to ``score`` are columns of the trace.
    """

    #: [10] int64, counters; BEST: row of the best simulation; START: starts so far
    number: Int64Array
    parent: Int32Array
    word: Int32Array
    depth: Int32Array
    key: UInt64Array
    visits: Int64Array
    value: Float64Array
    best_score: Float64Array
    score: Float64Array
    reward: Float64Array  #: [N] reward of stopping at the node; NaN until the node is priced
    choice: Int64Array  #: [N] first choice
    choices: Int32Array  #: [N] number of choices, -1: node not expanded yet
    closed: BoolArray  #: [N] every state below was priced
    start: Int32Array  #: [N] the start in which its choices were last reset
    action: Int32Array  #: [C]
    child: Int32Array  #: [C] node, -1: not tried
    tried: Int32Array  #: [C] trajectories that took the choice, without those of this batch
    under_way: Int16Array  #: [C] trajectories of this batch that took the choice
    total: Float64Array  #: [C] reward of these trajectories, summed
    best: Float64Array  #: [C] best reward of these trajectories
    slot_key: UInt64Array  #: [H] keys of nodes, 0: free
    slot_node: Int32Array  #: [H]
    price_key: UInt64Array  #: [P] keys of priced states, 0: free
    price: Float64Matrix  #: [P, 2] time_s, peak_bytes
    seen: Float64Matrix  #: [M * A, 2] trajectories that took an action, and their summed reward
    elite: Int32Matrix  #: [KEEP, D] actions of the best distinct states of this start
    elite_length: Int32Array  #: [KEEP]
    elite_key: UInt64Array  #: [KEEP]
    elite_reward: Float64Array  #: [KEEP] descending


#: Fields of ``Tree``, beside the columns of the trace, with an entry for each node.
PER_NODE = ("reward", "choice", "choices", "closed", "start")
#: Fields of ``Tree`` with an entry for each choice.
PER_CHOICE = ("action", "child", "tried", "under_way", "total", "best")


def tree_shapes(
    *, nodes: int, choices: int, slots: int, prices: int, actions: int, depth: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of ``Tree`` that are no columns of the trace."""
    return {
        "number": (10,),
        **dict.fromkeys(PER_NODE, (nodes,)),
        **dict.fromkeys(PER_CHOICE, (choices,)),
        "slot_key": (slots,),
        "slot_node": (slots,),
        "price_key": (prices,),
        "price": (prices, 2),
        "seen": (actions, 2),
        "elite": (MAX_ELITES, depth),
        **dict.fromkeys(("elite_length", "elite_key", "elite_reward"), (MAX_ELITES,)),
    }


@packed
class Rows(NamedTuple):
    """The columns of the trace that describe simulations."""

    round: Int32Array
    score: Float64Array
    time_s: Float64Array
    peak_bytes: Float64Array
    fits: BoolArray
    best: Int64Array
    action_end: Int64Array
    node_end: Int64Array
    word: Int32Array
    node: Int32Array


@packed
class Jobs(NamedTuple):
    """A batch of ``K`` trajectories, with at most ``D`` actions each.

    A trajectory walks to a node (``node_price``), and rolls out from it to its end (``end_price``).
    """

    ops: Int32Cube  #: [K, rows, A] state at the node; after the rollout that of its end
    values: Int8Cube  #: [K, rows, A]
    key: UInt64Matrix  #: [K, 1] key of the state; after the rollout that of its end
    random: UInt64Matrix  #: [K, 1] uint64
    varies: BoolArray  #: [K] starts from an elite instead of walking down
    length: Int64Array  #: [K] actions to the node
    path_nodes: Int32Matrix  #: [K, D + 1] nodes, root first
    path_choices: Int64Matrix  #: [K, D] choices
    actions: Int32Matrix  #: [K, D] actions to the node, then those of the rollout
    node_is_new: BoolArray  #: [K] the node is new
    node_price: Float64Matrix  #: [K, 2] time_s, peak_bytes of the node, if it is new
    node_price_is_new: BoolArray  #: [K] the price of the node was not known before
    end_length: Int64Array  #: [K] actions to the end of the rollout
    end_price: Float64Matrix  #: [K, 2] time_s, peak_bytes of the end
    end_price_is_new: BoolArray  #: [K] the price of the end was not known before


@helper
def random(state: np.ndarray) -> float:
    """A random number, uniform in [0, 1); advances the generator ``state[0]``."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return float(mix(state[0]) >> np.uint64(11)) / 9007199254740992.0


@compiled
def slot(keys: UInt64Array, key: np.uint64) -> np.int64:
    """The slot of ``key`` in a hash table with open addressing, or the free slot for it."""
    mask = np.int64(keys.shape[0] - 1)
    at = np.int64(mix(key) & np.uint64(mask))
    while keys[at] != np.uint64(0) and keys[at] != key:
        at = (at + 1) & mask
    return at


@helper
def nonzero(key: np.uint64) -> np.uint64:
    """The key, with 1 in place of 0, which marks a free slot in hash tables."""
    return key if key != np.uint64(0) else np.uint64(1)


@compiled
def rehash(old_keys: UInt64Array, keys: UInt64Array, place: Int64Array) -> None:
    """Copy the keys of a hash table into another; ``place[i]``: new slot of key i, -1: free."""
    for row in range(old_keys.shape[0]):
        place[row] = -1
        if old_keys[row] != 0:
            place[row] = slot(keys, old_keys[row])
            keys[place[row]] = old_keys[row]


@helper
def apply(moves: Moves, ops: np.ndarray, values: np.ndarray, key: np.ndarray, action: int) -> int:
    """Apply an action to a state in place; gives the number of rows changed."""
    n_axes = moves.axis_size.shape[0]
    return apply_move(moves, ops, values, key, action // n_axes, action % n_axes, False)


@helper
def level(tree: Tree) -> float:
    """The highest mean reward of any action; -inf if none was taken yet."""
    level = -np.inf
    for code in range(tree.seen.shape[0]):
        if tree.seen[code, 0] > 0:
            level = max(level, tree.seen[code, 1] / tree.seen[code, 0])
    return level

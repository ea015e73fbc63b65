"""The search tree as flat arrays: what its parts mean, and the small things that are done with them.

A batch of trajectories goes through three steps, each a kernel of its own:

    select     (``walk``)     walk down from the root once for each trajectory of the batch; a state met for the first
                              time is a new node.  Quick and one after the other, since each walk must know of those
                              before it (virtual visits).
    evaluate   (``rollout``)  price the new nodes, roll out and price the ends.  Nearly all of the time goes here;
                              trajectories are independent of each other, so that threads share them out.
    back_up    (``backup``)   write prices, rewards and simulations back, again in order.

What is found depends on the seed and the size of the batch but not on the number of threads: random numbers belong to
a trajectory, prices do not depend on who works them out, and all writing is done in order.

Only kernels that Python calls are kept on disk (``cache=True``), with the files that they depend on: a helper that was
kept for itself would go on calling what another file said before it was edited.

No step holds Python's global lock or makes a Python object.  Reference: TOAST sections 4.1 and 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from toast_lab.sharding.state import _mix, apply_move, legal_pairs

#: Places in ``Tree.number``.
NODES, CHOICES, SIMULATIONS, TRAJECTORIES, WORDS, PASSED, PRICED, ELITES, BEST, START = range(10)
KEEP = 16  #: elites


class Moves(NamedTuple):
    """What each move of the space does to a state (see ``sharding.alike.Spans``), and which moves count."""

    axis_size: np.ndarray  #: [A] int64
    op_span: np.ndarray
    op: np.ndarray
    op_name: np.ndarray
    name_size: np.ndarray
    value_span: np.ndarray
    value: np.ndarray
    value_dim: np.ndarray
    value_dim_size: np.ndarray
    n_names: np.ndarray  #: [M]
    min_names: int
    usable: np.ndarray  #: actions that change the state that every trajectory starts from ...
    start_ops: np.ndarray  #: ... which has these rows of ops
    start_values: np.ndarray  #: ... and of values


class Settings(NamedTuple):
    """Numbers that steer the search; see ``mcts.run``."""

    seed: np.uint64
    depth: int
    exploration: float
    length_penalty: float
    prior_visits: float
    vary: float  #: share of the trajectories that vary an elite
    boldness: float  #: chance of each further change


class Tree(NamedTuple):
    """Nodes (``N``), their choices (``C``), prices by key, and what is known of actions whatever their place.

    An action is a number ``move * A + axis``.  ``parent`` to ``score`` are columns of the trace.
    """

    number: np.ndarray  #: [10] int64, how many of each there are; BEST: the best simulation; START: starts so far
    parent: np.ndarray
    word: np.ndarray
    depth: np.ndarray
    key: np.ndarray
    visits: np.ndarray
    value: np.ndarray
    best_score: np.ndarray
    score: np.ndarray
    reward: np.ndarray  #: [N] of stopping here; NaN until the node was priced
    choice: np.ndarray  #: [N] first choice
    choices: np.ndarray  #: [N] number of choices, -1: not worked out yet
    closed: np.ndarray  #: [N] every state below was priced
    start: np.ndarray  #: [N] the start in which its choices were last reset
    action: np.ndarray  #: [C]
    child: np.ndarray  #: [C] node, -1: not tried
    tried: np.ndarray  #: [C] trajectories
    under_way: np.ndarray  #: [C] trajectories of this batch
    total: np.ndarray  #: [C] summed reward
    best: np.ndarray  #: [C] best reward
    slot_key: np.ndarray  #: [H] keys of nodes, 0: free
    slot_node: np.ndarray  #: [H]
    price_key: np.ndarray  #: [P] keys of priced states, 0: free
    price: np.ndarray  #: [P, 2] time_s, peak_bytes
    seen: np.ndarray  #: [M * A, 2] trajectories that took an action, and their summed reward
    elite: np.ndarray  #: [KEEP, D] actions of the best distinct states so far
    elite_length: np.ndarray  #: [KEEP]
    elite_key: np.ndarray  #: [KEEP]
    elite_reward: np.ndarray  #: [KEEP] descending


class Rows(NamedTuple):
    """Columns of the trace that simulations are written to."""

    round: np.ndarray
    score: np.ndarray
    time_s: np.ndarray
    peak_bytes: np.ndarray
    fits: np.ndarray
    best: np.ndarray
    action_end: np.ndarray
    node_end: np.ndarray
    word: np.ndarray
    node: np.ndarray


class Jobs(NamedTuple):
    """A batch of ``K`` trajectories on their way; ``D`` actions at most."""

    ops: np.ndarray  #: [K, rows, A] state at the node
    values: np.ndarray  #: [K, rows, A]
    key: np.ndarray  #: [K, 1] key of the state; after the rollout that of its end
    random: np.ndarray  #: [K, 1] uint64
    varies: np.ndarray  #: [K] starts from an elite instead of walking down
    length: np.ndarray  #: [K] actions to the node
    passed: np.ndarray  #: [K, D + 1] nodes, root first
    taken: np.ndarray  #: [K, D] choices
    actions: np.ndarray  #: [K, D] to the node, then of the rollout
    new: np.ndarray  #: [K] the node is new
    near: np.ndarray  #: [K, 2] time_s, peak_bytes of the node, if it is new
    near_fresh: np.ndarray  #: [K] that price was not known before
    far_length: np.ndarray  #: [K] actions to the end of the rollout
    far: np.ndarray  #: [K, 2] time_s, peak_bytes there
    far_fresh: np.ndarray  #: [K]


@numba.njit(nogil=True)
def random(state: np.ndarray) -> float:
    """Uniform in [0, 1); ``state[0]`` moves on."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return float(_mix(state[0]) >> np.uint64(11)) / 9007199254740992.0


@numba.njit(cache=True, nogil=True)
def slot(keys: np.ndarray, key: np.uint64) -> np.int64:
    """Where ``key`` stands, or would stand, in a table of open addressing."""
    mask = np.int64(keys.shape[0] - 1)
    at = np.int64(_mix(key) & np.uint64(mask))
    while keys[at] != np.uint64(0) and keys[at] != key:
        at = (at + 1) & mask
    return at


@numba.njit(nogil=True)
def nonzero(key: np.uint64) -> np.uint64:
    """The key, or 1 for the key 0, which means a free place in tables."""
    return key if key != np.uint64(0) else np.uint64(1)


@numba.njit(cache=True, nogil=True)
def rehash(old_keys: np.ndarray, old_rows: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> None:
    """Move a table [P], [P, n] into a larger one."""
    for i in range(old_keys.shape[0]):
        if old_keys[i] != 0:
            at = slot(keys, old_keys[i])
            keys[at] = old_keys[i]
            rows[at] = old_rows[i]


@numba.njit(nogil=True)
def apply(m: Moves, ops: np.ndarray, values: np.ndarray, key: np.ndarray, action: int) -> int:
    """Take an action in place; gives the number of rows changed."""
    n_axes = m.axis_size.shape[0]
    return apply_move(
        ops, values, key, action % n_axes, m.axis_size, action // n_axes, m.op_span, m.op, m.op_name,
        m.name_size, m.value_span, m.value, m.value_dim, m.value_dim_size, False,
    )  # fmt: skip


@numba.njit(nogil=True)
def legal(m: Moves, ops: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[n, 2] (move, axis) pairs that would change the state."""
    return legal_pairs(
        ops, values, m.axis_size, m.op_span, m.op, m.op_name, m.name_size, m.value_span, m.value,
        m.value_dim, m.value_dim_size, m.n_names, m.min_names,
    )  # fmt: skip


@numba.njit(nogil=True)
def level(t: Tree) -> float:
    """Best mean reward of any action."""
    level = -np.inf
    for code in range(t.seen.shape[0]):
        if t.seen[code, 0] > 0:
            level = max(level, t.seen[code, 1] / t.seen[code, 0])
    return level

"""The search tree as flat arrays, and the three steps in which a batch of trajectories goes through it.

    select     walk down from the root once for each trajectory of the batch; a state met for the first time is a new
               node.  Quick and one after the other, since each walk must know of those before it (virtual visits).
    evaluate   price the new nodes, roll out and price the ends.  Nearly all of the time goes here; trajectories are
               independent of each other, so that threads share them out.
    back_up    write prices, rewards and simulations back, again in order.

What is found depends on the seed and the size of the batch but not on the number of threads: random numbers belong to
a trajectory, prices do not depend on who works them out, and all writing is done in order.

No step holds Python's global lock or makes a Python object.  Reference: TOAST sections 4.1 and 4.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from toast_lab.compiled import depends_on
from toast_lab.cost import collectives, kernel, reprice, tiles
from toast_lab.cost.facts import Facts, Memory
from toast_lab.cost.kernel import Rates
from toast_lab.cost.reprice import Scratch, Snapshot
from toast_lab.sharding import state as sharding_state
from toast_lab.sharding import steps as st
from toast_lab.sharding.state import _mix, apply_move, legal_pairs
from toast_lab.sharding.steps import Tables

#: Columns of ``Tree.count``.
NODES, CHOICES, SIMULATIONS, TRAJECTORIES, WORDS, PASSED, PRICED, ELITES, BEST, START = range(10)
OVER_LIMIT = 0.5  #: reward lost by a state that does not fit, besides the penalty that C(s) has for it
KEEP = 16  #: elites


class Moves(NamedTuple):
    """What each move of the space does to a state (see ``sharding.alike``), and which moves count."""

    axis_size: np.ndarray  #: [A] int64
    op_ptr: np.ndarray
    op: np.ndarray
    op_name: np.ndarray
    name_size: np.ndarray
    value_ptr: np.ndarray
    value: np.ndarray
    value_dim: np.ndarray
    value_dim_size: np.ndarray
    n_names: np.ndarray  #: [M]
    min_names: int
    usable: np.ndarray  #: actions that change the unsharded program


class Pricing(NamedTuple):
    """What pricing reads."""

    facts: Facts
    rates: Rates
    tables: Tables
    memory: Memory
    times: np.ndarray
    base_time_s: float
    base_peak_bytes: float
    limit_bytes: float
    memory_weight: float
    root: Snapshot  #: of the unsharded program


class Worker(NamedTuple):
    """Memory that one thread writes in."""

    scratch: Scratch
    near: Snapshot  #: of the node
    far: Snapshot  #: of the end of the rollout


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

    count: np.ndarray  #: [10] int64, how many of each there are; BEST: number of the best simulation; START: starts so far
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


@numba.njit(cache=True, nogil=True)
def _random(state: np.ndarray) -> float:
    """Uniform in [0, 1); ``state[0]`` moves on."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return float(_mix(state[0]) >> np.uint64(11)) / 9007199254740992.0


@numba.njit(cache=True, nogil=True)
def _slot(keys: np.ndarray, key: np.uint64) -> int:
    """Where ``key`` stands, or would stand, in a table of open addressing."""
    mask = np.int64(keys.shape[0] - 1)
    at = np.int64(_mix(key) & np.uint64(mask))
    while keys[at] != np.uint64(0) and keys[at] != key:
        at = (at + 1) & mask
    return at


@numba.njit(cache=True, nogil=True)
def _nonzero(key: np.uint64) -> np.uint64:
    return key if key != np.uint64(0) else np.uint64(1)


@numba.njit(cache=True, nogil=True)
def rehash(old_keys: np.ndarray, old_rows: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> None:
    """Move a table [P], [P, n] into a larger one."""
    for i in range(old_keys.shape[0]):
        if old_keys[i] != 0:
            at = _slot(keys, old_keys[i])
            keys[at] = old_keys[i]
            rows[at] = old_rows[i]


@numba.njit(cache=True, nogil=True)
def score_of(p: Pricing, time_s: float, peak_bytes: float) -> float:
    """C(s), as ``Pricer.score``."""
    relative = time_s / p.base_time_s if p.base_time_s > 0 else 1.0
    over = peak_bytes - p.limit_bytes
    if over > 0 and p.base_peak_bytes > 0:
        return relative + p.memory_weight * over / p.base_peak_bytes
    return relative


@numba.njit(cache=True, nogil=True)
def reward_of(p: Pricing, s: Settings, time_s: float, peak_bytes: float, length: int) -> float:
    """-log C(s), less a little for every action and more where the state does not fit."""
    reward = -math.log(max(score_of(p, time_s, peak_bytes), 1e-12)) - s.length_penalty * length
    return reward if peak_bytes <= p.limit_bytes else reward - OVER_LIMIT


@numba.njit(cache=True, nogil=True)
def _apply(m: Moves, ops: np.ndarray, values: np.ndarray, key: np.ndarray, action: int) -> int:
    n_axes = m.axis_size.shape[0]
    return apply_move(
        ops, values, key, action % n_axes, m.axis_size, action // n_axes, m.op_ptr, m.op, m.op_name, m.name_size,
        m.value_ptr, m.value, m.value_dim, m.value_dim_size, False,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _legal(m: Moves, ops: np.ndarray, values: np.ndarray) -> np.ndarray:
    return legal_pairs(
        ops, values, m.axis_size, m.op_ptr, m.op, m.op_name, m.name_size, m.value_ptr, m.value, m.value_dim,
        m.value_dim_size, m.n_names, m.min_names,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _expand(t: Tree, m: Moves, s: Settings, node: int, ops: np.ndarray, values: np.ndarray) -> None:
    """Work out the choices of a node."""
    n_axes = m.axis_size.shape[0]
    first = t.count[CHOICES]
    t.choice[node] = first
    n = 0
    if t.depth[node] < s.depth:
        rows = _legal(m, ops, values)
        n = rows.shape[0]
        for i in range(n):
            c = first + i
            t.action[c] = rows[i, 0] * n_axes + rows[i, 1]
            t.child[c], t.tried[c], t.under_way[c], t.total[c], t.best[c] = -1, 0, 0, 0.0, -np.inf
    t.choices[node] = n
    t.count[CHOICES] = first + n
    if n == 0:
        t.closed[node] = True


@numba.njit(cache=True, nogil=True)
def _forget(t: Tree, node: int) -> None:
    """Reset what is known of a node's choices, for a new start."""
    t.start[node] = t.count[START]
    for c in range(t.choice[node], t.choice[node] + max(t.choices[node], 0)):
        t.tried[c], t.under_way[c], t.total[c], t.best[c] = 0, 0, 0.0, -np.inf


@numba.njit(cache=True, nogil=True)
def _choose(t: Tree, s: Settings, node: int, warmth: float, level: float) -> int:
    """Choice by upper confidence bound, or -1 if everything below was priced.

    Rewards count by how near they come to the best one: ``exp((reward - best) / warmth)``.  What an action did
    elsewhere (``level``: the best mean of any action) stands for its first visits.
    """
    first, end = t.choice[node], t.choice[node] + t.choices[node]
    top = t.elite_reward[0]
    visits = 0.0
    for c in range(first, end):
        visits += t.tried[c] + t.under_way[c]
    spread = math.log(visits + 1.0)
    found, highest = -1, -np.inf
    for c in range(first, end):
        child = t.child[c]
        if child >= 0 and (t.closed[child] or (math.isnan(t.reward[child]) and t.under_way[c] > 0)):
            continue  # nothing new below, or on its way in this very batch
        n = float(t.tried[c])
        code = t.action[c]
        prior = 1.0
        if t.seen[code, 0] > 0:
            prior = math.exp(min(0.0, t.seen[code, 1] / t.seen[code, 0] - level))
        value = s.prior_visits * prior
        if n > 0:
            value += n * 0.5 * (math.exp((t.total[c] / n - top) / warmth) + math.exp((t.best[c] - top) / warmth))
        n += t.under_way[c]
        bound = value / (n + s.prior_visits) + s.exploration * math.sqrt(spread / (n + 1.0))
        if bound > highest:
            found, highest = c, bound
    return found


@numba.njit(cache=True, nogil=True)
def _level(t: Tree) -> float:
    """Best mean reward of any action."""
    level = -np.inf
    for code in range(t.seen.shape[0]):
        if t.seen[code, 0] > 0:
            level = max(level, t.seen[code, 1] / t.seen[code, 0])
    return level


@depends_on(sharding_state)
@numba.njit(cache=True, nogil=True)
def select(t: Tree, m: Moves, s: Settings, jobs: Jobs) -> None:
    """Choose where each trajectory of the batch goes; new nodes are made but not priced."""
    level = _level(t)
    n_jobs = jobs.length.shape[0]
    for j in range(n_jobs):
        number = t.count[TRAJECTORIES] + j  # counts all trajectories of the search
        jobs.random[j, 0] = _mix(s.seed ^ _mix(np.uint64(number + 1)))
        jobs.ops[j] = -1
        jobs.values[j] = -1
        jobs.key[j, 0] = 0
        jobs.length[j] = 0
        jobs.passed[j, 0] = 0
        jobs.new[j] = False
        jobs.varies[j] = t.count[ELITES] > 0 and _random(jobs.random[j]) < s.vary
        if jobs.varies[j]:
            continue
        # Some walks look for plans near the best one, others farther away.
        warmth = 0.03 * 4.0 ** (number % 4)
        node, length = 0, 0
        if t.start[0] != t.count[START]:
            _forget(t, 0)
        while True:
            if t.choices[node] < 0:
                _expand(t, m, s, node, jobs.ops[j], jobs.values[j])
            if t.closed[node]:
                break
            c = _choose(t, s, node, warmth, level)
            if c < 0:
                every = True
                for k in range(t.choice[node], t.choice[node] + t.choices[node]):
                    every &= t.child[k] >= 0 and t.closed[t.child[k]]
                t.closed[node] = every
                break
            _apply(m, jobs.ops[j], jobs.values[j], jobs.key[j], t.action[c])
            jobs.actions[j, length], jobs.taken[j, length] = t.action[c], c
            t.under_way[c] += 1
            length += 1
            key = _nonzero(jobs.key[j, 0])
            at = _slot(t.slot_key, key)
            if t.slot_key[at] == 0:
                made = t.count[NODES]
                t.count[NODES] += 1
                t.slot_key[at], t.slot_node[at] = key, made
                t.parent[made], t.word[made], t.depth[made], t.key[made] = node, t.action[c], length, jobs.key[j, 0]
                t.visits[made], t.value[made], t.best_score[made], t.score[made] = 0, 0.0, np.inf, np.nan
                t.reward[made], t.choice[made], t.choices[made], t.closed[made] = np.nan, 0, -1, False
                t.start[made] = t.count[START]
                jobs.new[j] = True
            node = t.slot_node[at]
            t.child[c] = node
            jobs.passed[j, length] = node
            # A node of this batch has no price yet; walks end there and roll out.
            if jobs.new[j] or math.isnan(t.reward[node]) or length >= s.depth:
                break
            if t.start[node] != t.count[START]:  # as good as new in this start
                _forget(t, node)
                break
        jobs.length[j] = length
    t.count[TRAJECTORIES] += n_jobs


@numba.njit(cache=True, nogil=True)
def _price(
    t: Tree, m: Moves, p: Pricing, w: Worker, ops: np.ndarray, values: np.ndarray, before: Snapshot, after: Snapshot
) -> tuple[float, float]:
    time_s, peak_bytes, _ = reprice.reprice(
        p.facts, p.rates, p.tables, p.memory, p.times, ops, values, m.axis_size, False, before, after, w.scratch
    )
    return time_s, peak_bytes


@numba.njit(cache=True, nogil=True)
def _draw(t: Tree, rows: np.ndarray, n_axes: int, level: float, random: np.ndarray) -> int:
    """One of the legal rows: those that did well elsewhere more often than others."""
    weight = np.empty(rows.shape[0])
    total = 0.0
    for i in range(rows.shape[0]):
        code = rows[i, 0] * n_axes + rows[i, 1]
        weight[i] = 1.0
        if t.seen[code, 0] > 0:
            weight[i] = 0.1 + 0.9 * math.exp(4.0 * min(0.0, t.seen[code, 1] / t.seen[code, 0] - level))
        total += weight[i]
    at = _random(random) * total
    for i in range(rows.shape[0]):
        at -= weight[i]
        if at < 0:
            return i
    return rows.shape[0] - 1


@numba.njit(cache=True, nogil=True)
def _vary(t: Tree, m: Moves, s: Settings, jobs: Jobs, j: int) -> int:
    """Take the actions of an elite with a few changes: left out, replaced, moved or put in.  Gives their number."""
    random = jobs.random[j]
    n_usable = m.usable.shape[0]
    e = int(t.count[ELITES] * _random(random) ** 2)  # better ones more often
    n = t.elite_length[e]
    changes = 1
    while changes < 6 and _random(random) < s.boldness:
        changes += 1
    wanted = np.empty(n + changes, np.int64)
    wanted[:n] = t.elite[e, :n]
    for _ in range(changes):
        kind = int(4 * _random(random))
        at = int(n * _random(random)) if n else 0
        if kind == 0 and n > 0:
            wanted[at : n - 1] = wanted[at + 1 : n].copy()
            n -= 1
        elif kind == 1 and n > 0:
            wanted[at] = m.usable[int(n_usable * _random(random))]
        elif kind == 2 and n > 1:
            to = int(n * _random(random))
            code = wanted[at]
            wanted[at : n - 1] = wanted[at + 1 : n].copy()
            wanted[to + 1 : n] = wanted[to : n - 1].copy()
            wanted[to] = code
        else:
            to = int((n + 1) * _random(random))
            wanted[to + 1 : n + 1] = wanted[to:n].copy()
            wanted[to] = m.usable[int(n_usable * _random(random))]
            n += 1
    length = 0
    for i in range(n):
        if length == s.depth:
            break
        if _apply(m, jobs.ops[j], jobs.values[j], jobs.key[j], wanted[i]):
            jobs.actions[j, length] = wanted[i]
            length += 1
    return length


@depends_on(sharding_state, reprice, kernel, st, collectives, tiles)
@numba.njit(cache=True, nogil=True)
def evaluate(t: Tree, m: Moves, p: Pricing, s: Settings, jobs: Jobs, w: Worker, begin: int, end: int) -> None:
    """Price the new nodes of trajectories ``begin`` to ``end``, roll out and price the ends.  The tree is only read."""
    level = _level(t)
    n_axes = m.axis_size.shape[0]
    for j in range(begin, end):
        ops, values, key = jobs.ops[j], jobs.values[j], jobs.key[j]
        priced_here = False
        if jobs.new[j]:
            at = _slot(t.price_key, _nonzero(key[0]))
            jobs.near_fresh[j] = t.price_key[at] == 0
            if jobs.near_fresh[j]:
                jobs.near[j, 0], jobs.near[j, 1] = _price(t, m, p, w, ops, values, p.root, w.near)
                priced_here = True
            else:
                jobs.near[j, 0], jobs.near[j, 1] = t.price[at, 0], t.price[at, 1]
        length = jobs.length[j]
        if jobs.varies[j]:
            length = _vary(t, m, s, jobs, j)
        else:
            more = 1 + int(math.log(max(_random(jobs.random[j]), 1e-12)) / math.log(0.65))
            while more > 0 and length < s.depth:
                rows = _legal(m, ops, values)
                if rows.shape[0] == 0:
                    break
                i = _draw(t, rows, n_axes, level, jobs.random[j])
                code = rows[i, 0] * n_axes + rows[i, 1]
                _apply(m, ops, values, key, code)
                jobs.actions[j, length] = code
                length += 1
                more -= 1
        jobs.far_length[j] = length
        jobs.far_fresh[j] = False
        if length > jobs.length[j]:
            at = _slot(t.price_key, _nonzero(key[0]))
            jobs.far_fresh[j] = t.price_key[at] == 0
            if jobs.far_fresh[j]:
                if priced_here:
                    jobs.far[j, 0], jobs.far[j, 1] = _price(t, m, p, w, ops, values, w.near, w.far)
                else:
                    jobs.far[j, 0], jobs.far[j, 1] = _price(t, m, p, w, ops, values, p.root, w.far)
            else:
                jobs.far[j, 0], jobs.far[j, 1] = t.price[at, 0], t.price[at, 1]


@numba.njit(cache=True, nogil=True)
def _remember(t: Tree, key: np.uint64, price: np.ndarray) -> None:
    """Keep the price of a state, if it is not there."""
    at = _slot(t.price_key, _nonzero(key))
    if t.price_key[at] == 0:
        t.price_key[at] = _nonzero(key)
        t.price[at, 0], t.price[at, 1] = price[0], price[1]
        t.count[PRICED] += 1


@numba.njit(cache=True, nogil=True)
def _promote(t: Tree, key: np.uint64, reward: float, actions: np.ndarray) -> None:
    """Keep a state among the best distinct ones."""
    n = t.count[ELITES]
    if n == KEEP and reward <= t.elite_reward[n - 1]:
        return
    for e in range(n):
        if t.elite_key[e] == key:
            if reward <= t.elite_reward[e]:
                return
            for k in range(e, n - 1):  # found again by a shorter way: take it out and put it in anew
                t.elite[k], t.elite_length[k] = t.elite[k + 1], t.elite_length[k + 1]
                t.elite_key[k], t.elite_reward[k] = t.elite_key[k + 1], t.elite_reward[k + 1]
            n -= 1
            break
    n = min(n + 1, KEEP)
    at = n - 1
    while at > 0 and t.elite_reward[at - 1] < reward:
        t.elite[at], t.elite_length[at] = t.elite[at - 1], t.elite_length[at - 1]
        t.elite_key[at], t.elite_reward[at] = t.elite_key[at - 1], t.elite_reward[at - 1]
        at -= 1
    t.elite[at, : actions.shape[0]] = actions
    t.elite_length[at], t.elite_key[at], t.elite_reward[at] = actions.shape[0], key, reward
    t.count[ELITES] = n


@numba.njit(cache=True, nogil=True)
def _write(t: Tree, p: Pricing, rows: Rows, jobs: Jobs, j: int, price: np.ndarray, length: int, round_: int) -> None:
    """Add a simulation to the trace."""
    i = t.count[SIMULATIONS]
    rows.round[i] = round_
    rows.time_s[i], rows.peak_bytes[i] = price[0], price[1]
    rows.score[i], rows.fits[i] = score_of(p, price[0], price[1]), price[1] <= p.limit_bytes
    for k in range(length):
        rows.word[t.count[WORDS]] = jobs.actions[j, k]
        t.count[WORDS] += 1
    for k in range(jobs.length[j] + 1):
        rows.node[t.count[PASSED]] = jobs.passed[j, k]
        t.count[PASSED] += 1
    rows.action_end[i], rows.node_end[i] = t.count[WORDS], t.count[PASSED]
    # A plan that fits before any that does not, then the lower score, then fewer actions.
    best = t.count[BEST]
    better = rows.fits[i] and not rows.fits[best]
    if rows.fits[i] == rows.fits[best]:
        n_best = rows.action_end[best] - (rows.action_end[best - 1] if best else 0)
        better = rows.score[i] < rows.score[best] or (rows.score[i] == rows.score[best] and length < n_best)
    if better:
        t.count[BEST] = i
    rows.best[i] = t.count[BEST]
    t.count[SIMULATIONS] += 1


@numba.njit(cache=True, nogil=True)
def back_up(t: Tree, p: Pricing, s: Settings, rows: Rows, jobs: Jobs, round_: int) -> None:
    """Write what a batch found into the tree and the trace, in order."""
    for j in range(jobs.length.shape[0]):
        near, far = jobs.length[j], jobs.far_length[j]
        node = jobs.passed[j, near]
        if jobs.new[j]:
            key = t.key[node]
            if jobs.near_fresh[j]:
                _remember(t, key, jobs.near[j])
            reward = reward_of(p, s, jobs.near[j, 0], jobs.near[j, 1], near)
            t.reward[node], t.score[node] = reward, score_of(p, jobs.near[j, 0], jobs.near[j, 1])
            t.best_score[node] = t.score[node]
            _promote(t, key, reward, jobs.actions[j, :near])
            _write(t, p, rows, jobs, j, jobs.near[j], near, round_)
        reward = t.reward[node]
        score = t.score[node]
        if far > near:
            if jobs.far_fresh[j]:
                _remember(t, jobs.key[j, 0], jobs.far[j])
            there = reward_of(p, s, jobs.far[j, 0], jobs.far[j, 1], far)
            _promote(t, jobs.key[j, 0], there, jobs.actions[j, :far])
            _write(t, p, rows, jobs, j, jobs.far[j], far, round_)
            for k in range(far):
                t.seen[jobs.actions[j, k], 0] += 1
                t.seen[jobs.actions[j, k], 1] += there
            reward = max(reward, there)
            score = min(score, score_of(p, jobs.far[j, 0], jobs.far[j, 1]))
        if jobs.varies[j]:
            continue  # it says nothing of the root's choices
        for k in range(near + 1):
            at = jobs.passed[j, k]
            t.visits[at] += 1
            t.value[at] += (reward - t.value[at]) / t.visits[at]
            t.best_score[at] = min(t.best_score[at], score)
        for k in range(near):
            c = jobs.taken[j, k]
            t.under_way[c] -= 1
            t.tried[c] += 1
            t.total[c] += reward
            t.best[c] = max(t.best[c], reward)

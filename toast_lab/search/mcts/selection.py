"""First step of a batch: choose where each trajectory goes.  See ``tree``.

Reference: TOAST section 4.2.
"""

from __future__ import annotations

import math

import numpy as np

from toast_lab.kernels import compiled, copy_rows, helper
from toast_lab.search.mcts.tree import (
    CHOICES,
    ELITES,
    NODES,
    START,
    TRAJECTORIES,
    Jobs,
    Moves,
    Settings,
    Tree,
    apply,
    legal,
    level,
    nonzero,
    random,
    slot,
)
from toast_lab.sharding.state import _mix


@helper
def _expand(t: Tree, m: Moves, s: Settings, node: int, ops: np.ndarray, values: np.ndarray) -> None:
    """Work out the choices of a node."""
    n_axes = m.axis_size.shape[0]
    first = t.number[CHOICES]
    t.choice[node] = first
    n = 0
    if t.depth[node] < s.depth:
        rows = legal(m, ops, values)
        n = rows.shape[0]
        for i in range(n):
            c = first + i
            t.action[c] = rows[i, 0] * n_axes + rows[i, 1]
            t.child[c], t.tried[c], t.under_way[c], t.total[c], t.best[c] = -1, 0, 0, 0.0, -np.inf
    t.choices[node] = n
    t.number[CHOICES] = first + n
    if n == 0:
        t.closed[node] = True


@helper
def _forget(t: Tree, node: int) -> None:
    """Reset what is known of a node's choices, for a new start."""
    t.start[node] = t.number[START]
    for c in range(t.choice[node], t.choice[node] + max(t.choices[node], 0)):
        t.tried[c], t.under_way[c], t.total[c], t.best[c] = 0, 0, 0.0, -np.inf


@helper
def _choose(t: Tree, s: Settings, node: int, warmth: float, highest: float) -> int:
    """Choice by upper confidence bound, or -1 if everything below was priced.

    Rewards count by how near they come to the best one: ``exp((reward - best) / warmth)``.  What an
    action did elsewhere (``highest``: the best mean of any action) stands for its first visits.
    """
    first, end = t.choice[node], t.choice[node] + t.choices[node]
    top = t.elite_reward[0]
    visits = 0.0
    for c in range(first, end):
        visits += t.tried[c] + t.under_way[c]
    spread = math.log(visits + 1.0)
    best, bar = -1, -np.inf
    for c in range(first, end):
        child = t.child[c]
        if child >= 0 and (t.closed[child] or (math.isnan(t.reward[child]) and t.under_way[c] > 0)):
            continue  # nothing new below, or on its way in this very batch
        n = float(t.tried[c])
        code = t.action[c]
        prior = 1.0
        if t.seen[code, 0] > 0:
            prior = math.exp(min(0.0, t.seen[code, 1] / t.seen[code, 0] - highest))
        value = s.prior_visits * prior
        if n > 0:
            value += (
                n
                * 0.5
                * (math.exp((t.total[c] / n - top) / warmth) + math.exp((t.best[c] - top) / warmth))
            )
        n += t.under_way[c]
        bound = value / (n + s.prior_visits) + s.exploration * math.sqrt(spread / (n + 1.0))
        if bound > bar:
            best, bar = c, bound
    return best


@compiled
def select(t: Tree, m: Moves, s: Settings, jobs: Jobs) -> None:
    """Choose where each trajectory of the batch goes; new nodes are made but not priced."""
    highest = level(t)
    n_jobs = jobs.length.shape[0]
    for j in range(n_jobs):
        trajectory = t.number[TRAJECTORIES] + j
        jobs.random[j, 0] = _mix(s.seed ^ _mix(np.uint64(trajectory + 1)))
        copy_rows(jobs.ops[j], m.start_ops)
        copy_rows(jobs.values[j], m.start_values)
        jobs.key[j, 0] = 0
        jobs.length[j] = 0
        jobs.passed[j, 0] = 0
        jobs.new[j] = False
        jobs.varies[j] = t.number[ELITES] > 0 and random(jobs.random[j]) < s.vary
        if jobs.varies[j]:
            continue
        # Some walks look for plans near the best one, others farther away.
        warmth = 0.03 * 4.0 ** (trajectory % 4)
        node, length = 0, 0
        if t.start[0] != t.number[START]:
            _forget(t, 0)
        while True:
            if t.choices[node] < 0:
                _expand(t, m, s, node, jobs.ops[j], jobs.values[j])
            if t.closed[node]:
                break
            c = _choose(t, s, node, warmth, highest)
            if c < 0:
                every = True
                for k in range(t.choice[node], t.choice[node] + t.choices[node]):
                    every &= t.child[k] >= 0 and t.closed[t.child[k]]
                t.closed[node] = every
                break
            apply(m, jobs.ops[j], jobs.values[j], jobs.key[j], t.action[c])
            jobs.actions[j, length], jobs.taken[j, length] = t.action[c], c
            t.under_way[c] += 1
            length += 1
            key = nonzero(jobs.key[j, 0])
            at = slot(t.slot_key, key)
            if t.slot_key[at] == 0:
                new = t.number[NODES]
                t.number[NODES] += 1
                t.slot_key[at], t.slot_node[at] = key, new
                t.parent[new] = node
                t.word[new] = t.action[c]
                t.depth[new] = length
                t.key[new] = jobs.key[j, 0]
                t.visits[new] = 0
                t.value[new] = 0.0
                t.best_score[new] = np.inf
                t.score[new] = np.nan
                t.reward[new] = np.nan
                t.choice[new] = 0
                t.choices[new] = -1
                t.closed[new] = False
                t.start[new] = t.number[START]
                jobs.new[j] = True
            node = t.slot_node[at]
            t.child[c] = node
            jobs.passed[j, length] = node
            # A node of this batch has no price yet; walks end there and roll out.
            if jobs.new[j] or math.isnan(t.reward[node]) or length >= s.depth:
                break
            if t.start[node] != t.number[START]:  # as good as new in this start
                _forget(t, node)
                break
        jobs.length[j] = length
    t.number[TRAJECTORIES] += n_jobs

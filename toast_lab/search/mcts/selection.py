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
    SteeringSettings,
    Tree,
    apply,
    level,
    nonzero,
    random,
    slot,
)
from toast_lab.sharding.moves import Moves
from toast_lab.sharding.state import legal_pairs, mix


@helper
def _expand(
    tree: Tree,
    moves: Moves,
    settings: SteeringSettings,
    node: int,
    ops: np.ndarray,
    values: np.ndarray,
) -> None:
    """Work out the choices of a node."""
    n_axes = moves.axis_size.shape[0]
    first = tree.number[CHOICES]
    tree.choice[node] = first
    count = 0
    if tree.depth[node] < settings.depth:
        rows = legal_pairs(moves, ops, values, settings.min_names)
        count = rows.shape[0]
        for row in range(count):
            choice = first + row
            tree.action[choice] = rows[row, 0] * n_axes + rows[row, 1]
            tree.child[choice] = -1
            _reset(tree, choice)
    tree.choices[node] = count
    tree.number[CHOICES] = first + count
    if count == 0:
        tree.closed[node] = True


@helper
def _forget(tree: Tree, node: int) -> None:
    """Reset what is known of a node's choices, for a new start."""
    tree.start[node] = tree.number[START]
    for choice in range(tree.choice[node], tree.choice[node] + max(tree.choices[node], 0)):
        _reset(tree, choice)


@helper
def _reset(tree: Tree, choice: int) -> None:
    tree.tried[choice] = 0
    tree.under_way[choice] = 0
    tree.total[choice] = 0.0
    tree.best[choice] = -np.inf


@helper
def _choose(
    tree: Tree, settings: SteeringSettings, node: int, warmth: float, highest: float
) -> int:
    """Choice by upper confidence bound, or -1 if everything below was priced.

    Rewards count by how near they come to the best one: ``exp((reward - best) / warmth)``.  What an
    action did elsewhere (``highest``: the best mean of any action) stands for its first visits.
    """
    first, end = tree.choice[node], tree.choice[node] + tree.choices[node]
    top = tree.elite_reward[0]
    visits = 0.0
    for choice in range(first, end):
        visits += tree.tried[choice] + tree.under_way[choice]
    spread = math.log(visits + 1.0)
    best, bar = -1, -np.inf
    for choice in range(first, end):
        child = tree.child[choice]
        # Nothing new is below, or another trajectory of this batch is on its way there.
        if child >= 0 and (
            tree.closed[child] or (math.isnan(tree.reward[child]) and tree.under_way[choice] > 0)
        ):
            continue
        tried = float(tree.tried[choice])
        code = tree.action[choice]
        prior = 1.0
        if tree.seen[code, 0] > 0:
            prior = math.exp(min(0.0, tree.seen[code, 1] / tree.seen[code, 0] - highest))
        value = settings.prior_visits * prior
        if tried > 0:
            mean = math.exp((tree.total[choice] / tried - top) / warmth)
            value += tried * 0.5 * (mean + math.exp((tree.best[choice] - top) / warmth))
        tried += tree.under_way[choice]
        width = settings.exploration * math.sqrt(spread / (tried + 1.0))
        bound = value / (tried + settings.prior_visits) + width
        if bound > bar:
            best, bar = choice, bound
    return best


@compiled
def select(tree: Tree, moves: Moves, settings: SteeringSettings, jobs: Jobs) -> None:
    """Choose where each trajectory of the batch goes; new nodes are made but not priced."""
    highest = level(tree)
    n_jobs = jobs.length.shape[0]
    for job in range(n_jobs):
        trajectory = tree.number[TRAJECTORIES] + job
        jobs.random[job, 0] = mix(settings.seed ^ mix(np.uint64(trajectory + 1)))
        copy_rows(jobs.ops[job], moves.start_ops)
        copy_rows(jobs.values[job], moves.start_values)
        jobs.key[job, 0] = 0
        jobs.length[job] = 0
        jobs.passed[job, 0] = 0
        jobs.new[job] = False
        jobs.varies[job] = tree.number[ELITES] > 0 and random(jobs.random[job]) < settings.vary
        if jobs.varies[job]:
            continue
        # Some walks look for plans near the best one, others farther away.
        warmth = 0.03 * 4.0 ** (trajectory % 4)
        node, length = 0, 0
        if tree.start[0] != tree.number[START]:
            _forget(tree, 0)
        while True:
            if tree.choices[node] < 0:
                _expand(tree, moves, settings, node, jobs.ops[job], jobs.values[job])
            if tree.closed[node]:
                break
            choice = _choose(tree, settings, node, warmth, highest)
            if choice < 0:
                every = True
                for other in range(tree.choice[node], tree.choice[node] + tree.choices[node]):
                    every &= tree.child[other] >= 0 and tree.closed[tree.child[other]]
                tree.closed[node] = every
                break
            apply(moves, jobs.ops[job], jobs.values[job], jobs.key[job], tree.action[choice])
            jobs.actions[job, length], jobs.taken[job, length] = tree.action[choice], choice
            tree.under_way[choice] += 1
            length += 1
            key = nonzero(jobs.key[job, 0])
            at = slot(tree.slot_key, key)
            if tree.slot_key[at] == 0:
                new = tree.number[NODES]
                tree.number[NODES] += 1
                tree.slot_key[at], tree.slot_node[at] = key, new
                tree.parent[new] = node
                tree.word[new] = tree.action[choice]
                tree.depth[new] = length
                tree.key[new] = jobs.key[job, 0]
                tree.visits[new] = 0
                tree.value[new] = 0.0
                tree.best_score[new] = np.inf
                tree.score[new] = np.nan
                tree.reward[new] = np.nan
                tree.choice[new] = 0
                tree.choices[new] = -1
                tree.closed[new] = False
                tree.start[new] = tree.number[START]
                jobs.new[job] = True
            node = tree.slot_node[at]
            tree.child[choice] = node
            jobs.passed[job, length] = node
            # A node of this batch has no price yet; walks end there and roll out.
            if jobs.new[job] or math.isnan(tree.reward[node]) or length >= settings.depth:
                break
            if tree.start[node] != tree.number[START]:  # as good as new in this start
                _forget(tree, node)
                break
        jobs.length[job] = length
    tree.number[TRAJECTORIES] += n_jobs

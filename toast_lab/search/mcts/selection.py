"""First step of a batch: choose the path of each trajectory. See ``tree``.

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
    """Add the choices of a node: the legal moves of its state, none at the depth limit."""
    n_axes = moves.axis_size.shape[0]
    begin = tree.number[CHOICES]
    tree.choice[node] = begin
    count = 0
    if tree.depth[node] < settings.depth:
        rows = legal_pairs(moves, ops, values, settings.min_names)
        count = rows.shape[0]
        for row in range(count):
            choice = begin + row
            tree.action[choice] = rows[row, 0] * n_axes + rows[row, 1]
            tree.child[choice] = -1
            _reset(tree, choice)
    tree.choices[node] = count
    tree.number[CHOICES] = begin + count
    if count == 0:
        tree.closed[node] = True


@helper
def _forget(tree: Tree, node: int) -> None:
    """Reset the statistics of a node's choices, for a new start."""
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
    """The choice with the highest upper confidence bound, or -1 if none is open.

    The value of a reward falls with its distance from the best one: ``exp((reward - best) /
    warmth)``. The mean reward of an action over all nodes, relative to the best mean of any action
    (``highest``), is the prior value of its first visits.
    """
    begin, end = tree.choice[node], tree.choice[node] + tree.choices[node]
    top = tree.elite_reward[0]
    visits = 0.0
    for choice in range(begin, end):
        visits += tree.tried[choice] + tree.under_way[choice]
    log_visits = math.log(visits + 1.0)
    best, best_bound = -1, -np.inf
    for choice in range(begin, end):
        child = tree.child[choice]
        # Everything below is priced, or another trajectory of this batch goes to this new child.
        if child >= 0 and (
            tree.closed[child] or (math.isnan(tree.reward[child]) and tree.under_way[choice] > 0)
        ):
            continue
        tried = float(tree.tried[choice])
        action = tree.action[choice]
        prior = 1.0
        if tree.seen[action, 0] > 0:
            prior = math.exp(min(0.0, tree.seen[action, 1] / tree.seen[action, 0] - highest))
        value = settings.prior_visits * prior
        if tried > 0:
            mean = math.exp((tree.total[choice] / tried - top) / warmth)
            value += tried * 0.5 * (mean + math.exp((tree.best[choice] - top) / warmth))
        tried += tree.under_way[choice]
        bonus = settings.exploration * math.sqrt(log_visits / (tried + 1.0))
        bound = value / (tried + settings.prior_visits) + bonus
        if bound > best_bound:
            best, best_bound = choice, bound
    return best


@compiled
def select(tree: Tree, moves: Moves, settings: SteeringSettings, jobs: Jobs) -> None:
    """Choose the path of each trajectory of the batch; new nodes are added but not priced."""
    highest = level(tree)
    n_jobs = jobs.length.shape[0]
    for job in range(n_jobs):
        trajectory = tree.number[TRAJECTORIES] + job
        jobs.random[job, 0] = mix(settings.seed ^ mix(np.uint64(trajectory + 1)))
        copy_rows(jobs.ops[job], moves.start_ops)
        copy_rows(jobs.values[job], moves.start_values)
        jobs.key[job, 0] = 0
        jobs.length[job] = 0
        jobs.path_nodes[job, 0] = 0
        jobs.node_is_new[job] = False
        jobs.varies[job] = tree.number[ELITES] > 0 and random(jobs.random[job]) < settings.vary
        if jobs.varies[job]:
            continue
        # Cold walks look for plans with rewards near the best one, warm walks farther away.
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
                all_closed = True
                for other in range(tree.choice[node], tree.choice[node] + tree.choices[node]):
                    all_closed &= tree.child[other] >= 0 and tree.closed[tree.child[other]]
                tree.closed[node] = all_closed
                break
            apply(moves, jobs.ops[job], jobs.values[job], jobs.key[job], tree.action[choice])
            jobs.actions[job, length], jobs.path_choices[job, length] = tree.action[choice], choice
            tree.under_way[choice] += 1
            length += 1
            key = nonzero(jobs.key[job, 0])
            position = slot(tree.slot_key, key)
            if tree.slot_key[position] == 0:
                new = tree.number[NODES]
                tree.number[NODES] += 1
                tree.slot_key[position], tree.slot_node[position] = key, new
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
                jobs.node_is_new[job] = True
            node = tree.slot_node[position]
            tree.child[choice] = node
            jobs.path_nodes[job, length] = node
            # A node of this batch has no price yet; walks end there and roll out.
            if jobs.node_is_new[job] or math.isnan(tree.reward[node]) or length >= settings.depth:
                break
            if tree.start[node] != tree.number[START]:  # treated as a new node in this start
                _forget(tree, node)
                break
        jobs.length[job] = length
    tree.number[TRAJECTORIES] += n_jobs

"""Third step of a batch: write its results into tree and trace, in order. See ``tree``."""

from __future__ import annotations

import numpy as np

from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.search.mcts.rollout import Pricing, reward_of, score_of
from toast_lab.search.mcts.tree import (
    BEST,
    ELITES,
    MAX_ELITES,
    PASSED,
    PRICED,
    SIMULATIONS,
    WORDS,
    Jobs,
    Rows,
    SteeringSettings,
    Tree,
    nonzero,
    slot,
)


@helper
def _remember(tree: Tree, key: np.uint64, price: np.ndarray) -> None:
    """Store the price of a state, unless it is known."""
    position = slot(tree.price_key, nonzero(key))
    if tree.price_key[position] == 0:
        tree.price_key[position] = nonzero(key)
        tree.price[position, 0], tree.price[position, 1] = price[0], price[1]
        tree.number[PRICED] += 1


@helper
def _promote(tree: Tree, key: np.uint64, reward: float, actions: np.ndarray) -> None:
    """Put a state among the elites if it is good enough; they stay sorted by reward."""
    count = tree.number[ELITES]
    if count == MAX_ELITES and reward <= tree.elite_reward[count - 1]:
        return
    for elite in range(count):
        if tree.elite_key[elite] == key:
            if reward <= tree.elite_reward[elite]:
                return
            # The state was reached by a shorter path: remove it, to insert it again below.
            for index in range(elite, count - 1):
                copy_row(tree.elite[index], tree.elite[index + 1])
                tree.elite_length[index] = tree.elite_length[index + 1]
                tree.elite_key[index], tree.elite_reward[index] = (
                    tree.elite_key[index + 1],
                    tree.elite_reward[index + 1],
                )
            count -= 1
            break
    count = min(count + 1, MAX_ELITES)
    position = count - 1
    while position > 0 and tree.elite_reward[position - 1] < reward:
        copy_row(tree.elite[position], tree.elite[position - 1])
        tree.elite_length[position] = tree.elite_length[position - 1]
        tree.elite_key[position], tree.elite_reward[position] = (
            tree.elite_key[position - 1],
            tree.elite_reward[position - 1],
        )
        position -= 1
    copy_row(tree.elite[position], actions)
    tree.elite_length[position], tree.elite_key[position], tree.elite_reward[position] = (
        actions.shape[0],
        key,
        reward,
    )
    tree.number[ELITES] = count


@helper
def _write(
    tree: Tree,
    pricing: Pricing,
    rows: Rows,
    jobs: Jobs,
    job: int,
    price: np.ndarray,
    length: int,
    round_: int,
) -> None:
    """Add a simulation to the trace."""
    row = tree.number[SIMULATIONS]
    rows.round[row] = round_
    rows.time_s[row], rows.peak_bytes[row] = price[0], price[1]
    rows.score[row], rows.fits[row] = (
        score_of(pricing, price[0], price[1]),
        price[1] <= pricing.limit_bytes,
    )
    for step in range(length):
        rows.word[tree.number[WORDS]] = jobs.actions[job, step]
        tree.number[WORDS] += 1
    for step in range(jobs.length[job] + 1):
        rows.node[tree.number[PASSED]] = jobs.path_nodes[job, step]
        tree.number[PASSED] += 1
    rows.action_end[row], rows.node_end[row] = tree.number[WORDS], tree.number[PASSED]
    # A plan that fits comes before any that does not, then the lower score, then fewer actions.
    best = tree.number[BEST]
    is_better = rows.fits[row] and not rows.fits[best]
    if rows.fits[row] == rows.fits[best]:
        best_length = rows.action_end[best] - (rows.action_end[best - 1] if best else 0)
        is_better = rows.score[row] < rows.score[best] or (
            rows.score[row] == rows.score[best] and length < best_length
        )
    if is_better:
        tree.number[BEST] = row
    rows.best[row] = tree.number[BEST]
    tree.number[SIMULATIONS] += 1


@compiled
def back_up(
    tree: Tree, pricing: Pricing, settings: SteeringSettings, rows: Rows, jobs: Jobs, round_: int
) -> None:
    """Write the results of a batch into the tree and the trace, in order."""
    for job in range(jobs.length.shape[0]):
        node_length, end_length = jobs.length[job], jobs.end_length[job]
        node = jobs.path_nodes[job, node_length]
        if jobs.node_is_new[job]:
            key = tree.key[node]
            if jobs.node_price_is_new[job]:
                _remember(tree, key, jobs.node_price[job])
            reward = reward_of(
                pricing, settings, jobs.node_price[job, 0], jobs.node_price[job, 1], node_length
            )
            tree.reward[node], tree.score[node] = (
                reward,
                score_of(pricing, jobs.node_price[job, 0], jobs.node_price[job, 1]),
            )
            tree.best_score[node] = tree.score[node]
            _promote(tree, key, reward, jobs.actions[job, :node_length])
            _write(tree, pricing, rows, jobs, job, jobs.node_price[job], node_length, round_)
        reward = tree.reward[node]
        score = tree.score[node]
        if end_length > node_length:
            if jobs.end_price_is_new[job]:
                _remember(tree, jobs.key[job, 0], jobs.end_price[job])
            end_reward = reward_of(
                pricing, settings, jobs.end_price[job, 0], jobs.end_price[job, 1], end_length
            )
            _promote(tree, jobs.key[job, 0], end_reward, jobs.actions[job, :end_length])
            _write(tree, pricing, rows, jobs, job, jobs.end_price[job], end_length, round_)
            for step in range(end_length):
                tree.seen[jobs.actions[job, step], 0] += 1
                tree.seen[jobs.actions[job, step], 1] += end_reward
            reward = max(reward, end_reward)
            score = min(score, score_of(pricing, jobs.end_price[job, 0], jobs.end_price[job, 1]))
        if jobs.varies[job]:
            continue  # a varied elite tells nothing about the choices of the root
        for step in range(node_length + 1):
            passed = jobs.path_nodes[job, step]
            tree.visits[passed] += 1
            tree.value[passed] += (reward - tree.value[passed]) / tree.visits[passed]
            tree.best_score[passed] = min(tree.best_score[passed], score)
        for step in range(node_length):
            choice = jobs.path_choices[job, step]
            tree.under_way[choice] -= 1
            tree.tried[choice] += 1
            tree.total[choice] += reward
            tree.best[choice] = max(tree.best[choice], reward)

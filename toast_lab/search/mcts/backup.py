"""Third step of a batch: write its results into tree and trace, in order.  See ``tree``."""

from __future__ import annotations

import numpy as np

from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.search.mcts.rollout import Pricing, reward_of, score_of
from toast_lab.search.mcts.tree import (
    BEST,
    ELITES,
    KEEP,
    PASSED,
    PRICED,
    SIMULATIONS,
    WORDS,
    Jobs,
    Rows,
    Settings,
    Tree,
    nonzero,
    slot,
)


@helper
def _remember(t: Tree, key: np.uint64, price: np.ndarray) -> None:
    """Keep the price of a state, if it is not there."""
    at = slot(t.price_key, nonzero(key))
    if t.price_key[at] == 0:
        t.price_key[at] = nonzero(key)
        t.price[at, 0], t.price[at, 1] = price[0], price[1]
        t.number[PRICED] += 1


@helper
def _promote(t: Tree, key: np.uint64, reward: float, actions: np.ndarray) -> None:
    """Keep a state among the best distinct ones."""
    n = t.number[ELITES]
    if n == KEEP and reward <= t.elite_reward[n - 1]:
        return
    for e in range(n):
        if t.elite_key[e] == key:
            if reward <= t.elite_reward[e]:
                return
            for k in range(
                e, n - 1
            ):  # found again by a shorter way: take it out and put it in anew
                copy_row(t.elite[k], t.elite[k + 1])
                t.elite_length[k] = t.elite_length[k + 1]
                t.elite_key[k], t.elite_reward[k] = t.elite_key[k + 1], t.elite_reward[k + 1]
            n -= 1
            break
    n = min(n + 1, KEEP)
    at = n - 1
    while at > 0 and t.elite_reward[at - 1] < reward:
        copy_row(t.elite[at], t.elite[at - 1])
        t.elite_length[at] = t.elite_length[at - 1]
        t.elite_key[at], t.elite_reward[at] = t.elite_key[at - 1], t.elite_reward[at - 1]
        at -= 1
    copy_row(t.elite[at], actions)
    t.elite_length[at], t.elite_key[at], t.elite_reward[at] = actions.shape[0], key, reward
    t.number[ELITES] = n


@helper
def _write(
    t: Tree, p: Pricing, rows: Rows, jobs: Jobs, j: int, price: np.ndarray, length: int, round_: int
) -> None:
    """Add a simulation to the trace."""
    i = t.number[SIMULATIONS]
    rows.round[i] = round_
    rows.time_s[i], rows.peak_bytes[i] = price[0], price[1]
    rows.score[i], rows.fits[i] = score_of(p, price[0], price[1]), price[1] <= p.limit_bytes
    for k in range(length):
        rows.word[t.number[WORDS]] = jobs.actions[j, k]
        t.number[WORDS] += 1
    for k in range(jobs.length[j] + 1):
        rows.node[t.number[PASSED]] = jobs.passed[j, k]
        t.number[PASSED] += 1
    rows.action_end[i], rows.node_end[i] = t.number[WORDS], t.number[PASSED]
    # A plan that fits before any that does not, then the lower score, then fewer actions.
    best = t.number[BEST]
    better = rows.fits[i] and not rows.fits[best]
    if rows.fits[i] == rows.fits[best]:
        n_best = rows.action_end[best] - (rows.action_end[best - 1] if best else 0)
        better = rows.score[i] < rows.score[best] or (
            rows.score[i] == rows.score[best] and length < n_best
        )
    if better:
        t.number[BEST] = i
    rows.best[i] = t.number[BEST]
    t.number[SIMULATIONS] += 1


@compiled
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
            far_reward = reward_of(p, s, jobs.far[j, 0], jobs.far[j, 1], far)
            _promote(t, jobs.key[j, 0], far_reward, jobs.actions[j, :far])
            _write(t, p, rows, jobs, j, jobs.far[j], far, round_)
            for k in range(far):
                t.seen[jobs.actions[j, k], 0] += 1
                t.seen[jobs.actions[j, k], 1] += far_reward
            reward = max(reward, far_reward)
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

"""Second step of a batch: price new nodes, roll out, price the ends.  See ``tree``.

Reference: TOAST section 4.1.

What the thread reads of the tree does not change meanwhile, and each trajectory has rows of its own
to write to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from toast_lab.cost import reprice
from toast_lab.cost.facts import Facts, Memory
from toast_lab.cost.kernel import Rates
from toast_lab.cost.reprice import Scratch, Snapshot
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Array, Int64Array, packed
from toast_lab.search.mcts.tree import (
    ELITES,
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
from toast_lab.sharding.steps import Tables

OVER_LIMIT = (
    0.5  #: reward lost by a state that does not fit, besides the penalty that C(s) has for it
)


@packed
class Pricing(NamedTuple):
    """What pricing reads."""

    facts: Facts
    rates: Rates
    tables: Tables
    memory: Memory
    times: Float64Array
    base_time_s: float
    base_peak_bytes: float
    limit_bytes: float
    memory_weight: float
    root: Snapshot  #: of the unsharded program


@packed
class Worker(NamedTuple):
    """Memory that one thread writes in."""

    scratch: Scratch
    near: Snapshot  #: of the node
    far: Snapshot  #: of the end of the rollout


@compiled
def score_of(p: Pricing, time_s: float, peak_bytes: float) -> float:
    """C(s), as ``Pricer.score``."""
    relative = time_s / p.base_time_s if p.base_time_s > 0 else 1.0
    over = peak_bytes - p.limit_bytes
    if over > 0 and p.base_peak_bytes > 0:
        return relative + p.memory_weight * over / p.base_peak_bytes
    return relative


@compiled
def reward_of(p: Pricing, s: Settings, time_s: float, peak_bytes: float, length: int) -> float:
    """-log C(s), less a little for every action and more where the state does not fit."""
    reward = -math.log(max(score_of(p, time_s, peak_bytes), 1e-12)) - s.length_penalty * length
    return reward if peak_bytes <= p.limit_bytes else reward - OVER_LIMIT


@helper
def price_from(
    p: Pricing,
    m: Moves,
    w: Worker,
    ops: np.ndarray,
    values: np.ndarray,
    before: Snapshot,
    after: Snapshot,
    enough_s: float,
) -> tuple[float, float]:
    """(time_s, peak_bytes) of a state that differs little from that of ``before``; fills ``after``.

    Of one that takes more than ``enough_s`` the peak is not worked out, but infinite.
    """
    time_s, peak_bytes, _ = reprice.reprice(
        p.facts,
        p.rates,
        p.tables,
        p.memory,
        p.times,
        ops,
        values,
        m.axis_size,
        enough_s,
        False,
        before,
        after,
        w.scratch,
    )
    return time_s, peak_bytes


@helper
def _draw(t: Tree, rows: np.ndarray, n_axes: int, highest: float, drawn: np.ndarray) -> int:
    """One of the legal rows: those that did well elsewhere more often than others."""
    weight = np.empty(rows.shape[0])
    total = 0.0
    for i in range(rows.shape[0]):
        code = rows[i, 0] * n_axes + rows[i, 1]
        weight[i] = 1.0
        if t.seen[code, 0] > 0:
            weight[i] = 0.1 + 0.9 * math.exp(
                4.0 * min(0.0, t.seen[code, 1] / t.seen[code, 0] - highest)
            )
        total += weight[i]
    at = random(drawn) * total
    for i in range(rows.shape[0]):
        at -= weight[i]
        if at < 0:
            return i
    return rows.shape[0] - 1


@helper
def _take_out(row: Int64Array, at: int, n: int) -> None:
    """Close the gap that the entry ``at`` of the first ``n`` leaves."""
    for i in range(at, n - 1):
        row[i] = row[i + 1]


@helper
def _put_in(row: Int64Array, at: int, n: int, entry: int) -> None:
    """Let the first ``n`` entries make room for one more."""
    for i in range(n, at, -1):
        row[i] = row[i - 1]
    row[at] = entry


@helper
def _vary(t: Tree, m: Moves, s: Settings, jobs: Jobs, j: int) -> int:
    """Take the actions of an elite with a few changes; gives their number.

    Actions are left out, replaced, moved or put in.
    """
    drawn = jobs.random[j]
    n_usable = m.usable.shape[0]
    e = int(t.number[ELITES] * random(drawn) ** 2)  # better ones more often
    n = t.elite_length[e]
    changes = 1
    while changes < 6 and random(drawn) < s.boldness:
        changes += 1
    wanted = np.empty(n + changes, np.int64)
    for i in range(n):
        wanted[i] = t.elite[e, i]
    for _ in range(changes):
        kind = int(4 * random(drawn))
        at = int(n * random(drawn)) if n else 0
        if kind == 0 and n > 0:
            _take_out(wanted, at, n)
            n -= 1
        elif kind == 1 and n > 0:
            wanted[at] = m.usable[int(n_usable * random(drawn))]
        elif kind == 2 and n > 1:
            to = int(n * random(drawn))
            code = wanted[at]
            _take_out(wanted, at, n)
            _put_in(wanted, to, n - 1, code)
        else:
            to = int((n + 1) * random(drawn))
            _put_in(wanted, to, n, m.usable[int(n_usable * random(drawn))])
            n += 1
    length = 0
    for i in range(n):
        if length == s.depth:
            break
        if apply(m, jobs.ops[j], jobs.values[j], jobs.key[j], wanted[i]):
            jobs.actions[j, length] = wanted[i]
            length += 1
    return length


@compiled
def evaluate(
    t: Tree, m: Moves, p: Pricing, s: Settings, jobs: Jobs, w: Worker, begin: int, end: int
) -> None:
    """Price new nodes of trajectories ``begin`` to ``end``, roll out and price the ends.

    The tree is only read.
    """
    highest = level(t)
    n_axes = m.axis_size.shape[0]
    for j in range(begin, end):
        ops, values, key = jobs.ops[j], jobs.values[j], jobs.key[j]
        priced_here = False
        if jobs.new[j]:
            at = slot(t.price_key, nonzero(key[0]))
            jobs.near_fresh[j] = t.price_key[at] == 0
            if jobs.near_fresh[j]:
                jobs.near[j, 0], jobs.near[j, 1] = price_from(
                    p, m, w, ops, values, p.root, w.near, math.inf
                )
                priced_here = True
            else:
                jobs.near[j, 0], jobs.near[j, 1] = t.price[at, 0], t.price[at, 1]
        length = jobs.length[j]
        if jobs.varies[j]:
            length = _vary(t, m, s, jobs, j)
        else:
            more = 1 + int(math.log(max(random(jobs.random[j]), 1e-12)) / math.log(0.65))
            while more > 0 and length < s.depth:
                rows = legal(m, ops, values)
                if rows.shape[0] == 0:
                    break
                i = _draw(t, rows, n_axes, highest, jobs.random[j])
                code = rows[i, 0] * n_axes + rows[i, 1]
                apply(m, ops, values, key, code)
                jobs.actions[j, length] = code
                length += 1
                more -= 1
        jobs.far_length[j] = length
        jobs.far_fresh[j] = False
        if length > jobs.length[j]:
            at = slot(t.price_key, nonzero(key[0]))
            jobs.far_fresh[j] = t.price_key[at] == 0
            if jobs.far_fresh[j]:
                if priced_here:
                    jobs.far[j, 0], jobs.far[j, 1] = price_from(
                        p, m, w, ops, values, w.near, w.far, math.inf
                    )
                else:
                    jobs.far[j, 0], jobs.far[j, 1] = price_from(
                        p, m, w, ops, values, p.root, w.far, math.inf
                    )
            else:
                jobs.far[j, 0], jobs.far[j, 1] = t.price[at, 0], t.price[at, 1]

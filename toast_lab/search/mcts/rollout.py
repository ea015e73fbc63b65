"""Second step of a batch: price new nodes, roll out, price the ends. See ``tree``.

Threads share the trajectories: the tree does not change while they read it, and each trajectory
writes only to rows of its own.

Reference: TOAST section 4.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from toast_lab.cost import reprice
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.reprice import PricingScratch, Snapshot
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Int64Array, UInt64Array, packed
from toast_lab.search.mcts.tree import (
    ELITES,
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
from toast_lab.sharding.state import legal_pairs

#: reward lost by a state that does not fit, on top of its penalty in C(s)
OVER_LIMIT_PENALTY = 0.5
TWO_ACTION_SHARE = 0.5  # share of the exchanges of mesh axes that involve only two actions, not all


@packed
class Pricing(NamedTuple):
    """The inputs of pricing."""

    inputs: PriceInputs
    base_time_s: float
    base_peak_bytes: float
    limit_bytes: float
    memory_weight: float
    root: Snapshot  #: the priced unsharded program


@packed
class RolloutScratch(NamedTuple):
    """The working memory of one thread."""

    scratch: PricingScratch
    near: Snapshot  #: the priced node
    far: Snapshot  #: the priced end of the rollout


@compiled
def score_of(pricing: Pricing, time_s: float, peak_bytes: float) -> float:
    """C(s), the same as ``Pricer.score``."""
    relative = time_s / pricing.base_time_s if pricing.base_time_s > 0 else 1.0
    excess_bytes = peak_bytes - pricing.limit_bytes
    if excess_bytes > 0 and pricing.base_peak_bytes > 0:
        return relative + pricing.memory_weight * excess_bytes / pricing.base_peak_bytes
    return relative


@compiled
def reward_of(
    pricing: Pricing, settings: SteeringSettings, time_s: float, peak_bytes: float, length: int
) -> float:
    """-log C(s) less ``length_penalty`` per action, ``OVER_LIMIT_PENALTY`` if it does not fit."""
    reward = (
        -math.log(max(score_of(pricing, time_s, peak_bytes), 1e-12))
        - settings.length_penalty * length
    )
    return reward if peak_bytes <= pricing.limit_bytes else reward - OVER_LIMIT_PENALTY


@helper
def price_from(
    pricing: Pricing,
    worker: RolloutScratch,
    ops: np.ndarray,
    values: np.ndarray,
    before: Snapshot,
    after: Snapshot,
    enough_s: float,
) -> tuple[float, float]:
    """(time_s, peak_bytes) of a state that differs little from that of ``before``; fills ``after``.

    If the state takes longer than ``enough_s``, the peak is not computed but given as infinite.
    """
    time_s, peak_bytes, _ = reprice.reprice(
        pricing.inputs,
        ops,
        values,
        enough_s,
        False,
        before,
        after,
        worker.scratch,
    )
    return time_s, peak_bytes


@helper
def _draw(tree: Tree, rows: np.ndarray, n_axes: int, highest: float, drawn: np.ndarray) -> int:
    """Draw one of the legal rows; actions with higher mean rewards in the tree are likelier."""
    weight = np.empty(rows.shape[0])
    total = 0.0
    for row in range(rows.shape[0]):
        code = rows[row, 0] * n_axes + rows[row, 1]
        weight[row] = 1.0
        if tree.seen[code, 0] > 0:
            weight[row] = 0.1 + 0.9 * math.exp(
                4.0 * min(0.0, tree.seen[code, 1] / tree.seen[code, 0] - highest)
            )
        total += weight[row]
    remaining = random(drawn) * total
    for row in range(rows.shape[0]):
        remaining -= weight[row]
        if remaining < 0:
            return row
    return rows.shape[0] - 1


@helper
def _remove(entries: Int64Array, at: int, count: int) -> None:
    """Remove the entry ``at`` of the first ``count`` entries; later ones move up."""
    for index in range(at, count - 1):
        entries[index] = entries[index + 1]


@helper
def _insert(entries: Int64Array, at: int, count: int, entry: int) -> None:
    """Insert an entry at ``at`` of the first ``count`` entries; later ones move down."""
    for index in range(count, at, -1):
        entries[index] = entries[index - 1]
    entries[at] = entry


@helper
def _on_axis(settings: SteeringSettings, code: int, axis: int, n_axes: int) -> int:
    """The action's move on another mesh axis, or the action itself if it is not usable there."""
    other = code - code % n_axes + axis
    for usable in settings.usable:
        if usable == other:
            return other
    return code


@compiled
def exchange_axes(
    settings: SteeringSettings, drawn: UInt64Array, wanted: Int64Array, count: int, n_axes: int
) -> None:
    """Exchange two mesh axes, in all actions or in only two of them.

    The axes decide which colours are split many ways and which few, and over which links. A plan
    with two axes the wrong way round is as many single changes away from the right one as can be.
    """
    axis_a = int(n_axes * random(drawn))
    axis_b = (axis_a + 1 + int((n_axes - 1) * random(drawn))) % n_axes
    first, second = -1, -1
    if random(drawn) < TWO_ACTION_SHARE:
        first, second = int(count * random(drawn)), int(count * random(drawn))
        axis_a, axis_b = wanted[first] % n_axes, wanted[second] % n_axes
    for step in range(count):
        if first < 0 or step == first or step == second:
            axis = wanted[step] % n_axes
            if axis == axis_a:
                wanted[step] = _on_axis(settings, wanted[step], axis_b, n_axes)
            elif axis == axis_b:
                wanted[step] = _on_axis(settings, wanted[step], axis_a, n_axes)


@helper
def _vary(tree: Tree, moves: Moves, settings: SteeringSettings, jobs: Jobs, job: int) -> int:
    """Take the actions of an elite with a few changes; gives the number of actions taken.

    A change leaves out, replaces, moves or inserts an action, or exchanges two mesh axes.
    """
    drawn, n_axes = jobs.random[job], moves.axis_size.shape[0]
    n_usable = settings.usable.shape[0]
    elite = int(tree.number[ELITES] * random(drawn) ** 2)  # better ones more often
    count = tree.elite_length[elite]
    changes = 1
    while changes < 6 and random(drawn) < settings.boldness:
        changes += 1
    wanted = np.empty(count + changes, np.int64)
    for step in range(count):
        wanted[step] = tree.elite[elite, step]
    for _ in range(changes):
        kind = int((4 if n_axes == 1 else 5) * random(drawn))
        at = int(count * random(drawn)) if count else 0
        if kind == 0 and count > 0:
            _remove(wanted, at, count)
            count -= 1
        elif kind == 1 and count > 0:
            wanted[at] = settings.usable[int(n_usable * random(drawn))]
        elif kind == 2 and count > 1:
            target = int(count * random(drawn))
            code = wanted[at]
            _remove(wanted, at, count)
            _insert(wanted, target, count - 1, code)
        elif kind == 4 and count > 0:
            exchange_axes(settings, drawn, wanted, count, n_axes)
        else:
            target = int((count + 1) * random(drawn))
            _insert(wanted, target, count, settings.usable[int(n_usable * random(drawn))])
            count += 1
    length = 0
    for step in range(count):
        if length == settings.depth:
            break
        if apply(moves, jobs.ops[job], jobs.values[job], jobs.key[job], wanted[step]):
            jobs.actions[job, length] = wanted[step]
            length += 1
    return length


@compiled
def evaluate(
    tree: Tree,
    moves: Moves,
    pricing: Pricing,
    settings: SteeringSettings,
    jobs: Jobs,
    worker: RolloutScratch,
    begin: int,
    end: int,
) -> None:
    """Price the new nodes of trajectories ``begin`` to ``end``, roll out and price the ends.

    The tree is only read.
    """
    highest = level(tree)
    n_axes = moves.axis_size.shape[0]
    for job in range(begin, end):
        ops, values, key = jobs.ops[job], jobs.values[job], jobs.key[job]
        before = pricing.root
        if jobs.node_is_new[job]:
            position = slot(tree.price_key, nonzero(key[0]))
            jobs.node_price_is_new[job] = tree.price_key[position] == 0
            if jobs.node_price_is_new[job]:
                jobs.node_price[job, 0], jobs.node_price[job, 1] = price_from(
                    pricing, worker, ops, values, pricing.root, worker.near, math.inf
                )
                before = worker.near
            else:
                jobs.node_price[job, 0], jobs.node_price[job, 1] = (
                    tree.price[position, 0],
                    tree.price[position, 1],
                )
        length = jobs.length[job]
        if jobs.varies[job]:
            length = _vary(tree, moves, settings, jobs, job)
        else:
            steps_left = 1 + int(math.log(max(random(jobs.random[job]), 1e-12)) / math.log(0.65))
            while steps_left > 0 and length < settings.depth:
                rows = legal_pairs(moves, ops, values, settings.min_names)
                if rows.shape[0] == 0:
                    break
                row = _draw(tree, rows, n_axes, highest, jobs.random[job])
                code = rows[row, 0] * n_axes + rows[row, 1]
                apply(moves, ops, values, key, code)
                jobs.actions[job, length] = code
                length += 1
                steps_left -= 1
        jobs.end_length[job] = length
        jobs.end_price_is_new[job] = False
        if length > jobs.length[job]:
            position = slot(tree.price_key, nonzero(key[0]))
            jobs.end_price_is_new[job] = tree.price_key[position] == 0
            if jobs.end_price_is_new[job]:
                jobs.end_price[job, 0], jobs.end_price[job, 1] = price_from(
                    pricing, worker, ops, values, before, worker.far, math.inf
                )
            else:
                jobs.end_price[job, 0], jobs.end_price[job, 1] = (
                    tree.price[position, 0],
                    tree.price[position, 1],
                )

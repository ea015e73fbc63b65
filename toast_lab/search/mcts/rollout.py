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

#: reward lost by a state that does not fit, besides the penalty that C(s) has for it
OVER_LIMIT = 0.5
IN_TWO = 0.5  # share of the exchanges of mesh axes that change two actions, not all


@packed
class Pricing(NamedTuple):
    """What pricing reads."""

    inputs: PriceInputs
    base_time_s: float
    base_peak_bytes: float
    limit_bytes: float
    memory_weight: float
    root: Snapshot  #: of the unsharded program


@packed
class RolloutScratch(NamedTuple):
    """Memory that one thread writes in."""

    scratch: PricingScratch
    near: Snapshot  #: of the node
    far: Snapshot  #: of the end of the rollout


@compiled
def score_of(pricing: Pricing, time_s: float, peak_bytes: float) -> float:
    """C(s), as ``Pricer.score``."""
    relative = time_s / pricing.base_time_s if pricing.base_time_s > 0 else 1.0
    over = peak_bytes - pricing.limit_bytes
    if over > 0 and pricing.base_peak_bytes > 0:
        return relative + pricing.memory_weight * over / pricing.base_peak_bytes
    return relative


@compiled
def reward_of(
    pricing: Pricing, settings: SteeringSettings, time_s: float, peak_bytes: float, length: int
) -> float:
    """-log C(s), less a little for every action and more where the state does not fit."""
    reward = (
        -math.log(max(score_of(pricing, time_s, peak_bytes), 1e-12))
        - settings.length_penalty * length
    )
    return reward if peak_bytes <= pricing.limit_bytes else reward - OVER_LIMIT


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

    Of one that takes more than ``enough_s`` the peak is not worked out, but infinite.
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
    """One of the legal rows: those that did well elsewhere more often than others."""
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
    at = random(drawn) * total
    for row in range(rows.shape[0]):
        at -= weight[row]
        if at < 0:
            return row
    return rows.shape[0] - 1


@helper
def _take_out(row: Int64Array, at: int, count: int) -> None:
    """Close the gap that the entry ``at`` of the first ``count`` leaves."""
    for place in range(at, count - 1):
        row[place] = row[place + 1]


@helper
def _put_in(row: Int64Array, at: int, count: int, entry: int) -> None:
    """Let the first ``count`` entries make room for one more."""
    for place in range(count, at, -1):
        row[place] = row[place - 1]
    row[at] = entry


@helper
def _on_axis(settings: SteeringSettings, code: int, axis: int, n_axes: int) -> int:
    """An action on another mesh axis, or the same one where it is of no use there."""
    other = code - code % n_axes + axis
    for usable in settings.usable:
        if usable == other:
            return other
    return code


@compiled
def exchange_axes(
    settings: SteeringSettings, drawn: UInt64Array, wanted: Int64Array, count: int, n_axes: int
) -> None:
    """Let two mesh axes change places: in all actions, or in two.

    What is split far and what little, and over which links: a plan that has it the wrong way round
    is as far as can be from the right one in changes of single actions.
    """
    one = int(n_axes * random(drawn))
    other = (one + 1 + int((n_axes - 1) * random(drawn))) % n_axes
    first, second = -1, -1
    if random(drawn) < IN_TWO:
        first, second = int(count * random(drawn)), int(count * random(drawn))
        one, other = wanted[first] % n_axes, wanted[second] % n_axes
    for place in range(count):
        if first < 0 or place == first or place == second:
            axis = wanted[place] % n_axes
            if axis == one:
                wanted[place] = _on_axis(settings, wanted[place], other, n_axes)
            elif axis == other:
                wanted[place] = _on_axis(settings, wanted[place], one, n_axes)


@helper
def _vary(tree: Tree, moves: Moves, settings: SteeringSettings, jobs: Jobs, job: int) -> int:
    """Take the actions of an elite with a few changes; gives their number.

    Actions are left out, replaced, moved or put in, or mesh axes change places.
    """
    drawn, n_axes = jobs.random[job], moves.axis_size.shape[0]
    n_usable = settings.usable.shape[0]
    elite = int(tree.number[ELITES] * random(drawn) ** 2)  # better ones more often
    count = tree.elite_length[elite]
    changes = 1
    while changes < 6 and random(drawn) < settings.boldness:
        changes += 1
    wanted = np.empty(count + changes, np.int64)
    for place in range(count):
        wanted[place] = tree.elite[elite, place]
    for _ in range(changes):
        kind = int((4 if n_axes == 1 else 5) * random(drawn))
        at = int(count * random(drawn)) if count else 0
        if kind == 0 and count > 0:
            _take_out(wanted, at, count)
            count -= 1
        elif kind == 1 and count > 0:
            wanted[at] = settings.usable[int(n_usable * random(drawn))]
        elif kind == 2 and count > 1:
            target = int(count * random(drawn))
            code = wanted[at]
            _take_out(wanted, at, count)
            _put_in(wanted, target, count - 1, code)
        elif kind == 4 and count > 0:
            exchange_axes(settings, drawn, wanted, count, n_axes)
        else:
            target = int((count + 1) * random(drawn))
            _put_in(wanted, target, count, settings.usable[int(n_usable * random(drawn))])
            count += 1
    length = 0
    for place in range(count):
        if length == settings.depth:
            break
        if apply(moves, jobs.ops[job], jobs.values[job], jobs.key[job], wanted[place]):
            jobs.actions[job, length] = wanted[place]
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
    """Price new nodes of trajectories ``begin`` to ``end``, roll out and price the ends.

    The tree is only read.
    """
    highest = level(tree)
    n_axes = moves.axis_size.shape[0]
    for job in range(begin, end):
        ops, values, key = jobs.ops[job], jobs.values[job], jobs.key[job]
        before = pricing.root
        if jobs.new[job]:
            place = slot(tree.price_key, nonzero(key[0]))
            jobs.near_fresh[job] = tree.price_key[place] == 0
            if jobs.near_fresh[job]:
                jobs.near[job, 0], jobs.near[job, 1] = price_from(
                    pricing, worker, ops, values, pricing.root, worker.near, math.inf
                )
                before = worker.near
            else:
                jobs.near[job, 0], jobs.near[job, 1] = tree.price[place, 0], tree.price[place, 1]
        length = jobs.length[job]
        if jobs.varies[job]:
            length = _vary(tree, moves, settings, jobs, job)
        else:
            left = 1 + int(math.log(max(random(jobs.random[job]), 1e-12)) / math.log(0.65))
            while left > 0 and length < settings.depth:
                rows = legal_pairs(moves, ops, values, settings.min_names)
                if rows.shape[0] == 0:
                    break
                row = _draw(tree, rows, n_axes, highest, jobs.random[job])
                code = rows[row, 0] * n_axes + rows[row, 1]
                apply(moves, ops, values, key, code)
                jobs.actions[job, length] = code
                length += 1
                left -= 1
        jobs.far_length[job] = length
        jobs.far_fresh[job] = False
        if length > jobs.length[job]:
            place = slot(tree.price_key, nonzero(key[0]))
            jobs.far_fresh[job] = tree.price_key[place] == 0
            if jobs.far_fresh[job]:
                jobs.far[job, 0], jobs.far[job, 1] = price_from(
                    pricing, worker, ops, values, before, worker.far, math.inf
                )
            else:
                jobs.far[job, 0], jobs.far[job, 1] = tree.price[place, 0], tree.price[place, 1]

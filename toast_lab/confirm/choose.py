"""A few good plans that differ, out of what a search has seen."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from toast_lab.search.contract import SearchResult
from toast_lab.search.simplify import FrontRow, simplest
from toast_lab.sharding.plan import PlanT

#: how much worse than the best, by the price, a plan may be that is worth judging
WORTH_JUDGING = 0.15


def different_plans(
    result: SearchResult[PlanT], judged: Collection[int], most: int
) -> list[FrontRow[PlanT]]:
    """Plans of a search that should be judged next, the most wanted first.

    The best one comes first and the simplest that is nearly as good second; then, again and again,
    the one that differs most from all that were chosen or judged, so that each tells something new.

    Args:
        result: of a search.
        judged: keys of shardings that were judged already.
        most: how many plans are wanted.
    """
    rows = result.front.rows
    best = rows[0]
    worth = [
        row
        for row in rows
        if row.quick.score <= best.quick.score * (1 + WORTH_JUDGING)
        and (row.quick.fits or not best.quick.fits)
    ]
    preferred = [best, simplest(rows, 0.02)]
    known = [row for row in worth if row.plan.sharding.key() in judged]
    chosen: list[FrontRow[PlanT]] = []
    keys = set(judged)
    while len(chosen) < most:
        left = [row for row in worth if row.plan.sharding.key() not in keys]
        if not left:
            break
        wanted = next((row for row in preferred if row.plan.sharding.key() not in keys), None)
        if wanted is None:
            wanted = max(left, key=lambda row: _distance(row, [*known, *chosen]))
        chosen.append(wanted)
        keys.add(wanted.plan.sharding.key())
    return chosen


def _distance(row: FrontRow[PlanT], others: Sequence[FrontRow[PlanT]]) -> float:
    """Share of ops that are split otherwise than in the nearest of the others."""
    own = row.plan.op_factor
    return min(
        (float((own != other.plan.op_factor).any(axis=1).mean()) for other in others),
        default=float(np.inf),
    )

"""A few good plans that differ, out of what a search has seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Problem
from toast_lab.search.simplify import FrontRow, PlanFront, simplest
from toast_lab.sharding.plan import PlanT

#: how much worse than the best, by the price, a plan may be that is worth judging
WORTH_JUDGING = 0.15
#: ... and a usual plan: about what prices are wrong by at worst
USUAL_WORTH_JUDGING = 2.0
#: plans of earlier searches that are kept in mind, which bounds the work of pricing them again
MOST_KNOWN = 200


def known_plans(
    problem: Problem, known: Sequence[FrontRow[PlanT]], front: PlanFront[PlanT]
) -> list[FrontRow[PlanT]]:
    """Plans of all searches so far, each once, by the prices of ``problem``, the best first.

    Args:
        problem: with the prices of now.
        known: of earlier searches, by whatever prices.
        front: of the last one.
    """
    rows = {row.plan.sharding.key(): row for row in [*known, *front.rows]}
    pricer = problem.pricer()
    priced = []
    for row in rows.values():
        totals = pricer.totals(row.plan.op_factor, row.plan.value_dim)
        quick = pricer.judged(totals.time_s, totals.peak_bytes)
        priced.append(row._replace(quick=quick))
    return sorted(priced, key=_rank)[:MOST_KNOWN]


def different_plans(
    rows: Sequence[FrontRow[PlanT]], judged: Collection[int], most: int
) -> list[FrontRow[PlanT]]:
    """Plans that should be judged next, the most wanted first.

    The best one comes first and the simplest that is nearly as good second; then, again and again,
    the one that differs most from all that were chosen or judged, so that each tells something new.

    Args:
        rows: known plans, see ``known_plans``.
        judged: keys of shardings that were judged already.
        most: how many plans are wanted.
    """
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


def named_plans_worth(
    problem: Problem,
    named: Mapping[str, PlanT],
    rows: Sequence[FrontRow[PlanT]],
    judged: Collection[int],
    most: float,
) -> list[tuple[PlanT, str]]:
    """Those plans that should be judged too, each with its name, the cheapest first.

    Args:
        problem: with the prices of now.
        named: plans by name.
        rows: known plans, the best first.
        judged: keys of shardings that are judged anyway.
        most: by which share they may be worse than the best, by the price.
    """
    best, pricer = rows[0].quick, problem.pricer()
    worth: dict[int, tuple[float, PlanT, str]] = {}
    for name, plan in named.items():
        totals = pricer.totals(plan.op_factor, plan.value_dim)
        quick = pricer.judged(totals.time_s, totals.peak_bytes)
        key = plan.sharding.key()
        is_near = quick.score <= best.score * (1 + most)
        if is_near and (quick.fits or not best.fits) and key not in judged:
            worth.setdefault(key, (quick.score, plan, name))
    return [(plan, name) for _, plan, name in sorted(worth.values(), key=lambda item: item[0])]


def simple_row(
    rows: Sequence[FrontRow[PlanT]],
    verdicts: Sequence[Verdict[PlanT]],
    best: Verdict[PlanT],
    *,
    within: float,
    confirmed: bool,
) -> FrontRow[PlanT]:
    """The smallest plan that is at most ``within`` (a share) worse than the best that was judged.

    A judged plan is compared by the clock.  One that is only priced is compared by the price, and
    only where the price of the best one was confirmed: a price that the clock refuted says nothing
    of others.

    Args:
        rows: plans with their size, the best one among them.
        verdicts: all of them.
        best: the best one of these.
        within: how much worse, as a share.
        confirmed: is the best one confirmed?
    """
    verdict_of = {verdict.plan.sharding.key(): verdict for verdict in verdicts}
    best_key = best.plan.sharding.key()
    own = next(row for row in rows if row.plan.sharding.key() == best_key)

    def is_nearly_as_good(row: FrontRow[PlanT]) -> bool:
        verdict = verdict_of.get(row.plan.sharding.key())
        if verdict is None:
            bound = own.quick.score * (1.0 + within)
            return confirmed and row.quick.fits and row.quick.score <= bound
        if verdict.time_s is None or best.time_s is None:
            return False
        return verdict.stands and verdict.time_s <= best.time_s * (1.0 + within)

    allowed = [own, *filter(is_nearly_as_good, rows)]
    return min(allowed, key=lambda row: (row.size.total, row.quick.score))


def _distance(row: FrontRow[PlanT], others: Sequence[FrontRow[PlanT]]) -> float:
    """Share of ops that are split otherwise than in the nearest of the others."""
    own = row.plan.op_factor
    return min(
        (float((own != other.plan.op_factor).any(axis=1).mean()) for other in others),
        default=float(np.inf),
    )


def _rank(row: FrontRow[PlanT]) -> tuple[bool, float, int]:
    return not row.quick.fits, row.quick.score, row.size.total

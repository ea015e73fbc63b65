"""Choose plans to judge: a few good plans that differ, of those that searches have found."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.search.simplify import FrontRow, PlanFront, simplest
from toast_lab.sharding.plan import PlanT, ShardingPlan, plan_of_specs, unsharded_plan

#: share by which a plan that is worth judging may be priced worse than the best
WORTH_JUDGING = 0.15
#: ... and the share for a usual plan: about the worst error of prices
USUAL_WORTH_JUDGING = 2.0
#: most usual plans that are judged, since each takes a compile
MOST_USUAL = 4
#: most plans that are kept of all searches, which bounds the work of pricing them again
MOST_KNOWN = 200


class RefusedKind(NamedTuple):
    """Plans that split all of some names, where every such plan was refused for one reason."""

    names: np.ndarray
    reason: str  #: the first such plan's
    plans: int  #: how many were judged

    def has(self, plan: ShardingPlan) -> bool:
        """Is the plan of this kind?"""
        return bool(np.isin(self.names, _split_names(plan)).all())

    def text(self, plan: ShardingPlan) -> str:
        """The kind in a sentence, with the names of colours; ``plan`` is any of the program."""
        split, analysis = "the same dims", plan.analysis
        if analysis is not None:
            groups = np.unique(analysis.group[analysis.colour[self.names]])
            split = " and ".join(analysis.group_name[group] for group in groups.tolist())
        return (
            f"left out: plans that split {split}; all {self.plans} of them that were judged do not "
            f"compile: {self.reason}"
        )


def refused_kinds(verdicts: Sequence[Verdict[Any]]) -> list[RefusedKind]:
    """Kinds of plans that the compiler refuses, by the plans that it refused and took so far.

    A kind is all plans that split at least the names that are split, on whatever axes, by every
    plan refused for the same reason, if these are two or more, unless the compiler took one.
    """
    by_reason: dict[str, list[Verdict[Any]]] = {}
    for verdict in verdicts:
        if verdict.judgement.refused:
            reason = re.sub(r"\d+", "", verdict.judgement.failure)
            by_reason.setdefault(reason, []).append(verdict)
    kinds = []
    for refused in by_reason.values():
        names = _split_names(refused[0].plan)
        for verdict in refused[1:]:
            names = np.intersect1d(names, _split_names(verdict.plan), assume_unique=True)
        kind = RefusedKind(names, refused[0].judgement.failure, len(refused))
        taken = (verdict.plan for verdict in verdicts if not verdict.judgement.failure)
        if len(refused) > 1 and names.size and not any(map(kind.has, taken)):
            kinds.append(kind)
    return kinds


def _split_names(plan: ShardingPlan) -> np.ndarray:
    return np.unique(plan.op_factor[plan.op_factor >= 0])


def plans_without_search(
    problem: Problem, rows: Sequence[FrontRow[Any]], usual: Mapping[str, Any]
) -> dict[str, ShardingPlan]:
    """Plans that need no search, by name: those to fall back to if no plan found compiles.

    They are the usual plans, what the argument shardings of the best known plan alone make of the
    program, and the unsharded plan; those that break a pin are left out.

    Args:
        problem: the problem that is searched.
        rows: known plans, the best first.
        usual: usual plans by name.
    """
    plans: dict[str, ShardingPlan] = dict(usual)
    if rows:
        specs = {path: spec for path, spec in rows[0].plan.argument_specs().items() if any(spec)}
        with contextlib.suppress(InvalidPlan):
            plans["argument shardings"] = plan_of_specs(problem.space, specs)
    plans["unsharded"] = unsharded_plan(problem.analysis, problem.mesh)
    pins = problem.pins
    return {
        name: plan
        for name, plan in plans.items()
        if pins is None or not pins.broken(*plan.sharding)
    }


def known_plans(
    problem: Problem, known: Sequence[FrontRow[PlanT]], front: PlanFront[PlanT]
) -> list[FrontRow[PlanT]]:
    """Plans of all searches so far, each once, by the prices of ``problem``, the best first.

    Args:
        problem: with the current prices.
        known: plans of earlier searches, by earlier prices.
        front: of the last search.
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
    """The plans to judge next, in order of preference.

    The best plan comes first, then the simplest that is nearly as good, then repeatedly the plan
    that differs most from all chosen or judged ones, so that each verdict teaches something new.

    Args:
        rows: known plans, see ``known_plans``.
        judged: keys of shardings that were judged already.
        most: largest number of plans to choose.
    """
    best = rows[0]
    worth_judging = [
        row
        for row in rows
        if row.quick.score <= best.quick.score * (1 + WORTH_JUDGING)
        and (row.quick.fits or not best.quick.fits)
    ]
    preferred = [best, simplest(rows, 0.02)]
    judged_rows = [row for row in worth_judging if row.plan.sharding.key() in judged]
    chosen: list[FrontRow[PlanT]] = []
    keys = set(judged)
    while len(chosen) < most:
        unjudged = [row for row in worth_judging if row.plan.sharding.key() not in keys]
        if not unjudged:
            break
        next_row = next((row for row in preferred if row.plan.sharding.key() not in keys), None)
        if next_row is None:
            next_row = max(unjudged, key=lambda row: _distance(row, [*judged_rows, *chosen]))
        chosen.append(next_row)
        keys.add(next_row.plan.sharding.key())
    return chosen


def named_plans_worth(
    problem: Problem,
    named: Mapping[str, PlanT],
    rows: Sequence[FrontRow[PlanT]],
    judged: Collection[int],
    most: float,
) -> list[tuple[PlanT, str]]:
    """The plans among ``named`` that are worth judging, each with its name, the cheapest first.

    Args:
        problem: with the current prices.
        named: plans by name.
        rows: known plans, the best first.
        judged: keys of shardings that are judged anyway.
        most: share by which they may be priced worse than the best.
    """
    best, pricer = rows[0].quick, problem.pricer()
    worth_judging: dict[int, tuple[float, PlanT, str]] = {}
    for name, plan in named.items():
        totals = pricer.totals(plan.op_factor, plan.value_dim)
        quick = pricer.judged(totals.time_s, totals.peak_bytes)
        key = plan.sharding.key()
        is_near = quick.score <= best.score * (1 + most)
        if is_near and (quick.fits or not best.fits) and key not in judged:
            worth_judging.setdefault(key, (quick.score, plan, name))
    return [
        (plan, name)
        for _, plan, name in sorted(
            worth_judging.values(), key=lambda score_and_plan: score_and_plan[0]
        )
    ]


def simple_row(
    rows: Sequence[FrontRow[PlanT]],
    verdicts: Sequence[Verdict[PlanT]],
    best: Verdict[PlanT],
    *,
    within: float,
    confirmed: bool,
) -> FrontRow[PlanT]:
    """The smallest plan that is at most ``within`` (a share) worse than the best judged plan.

    Judged plans are compared by the clock. Plans that are only priced are compared by the price,
    and only if the best plan is confirmed: a price that the clock refuted says nothing about other
    plans.

    Args:
        rows: plans with their sizes, the best plan among them.
        verdicts: all verdicts.
        best: the best of these.
        within: share by which the plan may be worse.
        confirmed: is the best plan confirmed?
    """
    verdict_of = {verdict.plan.sharding.key(): verdict for verdict in verdicts}
    best_key = best.plan.sharding.key()
    best_row = next(row for row in rows if row.plan.sharding.key() == best_key)

    def is_nearly_as_good(row: FrontRow[PlanT]) -> bool:
        verdict = verdict_of.get(row.plan.sharding.key())
        if verdict is None:
            bound = best_row.quick.score * (1.0 + within)
            is_refused = any(kind.has(row.plan) for kind in kinds)
            return confirmed and not is_refused and row.quick.fits and row.quick.score <= bound
        if verdict.time_s is None or best.time_s is None:
            return False
        return verdict.stands and verdict.time_s <= best.time_s * (1.0 + within)

    kinds = refused_kinds(verdicts)
    allowed = [best_row, *filter(is_nearly_as_good, rows)]
    return min(allowed, key=lambda row: (row.size.total, row.quick.score))


def _distance(row: FrontRow[PlanT], others: Sequence[FrontRow[PlanT]]) -> float:
    """Share of ops that are split differently than in the nearest of the other plans."""
    op_factor = row.plan.op_factor
    return min(
        (float((op_factor != other.plan.op_factor).any(axis=1).mean()) for other in others),
        default=float(np.inf),
    )


def _rank(row: FrontRow[PlanT]) -> tuple[bool, float, int]:
    return not row.quick.fits, row.quick.score, row.size.total

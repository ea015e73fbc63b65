"""Choose plans to judge: a few good plans that differ, of those that searches have found.

A candidate is a plan that is judged whole, with every op as the plan says, or one that is judged as
written, with its rules and constraints alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

import numpy as np

from toast_lab.confirm.verdict import CandidateKey, Verdict
from toast_lab.cost.problem import Problem, Quick
from toast_lab.errors import InvalidPlan
from toast_lab.search.action_path import of_actions, own_actions, seen_actions
from toast_lab.search.contract import SearchResult
from toast_lab.sharding.plan import (
    PlanT,
    ShardingPlan,
    make_plan,
    pinned_texts,
    plan_of_specs,
    unsharded_plan,
)
from toast_lab.written.written_plan import WrittenPlan

#: share by which a plan that is worth judging may be priced worse than the best
WORTH_JUDGING = 0.15
#: ... and the share for a plan of the floor, or a written one: about the worst error of prices
FLOOR_WORTH_JUDGING = 2.0
#: a plan of the floor is not judged if by its price it needs so many times the memory limit
FLOOR_MEMORY = 2.0
#: most usual plans that are judged whole, since each takes a compile
MOST_USUAL = 2
#: most plans that are kept of all searches, which bounds the work of pricing them again
MOST_KNOWN = 200


class Candidate(NamedTuple, Generic[PlanT]):
    """A plan that could be judged, with its price."""

    plan: PlanT  # type: ignore[misc]  # a tuple cannot change, so it may be covariant
    quick: Quick
    #: it is judged as written, and ``plan`` is what propagation makes of it; None: whole
    written: WrittenPlan | None = None

    @property
    def key(self) -> CandidateKey:
        """What is judged."""
        return self.plan.sharding.key(), self.written is not None


#: Gives the time in seconds that is expected of a plan, from the plan, its price, and whether it is
#: judged as written.
Correct = Callable[[ShardingPlan, float, bool], float]


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
    problem: Problem, rows: Sequence[Candidate[Any]], usual: Mapping[str, Any]
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


def plans_of_search(result: SearchResult[PlanT]) -> list[PlanT]:
    """Plans that a search found: its plan, the best one, and those of actions in its trace.

    Of the latter, the best of each number of actions.
    """
    problem, to_plan_type = result.problem, type(result.plan).of
    plans = [result.plan, result.refined.plan]
    if problem is None:
        return plans
    own = own_actions(problem, result.refined.plan)
    for actions in (own, *seen_actions(problem, result.trace)):
        taken = of_actions(problem, actions)
        history = (*pinned_texts(problem.space), *taken.actions)
        plan = make_plan(
            problem.analysis,
            problem.mesh,
            taken.sharding,
            history,
            key=taken.sharding.key(),
        )
        plans.append(to_plan_type(plan))
    pins = problem.pins
    return [plan for plan in plans if pins is None or not pins.broken(*plan.sharding)]


def priced_candidates(
    problem: Problem,
    known: Iterable[tuple[Any, WrittenPlan | None]],
    correct: Correct,
) -> list[Candidate[Any]]:
    """Each plan once, by the prices of ``problem``, the best first.

    Args:
        problem: with the current prices.
        known: plans, and how they are written if they are judged so. Of written plans that
            propagation makes the same, the smallest is kept.
        correct: corrects a price by what was judged of similar plans.
    """
    kept: dict[CandidateKey, tuple[Any, WrittenPlan | None]] = {}
    for plan, written in known:
        key = plan.sharding.key(), written is not None
        earlier = kept.get(key)
        if earlier is None or _total(written) < _total(earlier[1]):
            kept[key] = plan, written
    pricer = problem.pricer()
    rows = []
    for plan, written in kept.values():
        totals = pricer.totals(plan.op_factor, plan.value_dim)
        time_s = correct(plan, totals.time_s, written is not None)
        rows.append(Candidate(plan, pricer.judged(time_s, totals.peak_bytes), written))
    rows.sort(key=lambda row: (not row.quick.fits, row.quick.score, _total(row.written)))
    return [row for number, row in enumerate(rows) if row.written or number < MOST_KNOWN]


def different_candidates(
    rows: Sequence[Candidate[PlanT]],
    judged: Collection[CandidateKey],
    most: int,
    preferred: Sequence[Candidate[PlanT]] = (),
) -> list[Candidate[PlanT]]:
    """The plans to judge next, in order of preference.

    The preferred ones come first, then the best, then repeatedly the plan that differs most from
    all chosen or judged ones, so that each verdict teaches something new.

    Args:
        rows: known plans, the best first.
        judged: keys of what was judged already.
        most: largest number of plans to choose.
        preferred: of these rows, whatever their price.
    """
    best = rows[0]
    worth_judging = [
        row
        for row in rows
        if row.quick.score <= best.quick.score * (1 + WORTH_JUDGING)
        and (row.quick.fits or not best.quick.fits)
    ]
    judged_rows = [row for row in rows if row.key in judged]
    chosen: list[Candidate[PlanT]] = []
    for row in (*preferred, best):
        if row.key not in judged and row.key not in {other.key for other in chosen}:
            chosen.append(row)
    while len(chosen) < most:
        keys = {*judged, *(row.key for row in chosen)}
        unjudged = [row for row in worth_judging if row.key not in keys]
        if not unjudged:
            break
        chosen.append(max(unjudged, key=lambda row: _distance(row, [*judged_rows, *chosen])))
    return chosen[:most]


def preferred_written(rows: Sequence[Candidate[PlanT]], within: float) -> list[Candidate[PlanT]]:
    """Written plans to judge before others: the smallest good one, and the best.

    Args:
        rows: known plans, the best first.
        within: share by which a good one may be priced worse than the best plan.
    """
    best = rows[0].quick
    written = [
        row
        for row in rows
        if row.written is not None
        and row.quick.score <= best.score * (1 + FLOOR_WORTH_JUDGING)
        and (row.quick.fits or not best.fits)
    ]
    near = [row for row in written if row.quick.score <= best.score * (1 + within)]
    smallest = sorted(near, key=lambda row: (_total(row.written), row.quick.score))[:1]
    return [*smallest, *written[:1]]


def worth_of_floor(
    problem: Problem, floor: Mapping[str, WrittenPlan]
) -> list[tuple[str, WrittenPlan]]:
    """The plans of the floor that may be good, the cheapest first.

    Those are left out that are priced three times as high as the cheapest of them, or at twice the
    memory limit: more than prices are wrong by.
    """
    priced = []
    pricer = problem.pricer()
    for name, written in floor.items():
        if problem.pins is None or not problem.pins.broken(*written.plan.sharding):
            priced.append((pricer.of_sharding(*written.plan.sharding), name, written))
    limit = FLOOR_MEMORY * problem.memory_limit_bytes
    fitting = [row for row in priced if row[0].peak_bytes <= limit]
    best_s = min((quick.time_s for quick, *_ in fitting), default=0.0)
    near = [row for row in fitting if row[0].time_s <= best_s * (1 + FLOOR_WORTH_JUDGING)]
    near.sort(key=lambda row: (not row[0].fits, row[0].time_s))
    return [(name, written) for _, name, written in near]


def named_plans_worth(
    problem: Problem,
    named: Mapping[str, PlanT],
    rows: Sequence[Candidate[PlanT]],
    judged: Collection[CandidateKey],
) -> list[tuple[PlanT, str]]:
    """The plans among ``named`` that are worth judging, each with its name, the cheapest first.

    Args:
        problem: with the current prices.
        named: plans by name.
        rows: known plans, the best first.
        judged: keys of what is judged anyway.
    """
    best, pricer = rows[0].quick, problem.pricer()
    worth_judging: dict[CandidateKey, tuple[float, PlanT, str]] = {}
    for name, plan in named.items():
        totals = pricer.totals(plan.op_factor, plan.value_dim)
        quick = pricer.judged(totals.time_s, totals.peak_bytes)
        key = plan.sharding.key(), False
        is_near = quick.score <= best.score * (1 + WORTH_JUDGING)
        if is_near and (quick.fits or not best.fits) and key not in judged:
            worth_judging.setdefault(key, (quick.score, plan, name))
    return [
        (plan, name)
        for _, plan, name in sorted(
            worth_judging.values(), key=lambda score_and_plan: score_and_plan[0]
        )
    ]


def _total(written: WrittenPlan | None) -> int:
    return 0 if written is None else written.size.total


def _distance(row: Candidate[PlanT], others: Sequence[Candidate[PlanT]]) -> float:
    """Share of ops that are split differently than in the nearest of the other plans."""
    op_factor = row.plan.op_factor
    return min(
        (float((op_factor != other.plan.op_factor).any(axis=1).mean()) for other in others),
        default=float(np.inf),
    )

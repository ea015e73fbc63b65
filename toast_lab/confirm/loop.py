"""Search, judge, learn, search again, until the judge confirms the best plan.

A search exploits the errors of its prices: a plan that it thinks cheap is often one that is priced
too low. So a judge gets a few good plans that differ, its times for their parts become prices
(``learn``), and the search starts again with these. It ends *confirmed* if, by all verdicts so far
and after a search with the prices learned from them,

* the clock of the best judged plan is within the tolerance of its price;
* no judged plan is better;
* and no plan that was found in any of the searches, and not judged, is priced better by more than
  the judge's own error (``_Rounds.error``).

Otherwise it ends when the budget of compiles is used up or no other plan is worth a compile. In the
first round the judge also gets the plans that everybody would try (data parallel and the like),
unless they are priced far worse, and the best plans of other methods, if they are priced nearly as
good. So the result is no worse than any of these by the clock, and plans unlike the search's own
teach prices that its own plans cannot.

A judge for another machine than the problem's confirms nothing, since its clock says nothing about
the price; it only chooses between plans.

Verdicts last: a plan is compiled once, its result is stored, and a search that is started again
reads it. Plans that fail to compile are dropped, with the reason on record, and so are plans of
their kind (``choose.refused_kinds``). A compile that was killed or took too long says nothing about
its plan: it is tried once more at once, and again if the search is resumed with a longer time
limit. If no plan compiles, the judge gets the plans that need no search, to the unsharded one, so
that the result is a plan that compiles.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toast_lab import checks
from toast_lab.confirm.choose import (
    MOST_USUAL,
    USUAL_WORTH_JUDGING,
    WORTH_JUDGING,
    different_plans,
    known_plans,
    named_plans_worth,
    plans_without_search,
    refused_kinds,
)
from toast_lab.confirm.confirmed_result import ConfirmedResult, Standing, confirmed_result
from toast_lab.confirm.verdict import Judge, JudgeEvent, Verdict
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.files import PathLike
from toast_lab.isolate import Cancelled
from toast_lab.search.contract import SearchResult
from toast_lab.search.limits import Status
from toast_lab.search.simplify import FrontRow

#: Runs one search with the prices of a problem; also receives the number of the round, from 1.
SearchOnce = Callable[[Problem, int], SearchResult[Any]]
#: Gives the problem with prices learned from all verdicts so far; None: they teach none.
Learn = Callable[[Problem, Sequence[Verdict[Any]]], Problem | None]

#: Gives the best plans of methods other than the search's, by method.
Others = Callable[[Problem], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Judging:
    """How plans are judged, for ``search(problem, judge=Judging(...))``.

    Raises:
        InvalidProblem: numbers out of range; all are listed.

    Examples:
        >>> import toast_lab as tl
        >>> tl.Judging("tpu:v5e:2x2", compiles=4).compiles
        4
        >>> tl.Judging("tpu:v5e:2x2", compiles=0)
        Traceback (most recent call last):
            ...
        toast_lab.errors.InvalidProblem: these judging options are wrong:
          compiles must be a whole number from 1, got 0
    """

    topology: str  #: "tpu:v5e:4x4", "gpu:h100:8", or attached devices: "cpu:8", "gpu"
    compiles: int = 12  #: most plans that are judged
    plans: int = 3  #: most plans that are judged in one round
    tolerance: float = 0.1  #: share of the price by which the clock may differ from it
    time_limit_s: float = 600.0  #: for each plan
    store: bool | PathLike = True  #: of compiled results, as ``tl.compile`` takes it
    on_event: Callable[[JudgeEvent], None] | None = None
    resume: ConfirmedResult[Any] | None = None  #: its verdicts hold, with a new budget

    def __post_init__(self) -> None:
        counts = {"compiles": self.compiles, "plans": self.plans}
        offences = [
            f"{name} must be a whole number from 1, got {count!r}"
            for name, count in counts.items()
            if isinstance(count, bool) or not isinstance(count, int) or count < 1
        ]
        for name in ("tolerance", "time_limit_s"):
            if offence := checks.number_offence(getattr(self, name), 0.0, checks.MOST_SECONDS):
                offences.append(f"{name} {offence}")
        if offences:
            raise InvalidProblem("these judging options are wrong:\n" + join_offenders(offences))


def confirmed_search(
    problem: Problem,
    judging: Judging,
    *,
    search_once: SearchOnce,
    judge: Judge,
    learn: Learn,
    usual: Mapping[str, Any] | None = None,
    others: Others | None = None,
    cancel: Callable[[], bool] | None = None,
) -> ConfirmedResult[Any]:
    """Search until a judge confirms the best plan; see the module's docstring.

    Args:
        problem: the problem with its initial prices.
        judging: budget of compiles, tolerance and listener.
        search_once: runs one search.
        judge: judges one plan; raises ``isolate.Cancelled`` if it is cancelled meanwhile.
        learn: learns prices from verdicts.
        usual: plans by name that are judged along with those of the first search.
        others: gives the plans of other methods; called after the first search.
        cancel: polled between steps; True ends the search and keeps its verdicts.
    """
    rounds = _Rounds(
        problem,
        judging,
        search_once,
        judge,
        learn=learn,
        usual=usual or {},
        others=others or (lambda _: {}),
        cancel=cancel,
    )
    return rounds.run()


class _Rounds:
    def __init__(
        self,
        problem: Problem,
        judging: Judging,
        search_once: SearchOnce,
        judge: Judge,
        *,
        learn: Learn,
        usual: Mapping[str, Any],
        others: Others,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.problem, self.judging, self.cancel = problem, judging, cancel
        self.usual, self.others = usual, others
        self.search_once, self.judge, self.learn = search_once, judge, learn
        self.verdicts: list[Verdict[Any]] = []
        self.known: list[FrontRow[Any]] = []  # plans of all searches, by current prices
        self.again: list[tuple[Any, str]] = []  # plans whose judging was interrupted, with names
        self.judged = 0  # plans judged in this run, which the budget limits
        self.round = 0
        if judging.resume is not None:
            earlier = judging.resume.verdicts
            self.round = max((verdict.round for verdict in earlier), default=0)
            self.verdicts, self.again = _kept_and_again(earlier, judging.time_limit_s)
            self.problem = learn(problem, self.verdicts) or problem

    def run(self) -> ConfirmedResult[Any]:
        while True:
            self.round += 1
            self._tell("searching")
            last_result = self.search_once(self.problem, self.round)
            self._tell("searched", priced_s=last_result.cost.time_s, plan=last_result.plan)
            standing = self._judge_round(last_result)
            if standing is not None:
                standing = self._ended(standing)
                return confirmed_result(
                    last_result,
                    tuple(self.verdicts),
                    standing=standing,
                    judge=self.judging.topology,
                    tolerance=self.judging.tolerance,
                )

    def _judge_round(self, last_result: SearchResult[Any]) -> Standing | None:
        """Judge plans until prices change (gives None) or the search ends (gives how)."""
        if last_result.status is Status.CANCELLED or self._cancelled():
            return Standing.CANCELLED
        self.known = known_plans(self.problem, self.known, last_result.front)
        while True:
            if not self.again and self._confirms():
                return Standing.CONFIRMED
            compiles_left = self.judging.compiles - self.judged
            if not compiles_left:
                return self._unconfirmed(Standing.BUDGET)
            chosen = self._chosen(compiles_left)
            if not chosen:
                return self._unconfirmed(Standing.NO_MORE)
            for plan, name in chosen:
                try:
                    self._judge(plan, name)
                except Cancelled:
                    return Standing.CANCELLED
                if self._cancelled():
                    return Standing.CANCELLED
            learned = self.learn(self.problem, self.verdicts)
            if learned is not None:
                # Nothing is confirmed before a search with these prices has looked for better plans
                self.problem = learned
                self._tell("learned")
                return None

    def _chosen(self, compiles_left: int) -> list[tuple[Any, str]]:
        """The plans to judge next, with names; at first those that were interrupted before."""
        if self.again:
            chosen, self.again = self.again[:compiles_left], self.again[compiles_left:]
            return chosen
        known = self._takeable
        most = min(self.judging.plans, compiles_left)
        rows = different_plans(known, self._keys, most) if known else []
        chosen = [(row.plan, "") for row in rows]
        return [*chosen, *self._beside(chosen)][:compiles_left] if self.round == 1 else chosen

    @property
    def _takeable(self) -> list[FrontRow[Any]]:
        """Known plans that are of no kind that the compiler refuses."""
        kinds = refused_kinds(self.verdicts)
        return [row for row in self.known if not any(kind.has(row.plan) for kind in kinds)]

    def _beside(self, chosen: Sequence[tuple[Any, str]]) -> list[tuple[Any, str]]:
        """Further plans to judge in the first round: those of other methods, then usual ones."""
        further_plans: list[tuple[Any, str]] = []
        others = self.others(self.problem)
        for plans, margin, count in (
            (others, WORTH_JUDGING, len(others)),
            (self.usual, USUAL_WORTH_JUDGING, MOST_USUAL),
        ):
            keys = self._keys | {plan.sharding.key() for plan, _ in (*chosen, *further_plans)}
            worth_it = named_plans_worth(self.problem, plans, self.known, keys, most=margin)
            further_plans += worth_it[:count]
        return further_plans

    def _unconfirmed(self, standing: Standing) -> Standing:
        best = self._best
        return Standing.ELSEWHERE if best is not None and best.judgement.elsewhere else standing

    def _ended(self, standing: Standing) -> Standing:
        """How the search ended; first judges plans that need no search, if no other compiles."""
        refused = self.verdicts and all(verdict.judgement.failure for verdict in self.verdicts)
        if standing is Standing.CANCELLED or not refused:
            is_judged = standing is Standing.CANCELLED or self._best is not None
            return standing if is_judged else Standing.NOTHING_STANDS
        plan_type = type(self.verdicts[0].plan)
        further_plans = plans_without_search(self.problem, self.known, self.usual)
        for name, plan in further_plans.items():
            if self._best is None and plan.sharding.key() not in self._keys:
                try:
                    self._judge(plan_type.of(plan), name)
                except Cancelled:
                    return Standing.CANCELLED
        compiles = any(not verdict.judgement.failure for verdict in self.verdicts)
        return Standing.REFUSED if compiles else Standing.NOTHING_COMPILES

    def _judge(self, plan: Any, name: str) -> Verdict[Any]:
        cost = price(self.problem, plan)
        self._tell("judging", priced_s=cost.time_s, plan=plan)
        judgement = self.judge(plan)
        if judgement.interrupted_at_s is not None and not self._cancelled():
            judgement = self.judge(plan)
        verdict = Verdict(
            plan=plan,
            round=self.round,
            priced_s=cost.time_s,
            priced_bytes=cost.peak_bytes,
            judgement=judgement,
            name=name,
        )
        self.verdicts.append(verdict)
        self.judged += 1
        self._tell("judged", verdict, priced_s=cost.time_s, plan=plan)
        return verdict

    @property
    def _best(self) -> Verdict[Any] | None:
        standing = [verdict for verdict in self.verdicts if verdict.stands]
        return min(standing, key=lambda verdict: verdict.rank, default=None)

    @property
    def _keys(self) -> set[int]:
        return {verdict.plan.sharding.key() for verdict in self.verdicts}

    @property
    def error(self) -> float:
        """The judge's own error: the share by which prices learned from it miss its clock.

        It is the median over the judged plans, each counted with at least the noise of its clock,
        and at most the tolerance.
        """
        misses = []
        for verdict in self.verdicts:
            if verdict.stands and verdict.time_s is not None:
                priced_s = price(self.problem, verdict.plan).time_s
                misses.append(max(abs(verdict.time_s / priced_s - 1.0), verdict.judgement.noise))
        return min(self.judging.tolerance, statistics.median(misses)) if misses else 0.0

    def _confirms(self) -> bool:
        """Is the best judged plan as fast as priced, and is no known plan priced better?"""
        best = self._best
        if best is None or best.time_s is None or best.judgement.elsewhere:
            return False
        priced_s = price(self.problem, best.plan).time_s
        if abs(best.time_s / priced_s - 1.0) > self.judging.tolerance:
            return False
        keys, bound_s = self._keys, max(best.time_s, priced_s) * (1.0 - self.error)
        return not any(
            row.quick.fits and row.quick.time_s < bound_s
            for row in self._takeable
            if row.plan.sharding.key() not in keys
        )

    def _cancelled(self) -> bool:
        return self.cancel is not None and self.cancel()

    def _tell(
        self,
        stage: str,
        verdict: Verdict[Any] | None = None,
        *,
        priced_s: float | None = None,
        plan: Any = None,
    ) -> None:
        if self.judging.on_event is not None:
            self.judging.on_event(
                JudgeEvent(
                    stage=stage,
                    round=self.round,
                    compiles=self.judged,
                    most_compiles=self.judging.compiles,
                    verdict=verdict,
                    best=self._best,
                    priced_s=priced_s,
                    plan=plan,
                )
            )


def _kept_and_again(
    verdicts: Sequence[Verdict[Any]], time_limit_s: float
) -> tuple[list[Verdict[Any]], list[tuple[Any, str]]]:
    """The verdicts that hold, and the plans with names that this time limit may be enough for."""
    kept, again = [], []
    for verdict in verdicts:
        interrupted_at_s = verdict.judgement.interrupted_at_s
        if interrupted_at_s is not None and interrupted_at_s < time_limit_s:
            again.append((verdict.plan, verdict.name))
        else:
            kept.append(verdict)
    return kept, again

"""Search, judge, learn, search again: until the best plan is one that the judge confirmed.

A search finds the errors of its price: what it thinks cheap is often what is priced too low.  So a
few good plans that differ are given to the judge, what the judge says of their parts becomes prices
(``learn``), and the search starts again with these.  It ends when

* the best plan by the judge's clock is within the tolerance of its price, and the best plan by the
  price was judged, too, or is priced no better than that clock: no judged plan is better, and none
  that was not judged looks better;
* or the budget of compiles is used up, or nothing is left that is worth a compile.

What is judged stays judged: a plan is compiled once, its result is kept, and a search that is begun
again finds it there.  Plans that fail to compile are dropped, with the reason on record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from toast_lab import checks
from toast_lab.confirm.choose import different_plans
from toast_lab.confirm.confirmed_result import ConfirmedResult, Standing, confirmed_result
from toast_lab.confirm.verdict import Judge, JudgeEvent, Verdict
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.files import PathLike
from toast_lab.isolate import Cancelled
from toast_lab.search.contract import SearchResult
from toast_lab.search.limits import Status

#: Searches with the prices of a problem; is also told the number of the round, counted from 1.
SearchOnce = Callable[[Problem, int], SearchResult[Any]]
#: The problem with what all verdicts so far say in its prices; None: they say nothing new.
Learn = Callable[[Problem, Sequence[Verdict[Any]]], Problem | None]


@dataclasses.dataclass(frozen=True)
class Judging:
    """How plans are judged, for ``search(problem, judge=Judging(...))``.

    Raises:
        InvalidProblem: numbers out of range; all are listed.
    """

    topology: str  #: "tpu:v5e:4x4", "gpu:h100:8", or attached devices: "cpu:8", "gpu"
    compiles: int = 8  #: plans that are judged at most
    plans: int = 3  #: of them in one round
    tolerance: float = 0.1  #: by how much, as a share, clock and price may differ
    time_limit_s: float = 600.0  #: for each plan
    store: bool | PathLike = True  #: of compiled results, as ``tl.compile`` takes it
    on_event: Callable[[JudgeEvent], None] | None = None
    resume: ConfirmedResult[Any] | None = None  #: whose verdicts hold, with a new budget

    def __post_init__(self) -> None:
        counts = {"compiles": self.compiles, "plans": self.plans}
        offences = [
            f"{name} {count!r} is no whole number from 1"
            for name, count in counts.items()
            if isinstance(count, bool) or not isinstance(count, int) or count < 1
        ]
        for name in ("tolerance", "time_limit_s"):
            if wrong := checks.number_offence(getattr(self, name), 0.0, checks.MOST_SECONDS):
                offences.append(f"{name} {wrong}")
        if offences:
            raise InvalidProblem("these judging options are wrong:\n" + join_offenders(offences))


def confirmed_search(
    problem: Problem,
    judging: Judging,
    *,
    search_once: SearchOnce,
    judge: Judge,
    learn: Learn,
    cancel: Callable[[], bool] | None = None,
) -> ConfirmedResult[Any]:
    """Search until a judge confirms the best plan; see the module.

    Args:
        problem: to begin with.
        judging: budget of compiles, tolerance, and who listens.
        search_once: one search.
        judge: one plan; raises ``isolate.Cancelled`` if it is cancelled meanwhile.
        learn: prices from verdicts.
        cancel: polled between steps; True keeps what there is.
    """
    return _Rounds(problem, judging, search_once, judge, learn=learn, cancel=cancel).run()


class _Rounds:
    def __init__(
        self,
        problem: Problem,
        judging: Judging,
        search_once: SearchOnce,
        judge: Judge,
        *,
        learn: Learn,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.problem, self.judging, self.cancel = problem, judging, cancel
        self.search_once, self.judge, self.learn = search_once, judge, learn
        self.verdicts: list[Verdict[Any]] = []
        self.judged = 0  # in this run, which is what the budget counts
        self.round = 0
        if judging.resume is not None:
            self.verdicts = list(judging.resume.verdicts)
            self.round = max((verdict.round for verdict in self.verdicts), default=0)
            self.problem = learn(problem, self.verdicts) or problem

    def run(self) -> ConfirmedResult[Any]:
        while True:
            self.round += 1
            self._tell("searching")
            last = self.search_once(self.problem, self.round)
            standing = self._judge_round(last)
            if standing is not None:
                return confirmed_result(
                    last,
                    tuple(self.verdicts),
                    standing=standing if self._best is not None else _without_best(standing),
                    judge=self.judging.topology,
                    tolerance=self.judging.tolerance,
                )

    def _judge_round(self, last: SearchResult[Any]) -> Standing | None:
        """Judge plans of a search until prices change (None), or there is an end."""
        if last.status is Status.CANCELLED or self._cancelled():
            return Standing.CANCELLED
        while True:
            left = self.judging.compiles - self.judged
            keys = {verdict.plan.sharding.key() for verdict in self.verdicts}
            chosen = different_plans(last, keys, min(self.judging.plans, left))
            if self._confirms(last):
                return Standing.CONFIRMED
            if not left:
                return Standing.BUDGET
            if not chosen:
                return Standing.NO_MORE
            for row in chosen:
                try:
                    self._judge(row.plan)
                except Cancelled:
                    return Standing.CANCELLED
                if self._cancelled():
                    return Standing.CANCELLED
            if self._confirms(last):
                return Standing.CONFIRMED
            learned = self.learn(self.problem, self.verdicts)
            if learned is not None:
                self.problem = learned
                self._tell("learned")
                return None if self.judged < self.judging.compiles else Standing.BUDGET

    def _judge(self, plan: Any) -> Verdict[Any]:
        cost = price(self.problem, plan)
        self._tell("judging")
        verdict = Verdict(
            plan=plan,
            round=self.round,
            priced_s=cost.time_s,
            priced_bytes=cost.peak_bytes,
            judgement=self.judge(plan),
        )
        self.verdicts.append(verdict)
        self.judged += 1
        self._tell("judged", verdict)
        return verdict

    @property
    def _best(self) -> Verdict[Any] | None:
        standing = [verdict for verdict in self.verdicts if verdict.stands]
        return min(standing, key=lambda verdict: verdict.rank, default=None)

    def _confirms(self, last: SearchResult[Any]) -> bool:
        """Is the best judged plan as quick as its price says, and was the best priced judged?"""
        best = self._best
        if best is None or best.time_s is None:
            return False
        keys = {verdict.plan.sharding.key() for verdict in self.verdicts}
        looks_better = price(self.problem, last.plan).time_s < best.time_s
        if last.plan.sharding.key() not in keys and looks_better:
            return False
        priced_s = price(self.problem, best.plan).time_s
        return abs(best.time_s / priced_s - 1.0) <= self.judging.tolerance

    def _cancelled(self) -> bool:
        return self.cancel is not None and self.cancel()

    def _tell(self, stage: str, verdict: Verdict[Any] | None = None) -> None:
        if self.judging.on_event is not None:
            self.judging.on_event(
                JudgeEvent(
                    stage=stage,
                    round=self.round,
                    compiles=self.judged,
                    most_compiles=self.judging.compiles,
                    verdict=verdict,
                    best=self._best,
                )
            )


def _without_best(standing: Standing) -> Standing:
    return Standing.CANCELLED if standing is Standing.CANCELLED else Standing.NOTHING_STANDS

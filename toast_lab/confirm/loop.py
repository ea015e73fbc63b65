"""Search, judge, learn, search again, until the judge confirms the best plan.

The judge first gets the *floor*: the plans that anybody gets for nothing, as argument shardings
alone. They compile fast, they teach the first search its prices, and the result is never worse by
the clock than the best of them.

A search exploits the errors of its prices: a plan that it thinks cheap is often one that is priced
too low. So a judge gets a few good plans that differ, its times for their parts become prices
(``learn``), and the search starts again with these. It ends *confirmed* if, by all verdicts so far
and after a search with the prices learned from them,

* the clock of the best judged plan is within the tolerance of its price;
* no judged plan is better;
* and no plan that was found in any of the searches, and not judged, is priced better by more than
  the judge's own error (``_Rounds.error``).

Otherwise it ends when the time or the budget of compiles is used up, or no other plan is worth a
compile. Each round begins with written plans, as they are written: the smallest good one and the
best. Whole plans, with every op as the plan says, come after them. In the first round the judge
also gets the best plans of other methods, and the usual plans, if they are priced nearly as good:
plans unlike the search's own teach prices that its own plans cannot.

A judge for another machine than the problem's confirms nothing, since its clock says nothing about
the price; it only chooses between plans.

Verdicts last: a plan is compiled once, its result is stored, and a search that is started again
reads it. Plans that fail to compile are dropped, with the reason on record, and so are plans of
their kind (``choose.refused_kinds``). A compile that was killed or took too long says nothing about
its plan: one that was killed is tried once more at once, and both again if the search is resumed
with a longer time limit. If no plan compiles, the judge gets the plans that need no search, to the
unsharded one, so that the result is a plan that compiles.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toast_lab import checks
from toast_lab.confirm.choose import (
    MOST_USUAL,
    Candidate,
    different_candidates,
    named_plans_worth,
    plans_of_search,
    plans_without_search,
    preferred_written,
    priced_candidates,
    refused_kinds,
    worth_of_floor,
)
from toast_lab.confirm.confirmed_result import ConfirmedResult, Standing, confirmed_result
from toast_lab.confirm.learning import Corrections
from toast_lab.confirm.verdict import CandidateKey, Judge, JudgeEvent, Judgement, Verdict, best_of
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem, ToastError, join_offenders
from toast_lab.files import PathLike
from toast_lab.isolate import Cancelled
from toast_lab.search.contract import SearchResult
from toast_lab.search.limits import Status
from toast_lab.written.written_plan import WrittenPlan

#: Runs one search with the prices of a problem; also receives the number of the round, from 1.
SearchOnce = Callable[[Problem, int], SearchResult[Any]]
#: Gives the problem with prices learned from all verdicts so far; None: they teach none.
Learn = Callable[[Problem, Sequence[Verdict[Any]]], Problem | None]

#: Gives the written plans near the plan of a search; raises ToastError if it cannot.
Write = Callable[[SearchResult[Any]], Sequence[WrittenPlan]]

#: A plan, how it is written if it is judged so, and its name.
_Chosen = tuple[Any, WrittenPlan | None, str]
#: C(s) of the smallest written plan that is judged may be above the best plan's by this share.
WRITTEN_WITHIN = 0.05

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
    compiles: int = 12  #: most plans that are judged, beside the floor
    plans: int = 3  #: most plans that are judged in one round
    tolerance: float = 0.1  #: share of the price by which the clock may differ from it
    time_limit_s: float = 600.0  #: for each plan
    seconds: float | None = None  #: for the whole, searches and compiles; None: no limit
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
        limits = ("tolerance", "time_limit_s", *(["seconds"] if self.seconds is not None else []))
        for name in limits:
            if offence := checks.number_offence(getattr(self, name), 0.0, checks.MOST_SECONDS):
                offences.append(f"{name} {offence}")
        if offences:
            raise InvalidProblem("these judging options are wrong:\n" + join_offenders(offences))


class Deadline:
    """Polled to stop: true once the time limit has passed, or ``cancel`` says so."""

    def __init__(self, seconds: float | None, cancel: Callable[[], bool] | None = None) -> None:
        self.cancel = cancel
        self.ends_s = None if seconds is None else time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        """Is the time over?"""
        return self.ends_s is not None and time.monotonic() >= self.ends_s

    def __call__(self) -> bool:
        """Is it time to stop?"""
        return self.has_passed or (self.cancel is not None and self.cancel())


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where the plans to judge come from."""

    search_once: SearchOnce  #: runs one search
    write: Write = lambda _: ()
    #: plans that anybody gets for nothing, by name, as written; judged before the first search
    floor: Mapping[str, WrittenPlan] = dataclasses.field(default_factory=dict)
    #: usual plans by name that are judged whole along with those of the first search
    usual: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: Others = lambda _: {}  #: called after the first search


def confirmed_search(
    problem: Problem,
    judging: Judging,
    sources: Sources,
    *,
    judge: Judge,
    learn: Learn,
    size: int | None = None,
    cancel: Callable[[], bool] | None = None,
) -> ConfirmedResult[Any]:
    """Search until a judge confirms the best plan; see the module's docstring.

    Args:
        problem: the problem with its initial prices.
        judging: budget of compiles, tolerance and listener.
        sources: where plans come from.
        judge: judges one plan; raises ``isolate.Cancelled`` if it is cancelled meanwhile.
        learn: learns prices from verdicts.
        size: most rules and constraints of the plan; only written plans are judged then.
        cancel: polled between steps; True ends the search and keeps its verdicts. A ``Deadline``
            replaces that of ``judging.seconds``.
    """
    stop = cancel if isinstance(cancel, Deadline) else Deadline(judging.seconds, cancel)
    return _Rounds(problem, judging, sources, judge, learn=learn, size=size, stop=stop).run()


@dataclasses.dataclass
class _Rounds:
    problem: Problem
    judging: Judging
    sources: Sources
    judge: Judge
    learn: Learn
    size: int | None
    stop: Deadline

    def __post_init__(self) -> None:
        self.verdicts: list[Verdict[Any]] = []
        self.whole: list[Any] = []  # plans of all searches
        # The floor, and written plans of all searches
        self.written = list(self.sources.floor.values())
        self.not_written = ""
        self.known: list[Candidate[Any]] = []  # all of these, by current prices
        #: plans whose judging was interrupted, with names
        self.again: list[_Chosen] = []
        self.judged = 0  # plans judged in this run, which the budget limits
        self.budget = self.judging.compiles
        self.round = 0
        if self.judging.resume is not None:
            earlier = self.judging.resume.verdicts
            self.round = max((verdict.round for verdict in earlier), default=0)
            self.verdicts, self.again = _kept_and_again(earlier, self.judging.time_limit_s)
            self.written += self.judging.resume.known_written
            self.problem = self.learn(self.problem, self.verdicts) or self.problem

    def run(self) -> ConfirmedResult[Any]:
        self.round += 1
        standing = self._judge_floor()
        while True:
            self._tell("searching")
            last_result = self.sources.search_once(self.problem, self.round)
            self._tell("searched", priced_s=last_result.cost.time_s, plan=last_result.plan)
            standing = standing or self._judge_round(last_result)
            if standing is not None:
                standing = self._ended(standing)
                return confirmed_result(
                    last_result,
                    tuple(self.verdicts),
                    standing=standing,
                    judge=self.judging.topology,
                    tolerance=self.judging.tolerance,
                    known_written=tuple(self.written),
                    not_written=self.not_written,
                    size=self.size,
                )
            self.round += 1

    def _judge_floor(self) -> Standing | None:
        """Judge the plans that anybody gets for nothing; gives how the search ended, if it did."""
        floor = [
            (name, written)
            for name, written in worth_of_floor(self.problem, self.sources.floor)
            if (written.plan.sharding.key(), True) not in self._keys
        ]
        self.budget += len(floor)
        for name, written in floor:
            if self.stop():
                return self._stopped
            try:
                self._judge(written.plan, written, name)
            except Cancelled:
                return self._stopped
        learned = self.learn(self.problem, self.verdicts) if floor else None
        if learned is not None:
            self.problem = learned
            self._tell("learned")
        return None

    def _judge_round(self, last_result: SearchResult[Any]) -> Standing | None:
        """Judge plans until prices change (gives None) or the search ends (gives how)."""
        if last_result.status is Status.CANCELLED or self.stop():
            return self._stopped
        self.whole += plans_of_search(last_result)
        try:
            self.written += self.sources.write(last_result)
        except ToastError as error:
            self.not_written = f"no plan of a search was written down: {error}"
        while True:
            self._price_known()
            if not self.again and self._confirms():
                return Standing.CONFIRMED
            compiles_left = self.budget - self.judged
            if not compiles_left:
                return self._unconfirmed(Standing.BUDGET)
            chosen = self._chosen(compiles_left)
            if not chosen:
                return self._unconfirmed(Standing.NO_MORE)
            for plan, written, name in chosen:
                try:
                    self._judge(plan, written, name)
                except Cancelled:
                    return self._stopped
                if self.stop():
                    return self._stopped
            learned = self.learn(self.problem, self.verdicts)
            if learned is not None:
                # Nothing is confirmed before a search with these prices has looked for better plans
                self.problem = learned
                self._tell("learned")
                return None

    def _price_known(self) -> None:
        """Price all known plans anew."""
        known = [(written.plan, written) for written in self.written if self._is_small(written)]
        whole = [(plan, None) for plan in self.whole if self._is_small(None)]
        correct = Corrections(self.problem, self.verdicts)
        self.known = priced_candidates(self.problem, [*known, *whole], correct)

    def _is_small(self, written: WrittenPlan | None) -> bool:
        """Does a plan keep to the size? A whole one, ``None``, has none."""
        return self.size is None or (written is not None and written.size.total <= self.size)

    def _chosen(self, compiles_left: int) -> list[_Chosen]:
        """The plans to judge next, with names; at first those that were interrupted before."""
        if self.again:
            chosen, self.again = self.again[:compiles_left], self.again[compiles_left:]
            return chosen
        known = self._takeable
        most = min(self.judging.plans, compiles_left)
        rows: list[Candidate[Any]] = []
        if known:
            preferred = preferred_written(known, WRITTEN_WITHIN)
            rows = different_candidates(known, self._keys, most, preferred)
        chosen = [(row.plan, row.written, "") for row in rows]
        if self.round > 1 or self.size is not None:
            return chosen
        return [*chosen, *self._beside(chosen)][:compiles_left]

    @property
    def _takeable(self) -> list[Candidate[Any]]:
        """Known plans that are of no kind that the compiler refuses."""
        kinds = refused_kinds(self.verdicts)
        return [row for row in self.known if not any(kind.has(row.plan) for kind in kinds)]

    def _beside(self, chosen: Sequence[_Chosen]) -> list[_Chosen]:
        """Further plans to judge in the first round: those of other methods, then usual ones."""
        further_plans: list[_Chosen] = []
        others = self.sources.others(self.problem) if self.known else {}
        for plans, count in ((others, len(others)), (self.sources.usual, MOST_USUAL)):
            keys = self._keys | {
                (plan.sharding.key(), written is not None)
                for plan, written, _ in (*chosen, *further_plans)
            }
            worth_it = named_plans_worth(self.problem, plans, self.known, keys)
            further_plans += [(plan, None, name) for plan, name in worth_it[:count]]
        return further_plans

    def _unconfirmed(self, standing: Standing) -> Standing:
        best = self._best
        return Standing.ELSEWHERE if best is not None and best.judgement.elsewhere else standing

    def _ended(self, standing: Standing) -> Standing:
        """How the search ended; first judges plans that need no search, if no other compiles."""
        refused = self.verdicts and all(verdict.judgement.failure for verdict in self.verdicts)
        is_stopped = standing in (Standing.CANCELLED, Standing.TIME)
        if is_stopped or not refused or self.size is not None:
            is_judged = is_stopped or self._best is not None
            return standing if is_judged else Standing.NOTHING_STANDS
        plan_type = type(self.verdicts[0].plan)
        further_plans = plans_without_search(self.problem, self.known, self.sources.usual)
        for name, plan in further_plans.items():
            if self._best is None and (plan.sharding.key(), False) not in self._keys:
                try:
                    self._judge(plan_type.of(plan), None, name)
                except Cancelled:
                    return self._stopped
        compiles = any(not verdict.judgement.failure for verdict in self.verdicts)
        return Standing.REFUSED if compiles else Standing.NOTHING_COMPILES

    @property
    def _stopped(self) -> Standing:
        return Standing.TIME if self.stop.has_passed else Standing.CANCELLED

    def _judge(self, plan: Any, written: WrittenPlan | None, name: str) -> Verdict[Any]:
        cost = price(self.problem, plan)
        self._tell("judging", priced_s=cost.time_s, plan=plan)
        subject = plan if written is None else written
        judgement = self.judge(subject)
        if _was_killed(judgement, self.judging.time_limit_s) and not self.stop():
            again = self.judge(subject)
            if again.interrupted_at_s is not None:
                failure = f"{again.failure} (tried twice; at first: {judgement.failure})"
                again = again._replace(failure=failure)
            judgement = again
        verdict = Verdict(
            plan=plan,
            round=self.round,
            priced_s=cost.time_s,
            priced_bytes=cost.peak_bytes,
            judgement=judgement,
            name=name,
            written=written,
        )
        self.verdicts.append(verdict)
        self.judged += 1
        self._tell("judged", verdict, priced_s=cost.time_s, plan=plan)
        return verdict

    @property
    def _best(self) -> Verdict[Any] | None:
        return best_of(
            verdict
            for verdict in self.verdicts
            if verdict.stands and self._is_small(verdict.written)
        )

    @property
    def _keys(self) -> set[CandidateKey]:
        return {verdict.key for verdict in self.verdicts}

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
        unjudged = [row for row in self._takeable if row.key not in self._keys]
        floor = {(written.plan.sharding.key(), True) for written in self.sources.floor.values()}
        if unjudged and not self._keys - floor:
            return False  # no plan of a search was judged yet
        bound_s = max(best.time_s, priced_s) * (1.0 - self.error)
        return not any(row.quick.fits and row.quick.time_s < bound_s for row in unjudged)

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
                    most_compiles=self.budget,
                    verdict=verdict,
                    best=self._best,
                    priced_s=priced_s,
                    plan=plan,
                )
            )


def _was_killed(judgement: Judgement, time_limit_s: float) -> bool:
    """Did a compile end before its time limit, for no reason of its own?"""
    interrupted_at_s = judgement.interrupted_at_s
    return interrupted_at_s is not None and interrupted_at_s < time_limit_s


def _kept_and_again(
    verdicts: Sequence[Verdict[Any]], time_limit_s: float
) -> tuple[list[Verdict[Any]], list[_Chosen]]:
    """The verdicts that hold, and the plans with names that this time limit may be enough for."""
    kept, again = [], []
    for verdict in verdicts:
        if _was_killed(verdict.judgement, time_limit_s):
            again.append((verdict.plan, verdict.written, verdict.name))
        else:
            kept.append(verdict)
    return kept, again

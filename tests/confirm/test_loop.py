"""Search, judge, learn, search again: the loop with judges that are functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.helpers import small_transformer
from toast_lab.confirm.confirmed_result import ConfirmedResult, Standing
from toast_lab.confirm.loop import Judging, confirmed_search
from toast_lab.confirm.verdict import JudgeEvent, Judgement, Verdict
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem
from toast_lab.isolate import Cancelled
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, SearchResult
from toast_lab.sharding.plan import ShardingPlan


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(small_transformer(), {"data": 2, "model": 2})


@pytest.fixture(scope="module")
def searched(problem: Problem) -> SearchResult[Any]:
    return search(problem, budget=Budget(None, 400))


class FakeJudge:
    """A clock that is ``factor`` times the price, but for plans that it knows otherwise."""

    def __init__(self, problem: Problem, factor: float = 1.0) -> None:
        self.problem, self.factor = problem, factor
        self.special: dict[int, Judgement] = {}
        self.asked: list[int] = []
        self.by_order: list[Judgement | None] = []

    def __call__(self, plan: ShardingPlan) -> Judgement:
        key = plan.sharding.key()
        self.asked.append(key)
        if len(self.asked) <= len(self.by_order):
            special = self.by_order[len(self.asked) - 1]
            if special is not None:
                return special
        return self.special.get(key) or Judgement(
            self.factor * price(self.problem, plan).time_s, 1e6, True
        )


def confirm(
    problem: Problem,
    searched: SearchResult[Any],
    judge: Callable[[ShardingPlan], Judgement],
    *,
    learn: Callable[[Problem, Sequence[Verdict[Any]]], Problem | None] = lambda *_: None,
    cancel: Callable[[], bool] | None = None,
    **options: Any,
) -> ConfirmedResult[Any]:
    rounds: list[int] = []

    def search_once(priced: Problem, number: int) -> SearchResult[Any]:
        rounds.append(number)
        return dataclasses.replace(searched, problem=priced)

    result = confirmed_search(
        problem,
        Judging("fake", **options),
        search_once=search_once,
        judge=judge,
        learn=learn,
        cancel=cancel,
    )
    assert rounds == sorted(rounds)
    return result


def test_a_clock_that_agrees_confirms_the_best_plan(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem, 1.05)
    result = confirm(problem, searched, judge, plans=2)
    assert result.standing is Standing.CONFIRMED
    assert result.confirmed
    assert result.plan.sharding.same_as(searched.plan.sharding)
    assert result.best is not None
    assert result.best.time_s == pytest.approx(1.05 * searched.cost.time_s)
    assert len(judge.asked) == len(set(judge.asked)) == 2, "no plan is judged twice"
    assert "confirmed" in str(result)


def test_a_clock_that_never_agrees_confirms_nothing(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem, 2.0)
    result = confirm(problem, searched, judge, compiles=3, plans=2)
    assert result.standing is Standing.BUDGET
    assert not result.confirmed
    assert len(judge.asked) == 3
    assert result.best is not None
    assert result.best.ratio == pytest.approx(2.0)


def test_the_clock_decides_between_judged_plans(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.special[searched.plan.sharding.key()] = Judgement(1.0, 1e6, True)
    result = confirm(problem, searched, judge, compiles=2, plans=2)
    assert not result.plan.sharding.same_as(searched.plan.sharding)
    assert result.cost.time_s == price(problem, result.plan).time_s
    assert result.priced_plan.sharding.same_as(searched.plan.sharding)


def test_plans_that_fail_or_do_not_fit_are_dropped_and_said(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.by_order = [
        Judgement(None, None, False, failure="the compiler crashed"),
        Judgement(1e-9, 1e12, False),
        Judgement(None, 1e6, True),
    ]
    result = confirm(problem, searched, judge, compiles=4, plans=4)
    assert [verdict.stands for verdict in result.verdicts] == [False, False, False, True]
    assert result.best is result.verdicts[3]
    text = str(result)
    assert "dropped: the compiler crashed" in text
    assert "does not fit" in text
    assert "no clock" in text


def test_where_no_plan_stands_the_priced_one_is_given(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.by_order = [Judgement(None, None, False, failure="no")] * 2
    result = confirm(problem, searched, judge, compiles=2)
    assert result.standing is Standing.NOTHING_STANDS
    assert result.best is None
    assert result.plan is searched.plan


def test_what_was_judged_is_learned_and_searched_with(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """Prices that learn the judge's factor agree with it in the second round."""
    fast = Problem(problem.analysis, problem.mesh, problem.machine)
    judge = FakeJudge(problem, 2.0)
    learned: list[int] = []

    def learn(current: Problem, verdicts: Sequence[Verdict[Any]]) -> Problem | None:
        learned.append(len(verdicts))
        slow = dataclasses.replace(
            fast.machine,
            flops={name: rate / 2 for name, rate in fast.machine.flops.items()},
            memory_bytes_per_s=fast.machine.memory_bytes_per_s / 2,
            op_overhead_s=fast.machine.op_overhead_s * 2,
            links=tuple(
                dataclasses.replace(
                    link, bytes_per_s=link.bytes_per_s / 2, latency_s=link.latency_s * 2
                )
                for link in fast.machine.links
            ),
        )
        return Problem(fast.analysis, fast.mesh, slow)

    result = confirm(problem, searched, judge, learn=learn, compiles=4, plans=2)
    assert learned == [2]
    assert result.confirmed
    assert result.best is not None
    assert result.best.ratio == pytest.approx(2.0), "priced before it was learned"


def test_a_cancelled_search_keeps_its_verdicts_and_goes_on(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem, 2.0)

    def cancelled(plan: ShardingPlan) -> Judgement:
        if len(judge.asked) == 2:
            raise Cancelled("told to stop")
        return judge(plan)

    first = confirm(problem, searched, cancelled, compiles=4, plans=4)
    assert first.standing is Standing.CANCELLED
    assert len(first.verdicts) == 2
    again = FakeJudge(problem, 2.0)
    second = confirm(problem, searched, again, compiles=2, plans=4, resume=first)
    assert len(second.verdicts) == 4
    assert not set(again.asked) & set(judge.asked), "what was judged stays judged"
    stopped = confirm(problem, searched, FakeJudge(problem), cancel=lambda: True)
    assert (stopped.standing, stopped.verdicts) == (Standing.CANCELLED, ())


def test_every_step_is_told(problem: Problem, searched: SearchResult[Any]) -> None:
    events: list[JudgeEvent] = []
    confirm(problem, searched, FakeJudge(problem, 2.0), compiles=2, plans=2, on_event=events.append)
    stages = [event.stage for event in events]
    assert stages == ["searching", "judging", "judged", "judging", "judged"]
    assert [event.compiles for event in events] == [0, 0, 1, 1, 2]
    assert events[2].best is events[2].verdict


def test_wrong_options_are_all_listed() -> None:
    with pytest.raises(InvalidProblem, match=r"(?s)compiles 0.*plans 1.5.*tolerance"):
        Judging("cpu:2", compiles=0, plans=1.5, tolerance=-1.0)  # type: ignore[arg-type]


def test_attached_devices_are_a_judge() -> None:
    problem = Problem(small_transformer(), {"data": 2}, "cpu")
    result = search(
        problem, budget=Budget(None, 60), judge=Judging("cpu:2", compiles=1, tolerance=1e6)
    )
    assert isinstance(result, ConfirmedResult)
    assert len(result.verdicts) == 1
    assert result.best is not None
    assert result.best.time_s is not None
    assert result.best.time_s > 0
    assert result.confirmed


def test_a_judge_that_is_not_there_is_refused() -> None:
    problem = Problem(small_transformer(), {"data": 2})
    with pytest.raises(InvalidProblem, match="no topology is called"):
        search(problem, budget=Budget(None, 1), judge="abacus:2")
    with pytest.raises(InvalidProblem, match="resume"):
        search(problem, budget=Budget(None, 1), judge="cpu:2", resume="trace.npz")

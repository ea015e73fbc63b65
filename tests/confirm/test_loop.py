"""The loop of search, judge, learn and search again, with functions as judges."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import small_transformer
from toast_lab.confirm import judges
from toast_lab.confirm.choose import (
    FLOOR_WORTH_JUDGING,
    MOST_USUAL,
    WORTH_JUDGING,
    Candidate,
    named_plans_worth,
    plans_of_search,
    preferred_written,
    priced_candidates,
    refused_kinds,
    worth_of_floor,
)
from toast_lab.confirm.confirmed_result import ConfirmedResult, Standing
from toast_lab.confirm.judge_targets import JudgeTarget, judge_targets, judged_elsewhere
from toast_lab.confirm.judged_front import judged_front
from toast_lab.confirm.learning import REACH, Corrections
from toast_lab.confirm.loop import Judging, Sources, confirmed_search
from toast_lab.confirm.verdict import JudgeEvent, Judgement, Verdict
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, RunFailed, RunInterrupted
from toast_lab.isolate import Cancelled
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget, SearchResult
from toast_lab.search.trace import Trace
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.plan import ShardingPlan, unsharded_plan
from toast_lab.written.written_front import FLOOR, floor
from toast_lab.written.written_plan import WrittenPlan


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(small_transformer(batch=128), {"data": 2, "model": 2})


@pytest.fixture(scope="module")
def searched(problem: Problem) -> SearchResult[Any]:
    return search(problem, budget=Budget(None, 400))


class FakeJudge:
    """A judge whose clock is ``factor`` times the price, except for plans in ``special``."""

    def __init__(self, problem: Problem, factor: float = 1.0) -> None:
        self.problem, self.factor = problem, factor
        self.special: dict[int, Judgement] = {}
        self.asked: list[int] = []
        self.by_order: list[Judgement | None] = []

    def __call__(self, subject: ShardingPlan | WrittenPlan) -> Judgement:
        plan = subject.plan if isinstance(subject, WrittenPlan) else subject
        key = plan.sharding.key()
        self.asked.append(key)
        if len(self.asked) <= len(self.by_order):
            special = self.by_order[len(self.asked) - 1]
            if special is not None:
                return special
        return self.special.get(key) or Judgement(
            self.factor * price(self.problem, plan).time_s, 1e6, True
        )


def known(problem: Problem, searched: SearchResult[Any]) -> list[Candidate[Any]]:
    """The plans of a search by their price, the best first."""
    plans = [(plan, None) for plan in plans_of_search(searched)]
    return priced_candidates(problem, plans, lambda plan, time_s, is_written: time_s)


def with_plans(
    problem: Problem, searched: SearchResult[Any], *plans: ShardingPlan
) -> SearchResult[Any]:
    """The result of a search that has found one or two plans, the best last, and nothing else."""
    best = plans[-1], price(problem, plans[-1])
    return dataclasses.replace(
        searched,
        plan=plans[0],
        cost=price(problem, plans[0]),
        unlimited=best if len(plans) > 1 else None,
        trace=Trace(),
    )


@pytest.fixture(scope="module")
def lowest(problem: Problem) -> dict[str, WrittenPlan]:
    """The floor."""
    usual = usual_plans(problem)
    return floor(
        problem, {name: Plan.from_actions(problem, usual[name]) for name in FLOOR if name in usual}
    )


def confirm(
    problem: Problem,
    searched: SearchResult[Any],
    judge: Callable[[Any], Judgement],
    *,
    learn: Callable[[Problem, Sequence[Verdict[Any]]], Problem | None] = lambda *_: None,
    sources: dict[str, Any] | None = None,
    size: int | None = None,
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
        Sources(search_once, **(sources or {})),
        judge=judge,
        learn=learn,
        size=size,
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


def test_the_floor_is_judged_first_and_as_it_is_written(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    assert set(lowest) <= set(FLOOR)
    assert all(not written.constraints for written in lowest.values())
    worth_it = [written for _, written in worth_of_floor(problem, lowest)]
    assert len(worth_it) >= 2
    name, second = worth_of_floor(problem, lowest)[1]
    subjects: list[Any] = []
    stages: list[str] = []
    judge = FakeJudge(problem)

    def judging(subject: Any) -> Judgement:
        subjects.append(subject)
        judgement = judge(subject)
        # By the clock, a plan with a worse price is the best
        is_best = subject is second
        return judgement._replace(time_s=0.95 * searched.cost.time_s) if is_best else judgement

    result = confirm(
        problem,
        searched,
        judging,
        sources={"floor": lowest},
        compiles=1,
        on_event=lambda event: stages.append(event.stage),
    )
    assert subjects[: len(worth_it)] == worth_it, "as written"
    assert len(subjects) == len(worth_it) + 1, "beside the budget of compiles"
    assert stages.index("searching") == 2 * len(worth_it)
    assert result.best is not None
    assert result.best.written is second
    assert result.plan.sharding.same_as(second.plan.sharding)
    assert f"{name} as argument shardings alone, best judged" in str(result)
    whole = result.verdicts[-1]
    assert whole.written is None
    assert whole.time_s is not None
    sentence = (
        f"{name[0].upper()}{name[1:]} as argument shardings alone is quicker by the judge's clock "
        f"than the best plan with every op constrained: {0.95 * searched.cost.time_s * 1e3:.3f} ms "
        f"against {whole.time_s * 1e3:.3f}."
    )
    assert result.quicker_written == sentence
    assert sentence in result.in_brief()
    assert result.to_json()["quicker_written"] == sentence
    assert result.written(within=0.0).plan.sharding.same_as(result.plan.sharding)
    sizes = [row["size"] for row in result.to_json()["verdicts"]]
    assert sizes[0] == worth_it[0].size._asdict()
    assert sizes[-1] is None


def test_the_floor_is_never_beaten_by_a_whole_plan_that_is_slower(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    """A plan that is compiled whole may be slower than its argument shardings alone."""
    judge = FakeJudge(problem)

    def slow_when_whole(subject: Any) -> Judgement:
        judgement = judge(subject)
        assert judgement.time_s is not None
        is_whole = isinstance(subject, ShardingPlan)
        return judgement._replace(time_s=judgement.time_s * (2.0 if is_whole else 1.0))

    result = confirm(problem, searched, slow_when_whole, sources={"floor": lowest}, compiles=3)
    best_s = min(verdict.time_s for verdict in result.verdicts if verdict.time_s is not None)
    assert result.best is not None
    assert result.best.time_s == best_s
    assert result.best.written is not None


def test_what_the_floor_teaches_is_searched_with(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    slow = slower(problem, 2.0)
    searched_problems: list[Problem] = []

    def search_once(priced: Problem, number: int) -> SearchResult[Any]:
        searched_problems.append(priced)
        return dataclasses.replace(searched, problem=priced)

    confirmed_search(
        problem,
        Judging("fake", compiles=1),
        Sources(search_once, floor=lowest),
        judge=FakeJudge(problem, 2.0),
        learn=lambda *_: slow,
    )
    assert searched_problems[0] is slow


def test_plans_of_the_floor_that_prices_think_nothing_of_are_not_judged(
    problem: Problem, lowest: dict[str, WrittenPlan]
) -> None:
    prices = {name: price(problem, written.plan).time_s for name, written in lowest.items()}
    names = [name for name, _ in worth_of_floor(problem, lowest)]
    limit_s = min(prices.values()) * (1 + FLOOR_WORTH_JUDGING)
    assert names == sorted(
        (name for name in prices if prices[name] <= limit_s), key=lambda name: prices[name]
    )
    peak_bytes = price(problem, lowest["data parallel"].plan).peak_bytes
    tight = Problem(problem.analysis, problem.mesh, memory_limit_bytes=peak_bytes / 3)
    assert "data parallel" not in dict(worth_of_floor(tight, lowest))


def test_written_plans_are_judged_before_whole_ones(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    written = sorted(lowest.values(), key=lambda row: price(problem, row.plan).score)[0]
    result = confirm(
        problem, searched, FakeJudge(problem), sources={"write": lambda _: [written]}, compiles=2
    )
    assert [verdict.written for verdict in result.verdicts] == [written, None]
    assert result.best is result.verdicts[0], "it is as good, and takes less to write"
    assert result.verdicts[0].title == f"written in {written.size}"


def test_of_written_plans_the_smallest_good_one_and_the_best_are_preferred(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    row = known(problem, searched)[0]
    small, large = sorted(lowest.values(), key=lambda written: written.size.total)[:2]
    assert small.size.total < large.size.total

    def at(written: WrittenPlan | None, score: float) -> Candidate[Any]:
        return Candidate(row.plan, row.quick._replace(score=score), written)

    best = [at(None, 1.0), at(large, 1.01), at(small, 1.04)]
    assert preferred_written(best, 0.05) == [best[2], best[1]]
    assert (
        preferred_written([at(None, 1.0), at(large, 1.01), at(small, 1.06)], 0.05)
        == [at(large, 1.01)] * 2
    )
    assert preferred_written([at(None, 1.0), at(small, 4.0)], 0.05) == []


def test_with_a_size_only_written_plans_of_that_size_are_judged_and_given(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    size = min(written.size.total for written in lowest.values())
    large = max(lowest.values(), key=lambda written: written.size.total)
    assert large.size.total > size
    judge = FakeJudge(problem)
    judge.special[large.plan.sharding.key()] = Judgement(1e-9, 1e6, True)
    result = confirm(problem, searched, judge, sources={"floor": lowest}, size=size, compiles=4)
    assert all(verdict.written is not None for verdict in result.verdicts)
    assert result.best is not None
    assert result.best.written is not None
    assert result.best.written.size.total <= size
    assert result.written().size.total <= size
    assert result.plan.sharding.same_as(result.best.plan.sharding)


def test_the_time_limit_ends_the_whole_and_keeps_the_floor(
    problem: Problem,
    searched: SearchResult[Any],
    lowest: dict[str, WrittenPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("toast_lab.confirm.loop.time.monotonic", lambda: clock[0])
    judge = FakeJudge(problem)

    def takes_ten_seconds(subject: Any) -> Judgement:
        clock[0] += 10.0
        if clock[0] > 25.0:
            raise Cancelled("told to stop")
        return judge(subject)

    result = confirm(problem, searched, takes_ten_seconds, sources={"floor": lowest}, seconds=25.0)
    assert result.standing is Standing.TIME
    assert "time limit" in result.in_brief()
    assert len(result.verdicts) == 2
    assert result.best is not None
    assert result.plan.sharding.same_as(result.best.plan.sharding)


def test_a_compile_that_is_killed_twice_is_dropped_with_both_reasons(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.by_order = [
        Judgement(None, None, False, failure="killed by signal 9", interrupted_at_s=3.0),
        Judgement(None, None, False, failure="killed by signal 11", interrupted_at_s=4.0),
    ]
    result = confirm(problem, searched, judge, compiles=1)
    assert judge.asked[:2] == [searched.plan.sharding.key()] * 2
    assert judge.asked.count(searched.plan.sharding.key()) == 2
    assert result.verdicts[0].remark == (
        "dropped: killed by signal 11 (tried twice; at first: killed by signal 9)"
    )


def test_a_verdict_corrects_the_prices_of_plans_like_it(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    plan, *others = (row.plan for row in known(problem, searched))
    cost = price(problem, plan)
    judgement = Judgement(2.0 * cost.time_s, 1e6, True)
    verdict = Verdict(plan, 1, cost.time_s, cost.peak_bytes, judgement)
    correct = Corrections(problem, [verdict])
    assert correct(plan, cost.time_s, False) == pytest.approx(2.0 * cost.time_s)
    near = dataclasses.replace(plan)
    changed = plan.op_factor.copy()
    changed[: int(REACH / 2 * len(changed))] = -1
    near = dataclasses.replace(plan, sharding=plan.sharding._replace(op_factor=changed))
    share = (changed != plan.op_factor).any(axis=1).mean()
    assert 0 < share < REACH
    assert correct(near, 1.0, False) == pytest.approx(1.0 + 1.0 - share / REACH)
    far = others[-1]
    assert (far.op_factor != plan.op_factor).any(axis=1).mean() > REACH
    assert correct(far, 1.0, False) == 1.0
    assert Corrections(problem, [])(plan, 1.0, True) == 1.0


def test_the_usual_plans_are_judged_whole_where_their_price_is_near(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    usual = {
        name: Plan.from_actions(problem, actions) for name, actions in usual_plans(problem).items()
    }
    poor = max(known(problem, searched)[:-1], key=lambda row: row.quick.score).plan
    poor_search = with_plans(problem, searched, poor)
    result = confirm(
        problem, poor_search, FakeJudge(problem), sources={"usual": usual}, compiles=8, plans=2
    )
    names = [verdict.name for verdict in result.verdicts]
    scores = {name: price(problem, plan).score for name, plan in usual.items()}
    near = [
        name
        for name in sorted(scores, key=lambda name: scores[name])
        if scores[name] <= (1 + WORTH_JUDGING) * poor_search.cost.score
    ]
    assert len(near) > MOST_USUAL, "else nothing is seen of the limit"
    assert [name for name in names if name] == near[:MOST_USUAL]
    assert {row["name"] for row in result.to_json()["verdicts"]} == {"", *near[:MOST_USUAL]}


def test_what_other_methods_find_is_judged_once_where_its_price_is_near(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    best = searched.cost.score
    rows = known(problem, searched)
    near = max(
        (row for row in rows if row.quick.score <= (1 + WORTH_JUDGING) * best),
        key=lambda row: row.quick.score,
    ).plan
    searched = with_plans(problem, searched, searched.plan)
    far = Plan.of(unsharded_plan(problem.analysis, problem.mesh))
    assert price(problem, far).score > (1 + WORTH_JUDGING) * best
    judge = FakeJudge(problem)
    judge.special[near.sharding.key()] = Judgement(1e-9, 1e6, True)
    asked: list[Problem] = []

    def others(priced: Problem) -> dict[str, Any]:
        asked.append(priced)
        return {"beam": near, "alpa": far}

    learned = [slower(problem, 1.0)]
    result = confirm(
        problem,
        searched,
        judge,
        learn=lambda *_: learned.pop() if learned else None,
        sources={"others": others},
        compiles=8,
        plans=2,
    )
    assert asked == [problem]
    assert [verdict.name for verdict in result.verdicts if verdict.name] == ["beam"]
    assert result.plan.sharding.same_as(near.sharding)


def test_usual_plans_that_the_price_thinks_nothing_of_are_not_judged(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    plan = Plan.from_actions(problem, usual_plans(problem)["data parallel"])
    usual, score = {"data parallel": plan}, price(problem, plan).score
    row = known(problem, searched)[0]

    def worth(best: float, *judged: int) -> list[tuple[Any, str]]:
        rows = [row._replace(quick=row.quick._replace(score=best))]
        keys = [(key, False) for key in judged]
        return named_plans_worth(problem, usual, rows, keys)

    assert worth(1.01 * score / (1 + WORTH_JUDGING)) == [(plan, "data parallel")]
    assert worth(0.99 * score / (1 + WORTH_JUDGING)) == []
    assert worth(score, plan.sharding.key()) == []


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
    judge.by_order = [Judgement(None, 1e12, False)] * 2
    result = confirm(problem, searched, judge, compiles=2)
    assert result.standing is Standing.NOTHING_STANDS
    assert result.best is None
    assert result.plan is searched.plan


def test_where_no_plan_compiles_one_that_needs_no_search_is_given(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    whole = unsharded_plan(problem.analysis, problem.mesh)
    usual = {"data parallel": Plan.from_actions(problem, usual_plans(problem)["data parallel"])}

    def refusing(*taken: ShardingPlan) -> Callable[[ShardingPlan], Judgement]:
        return lambda plan: (
            FakeJudge(problem)(plan)
            if any(plan.sharding.same_as(other.sharding) for other in taken)
            else Judgement(None, None, False, failure="refused")
        )

    sources = {"usual": usual}
    only_whole = confirm(problem, searched, refusing(whole), compiles=3, sources=sources)
    assert only_whole.standing is Standing.REFUSED
    assert only_whole.plan.sharding.same_as(whole.sharding)
    assert "(unsharded). Not confirmed: no plan that the search found compiles" in str(only_whole)
    # The usual plan takes part only where its price is near
    taken = refusing(*usual.values(), whole)
    poor = with_plans(problem, searched, known(problem, searched)[4].plan)
    twice = confirm(problem, poor, taken, compiles=1, sources=sources)
    assert twice.plan.sharding.same_as(usual["data parallel"].sharding)
    nothing = confirm(problem, searched, refusing(), compiles=1)
    assert nothing.standing is Standing.NOTHING_COMPILES


def test_a_plan_that_compiles_is_given_before_one_that_does_not(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.by_order = [
        Judgement(None, None, False, failure="refused"),
        Judgement(None, 1e6, True),
    ]
    result = confirm(problem, searched, judge, compiles=2)
    assert result.standing is Standing.NOTHING_STANDS
    assert result.plan.sharding.same_as(result.verdicts[1].plan.sharding)


def test_plans_of_a_kind_that_is_refused_are_left_out(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """The judge refuses every plan that splits the batch, which all good plans do."""
    batch = Plan.from_actions(problem, usual_plans(problem)["data parallel"])
    (group,) = {action.split("->")[0] for action in batch.actions}
    colours = problem.analysis.groups[problem.analysis.group_index(group)].colours

    def refuses_batch(plan: ShardingPlan) -> Judgement:
        names = plan.op_factor[plan.op_factor >= 0]
        if np.isin(problem.analysis.colour[names], colours).any():
            return Judgement(None, None, False, failure=f"refused {plan.sharding.key()}")
        return Judgement(price(problem, plan).time_s, 1e6, True)

    result = confirm(problem, searched, refuses_batch, compiles=8, plans=2)
    refused = [verdict for verdict in result.verdicts if verdict.judgement.refused]
    assert 2 <= len(refused) <= 4
    (kind,) = refused_kinds(result.verdicts)
    assert all(kind.has(verdict.plan) for verdict in refused)
    assert not kind.has(result.plan)
    assert group in result.refusals
    assert result.refusals in str(result)
    assert result.to_json()["refusals"] == result.refusals
    # One plan of the kind that compiles disproves it
    taken = Verdict(refused[0].plan, 1, 1.0, 1.0, Judgement(1.0, 1.0, True))
    assert refused_kinds([*result.verdicts, taken]) == []


def test_a_judge_that_was_interrupted_is_asked_once_more(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.by_order = [Judgement(None, None, False, failure="killed", interrupted_at_s=3.0)]
    result = confirm(problem, searched, judge, compiles=1)
    assert judge.asked == [searched.plan.sharding.key()] * 2
    assert result.confirmed
    assert len(result.verdicts) == 1


def test_a_plan_that_was_interrupted_is_judged_again_with_more_time(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)
    judge.special[searched.plan.sharding.key()] = Judgement(
        None, None, False, failure="no result within 60 s", interrupted_at_s=60.0
    )
    first = confirm(problem, searched, judge, compiles=2, time_limit_s=60.0)
    assert first.verdicts[0].remark == "dropped: no result within 60 s"
    assert not first.plan.sharding.same_as(searched.plan.sharding)
    judge.special.clear()
    judge.asked.clear()
    again = confirm(problem, searched, judge, compiles=1, time_limit_s=90.0, resume=first)
    assert judge.asked == [searched.plan.sharding.key()]
    assert again.confirmed
    assert again.plan.sharding.same_as(searched.plan.sharding)
    assert len(again.verdicts) == len(first.verdicts)
    judge.asked.clear()
    confirm(problem, searched, judge, compiles=1, time_limit_s=60.0, resume=first)
    assert searched.plan.sharding.key() not in judge.asked


def test_a_compile_that_is_killed_or_takes_too_long_is_no_refusal(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[RunFailed] = []

    def fails(*_: Any, **__: Any) -> None:
        raise raised[-1]

    monkeypatch.setattr(judges, "compile_plan", fails)
    monkeypatch.setattr(judges, "check_compiler", lambda *_: None)
    model = problem.analysis.model
    judge = judges.judge_named(problem, model, "tpu:v5e:2x2", time_limit_s=60.0)
    for error, is_refused in ((RunFailed("no"), True), (RunInterrupted("killed"), False)):
        raised.append(error)
        judgement = judge(unsharded_plan(problem.analysis, problem.mesh))
        assert judgement.failure == str(error)
        assert judgement.refused is is_refused
        assert (judgement.interrupted_at_s is None) is is_refused


def test_what_was_judged_is_learned_and_searched_with(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """Once prices have learned the judge's factor, they agree with it in the second round."""
    fast = Problem(problem.analysis, problem.mesh, problem.machine)
    judge = FakeJudge(problem, 2.0)
    learned: list[int] = []

    def learn(current: Problem, verdicts: Sequence[Verdict[Any]]) -> Problem | None:
        learned.append(len(verdicts))
        return slower(fast, 2.0)

    result = confirm(problem, searched, judge, learn=learn, compiles=4, plans=2)
    assert learned == [2]
    assert result.confirmed
    assert result.best is not None
    assert result.best.ratio == pytest.approx(2.0), "priced before it was learned"


def slower(problem: Problem, factor: float) -> Problem:
    """The problem on a machine on which everything takes ``factor`` times as long."""
    machine = dataclasses.replace(
        problem.machine,
        flops={name: rate / factor for name, rate in problem.machine.flops.items()},
        memory_bytes_per_s=problem.machine.memory_bytes_per_s / factor,
        op_overhead_s=problem.machine.op_overhead_s * factor,
        links=tuple(
            dataclasses.replace(
                link, bytes_per_s=link.bytes_per_s / factor, latency_s=link.latency_s * factor
            )
            for link in problem.machine.links
        ),
    )
    return Problem(problem.analysis, problem.mesh, machine)


def test_a_plan_that_was_found_and_looks_better_keeps_the_best_unconfirmed(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """The best judged plan agrees with its price, but other plans have better prices, and no judge
    has seen them."""
    rows = known(problem, searched)
    distinct = [
        row for i, row in enumerate(rows) if row.quick.time_s > 1.001 * rows[i - 1].quick.time_s
    ]
    worse = distinct[1]  # so that two plans have better prices
    # The first search gives only the worse plan; the clock agrees with its price
    results = [with_plans(problem, searched, worse.plan), searched]

    def search_once(priced: Problem, number: int) -> SearchResult[Any]:
        return results[number - 1]

    judge = FakeJudge(problem)
    # The plan with the best price fails, so that the worse one stays the best judged plan
    judge.special[rows[0].plan.sharding.key()] = Judgement(None, None, False, failure="no")
    learned = iter([slower(problem, 1.0), None])
    result = confirmed_search(
        problem,
        Judging("fake", compiles=2, plans=1),
        Sources(search_once),
        judge=judge,
        learn=lambda *_: next(learned),
    )
    assert result.best is not None
    assert result.best.plan is worse.plan
    assert result.best.ratio == pytest.approx(1.0)
    assert result.standing is Standing.BUDGET, "plans that look better were not judged"


def test_plans_of_earlier_searches_stay_in_mind(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """Plans of an earlier search are still known after a later search that finds fewer."""
    rows = known(problem, searched)
    worse = next(row for row in rows if row.quick.time_s > 1.02 * rows[0].quick.time_s)
    poor = with_plans(problem, searched, worse.plan)
    results = [searched, poor, poor]
    judge = FakeJudge(problem)
    judge.special[rows[0].plan.sharding.key()] = Judgement(None, None, False, failure="no")
    learned = iter([slower(problem, 1.0), slower(problem, 1.0)])
    result = confirmed_search(
        problem,
        Judging("fake", compiles=2, plans=1),
        Sources(lambda priced, number: results[number - 1]),
        judge=judge,
        learn=lambda *_: next(learned),
    )
    keys = {row.plan.sharding.key() for row in rows}
    assert len(result.verdicts) == 2
    assert result.verdicts[1].plan.sharding.key() in keys - {worse.plan.sharding.key()}


def test_prices_that_learned_are_searched_with_before_anything_is_confirmed(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """This holds even if the clock agrees at once and the budget of compiles is used up."""
    numbers: list[int] = []

    def search_once(priced: Problem, number: int) -> SearchResult[Any]:
        numbers.append(number)
        return dataclasses.replace(searched, problem=priced)

    result = confirmed_search(
        problem,
        Judging("fake", compiles=1),
        Sources(search_once),
        judge=FakeJudge(problem, 1.01),
        learn=lambda *_: slower(problem, 1.01),
    )
    assert result.confirmed
    assert numbers == [1, 2]


def test_the_judges_error_is_how_far_learned_prices_miss_its_clock(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    """A plan whose price is better by less than that does not prevent the confirmation."""
    rows = known(problem, searched)
    second = next(row for row in rows if row.quick.time_s > 1.0005 * rows[0].quick.time_s)
    assert second.quick.time_s < 1.045 * rows[0].quick.time_s
    alone = with_plans(problem, searched, second.plan)
    both = with_plans(problem, searched, second.plan, rows[0].plan)

    def standing(factor: float, noise: float) -> Standing:
        results = [alone, both]
        learned = iter([slower(problem, 1.0)])
        time_s = factor * second.quick.time_s
        return confirmed_search(
            problem,
            Judging("fake", compiles=1),
            Sources(lambda priced, number: results[number - 1]),
            judge=lambda plan: Judgement(time_s, 1e6, True, noise=noise),
            learn=lambda *_: next(learned),
        ).standing

    assert standing(1.0, 0.0) is Standing.BUDGET
    assert standing(1.0, 0.05) is Standing.CONFIRMED
    assert standing(1.0, 0.0001) is Standing.BUDGET


def test_a_judge_of_another_machine_confirms_nothing_and_says_so(
    problem: Problem, searched: SearchResult[Any]
) -> None:
    judge = FakeJudge(problem)

    def elsewhere(plan: ShardingPlan) -> Judgement:
        return judge(plan)._replace(elsewhere="cpu:4 is the machine cpu, prices are for tpu-v5e")

    result = confirm(problem, searched, elsewhere, compiles=2, plans=2)
    assert result.standing is Standing.ELSEWHERE
    assert [verdict.ratio for verdict in result.verdicts] == [None, None]
    assert result.best is not None, "the clock still chooses"
    for text in (str(result), result.in_brief(), str(result.to_json())):
        assert "is the machine cpu" in text


def test_targets_are_those_of_the_machine_first_with_reasons(problem: Problem) -> None:
    assert problem.machine.name == "tpu-v5e"
    targets = judge_targets(problem)
    assert targets[0].topology == "tpu:v5e:2x2"
    assert [target.topology for target in targets[1:3]] == ["cpu:4", "gpu"]
    by_topology = {target.topology: target for target in targets}
    assert by_topology["cpu:4"].possible
    assert "the machine cpu, and prices are for tpu-v5e" in by_topology["cpu:4"].warning
    for topology, target in by_topology.items():
        if topology != "gpu":
            assert target.possible or "install" in target.refusal, target
    on_cpu = Problem(problem.analysis, problem.mesh, "cpu")
    assert judge_targets(on_cpu)[0] == JudgeTarget(
        "4 virtual CPU devices, executed", "cpu:4", "", ""
    )
    odd = Problem(problem.analysis, {"data": 3}, "tpu-v5e")
    first = judge_targets(odd)[0]
    assert not first.possible
    assert "no slice of tpu-v5e has 3 devices; slices have 1, 4, 8" in first.refusal
    # A user's own machine file is taken to describe the attached devices
    own_problem = Problem(
        problem.analysis, problem.mesh, dataclasses.replace(problem.machine, name="our rack")
    )
    assert judged_elsewhere(own_problem, "cpu:4") == ""
    assert "our rack" in judged_elsewhere(own_problem, "gpu:h100:4")


def test_verdicts_stand_in_json_and_in_the_file_of_the_plan(
    problem: Problem, searched: SearchResult[Any], tmp_path: Path
) -> None:
    result = confirm(problem, searched, FakeJudge(problem, 1.05), plans=2)
    data = json.loads(json.dumps(result.to_json()))
    assert data["confirmed"] is True
    assert data["standing"] == "CONFIRMED"
    assert [verdict["best"] for verdict in data["verdicts"]] == [True, False]
    assert data["verdicts"][0]["ratio"] == pytest.approx(1.05)
    path = tmp_path / "plan.json"
    result.plan.save(path)
    kept = json.loads(path.read_text())["judged"]
    assert kept["judge"] == "fake"
    assert kept["confirmed"] is True
    assert kept["verdict"]["judged_s"] == pytest.approx(result.best.time_s)  # type: ignore[union-attr]
    assert Plan.load(path, problem).judged == kept
    # No judge has seen the plan for another mesh
    assert Plan.load(path, Problem(problem.analysis, {"data": 4, "model": 2})).judged is None
    damaged = {**result.plan.to_json(), "judged": {"judge": "x", "confirmed": "yes"}}
    with pytest.raises(InvalidPlan, match="must say whether the plan is confirmed"):
        Plan.from_json(damaged, problem)


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
    second_judge = FakeJudge(problem, 2.0)
    second = confirm(problem, searched, second_judge, compiles=2, plans=4, resume=first)
    assert len(second.verdicts) == 4
    assert not set(second_judge.asked) & set(judge.asked), "what was judged stays judged"
    stopped = confirm(problem, searched, FakeJudge(problem), cancel=lambda: True)
    assert (stopped.standing, stopped.verdicts) == (Standing.CANCELLED, ())


def test_every_step_is_told(problem: Problem, searched: SearchResult[Any]) -> None:
    events: list[JudgeEvent] = []
    confirm(problem, searched, FakeJudge(problem, 2.0), compiles=2, plans=2, on_event=events.append)
    stages = [event.stage for event in events]
    assert stages == ["searching", "searched", "judging", "judged", "judging", "judged"]
    assert [event.compiles for event in events] == [0, 0, 0, 1, 1, 2]
    assert events[3].best is events[3].verdict
    assert events[2].plan is events[3].plan
    assert events[1].priced_s == searched.cost.time_s


def test_wrong_options_are_all_listed() -> None:
    with pytest.raises(
        InvalidProblem, match=r"(?s)compiles .* got 0\n.*plans .* got 1.5\n.*tolerance .* got -1"
    ):
        Judging("cpu:2", compiles=0, plans=1.5, tolerance=-1.0)  # type: ignore[arg-type]


def test_attached_devices_are_a_judge() -> None:
    problem = Problem(small_transformer(), {"data": 2}, "cpu")
    result = search(
        problem, budget=Budget(None, 60), judge=Judging("cpu:2", compiles=1, tolerance=1e6)
    )
    assert isinstance(result, ConfirmedResult)
    floor_of_it = [verdict for verdict in result.verdicts if verdict.name in FLOOR]
    assert len(result.verdicts) == len(floor_of_it) + 1
    assert all(verdict.time_s is not None for verdict in result.verdicts)
    assert {verdict.written is None for verdict in floor_of_it} == {False}
    assert result.best is not None
    assert result.best.time_s is not None
    assert result.best.time_s > 0
    # Which of two plans the devices run quicker is noise at this size; one compile cannot go on
    assert result.standing in (Standing.CONFIRMED, Standing.BUDGET)


def test_a_judge_that_is_not_there_is_refused() -> None:
    problem = Problem(small_transformer(), {"data": 2})
    with pytest.raises(InvalidProblem, match="no topology is called"):
        search(problem, budget=Budget(None, 1), judge="abacus:2")
    with pytest.raises(InvalidProblem, match="resume"):
        search(problem, budget=Budget(None, 1), judge="cpu:2", resume="trace.npz")


def test_the_smallest_written_plan_is_nearly_as_good_by_the_clock(
    problem: Problem, lowest: dict[str, WrittenPlan]
) -> None:
    """A plan that the clock has refuted is not the smallest good one, however good its price."""
    one, two = sorted(lowest.values(), key=lambda written: written.size.total)[:2]
    assert one.size.total < two.size.total
    smallest, largest = (
        dataclasses.replace(written, cost=dataclasses.replace(two.cost, time_s=time_s))
        for written, time_s in ((one, 1.01e-3), (two, 1e-3))
    )

    def verdict(written: WrittenPlan, time_s: float) -> Verdict[Any]:
        judgement = Judgement(time_s, 1e6, True)
        return Verdict(written.plan, 1, 1e-3, 1e6, judgement, written=written)

    best = verdict(largest, 1e-3)

    def front(*others: Verdict[Any], confirmed: bool) -> Any:
        return judged_front(
            [smallest, largest], [best, *others], two.cost, best=best, confirmed=confirmed
        )

    only_priced = front(confirmed=True)
    assert only_priced.within(0.02) is smallest, "by a price that was confirmed"
    assert only_priced.within(0.0) is largest
    assert "only priced" in str(only_priced)
    assert "1.000 ms" in str(only_priced)
    assert front(confirmed=False).within(0.02) is largest, "by a price that was not"
    assert front(verdict(smallest, 1.01e-3), confirmed=False).within(0.02) is smallest
    slow = front(verdict(smallest, 1.5e-3), confirmed=True)
    assert slow.within(0.02) is largest, "the clock has refuted it"
    assert slow.of_size(smallest.size.total) is smallest
    refused = verdict(smallest, 1.0)
    refused = dataclasses.replace(refused, judgement=Judgement(None, None, False, failure="no"))
    assert list(front(refused, confirmed=True)) == [largest]
    with pytest.raises(InvalidProblem, match="the smallest has"):
        front(refused, confirmed=True).of_size(smallest.size.total)


def test_where_time_is_over_before_anything_was_judged_the_floor_is_given_by_its_price(
    problem: Problem, searched: SearchResult[Any], lowest: dict[str, WrittenPlan]
) -> None:
    poor = with_plans(problem, searched, unsharded_plan(problem.analysis, problem.mesh))
    sources = {"floor": lowest}
    result = confirm(problem, poor, FakeJudge(problem), sources=sources, cancel=lambda: True)
    assert result.verdicts == ()
    best = min(lowest.values(), key=lambda written: price(problem, written.plan).score)
    assert result.plan.sharding.same_as(best.plan.sharding)
    assert result.cost.score == price(problem, best.plan).score < poor.cost.score

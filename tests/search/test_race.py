"""Races give a table and curves of every method, even if some of them crash or are stopped."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import toast_lab as tl
from tests.helpers import analysed, small_transformer
from tests.search.bad_methods import bring
from toast_lab.search import race as racing
from toast_lab.search.search_child import ImprovementPoint, MethodOutcome

MESH = {"data": 2, "model": 2}
FEW = tl.Budget(seconds=None, evaluations=150)


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    return tl.Problem(small_transformer(mode="forward"), MESH)


@pytest.fixture
def bad_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, "dies", "slow", "picky")


def test_a_race_has_the_results_of_the_searches(problem: tl.Problem) -> None:
    done = tl.race(problem, ["mcts", "exhaustive"], FEW, seed=1)
    assert [row.method for row in done.rows] == ["mcts", "exhaustive"]
    for row in done.rows:
        alone = tl.search(problem, row.method, seed=1, budget=FEW)
        assert row.score == pytest.approx(alone.cost.score, rel=1e-12)
        assert row.evaluations == alone.evaluations
        assert row.status == alone.status.name
        assert done.plans[row.method].key == alone.plan.key
        curve = [r for r in done.curves if r["method"] == row.method]
        assert [r["score"] for r in curve] == [
            s.score for s in alone.trace.simulations if s.improved
        ]
        assert row.own_best_s == curve[-1]["elapsed_s"]
    assert done.best is not None
    assert done.best.score == min(row.score or 9.0 for row in done.rows)
    assert done.plan is not None
    assert tl.price(problem, done.plan).score == pytest.approx(done.best.score)


def test_the_table_is_the_same_but_for_seconds(problem: tl.Problem) -> None:
    def timeless(done: tl.Race) -> list[Any]:
        return [
            r._replace(elapsed_s=0.0, own_best_s=None, close_s=None, message="") for r in done.rows
        ]

    first, second = (tl.race(problem, ["mcts", "exhaustive"], FEW) for _ in range(2))
    assert timeless(first) == timeless(second)
    assert str(first).splitlines()[0] == f"{problem.describe()}, seed 0"
    assert str(first).splitlines()[1].split()[:4] == ["method", "score", "ms", "GiB"]


def test_a_method_that_dies_has_a_row_with_what_it_had_found(
    problem: tl.Problem, bad_methods: None
) -> None:
    done = tl.race(problem, ["dies", "mcts"], FEW)
    dead, alive = done.rows
    assert dead.status == "CRASHED"
    assert "exit status 3" in dead.message
    assert dead.score is not None
    assert dead.score < 0.99
    assert dead.actions
    assert tl.price(problem, done.plans["dies"]).score == pytest.approx(dead.score)
    assert alive.status == "BUDGET"
    assert "exit status 3" in str(done)


def test_a_plan_that_no_actions_give_outlives_the_process_that_found_it(
    problem: tl.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, "refines")
    done = tl.race(problem, ["refines"], FEW)
    assert done.rows[0].status == "CRASHED"
    assert done.rows[0].actions == ("refined by hand",)
    plan = done.plans["refines"]
    assert (plan.actions, plan.refinements) == ((), ("refined by hand",))
    assert (plan.value_dim[0] == -1).all()
    assert (plan.op_factor >= 0).any()
    plan.check()


def test_a_defect_of_a_method_is_its_row(problem: tl.Problem, bad_methods: None) -> None:
    done = tl.race(problem, ["picky"], FEW)
    assert done.rows[0].status == "CRASHED"
    assert "ZeroDivisionError: a defect" in done.rows[0].message
    assert done.best is None
    assert done.plan is None


def test_unknown_options_are_a_failed_row_that_says_so(problem: tl.Problem) -> None:
    done = tl.race(problem, ["mcts"], FEW, options={"mcts": {"wings": 2}})
    assert done.rows[0].status == "FAILED"
    assert "mcts has no option wings" in done.rows[0].message


def test_a_cancelled_race_keeps_what_is_there(problem: tl.Problem, bad_methods: None) -> None:
    stop = threading.Event()

    def on_progress(method: str, point: ImprovementPoint) -> None:
        if method == "slow":
            stop.set()

    started = time.monotonic()
    done = tl.race(
        problem,
        ["exhaustive", "slow", "mcts"],
        tl.Budget(seconds=60, evaluations=100),
        cancel=stop.is_set,
        on_progress=on_progress,
    )
    assert time.monotonic() - started < 50
    assert [row.status for row in done.rows] == ["BUDGET", "CANCELLED", "CANCELLED"]
    assert done.rows[1].score == pytest.approx(1.0), (
        "it had priced the unsharded program, and handed that over"
    )
    assert "was stopped; the plan is the best found" in done.rows[1].message, "it ended by itself"
    assert done.rows[2].score is None


def test_two_at_once_give_the_same_rows_in_the_order_given(problem: tl.Problem) -> None:
    one, two = (tl.race(problem, ["exhaustive", "mcts"], FEW, parallel=n) for n in (1, 2))
    assert [(r.method, r.score, r.evaluations) for r in one.rows] == [
        (r.method, r.score, r.evaluations) for r in two.rows
    ]


def test_everything_wrong_is_said_at_once(problem: tl.Problem) -> None:
    with pytest.raises(tl.ToastError) as info:
        tl.race(problem, ["mtcs", "manual", "manual", "genetic"], options={"exhaustive": {}})
    text = str(info.value)
    for part in (
        "'mtcs' (did you mean \"mcts\"?)",
        "'genetic'",
        "manual is given 2 times",
        "options are given for exhaustive",
    ):
        assert part in text
    with pytest.raises(tl.ToastError, match="no method is given"):
        tl.race(problem, [])


def outcome(
    method: str, points: list[tuple[float, float, bool]], bound: float | None = None
) -> MethodOutcome:
    improvements = tuple(
        ImprovementPoint(s, score, score, 1.0, fits, i + 1, ())
        for i, (s, score, fits) in enumerate(points)
    )
    return MethodOutcome(method, "BUDGET", "", improvements, 9, 5.0, 0.0, bound, (), None)


def test_close_and_gap_are_judged_by_the_best_and_the_bounds_of_all() -> None:
    table_rows = racing.rows(
        [
            outcome(
                "fast", [(0.1, 1.0, False), (0.2, 0.5, False), (0.3, 0.8, True), (1.0, 0.5, True)]
            ),
            outcome("slow", [(0.5, 0.504, True), (4.0, 0.4995, True)], bound=0.45),
            outcome("big", [(0.1, 0.3, False)]),
            outcome("bad", [(0.1, 0.6, True)], bound=0.4),
        ]
    )
    assert [r.close_s for r in table_rows] == [1.0, 0.5, None, None], (
        "a plan that does not fit is not close to one that does"
    )
    assert [r.own_best_s for r in table_rows] == [1.0, 4.0, 0.1, 0.1]
    assert [r.gap for r in table_rows] == pytest.approx(
        [0.5 / 0.45 - 1, 0.4995 / 0.45 - 1, 0.3 / 0.45 - 1, 0.6 / 0.45 - 1]
    )


def test_where_nothing_fits_the_closest_is_the_best() -> None:
    a, b = racing.rows([outcome("a", [(1.0, 2.0, False)]), outcome("b", [(2.0, 1.5, False)])])
    assert (a.close_s, b.close_s) == (None, 2.0)


def test_the_best_fits_before_it_is_fast() -> None:
    problem = tl.Problem(analysed("mlp"), "2")
    done = racing.Race(
        problem, 0, (outcome("big", [(0.1, 0.3, False)]), outcome("small", [(0.1, 0.6, True)]))
    )
    assert done.best is not None
    assert done.best.method == "small"

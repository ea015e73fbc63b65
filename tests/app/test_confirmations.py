"""Confirmed searches on a page are followed, kept, cancelled and found again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.session import Session
from toast_lab.jobs.confirm_job import (
    ConfirmState,
    JudgedPlan,
    JudgeStep,
    PlanParts,
    PricePoint,
)
from toast_lab.jobs.job import Registry
from toast_lab.sharding.plan import unsharded_plan
from toast_lab.views.confirm_chart import ConfirmCurve
from toast_lab.views.confirm_curve import FRONT_COLUMNS, confirm_frame, verdict_frame

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
WAIT_S = 240.0


@pytest.fixture
def session() -> Iterator[Session]:
    """A session with a tiny program on two virtual devices, with a judge."""
    jobs = Registry()
    session = Session(jobs)
    session.load("mlp")
    session.set_problem(machine="cpu", mesh="data=2")
    session.searches.param.update(seconds=None, evaluations=40)
    session.confirmations.param.update(judge="cpu:2", compiles=2)
    yield session
    jobs.cancel_all()
    for job in jobs.running():
        job.finished.wait(20)


def wait(session: Session) -> None:
    deadline = time.monotonic() + WAIT_S
    while session.work.busy:
        session.tick()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_confirmed_search_leaves_its_plans_and_another_page_finds_it_again(
    session: Session,
) -> None:
    page = SearchPage(session)
    session.confirmations.start()
    page.view.value = "confirm"
    twin = Session(session.work.registry)
    assert twin.adopt(session.work.job)
    wait(session)
    wait(twin)
    for page_session in (session, twin):
        state = page_session.confirmations.state
        assert state.end is not None
        # The floor, and at most two plans beside it
        assert state.verdicts[0].name == "data parallel as argument shardings alone"
        assert state.verdicts[0].is_written
        assert 2 <= len(state.verdicts) <= 6
        assert len(state.verdicts) <= state.most_compiles
        assert state.points
        assert state.best is not None
        assert state.verdicts[state.best].time_s
        names = [item.name for item in page_session.plans.items]
        assert any(name.startswith("mcts, ") and name.endswith("by cpu:2") for name in names)
        best = next(item for item in page_session.plans.items if item.name.endswith("by cpu:2"))
        assert best.plan.judged is not None
        assert best.plan.judged["judge"] == "cpu:2"
    assert twin.confirmations.judge == "cpu:2"
    # At the end the front of written plans is opened, with rules and constraints, price and clock
    page.tick()
    assert page.confirm.tabs.active == 1
    end = session.confirmations.state.end
    assert end.first is not None
    front = page.confirm.front.value
    assert list(front.columns) == list(FRONT_COLUMNS)
    assert front["rules"].tolist() == [str(row.size.rules) for row in end.front]
    judged = [row for row in end.front if row.clock_s is not None]
    # Which of the judged ones is the quickest is noise at this size
    assert judged
    assert (front["step, judged"] != "–").sum() == len(judged)
    assert "unsharded" in page.confirm._words.object
    # One click leads to its execution
    page.confirm._compare()
    assert session.step == "compare"
    assert session.plans.wanted in [item.name for item in session.plans.items]


def test_esc_keeps_what_was_judged(session: Session) -> None:
    session.confirmations.compiles = 50
    session.searches.evaluations = 100
    session.confirmations.start()
    deadline = time.monotonic() + WAIT_S
    while not session.confirmations.state.verdicts and session.work.busy:
        session.tick()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    verdicts = len(session.confirmations.state.verdicts)
    session.searches.cancel()
    wait(session)
    state = session.confirmations.state
    assert len(state.verdicts) >= verdicts
    assert any(item.name.endswith("by cpu:2") for item in session.plans.items)


def test_a_job_that_dies_keeps_the_best_that_was_judged(session: Session) -> None:
    session.confirmations.start()
    job = session.work.job
    deadline = time.monotonic() + WAIT_S
    while not session.confirmations.state.verdicts and session.work.busy:
        session.tick()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if job.running:
        job.cancel()
    wait(session)
    assert any(item.name.endswith("by cpu:2") for item in session.plans.items)


def verdict(session: Session, at_s: float, time_s: float | None, *, elsewhere: str) -> JudgedPlan:
    problem = session.loaded.problem
    plan = unsharded_plan(problem.analysis, problem.mesh)
    ratio = None if elsewhere or time_s is None else time_s / 1e-3
    return JudgedPlan(
        at_s=at_s,
        round=1,
        priced_s=1e-3,
        priced_bytes=1e6,
        time_s=time_s,
        peak_bytes=1e6,
        ratio=ratio,
        fits=True,
        stands=time_s is not None,
        rank=(time_s is None, False, time_s or 0.0),
        remark="" if time_s is not None else "dropped: the compiler crashed",
        name="",
        elsewhere=elsewhere,
        compile_s=1.0,
        cached=False,
        parts=PlanParts(plan.sharding, plan.actions, plan.key),
    )


def test_clock_and_price_of_different_machines_are_never_joined(session: Session) -> None:
    points = [PricePoint(1.0, 1, 1e-3, 1e6, 10), PricePoint(5.0, 2, 9e-4, 1e6, 5)]
    verdicts = [
        verdict(session, 3.0, 1.2e-3, elsewhere=""),
        verdict(session, 4.0, None, elsewhere=""),
    ]
    frame = confirm_frame(points, verdicts, 6.0)
    assert frame[frame["kind"] == "clock"]["time_s"].tolist() == [1.2e-3, 1.2e-3]
    assert frame[frame["kind"] == "judged"]["state"].tolist() == ["1.20× priced"]
    priced = frame[frame["kind"] == "priced"]
    assert priced["time_s"].isna().sum() == 1, "the lines of two rounds are not joined"
    table = verdict_frame(verdicts, 0, "confirmed")
    assert table["verdict"].tolist() == ["confirmed", "dropped: the compiler crashed"]
    assert table["ratio"].tolist() == ["1.20", "–"]

    other = [verdict(session, 3.0, 1.2e-3, elsewhere="cpu:2 is the machine cpu")]
    table = verdict_frame(other, 0, "best judged")
    assert table["ratio"].tolist() == ["–"]
    apart = ConfirmCurve(1e-3, apart=True)
    assert len(apart.figures) == 2
    assert len(ConfirmCurve(1e-3).figures) == 1
    page = SearchPage(session)
    state = ConfirmState(session.loaded.problem, "cpu:2", 2)
    for event in (*points, *other, JudgeStep(4.0, "judged", 1, 1, 2)):
        state.take(event)
    session.confirmations.state = state
    page.confirm.refresh()
    page.view.value = "confirm"
    assert page.confirm.curve is not None
    assert len(page.confirm.curve.figures) == 2
    assert "is the machine cpu" in page.confirm._facts.object
    assert "clock over price" not in page.confirm._facts.object


def test_a_judge_of_another_machine_is_said_before_it_starts(session: Session) -> None:
    page = SearchPage(session)
    settings = page.controls.confirm_settings
    assert settings.judge.value == "cpu:2", "as the session has it"
    session.set_problem(machine="tpu-v5e")
    titles = {topology: title for title, topology in settings.judge.options.items()}
    assert titles["cpu:2"] == "2 virtual CPU devices, executed (another machine)"
    assert "the clock and the price are of different machines" in settings._meaning.object
    assert page.controls.run.name == "Run and confirm"
    settings.judge.value = ""
    assert page.controls.run.name == "Run the search"
    assert "not available here" in settings.reasons.object


def test_the_time_of_a_whole_confirmed_search_is_limited_on_the_page(session: Session) -> None:
    settings = SearchPage(session).controls.confirm_settings
    assert settings.apply()
    assert session.confirmations.confirm_seconds is None
    settings.seconds.put("90")
    assert settings.apply()
    assert session.confirmations.confirm_seconds == 90.0
    settings.seconds.put("0")
    assert any("out of range" in error for error in settings.errors)

"""The explorer's state without a page, and its jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from toast_lab.app import worker
from toast_lab.app.jobs import Job, JobState, Registry
from toast_lab.app.pages.search import SearchPage
from toast_lab.app.session import Session
from toast_lab.errors import ToastError
from toast_lab.isolate import report
from toast_lab.pipeline import search

# -- what children of these tests do; importable, since a child imports it by name -----------------


def child_sleep(seconds: float) -> str:
    report("asleep")
    time.sleep(seconds)
    return "awake"


def child_crash() -> None:
    os.abort()


HERE = "tests.app.test_session"
PATIENCE_S = 60.0


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"gave up waiting for {what}"
        time.sleep(0.02)


@pytest.fixture
def session(jobs: Registry) -> Session:
    made = Session(jobs=jobs)
    made.load("attention")
    return made


def settle(session: Session) -> None:
    def ended() -> bool:
        session.tick()
        return not session.busy

    wait(ended, "the job")


def first_points(session: Session) -> None:
    def some() -> bool:
        session.tick()
        return bool(session.points)

    wait(some, "the first simulation")


# -- jobs ------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_cancel_takes_less_than_a_second(jobs: Registry) -> None:
    job = jobs.start("load", "sleeping", f"{HERE}:child_sleep", 60)
    wait(lambda: bool(job.events), "the child")
    began = time.monotonic()
    job.cancel()
    assert job.finished.wait(5)
    assert time.monotonic() - began < 1
    assert job.state is JobState.CANCELLED


def test_a_crash_ends_its_job_and_nothing_else(jobs: Registry) -> None:
    crashed = jobs.start("load", "crashing", f"{HERE}:child_crash")
    fine = jobs.start("load", "sleeping", f"{HERE}:child_sleep", 0.1)
    assert crashed.finished.wait(PATIENCE_S)
    assert crashed.state is JobState.FAILED
    assert "crashed (SIGABRT)" in crashed.message
    assert fine.finished.wait(PATIENCE_S)
    assert (fine.state, fine.result) == (JobState.DONE, "awake")


def test_a_hang_ends_at_its_limit(jobs: Registry) -> None:
    job = jobs.start("load", "hanging", f"{HERE}:child_sleep", 60, time_limit_s=2)
    assert job.finished.wait(PATIENCE_S)
    assert "no result within 2 s" in job.message


def test_the_log_only_grows_and_outlives_its_reader(jobs: Registry) -> None:
    job = jobs.start("load", "sleeping", f"{HERE}:child_sleep", 0.1)
    assert job.finished.wait(PATIENCE_S)
    found = jobs.find(job.id)
    assert found is job
    assert [e.data for e in found.since(0)] == ["asleep"]
    assert found.since(1) == []


def test_too_many_at_once_are_refused(jobs: Registry) -> None:
    for _ in range(4):
        jobs.start("load", "sleeping", f"{HERE}:child_sleep", 60)
    with pytest.raises(ToastError, match="4 jobs are running already"):
        jobs.start("load", "one more", f"{HERE}:child_sleep", 60)


def test_the_callback_at_the_end_comes_however_it_ends(jobs: Registry) -> None:
    seen: list[Job] = []
    job = jobs.start("load", "crashing", f"{HERE}:child_crash", on_end=seen.append)
    wait(lambda: bool(seen), "the callback")
    assert seen == [job]


# -- loading and settings --------------------------------------------------------------------------


def test_load_gives_a_model_a_problem_and_the_unsharded_plan(session: Session) -> None:
    assert session.model is not None
    assert session.model.name == "attention"
    assert [p.name for p in session.plans] == ["unsharded"]
    assert session.messages[-1].level == "good"


def test_a_wrong_model_or_size_is_a_message_and_changes_nothing(session: Session) -> None:
    before = session.analysis
    session.load("atention")
    assert session.messages[-1].level == "error"
    assert 'did you mean "attention"' in session.messages[-1].text
    session.load("attention", {"nope": 3})
    assert "has no parameter nope" in session.messages[-1].text
    assert session.analysis is before


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ("banana", "cannot read the mesh"),
        ("data=0", "whole number above 0"),
        ("a=100,b=100", "joins at most 256"),
    ],
)
def test_a_wrong_mesh_is_refused_and_the_old_one_stays(
    session: Session, mesh: str, words: str
) -> None:
    session.set_problem(mesh=mesh)
    assert words in session.messages[-1].text
    assert session.mesh == "data=4,model=2"
    session.set_problem(mesh="2x2", machine="a100")
    assert session.problem is not None
    assert str(session.problem.mesh) == "data=2,model=2"


def test_another_model_and_back_keeps_the_plans(session: Session) -> None:
    session.add_data_parallel()
    session.load("mlp")
    assert [p.name for p in session.plans] == ["unsharded"]
    session.load("attention")
    assert [p.name for p in session.plans] == ["unsharded", "data parallel"]


def test_two_sessions_do_not_share(jobs: Registry, session: Session) -> None:
    other = Session(jobs=jobs)
    session.select((), (1,))
    session.add_data_parallel()
    assert other.analysis is None
    assert (other.names, other.conflicts, other.plans, other.messages) == ((), (), [], [])


# -- selection and plans ---------------------------------------------------------------------------


def test_a_conflict_brings_its_names(session: Session) -> None:
    assert session.analysis is not None
    session.select((), (2,))
    assert session.names == session.analysis.conflicts[2].sides
    assert session.conflicts == (2,)


def test_actions_are_priced_before_they_are_taken(session: Session) -> None:
    session.select((), (0,))
    rows = session.action_prices()
    assert {(r.axis, r.bits) for r in rows} == {(a, b) for a in ("data", "model") for b in (0, 1)}
    wanted = next(r for r in rows if (r.axis, r.bits) == ("model", 1))
    session.add_action("model", 1)
    item = session.plan_named("manual")
    assert item is not None
    assert item.plan.actions == ("S@1->model",)
    assert (item.cost.time_s, item.cost.peak_bytes) == pytest.approx(
        (wanted.time_s, wanted.peak_bytes)
    )


def test_manual_actions_add_up_and_can_be_taken_back(session: Session) -> None:
    session.select((), (0,))
    session.add_action("data", 0)
    session.add_action("model", 1)
    assert session.manual_actions == ("S@0->data", "S@1->model")
    session.undo_action()
    assert session.manual_actions == ("S@0->data",)


def test_an_action_without_a_selection_says_what_to_do(session: Session) -> None:
    session.add_action("data")
    assert "Select a name or a conflict first" in session.messages[-1].text


def test_typed_plans(session: Session) -> None:
    session.add_typed("S->data, H2->model", "mine")
    assert session.plan_named("mine") is not None
    session.add_typed("S->data", "mine")
    assert session.plan_named("mine 2") is not None
    for text, words in (
        ("Z->data", "no colour is called"),
        ("S->x", "no mesh axis"),
        ("S", "cannot read the action"),
        ("", "type actions"),
        ("S@zz->data", "must be 0s and 1s"),
    ):
        n = len(session.plans)
        session.add_typed(text)
        assert words in session.messages[-1].text
        assert session.messages[-1].level == "error"
        assert len(session.plans) == n


def test_data_parallel_that_does_not_divide_says_so(session: Session) -> None:
    session.set_problem(mesh="data=7")
    session.add_data_parallel()
    assert "has size 64, which no axis of data=7 divides" in session.messages[-1].text


# -- search ----------------------------------------------------------------------------------------


def test_a_search_streams_points_and_leaves_a_plan(session: Session) -> None:
    session.seconds = 30
    session.start_search()
    assert session.busy
    settle(session)
    shown = [p.simulation for p in session.points]
    assert shown == sorted(set(shown))
    assert shown[-1] == session.simulations > len(shown), "a sample, up to the last one"
    assert [p.best_s for p in session.points] == sorted(
        (p.best_s for p in session.points), reverse=True
    )
    item = session.plan_named("mcts (seed 0)")
    assert item is not None
    assert item.cost.time_s == pytest.approx(session.points[-1].best_s)
    assert item.plan.program is session.analysis.program  # type: ignore[union-attr]


def transformer(jobs: Registry) -> Session:
    made = Session(jobs=jobs, seconds=120.0)
    made.load("transformer")
    return made


@pytest.mark.timing
def test_pause_stands_still_step_does_one_and_stop_keeps_the_best(jobs: Registry) -> None:
    session = transformer(jobs)
    session.step_search()
    first_points(session)
    time.sleep(0.5)
    session.tick()
    held = len(session.points)
    assert held == 1
    for more in (1, 2, 3):
        session.step_search()
        wait(
            lambda more=more: bool(session.tick()) or len(session.points) > held + more - 1,  # type: ignore[misc]
            "one step",
        )
        time.sleep(0.2)
        session.tick()
        assert len(session.points) == held + more
    session.pause_search()
    wait(lambda: bool(session.tick()) and len(session.points) > 20, "going on")
    began = time.monotonic()
    session.stop_search()
    settle(session)
    assert time.monotonic() - began < 1
    assert "cancelled; the plan is the best found so far" in session.messages[-1].text
    assert session.plan_named("mcts (seed 0)") is not None


def test_a_round_is_shown_to_its_end(session: Session) -> None:
    session.method = "beam"  # a round is a restart, the first one the beam itself
    rounds = [s.round for s in search(session.problem, "beam").trace.simulations]
    for last in (1, 2):  # the unsharded start, of round 0, comes with the first one
        end = sum(r <= last for r in rounds)
        session.step_round()
        wait(lambda end=end: (session.tick(), session.simulations >= end)[1], "a round")  # type: ignore[misc]
        time.sleep(0.3)
        session.tick()
        assert session.simulations == end
    session.step_search()
    wait(lambda: bool(session.tick()), "one more")
    assert session.simulations == end + 1
    session.pause_search()
    settle(session)


def order(tmp_path: Path, text: str) -> None:
    (tmp_path / "part").write_text(text)
    os.replace(tmp_path / "part", tmp_path / "control")  # else it could be read half written


def orders(tmp_path: Path, text: str) -> tuple[worker.Control, list[worker.Batch]]:
    sent: list[worker.Batch] = []
    order(tmp_path, text)
    return worker.Control(str(tmp_path / "control"), sent.append), sent


class Tried(NamedTuple):
    index: int
    round: int = 0
    improved: bool = False


def test_what_is_better_is_never_left_out_of_a_report(tmp_path: Path) -> None:
    control, sent = orders(tmp_path, "run")
    control.hand_on([Tried(i, improved=i in (501, 777)) for i in range(1, 1001)])
    control.hand_on([Tried(1001), Tried(1002)])
    first, second = sent
    shown = [s.index for s in first.simulations]
    assert {1, 501, 777, 1000} <= set(shown)
    assert len(shown) < 80
    assert shown == sorted(shown)
    assert (first.done, second.done) == (1000, 1002)
    assert [s.index for s in second.simulations] == [1001, 1002]


def test_simulations_of_a_batch_are_held_back_until_they_are_asked_for(tmp_path: Path) -> None:
    control, sent = orders(tmp_path, "pause 2")
    batch = [Tried(i, round=i // 4) for i in range(1, 11)]
    thread = threading.Thread(target=control.hand_on, args=(batch,))
    thread.start()

    def shown() -> list[int]:
        return [s.index for b in sent for s in b.simulations]

    for text, last in (("pause 3", 3), ("round 3", 7), ("round 7", 10)):
        time.sleep(0.15)
        before = shown()
        order(tmp_path, text)
        wait(lambda last=last: shown() == list(range(1, last + 1)), text)  # type: ignore[misc]
        assert len(before) < last, "held back until now"
    thread.join(5)
    assert not thread.is_alive(), "a round of which nothing is held back lets the search go on"
    assert control.paused_s > 0.2


def test_stopping_lets_all_that_is_held_back_through(tmp_path: Path) -> None:
    control, sent = orders(tmp_path, "pause 1")
    thread = threading.Thread(target=control.hand_on, args=([Tried(i) for i in range(1, 6)],))
    thread.start()
    time.sleep(0.1)
    order(tmp_path, "stop")
    thread.join(5)
    assert not thread.is_alive()
    assert [s.index for b in sent for s in b.simulations] == [1, 2, 3, 4, 5]
    assert control.stopped


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # how Panel 2 will call buttons
def test_a_proof_is_told(session: Session) -> None:
    session.method = "exhaustive"
    session.set_problem(mesh="a=2")
    session.start_search()
    settle(session)
    assert session.search_gap == 0
    assert "Proven: no plan that this method can make scores lower." in session.search_note
    page = SearchPage(session)
    assert "Proven" in page._facts.object
    session.load("mlp")
    assert session.search_gap is None


def test_cancelling_a_search_keeps_the_best_it_had_reported(jobs: Registry) -> None:
    session = transformer(jobs)
    session.start_search()
    first_points(session)

    def improved() -> bool:
        session.tick()
        return any(p.improved for p in session.points[1:])

    wait(improved, "an improvement")
    session.cancel_job()
    settle(session)
    item = session.plan_named("mcts (seed 0)")
    assert item is not None
    assert item.cost.time_s == pytest.approx(session.points[-1].best_s)


def test_a_cancelled_search_whose_plan_no_actions_give_says_what_to_do(session: Session) -> None:
    session.step_search()
    first_points(session)
    session.best_actions = ("integer program",)
    session.cancel_job()
    settle(session)
    assert "stop such a search instead of cancelling it" in session.messages[-1].text
    assert session.plan_named("mcts (seed 0)") is None


def test_a_second_job_is_refused_while_one_runs(jobs: Registry) -> None:
    session = transformer(jobs)
    session.start_search()
    session.start_run("unsharded")
    assert "still running" in session.messages[-1].text
    session.cancel_job()
    settle(session)


def test_time_spent_paused_is_not_the_budgets(session: Session) -> None:
    session.seconds = 2
    session.step_search()
    first_points(session)
    time.sleep(2.5)
    session.tick()
    assert session.busy
    session.pause_search()
    settle(session)
    assert session.simulations > 1  # it went on after more than its budget had gone by


def test_a_fork_follows_the_same_job(session: Session) -> None:
    session.step_search()
    first_points(session)
    other = session.fork()
    session.pause_search()
    settle(other)
    settle(session)
    assert other.plan_named("mcts (seed 0)") is not None
    assert [p.simulation for p in other.points] == [p.simulation for p in session.points]
    other.add_data_parallel()
    assert session.plan_named("data parallel") is None


def test_an_executed_plan_agrees_with_the_unsharded_program(session: Session) -> None:
    session.add_data_parallel()
    session.start_run("data parallel", "cpu:8", 2)
    settle(session)
    item = session.plan_named("data parallel")
    assert item is not None
    assert item.run is not None, session.messages[-1].text
    assert item.entry().error < 1e-4
    assert item.run.certificate.passed


def test_devices_that_are_not_there_are_a_message(session: Session) -> None:
    session.start_run("unsharded", "cpu:3", 1)
    settle(session)
    assert session.messages[-1].level == "error"
    assert session.plan_named("unsharded") is not None

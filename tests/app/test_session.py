"""The explorer's session, its state and its jobs, without a page."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import param
import pytest

from toast_lab.app.pages.search_page import SearchPage
from toast_lab.app.rescued_plan import rescue
from toast_lab.app.session import Session
from toast_lab.errors import ToastError
from toast_lab.isolate import report
from toast_lab.jobs.job import Job, JobState, Registry
from toast_lab.jobs.orders import STOP, Order
from toast_lab.jobs.plan_job import PlanExecution
from toast_lab.jobs.search_job import Batch, Control
from toast_lab.pipeline import search
from toast_lab.views.compare_table import seconds_text

# -- functions that child processes import by name -------------------------------------------------


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
        return not session.work.busy

    wait(ended, "the job")


def first_points(session: Session) -> None:
    def some() -> bool:
        session.tick()
        return bool(session.searches.points)

    wait(some, "the first simulation")


# -- jobs ------------------------------------------------------------------------------------------


def test_a_cancelled_job_ends_long_before_its_work_would(jobs: Registry) -> None:
    job = jobs.start("load", "sleeping", f"{HERE}:child_sleep", 3600)
    wait(lambda: bool(job.events), "the child")
    job.cancel()
    assert job.finished.wait(60)
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
    same_job = jobs.find(job.id)
    assert same_job is job
    assert [e.data for e in same_job.since(0)] == ["asleep"]
    assert same_job.since(1) == []


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
    assert session.loaded.model is not None
    assert session.loaded.model.name == "attention"
    assert [p.name for p in session.plans.items] == ["unsharded"]
    assert session.notices.messages[-1].level == "good"


def test_a_wrong_model_or_size_is_a_message_and_changes_nothing(session: Session) -> None:
    before = session.loaded.analysis
    session.load("atention")
    assert session.notices.messages[-1].level == "error"
    assert 'did you mean "attention"' in session.notices.messages[-1].text
    session.load("attention", {"nope": 3})
    assert "has no parameter nope" in session.notices.messages[-1].text
    assert session.loaded.analysis is before


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
    assert words in session.notices.messages[-1].text
    assert session.loaded.mesh == "data=4,model=2"
    session.set_problem(mesh="2x2", machine="a100")
    assert session.loaded.problem is not None
    assert str(session.loaded.problem.mesh) == "data=2,model=2"


def test_another_model_and_back_keeps_the_plans(session: Session) -> None:
    session.plans.add_data_parallel()
    session.load("mlp")
    assert [p.name for p in session.plans.items] == ["unsharded"]
    session.load("attention")
    assert [p.name for p in session.plans.items] == ["unsharded", "data parallel"]


def test_two_sessions_do_not_share(jobs: Registry, session: Session) -> None:
    other = Session(jobs=jobs)
    session.selection.select((), (1,))
    session.plans.add_data_parallel()
    assert other.loaded.analysis is None
    assert (
        other.selection.names,
        other.selection.conflicts,
        other.plans.items,
        other.notices.messages,
    ) == ((), (), [], [])


# -- selection and plans ---------------------------------------------------------------------------


def test_a_conflict_brings_its_names(session: Session) -> None:
    assert session.loaded.analysis is not None
    session.selection.select((), (2,))
    assert session.selection.names == session.loaded.analysis.conflicts[2].sides
    assert session.selection.conflicts == (2,)


def test_actions_are_priced_before_they_are_taken(session: Session) -> None:
    session.selection.select((), (0,))
    rows = session.hand.action_prices()
    assert {(r.axis, r.bits) for r in rows} == {(a, b) for a in ("data", "model") for b in (0, 1)}
    wanted = next(r for r in rows if (r.axis, r.bits) == ("model", 1))
    session.hand.add_action("model", 1)
    item = session.plans.named("manual")
    assert item is not None
    assert item.plan.actions == ("S@1->model",)
    assert (item.cost.time_s, item.cost.peak_bytes) == pytest.approx(
        (wanted.time_s, wanted.peak_bytes)
    )


def test_manual_actions_add_up_and_can_be_taken_back(session: Session) -> None:
    session.selection.select((), (0,))
    session.hand.add_action("data", 0)
    session.hand.add_action("model", 1)
    assert session.hand.actions == ("S@0->data", "S@1->model")
    session.hand.undo()
    assert session.hand.actions == ("S@0->data",)


def test_an_action_without_a_selection_says_what_to_do(session: Session) -> None:
    session.hand.add_action("data")
    assert "Select a name or a conflict first" in session.notices.messages[-1].text


def test_typed_plans(session: Session) -> None:
    session.plans.add_typed("S->data, H2->model", "mine")
    assert session.plans.named("mine") is not None
    session.plans.add_typed("S->data", "mine")
    assert session.plans.named("mine 2") is not None
    for text, words in (
        ("Z->data", "no colour is called"),
        ("S->x", "no mesh axis"),
        ("S", "cannot read the action"),
        ("", "type actions"),
        ("S@zz->data", "must be 0s and 1s"),
    ):
        n = len(session.plans.items)
        session.plans.add_typed(text)
        assert words in session.notices.messages[-1].text
        assert session.notices.messages[-1].level == "error"
        assert len(session.plans.items) == n


def test_data_parallel_that_does_not_divide_says_so(session: Session) -> None:
    session.set_problem(mesh="data=7")
    session.plans.add_data_parallel()
    assert "data=7 does not divide S (64)" in session.notices.messages[-1].text


def test_usual_plans_are_added_and_those_that_do_not_exist_are_named(session: Session) -> None:
    session.plans.add_usual_plans()
    names = [item.name for item in session.plans.items]
    assert {"data parallel", "fully sharded"} <= set(names)
    text = session.notices.messages[-1].text
    assert "no expert parallel plan: no colour plays the part of experts" in text


# -- search ----------------------------------------------------------------------------------------


def test_a_search_streams_points_and_leaves_a_plan(session: Session) -> None:
    session.searches.seconds = 30
    session.searches.start()
    assert session.work.busy
    settle(session)
    shown = [p.simulation for p in session.searches.points]
    assert shown == sorted(set(shown))
    assert shown[-1] == session.searches.simulations > len(shown), "a sample, up to the last one"
    assert [p.best_s for p in session.searches.points] == sorted(
        (p.best_s for p in session.searches.points), reverse=True
    )
    item = session.plans.named("mcts (seed 0)")
    assert item is not None
    assert item.cost.time_s == pytest.approx(session.searches.points[-1].best_s, rel=0.02)
    assert item.plan.program is session.loaded.analysis.program  # type: ignore[union-attr]


def transformer(jobs: Registry) -> Session:
    session = Session(jobs=jobs)
    session.searches.seconds = 3600.0
    session.load("transformer")
    return session


def stand_still(session: Session) -> None:
    """Wait until a search has carried out its order and paused."""
    wait(lambda: (session.tick(), session.searches.is_paused)[1], "a pause")


def test_pause_stands_still_step_does_one_and_stop_keeps_the_best(jobs: Registry) -> None:
    session = transformer(jobs)
    session.searches.step()
    for number in (1, 2, 3, 4):
        stand_still(session)
        assert len(session.searches.points) == number
        time.sleep(0.2)
        session.tick()
        assert len(session.searches.points) == number
        session.searches.step()
    session.searches.pause()
    wait(lambda: bool(session.tick()) and len(session.searches.points) > 20, "going on")
    session.searches.stop()
    settle(session)  # times out long before the search of an hour would end
    message = session.notices.messages[-1].text
    assert "stopped; the plan is the best found so far" in message
    item = session.plans.named("mcts (seed 0)")
    assert item is not None
    assert f"{seconds_text(item.cost.time_s)} a step, fits: " in message


def test_escape_keeps_the_best_plan_and_what_is_needed_to_go_on(session: Session) -> None:
    session.searches.seconds = 3600.0
    session.searches.start()
    first_points(session)
    session.searches.cancel()
    settle(session)
    job = session.searches.job
    assert job is not None
    assert job.state is JobState.DONE
    assert session.searches.ended is not None, "it can be resumed"
    assert session.plans.named("mcts (seed 0)") is not None
    assert "cancelled" not in session.notices.messages[-1].text
    session.searches.resume()
    first_points(session)
    session.searches.cancel()
    session.searches.cancel()  # the second cancel ends it at once
    settle(session)


def test_time_spent_paused_is_not_counted(session: Session) -> None:
    session.searches.seconds = 3600.0
    session.searches.start()
    first_points(session)
    job = session.work.job
    session.searches.pause()
    paused_at_s = job.worked_s
    time.sleep(0.3)
    assert job.worked_s == pytest.approx(paused_at_s, abs=0.05)
    assert job.elapsed_s - job.worked_s >= 0.3
    session.searches.pause()
    assert job.elapsed_s - job.worked_s >= 0.3
    session.work.cancel()
    settle(session)


def test_what_does_not_fit_is_not_told_in_green(session: Session) -> None:
    session.set_problem(memory_gib=1e-7)
    session.searches.evaluations = 5
    session.searches.start()
    settle(session)
    message = session.notices.messages[-1]
    assert "No plan found fits" in message.text
    assert message.level == "error"


def test_a_round_is_shown_to_its_end(session: Session) -> None:
    session.searches.method = "beam"  # a round is a restart, the first one the beam itself
    rounds = [s.round for s in search(session.loaded.problem, "beam").trace.simulations]
    for last in (1, 2):  # the unsharded start, round 0, comes with the first round
        end = sum(r <= last for r in rounds)
        session.searches.step_round()
        assert not session.searches.is_paused
        stand_still(session)
        assert session.searches.simulations == end
        time.sleep(0.3)
        session.tick()
        assert session.searches.simulations == end
    session.searches.step()
    stand_still(session)
    assert session.searches.simulations == end + 1
    session.searches.pause()
    settle(session)


class Ordered:
    """A search's control with the order that it obeys and the batches that it sends."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.sent: list[Batch] = []
        self.control = Control(self.sent.append, lambda: self.order)


class Tried(NamedTuple):
    index: int
    round: int = 0
    improved: bool = False


def test_what_is_better_is_never_left_out_of_a_report() -> None:
    ordered = Ordered(Order("run"))
    control, sent = ordered.control, ordered.sent
    control.report([Tried(i, improved=i in (501, 777)) for i in range(1, 1001)])
    control.report([Tried(1001), Tried(1002)])
    first, second = sent
    shown = [s.index for s in first.simulations]
    assert {1, 501, 777, 1000} <= set(shown)
    assert len(shown) < 80
    assert shown == sorted(shown)
    assert (first.done, second.done) == (1000, 1002)
    assert [s.index for s in second.simulations] == [1001, 1002]


def test_simulations_of_a_batch_are_held_back_until_they_are_asked_for() -> None:
    ordered = Ordered(Order("pause", 2))
    control, sent = ordered.control, ordered.sent
    batch = [Tried(i, round=i // 4) for i in range(1, 11)]
    thread = threading.Thread(target=control.report, args=(batch,))
    thread.start()

    def shown() -> list[int]:
        return [s.index for b in sent for s in b.simulations]

    orders = (Order("pause", 3), Order("round", 3), Order("round", 7))
    for order, last in zip(orders, (3, 7, 10), strict=True):
        time.sleep(0.15)
        before = shown()
        ordered.order = order
        wait(lambda last=last: shown() == list(range(1, last + 1)), str(order))  # type: ignore[misc]
        assert len(before) < last, "held back until now"
    thread.join(5)
    assert not thread.is_alive(), "a round of which nothing is held back lets the search go on"


def test_stopping_lets_all_that_is_held_back_through() -> None:
    ordered = Ordered(Order("pause", 1))
    control, sent = ordered.control, ordered.sent
    thread = threading.Thread(target=control.report, args=([Tried(i) for i in range(1, 6)],))
    thread.start()
    time.sleep(0.1)
    ordered.order = STOP
    thread.join(5)
    assert not thread.is_alive()
    assert [s.index for b in sent for s in b.simulations] == [1, 2, 3, 4, 5]
    assert control.stopped


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # renamed parameters of buttons
def test_a_proof_is_told(session: Session) -> None:
    session.searches.method = "exhaustive"
    session.set_problem(mesh="a=2")
    session.searches.start()
    settle(session)
    assert session.searches.gap == 0
    assert "Proven: no plan that this method can make scores lower." in session.searches.note
    page = SearchPage(session)
    assert "Proven" in page.facts._facts.object
    session.load("mlp")
    assert session.searches.gap is None


def test_cancelling_a_search_keeps_the_best_it_had_reported(jobs: Registry) -> None:
    session = transformer(jobs)
    session.searches.start()
    first_points(session)

    def improved() -> bool:
        session.tick()
        return any(p.improved for p in session.searches.points[1:])

    wait(improved, "an improvement")
    session.work.cancel()
    settle(session)
    item = session.plans.named("mcts (seed 0)")
    assert item is not None
    assert item.cost.time_s == pytest.approx(session.searches.points[-1].best_s)


def test_a_search_that_was_killed_says_by_what(session: Session) -> None:
    why = "the search failed: its process was killed (SIGKILL), most likely out of memory."
    plan, note = rescue(session.loaded.problem, "mcts", ["S@0->data", "refined"], why)
    assert plan.actions == ("S@0->data",)
    assert "SIGKILL" in note
    assert "before it was refined" in note


def test_a_cancelled_search_whose_plan_no_actions_give_says_what_to_do(session: Session) -> None:
    session.searches.step()
    first_points(session)
    session.searches.best_actions = ("integer program",)
    session.work.cancel()
    settle(session)
    assert "stop such a search instead of cancelling it" in session.notices.messages[-1].text
    assert session.plans.named("mcts (seed 0)") is None


def test_a_second_job_is_refused_while_one_runs(jobs: Registry) -> None:
    session = transformer(jobs)
    session.searches.start()
    session.plans.start_runs(["unsharded"])
    assert "still running" in session.notices.messages[-1].text
    session.work.cancel()
    settle(session)


def test_time_spent_paused_is_not_the_budgets(session: Session) -> None:
    session.searches.seconds = 2
    session.searches.step()
    first_points(session)
    time.sleep(2.5)
    session.tick()
    assert session.work.busy
    session.searches.pause()
    settle(session)
    assert session.searches.simulations > 1  # the pause did not use up the budget


def test_a_fork_follows_the_same_job(session: Session) -> None:
    session.searches.step()
    first_points(session)
    other = session.fork()
    session.searches.pause()
    settle(other)
    settle(session)
    assert other.plans.named("mcts (seed 0)") is not None
    assert [p.simulation for p in other.searches.points] == [
        p.simulation for p in session.searches.points
    ]
    other.plans.add_data_parallel()
    assert session.plans.named("data parallel") is None


#: attributes of parts that are no state, by the reason
NO_STATE = {
    "registry": "of the process",
    "next_turn": "of the page",
    "_handlers": "methods of the parts",
    "_fresh": "what this page has yet to draw; a new page draws all points",
    "_memo": "computed from the problem",
    "_mirror": "computed from the job and the problem",
    "_digest": "computed from the program",
}


def other_value(parameter: param.Parameter[Any]) -> Any:
    """A value that a parameter may have and does not have by default."""
    match parameter:
        case param.Selector(objects=objects):
            return objects[-1]
        case param.Boolean(default=default):
            return not default
        case param.Integer():
            return 7
        case param.Number():
            return 0.5
        case param.String():
            return "text"
        case param.List():
            return ["entry"]
        case param.Dict():
            return {"key": "entry"}
        case param.ClassSelector(class_=class_):
            return class_()
    return object()


def test_parts_have_no_state_beside_their_parameters(session: Session) -> None:
    parts = session.parts()
    assert len(parts) > 9
    for part in parts.values():
        others = [
            name
            for name, value in vars(part).items()
            if not name.startswith("_param__")
            and name not in NO_STATE
            and not any(value is other for other in parts.values())
        ]
        assert not others, f"a fork loses these of {type(part).__name__}: {others}"


def test_a_fork_has_every_parameter_and_grows_apart(session: Session) -> None:
    for part in session.parts().values():
        with param.parameterized.discard_events(part):
            for name in part.param.values().keys() - {"name"}:
                setattr(part, name, other_value(part.param[name]))
    forked = session.fork()
    for where, part in session.parts().items():
        for name in part.param.values().keys() - {"name"}:
            value = getattr(part, name)
            copied = getattr(forked.parts()[where], name)
            if hasattr(value, "copy"):
                assert copied is not value, f"{where}.{name} grows on two pages"
                assert type(copied) is type(value)
            else:
                assert copied is value, f"a fork loses {where}.{name}"
            if isinstance(value, list | dict):
                assert copied == value


def test_a_fork_of_a_paused_search_is_paused_and_a_written_plan_stays_written(
    session: Session,
) -> None:
    session.searches.step()
    wait(lambda: (session.tick(), session.searches.is_paused)[1], "a pause")
    session.plans.start_writing("unsharded")
    wait(lambda: (session.tick(), not session.exports.busy)[1], "the written plan")
    forked = session.fork()
    assert forked.searches.held_state == "paused"
    unsharded = forked.plans.named("unsharded")
    assert unsharded is not None
    assert forked.plans.written(unsharded) is not None
    session.searches.cancel()
    settle(session)


def test_an_executed_plan_agrees_with_the_unsharded_program(session: Session) -> None:
    session.plans.add_data_parallel()
    session.plans.start_runs(["data parallel"], PlanExecution("cpu:8", 2))
    settle(session)
    item = session.plans.named("data parallel")
    assert item is not None
    assert item.run is not None, session.notices.messages[-1].text
    assert item.entry().error < 1e-4
    assert item.run.certificate.passed


def test_devices_that_are_not_there_are_a_message(session: Session) -> None:
    session.plans.start_runs(["unsharded"], PlanExecution("cpu:3", 1))
    settle(session)
    assert session.notices.messages[-1].level == "error"
    assert session.plans.named("unsharded") is not None

"""A race on a page, and a search that a page finds by its job, without a browser."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.app.test_session import first_points, settle, wait
from toast_lab.app.from_search import path_to_compare, path_to_graph, race_to_compare
from toast_lab.app.session import Session
from toast_lab.app.tree_state import TreeState
from toast_lab.jobs.job import Registry, Watch
from toast_lab.jobs.orders import Order
from toast_lab.jobs.race_job import RaceStart, RaceState, race_methods
from toast_lab.search.contract import Budget
from toast_lab.views.race_chart import RaceCurves
from toast_lab.views.race_curves import look_of, race_frame


@pytest.fixture
def session(jobs: Registry) -> Session:
    made = Session(jobs=jobs)
    made.searches.method = "beam"
    made.load("attention")
    return made


def test_a_race_tells_of_each_method_and_its_plans_are_compared(session: Session) -> None:
    session.searches.start_race(["random", "beam"], 0.5, 3)
    assert [r.status for r in session.searches.race.rows] == ["waits", "waits"]
    wait(lambda: (session.tick(), session.searches.race.running == "random")[1], "the first method")
    assert session.searches.race.status("random") in ("prepares", "runs", "budget")
    assert session.searches.race.status("beam") == "waits"
    settle(session)
    ended = session.notices.messages[-1].text
    assert "The race is over" in ended
    # The winner, and its margin
    assert re.search(r"its C\(s\) \d+\.\d% below that of (random|beam)|found one as good", ended)
    assert set(session.searches.race.outcomes) == {"random", "beam"}
    assert all(session.searches.race.points[m] for m in ("random", "beam"))
    frame = race_frame(session.searches.race.rows)
    assert frame["method"].tolist() == ["random", "beam"]
    assert frame["status"].tolist() == ["budget", "converged"]
    race_to_compare(session)
    best = session.searches.race.result.race.best
    assert session.plans.wanted == f"{best.method} (race, seed 3)", "the winner is selected"
    for name in ("random", "beam"):
        item = session.plans.named(f"{name} (race, seed 3)")
        assert item is not None
        assert item.cost.time_s == pytest.approx(session.searches.race.points[name][-1].time_s)
    race_to_compare(session)
    assert sum("race" in p.name for p in session.plans.items) == 2, "again is not twice"
    session.set_problem(mesh="x=2")
    assert session.searches.race.rows, "it says what it was a race for"
    session.load("mlp")
    assert session.searches.race.rows == [], "it was a race for another model"


class OfScores(RaceState):
    """A finished race in which the methods have these scores."""

    def __init__(self, **scores: float) -> None:
        super().__init__(methods=tuple(scores))
        self.result = SimpleNamespace(
            race=SimpleNamespace(best=SimpleNamespace(method="mcts", score=1.0, fits=True))
        )
        self.scores = scores

    @property
    def rows(self) -> list:
        return [
            SimpleNamespace(method=method, score=score, fits=score >= 1.0)
            for method, score in self.scores.items()
        ]


def test_who_won_by_less_than_can_be_told_has_not_won() -> None:
    even = OfScores(mcts=1.0, beam=1.0 + 1e-13, random=1.5).verdict()
    assert even == "mcts found the best plan; beam found one as good."
    clear = OfScores(mcts=1.0, beam=1.25, random=1.5).verdict()
    assert clear == "mcts found the best plan, its C(s) 20.0% below that of beam."
    # A plan that does not fit is no rival, however fast it is
    assert OfScores(mcts=1.0, beam=1.25, random=0.5).verdict() == clear


def test_a_held_race_stands_still_and_a_stopped_one_keeps_what_there_is(session: Session) -> None:
    session.searches.start_race(["beam", "random", "exhaustive"], 0.5, 0)
    session.searches.pause()

    def through() -> int:
        session.tick()
        return len(session.searches.race.outcomes)

    first = through()
    session.searches.pause()
    wait(lambda: through() >= first + 1, "the first method")
    session.searches.stop()
    settle(session)
    assert session.searches.race.outcomes["beam"].plan is not None
    assert session.searches.race.outcomes["exhaustive"].status == "CANCELLED"
    assert session.searches.race.result is not None


def test_a_held_race_begins_no_method(session: Session) -> None:
    looks = iter(range(1000))
    events: list[object] = []
    watch = Watch(events.append, lambda: next(looks) > 5, lambda: Order("pause"))
    raced = race_methods(session.loaded.problem, ("beam",), 0, Budget(1.0), watch=watch)
    assert next(looks) > 5
    assert [o.status for o in raced.race.outcomes] == ["CANCELLED"]
    assert not [e for e in events if isinstance(e, RaceStart)]


def test_wrong_methods_are_a_message(session: Session) -> None:
    session.searches.start_race(["beam", "boom"], 1.0, 0)
    assert "no search is called 'boom'" in session.notices.messages[-1].text
    session.searches.start_race([], 1.0, 0)
    assert "no method is given" in session.notices.messages[-1].text
    assert not session.work.busy


def test_methods_differ_in_hue_marker_and_dash() -> None:
    looks = [look_of(i) for i in range(7)]
    for part in zip(*looks, strict=True):
        assert len(set(part)) == 7


def test_a_curve_goes_on_to_the_end_of_its_search(session: Session) -> None:
    from toast_lab.search.search_child import ImprovementPoint

    chart = RaceCurves(["beam"], "time_s", (2e-3, 1.0))
    chart.show({"beam": [ImprovementPoint(0.5, 0.9, 3e-3, 1.0, True, 1, ())]}, {"beam": 4.0})
    data = chart.lines["beam"].data
    assert (data["elapsed_s"], data["time_s"]) == ([0.5, 4.0], [3.0, 3.0])


def test_another_session_finds_a_running_search_by_its_job(
    jobs: Registry, session: Session
) -> None:
    session.searches.method = "mcts"
    session.searches.step()
    first_points(session)
    assert session.work.job is not None
    job = jobs.find(session.work.job.id)
    assert job is not None
    other = Session(jobs=jobs)
    assert other.adopt(job)
    first_points(other)
    assert (other.searches.method, other.searches.points[0].simulation) == ("mcts", 1)
    state = TreeState(other.searches)
    wait(lambda: state.count(now=True), "the tree")
    assert state.shown == other.searches.simulations
    session.searches.stop()
    settle(session)
    settle(other)
    assert other.plans.named("mcts (seed 0)") is not None
    load = jobs.start("load", "loading", "tests.app.test_session:child_sleep", 0.0)
    assert not other.adopt(load)


def test_a_plan_of_the_tree_goes_to_compare_and_to_the_graph(session: Session) -> None:
    session.searches.start()
    settle(session)
    state = TreeState(session.searches)
    assert state.count(now=True)
    state.selected = state.action_rows()[0][0]
    place = state.place()
    assert place is not None
    path_to_compare(session, place.plan, "step")
    item = session.plans.named("step")
    assert item is not None
    assert (item.plan.actions, session.step) == (place.plan, "compare")
    path_to_graph(session, place.plan)
    assert (session.hand.actions, session.step) == (place.plan, "graph")
    session.set_problem(mesh="data=2")
    path_to_graph(session, place.plan)
    assert re.search("the mesh is data=2 now", session.notices.messages[-1].text)

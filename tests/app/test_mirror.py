"""A trace sent in chunks is the whole trace, and a page can show it as of any simulation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.helpers import analysed
from toast_lab.app.plan_facts import PlanFacts
from toast_lab.app.tree_state import TreeState, best_rows
from toast_lab.cost.problem import Cost, Problem, Quick, price
from toast_lab.jobs.mirror import Chunk, Mirror, Sender
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget, SearchResult


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(analysed("attention"), {"data": 4, "model": 2})


@pytest.fixture(scope="module")
def sent(problem: Problem) -> tuple[SearchResult, list[Any]]:
    chunks: list[Any] = []
    sender = Sender(chunks.append)
    result = search(
        problem, "beam", 0, Budget(evaluations=300), lambda news: sender.report(news, now=True)
    )
    sender.send_trace(result.trace, last=True)
    return result, chunks


def mirrored(chunks: list[Any]) -> Mirror:
    mirror = Mirror()
    assert all(mirror.take(c) for c in chunks)
    return mirror


def test_chunks_put_together_are_the_trace(sent: tuple[SearchResult, list[Any]]) -> None:
    result, chunks = sent
    mirror = mirrored(chunks)
    assert list(mirror.trace.simulations) == list(result.trace.simulations)
    for column in ("parent", "word", "depth"):
        assert (mirror.trace.node[column] == result.trace.node[column]).all()
    assert mirror.trace.vocabulary == result.trace.vocabulary
    assert (mirror.method_columns["visits"] == result.trace.node["visits"]).all()
    assert all(isinstance(c, Chunk) for c in chunks)
    assert not mirror.take("searching")


def test_no_more_than_the_limit_is_mirrored(
    sent: tuple[SearchResult, list[Any]], monkeypatch: Any
) -> None:
    monkeypatch.setattr("toast_lab.jobs.mirror.MAX_SIMULATIONS", 40)
    chunks: list[Any] = []
    Sender(chunks.append).send_trace(sent[0].trace, last=True)
    mirror = mirrored(chunks)
    assert mirror.n == 40
    mirror.places.extend()
    assert mirror.places.tally().visits[0] == 40


def test_a_sample_keeps_what_is_better_and_the_last(sent: tuple[SearchResult, list[Any]]) -> None:
    trace = sent[0].trace
    every = trace.simulations.sample(50)
    shown = [s.index for s in every]
    assert {s.index for s in trace.simulations if s.improved} <= set(shown)
    assert {1, 51, trace.row.n} <= set(shown)
    assert shown == sorted(set(shown))
    assert len(shown) < trace.row.n / 4


@dataclasses.dataclass
class Source:
    """A search with its mirror, as the tree's state reads it."""

    mirror: Mirror
    simulations: int
    problem: Problem
    searched_with: dict[str, Any] = dataclasses.field(default_factory=dict)


@pytest.fixture
def state(problem: Problem, sent: tuple[SearchResult, list[Any]]) -> TreeState:
    mirror = mirrored(sent[1])
    state = TreeState(Source(mirror, mirror.n, problem))
    assert state.shown == mirror.n
    return state


def test_everything_is_shown_as_of_a_simulation(
    state: TreeState, sent: tuple[SearchResult, list[Any]]
) -> None:
    trace = sent[0].trace
    for at in (1, 20, trace.row.n // 2):
        state.at = at
        assert state.count(now=True)
        best = state.best()
        assert best is not None
        assert best.score == trace.simulation(at - 1).best_score
        assert state.tally is not None
        assert state.tally.visits[0] == at
    state.at = 1
    first = state.best()
    state.at = None
    assert state.count(now=True)
    assert not state.count(now=True), "nothing new, nothing to do"
    assert state.best() != first


def test_a_running_search_is_not_counted_at_every_tick(state: TreeState) -> None:
    assert state.count()
    state.at = 5
    assert not state.count()
    assert state.count(now=True)


def test_what_a_step_holds_back_is_not_shown(state: TreeState) -> None:
    state.source.simulations = 7
    state.count(now=True)
    assert state.tally is not None
    assert (state.shown, state.tally.n) == (7, 7)


def test_taps_select_zoom_climb_and_unfold(state: TreeState) -> None:
    state.count(now=True)
    scene = state.scene(widest=2)
    assert scene is not None
    blocks = scene.blocks
    child = int(np.flatnonzero((blocks.level == 1) & (blocks.folded == 0))[0])
    fold = int(np.flatnonzero((blocks.level == 1) & (blocks.folded > 0))[0])
    assert scene.labels[fold] == f"{blocks.folded[fold]} more"
    state.tap(scene, child)
    place = int(blocks.place[child])
    assert (state.selected, state.root) == (place, 0)
    state.tap(scene, child)
    assert state.root == place
    state.up()
    assert state.root == 0
    state.tap(scene, fold)
    wider = state.scene(widest=2)
    assert wider is not None
    assert (wider.blocks.level == 1).sum() > (blocks.level == 1).sum()
    state.top()
    assert not state.opened


def facts(state: TreeState, plan: tuple[str, ...]) -> PlanFacts:
    while (plan_facts := state.facts(plan)) is None:
        pass
    return plan_facts


def test_the_selected_step_has_its_plan_and_price(state: TreeState, problem: Problem) -> None:
    state.count(now=True)
    children, rows = state.action_rows()
    assert [r.visits for r in rows] == sorted((r.visits for r in rows), reverse=True)
    state.selected = children[0]
    place = state.place()
    assert place is not None
    assert place.plan == (rows[0].action,)
    assert place.visits == rows[0].visits
    assert place.mean_score == rows[0].mean_score
    known = facts(state, place.plan)
    assert isinstance(known.cost, Cost)
    assert known.cost.time_s == price(problem, Plan.from_actions(problem, list(place.plan))).time_s
    assert known.steps == (
        Quick(known.cost.score, known.cost.time_s, known.cost.peak_bytes, known.cost.fits),
    )


def test_actions_that_nobody_tried_are_listed_with_their_prior(
    state: TreeState, problem: Problem
) -> None:
    state.count(now=True)
    deep = max(range(len(state.tally.visits)), key=lambda p: state.mirror.places.place["depth"][p])  # type: ignore[union-attr]
    state.selected = deep
    place = state.place()
    assert place is not None
    legal = facts(state, place.plan).legal
    assert legal
    places, rows = state.action_rows(legal)
    assert {r.action for r in rows} == set(legal)
    assert len(places) == len(rows)
    for at, row in zip(places, rows, strict=True):
        assert (at == -1) == (row.visits == 0) == bool(np.isnan(row.mean_score))
        assert 0 < row.prior <= 1
        assert np.isfinite(row.upper_bound)
    assert -1 in places


def test_a_plan_of_no_actions_has_no_price_but_a_reason(state: TreeState) -> None:
    known = facts(state, ("refined in 1 place",))
    assert isinstance(known.cost, str)
    assert "'refined in 1 place'" in known.cost
    assert known.steps == known.legal == ()


def test_trajectories_are_the_last_the_best_or_the_improvements(
    state: TreeState, sent: Any
) -> None:
    every = list(sent[0].trace.simulations)
    assert [s.index for s in state.trajectories("last", 3)] == [
        len(every),
        len(every) - 1,
        len(every) - 2,
    ]
    assert state.trajectories("improvements") == [s for s in reversed(every) if s.improved]
    best = state.trajectories("best", 5)
    assert [s.score for s in best] == sorted({s.score for s in every})[:5]
    assert best[0].score == sent[0].cost.score
    state.at = 2
    assert [s.index for s in state.trajectories("last")] == [2, 1]
    state.at = None
    longest = max(every, key=lambda s: len(s.actions))
    state.show_trajectory(longest.index)
    place = state.place()
    assert place is not None
    assert place.plan == longest.actions


def test_the_best_of_very_many_are_those_that_fit(monkeypatch: Any) -> None:
    monkeypatch.setattr("toast_lab.app.tree_state.MAX_TRAJECTORIES", 4)
    score = np.array([5.0, 0.1, 3.0, 4.0, 3.0, 2.0, 9.0])
    fits = np.array([True, False, True, True, True, True, True])
    assert best_rows(score, fits, 3).tolist() == [5, 2, 3]

"""The places of a trace agree with counts by plain loops over its simulations."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget
from toast_lab.search.trace import Trace
from toast_lab.search.trace_places import Places


@pytest.fixture(scope="module")
def mlp_problem() -> Problem:
    return Problem(analysed("attention"), {"data": 4, "model": 2})


def small() -> Trace:
    """A trace where actions a and b, in either order, reach the same state."""
    trace = Trace()
    for parent, action, depth in ((-1, "", 0), (0, "a", 1), (1, "b", 2), (0, "b", 1), (2, "c", 3)):
        trace.add_node(parent, action, depth, 0)
    walks = [
        ("", (0,), 1.0),
        ("a", (0, 1), 0.9),
        ("ab", (0, 1, 2), 0.5),
        ("b", (0, 3), 0.8),
        ("bax", (0, 3, 2), 0.4),
        ("bac", (0, 3, 2, 4), 0.3),
        ("refined", (0,), 0.2),
        ("", (), 0.6),
    ]
    for i, (actions, nodes, score) in enumerate(walks):
        words = [trace.word(x) for x in (["refined"] if actions == "refined" else actions)]
        trace.add_simulation(
            words,
            nodes,
            round=0,
            elapsed_s=i,
            score=score,
            time_s=score,
            peak_bytes=1,
            fits=True,
            best=i,
        )
    return trace


def paths(
    places: Places, n: int | None = None
) -> dict[tuple[str, ...], tuple[int, int, float, float]]:
    tally = places.tally(n)
    return {
        tuple(places.label(q) for q in places.chain(p)[1:]): (
            int(tally.visits[p]),
            int(tally.ended[p]),
            round(float(tally.mean_score[p]), 6),
            float(tally.best_score[p]),
        )
        for p in range(places.place.n)
        if tally.visits[p]
    }


def test_a_state_reached_two_ways_is_two_places() -> None:
    places = Places(small())
    places.extend()
    assert paths(places) == {
        (): (8, 3, 0.5875, 0.2),
        ("a",): (2, 1, 0.7, 0.5),
        ("a", "b"): (1, 1, 0.5, 0.5),
        ("b",): (3, 1, 0.5, 0.3),
        ("b", "a"): (2, 1, 0.35, 0.3),
        ("b", "a", "c"): (1, 1, 0.3, 0.3),
    }
    assert paths(places, 2) == {(): (2, 1, 0.95, 0.9), ("a",): (1, 1, 0.9, 0.9)}
    tally = places.tally()
    assert [places.label(int(p)) for p in places.children(0, tally)] == ["b", "a"]
    last = next(
        p for p in range(places.place.n) if places.place["depth"][p] == 3 and tally.visits[p]
    )
    assert places.plan(last) == ("b", "a", "c")
    # The rollout's x is not in the plan of the place
    assert places.plan(int(places.end["place"][4])) == ("b", "a")
    assert places.plan(0) == ()


def test_no_simulation_gives_no_visit() -> None:
    trace = Trace()
    places = Places(trace)
    places.extend()
    assert places.tally().n == 0
    trace.add_node(-1, "", 0, 0)
    places.extend()
    tally = places.tally()
    assert (int(tally.visits[0]), math.isnan(tally.mean_score[0])) == (0, True)


def test_single_actions_are_counted_wherever_they_were_taken() -> None:
    trace = small()
    places = Places(trace)
    places.extend()
    action_tally = places.actions()
    at = trace.vocabulary.index("b")
    assert (int(action_tally.visits[at]), float(action_tally.mean_score[at])) == (
        4,
        pytest.approx((0.5 + 0.8 + 0.4 + 0.3) / 4),
    )
    assert int(places.actions(3).visits[at]) == 1


def by_hand(trace: Trace, n: int) -> dict[tuple[int, ...], list[float]]:
    """Return the scores of the simulations through each path of nodes.

    A path that begins inside the tree is preceded by the path by which its first node was added.
    """
    home: list[tuple[int, ...]] = []
    for node in trace.nodes:
        home.append((0,) if node.parent < 0 else (*home[node.parent], node.id))
    scores = defaultdict(list)
    for simulation in trace.simulations[:n]:
        path = (*home[simulation.nodes[0]], *simulation.nodes[1:]) if simulation.nodes else (0,)
        for k in range(1, len(path) + 1):
            scores[path[:k]].append(simulation.score)
    return scores


@pytest.mark.parametrize("method", ["mcts", "beam", "exhaustive", "random", "automap"])
def test_places_say_what_the_simulations_say(method: str, mlp_problem: Problem) -> None:
    trace = search(mlp_problem, method, 0, Budget(evaluations=400)).trace
    places = Places(trace)
    places.extend()
    for n in (1, trace.row.n // 2, trace.row.n):
        tally = places.tally(n)
        wanted = by_hand(trace, n)
        for place in np.flatnonzero(tally.visits):
            way = tuple(int(places.place["node"][p]) for p in places.chain(int(place)))
            scores = wanted.pop(way)
            assert tally.visits[place] == len(scores)
            assert tally.mean_score[place] == pytest.approx(np.mean(scores))
            assert tally.best_score[place] == min(scores)
        assert not wanted


def test_places_that_follow_a_growing_trace_are_the_same(mlp_problem: Problem) -> None:
    trace = search(mlp_problem, "mcts", 0, Budget(evaluations=300)).trace
    expected = Places(trace)
    expected.extend()
    grown = Trace(trace.vocabulary)
    places = Places(grown)
    begin = 0
    for end in (1, 2, 40, 41, trace.row.n):
        passed = trace.passed["node"][: int(trace.row["node_end"][end - 1])]
        n_nodes = int(passed.max()) + 1
        grown.node.extend({k: trace.node[k][grown.node.n : n_nodes] for k in trace.node.array})
        grown.passed.extend({"node": passed[grown.passed.n :]})
        words = trace.action["word"][: int(trace.row["action_end"][end - 1])]
        grown.action.extend({"word": words[grown.action.n :]})
        grown.row.extend({k: trace.row[k][begin:end] for k in trace.row.array})
        places.extend()
        begin = end
    assert paths(places) == paths(expected)

"""Random walks, the baseline of searches."""

import pytest

from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Status
from toast_lab.search.pruning import pruning_threshold
from toast_lab.sharding.state import State, legal_rows

MESH = {"data": 2, "model": 2}


def test_walks_have_all_lengths_and_every_action_takes_part():
    problem = Problem(small_transformer(mode="forward"), MESH)
    result = search(problem, "random", budget=Budget(None, 1500))
    walks = [s.actions for s in result.trace.simulations[1:]]
    lengths = {len(w) for w in walks}
    assert lengths == set(range(1, max(lengths) + 1))
    assert max(lengths) >= 6
    first = [w[0] for w in walks]
    counts = [first.count(a) for a in set(first)]
    assert len(counts) == len(legal_rows(State(problem.space), pruning_threshold(problem)))
    assert max(counts) < 3 * min(counts)  # drawn uniformly


def test_lengths_are_limited_on_request():
    result = search(
        Problem(small_transformer(mode="forward"), MESH),
        "random",
        depth=3,
        budget=Budget(None, 100),
    )
    assert max(len(s.actions) for s in result.trace.simulations) == 3


def test_ends_when_walks_bring_nothing_new():
    """All 36 shardings of x @ x.T are reached, and each is recorded once."""
    problem = Problem(analysed("xxt"), MESH)
    result = search(problem, "random", budget=Budget(seconds=60))
    assert result.status is Status.CONVERGED
    every = search(problem, "exhaustive", bounded=False, budget=Budget(seconds=60))
    assert result.evaluations == every.evaluations == len(result.trace.simulations)
    assert result.cost.score == every.cost.score


def test_seeds_differ_and_a_resumed_search_walks_on():
    problem = Problem(small_transformer(mode="train"), MESH)
    walks = [
        search(problem, "random", seed=s, budget=Budget(None, 50)).trace.simulations[1:]
        for s in (0, 1)
    ]
    assert [s.actions for s in walks[0]] != [s.actions for s in walks[1]]
    first = search(problem, "random", budget=Budget(None, 50))
    resumed = search(problem, resume=first, budget=Budget(None, 50))
    longer = search(problem, "random", budget=Budget(None, 100))
    assert [s.actions for s in resumed.trace.simulations] == [
        s.actions for s in longer.trace.simulations
    ]


def test_bad_options_are_refused():
    with pytest.raises(
        InvalidProblem, match=r"depth=0 must be at least 1; patience=0 must be at least 1"
    ):
        search(Problem(analysed("mlp"), MESH), "random", depth=0, patience=0)

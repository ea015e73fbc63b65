"""The parts of the search contract that do not depend on the method.

Which plan is kept as the best, budgets, and resuming.
"""

import numpy as np
import pytest

from tests.helpers import analysed, plan
from toast_lab.cost.problem import Problem, Quick, price
from toast_lab.errors import InvalidProblem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Recorder, Status, Stop
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State

MESH = {"data": 2, "model": 2}


@pytest.fixture(scope="module")
def problem():
    return Problem(analysed("mlp"), MESH)


def begun(problem, budget=None):
    recorder = Recorder(problem, budget or Budget(None, 1000))
    recorder.start()
    return recorder


def taken(problem, *texts):
    state = State(problem.space)
    actions = [parse_action(problem.analysis, problem.mesh, t) for t in texts]
    for action in actions:
        assert state.apply(action)
    return state, actions


# -- the best plan ---------------------------------------------------------------------------------


def test_what_fits_ranks_first_then_the_score_then_fewer_actions(problem):
    recorder = begun(problem)
    fits, over = (Quick(score, 1.0, 1.0, fit) for score, fit in ((0.9, True), (0.1, False)))
    better = Quick(0.8, 2.0, 2.0, True)
    ranked = [(better, 5), (fits, 1), (fits, 2), (over, 0), (over, 1)]
    assert sorted(reversed(ranked), key=lambda q: recorder.rank(*q)) == ranked


def test_of_two_ways_to_one_sharding_the_shorter_is_kept(problem):
    recorder = begun(problem)
    state, actions = taken(problem, "B->data", "B->model")
    recorder.record(state, [*actions, actions[0]])
    assert len(recorder.incumbent.plan().actions) == 3
    recorder.record(state, actions)
    assert len(recorder.incumbent.plan().actions) == 2
    recorder.record(state, [*actions, actions[0]])
    assert len(recorder.incumbent.plan().actions) == 2
    assert [s.improved for s in recorder.trace.simulations] == [True, True, True, False]
    assert recorder.evaluations == 2  # one sharding besides the unsharded program


def test_a_plan_that_fits_replaces_a_better_score_that_does_not():
    analysis = analysed("mlp")
    machine = "cpu"  # its memory has no tiles: a smaller part takes less
    free = Problem(analysis, MESH, machine)
    fast, small = (("B->data", "U->model"), ("B->data", "B->model"))
    prices = {a: price(free, plan(free, *a)) for a in (fast, small)}
    fast, small = sorted((fast, small), key=lambda a: -prices[a].peak_bytes)
    between = (prices[fast].peak_bytes + prices[small].peak_bytes) / 2
    limited = {"memory_limit_bytes": between, "memory_weight": 1e-9}
    problem = Problem(analysis, MESH, machine, **limited)
    recorder = begun(problem)
    for way in (small, fast, small):
        recorder.record(*taken(problem, *way))
    assert recorder.incumbent.plan().actions == small
    assert recorder.best.fits
    assert [s.fits for s in recorder.trace.simulations] == [False, True, False, True]
    assert [s.best_score for s in recorder.trace.simulations][1:] == [recorder.best.score] * 3


def test_a_plan_given_by_arrays_is_kept_as_one_given_by_actions(problem):
    by_actions, by_arrays = begun(problem), begun(problem)
    quick = by_actions.record(*taken(problem, "B->data"))
    batch_plan = plan(problem, "B->data")
    op_factor, value_dim = batch_plan.op_factor.copy(), batch_plan.value_dim.copy()
    assert by_arrays.record_plan(op_factor, value_dim, ["by hand"]) == pytest.approx(
        quick, rel=1e-12
    )
    op_factor[:], value_dim[:] = -1, -1  # the method may reuse its arrays
    kept = by_arrays.incumbent.plan()
    assert np.array_equal(kept.op_factor, batch_plan.op_factor)
    assert np.array_equal(kept.value_dim, batch_plan.value_dim)
    assert (kept.actions, kept.refinements) == ((), ("by hand",))
    by_arrays.record_plan(batch_plan.op_factor, batch_plan.value_dim, ["by hand", "again"])
    assert by_arrays.evaluations == 2
    assert by_arrays.incumbent.plan().refinements == ("by hand",)


# -- budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["random", "beam", "exhaustive"])
def test_methods_that_price_one_by_one_use_exactly_their_evaluations(problem, method):
    result = search(problem, method, budget=Budget(None, 20))
    assert result.status is Status.BUDGET
    assert result.evaluations == 20
    assert "20 distinct shardings priced" in result.message


def test_check_stops_at_the_limit_and_not_before(problem):
    recorder = begun(problem, Budget(None, 2))
    recorder.check()
    recorder.record(*taken(problem, "B->data"))
    with pytest.raises(Stop) as stopped:
        recorder.check()
    assert stopped.value.status is Status.BUDGET
    assert recorder.evaluations_left() == 0


def test_a_budget_counts_anew_when_a_search_goes_on(problem):
    first = search(problem, "random", budget=Budget(None, 20))
    resumed = search(problem, resume=first, budget=Budget(None, 20))
    assert resumed.evaluations == 40
    assert resumed.trace.about["evaluations"] == 40
    assert resumed.trace.about["simulations"] == len(resumed.trace.simulations)
    assert resumed.elapsed_s > first.elapsed_s
    times = [s.elapsed_s for s in resumed.trace.simulations]
    assert times == sorted(times)


# -- resuming --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first(problem):
    return search(problem, "random", seed=4, depth=5, budget=Budget(None, 20))


def test_going_on_begins_with_the_best_of_before(problem, first):
    trace, before = first.trace, min(s.score for s in first.trace.simulations)
    resumed = search(problem, resume=first, budget=Budget(None, 0))
    assert resumed.status is Status.BUDGET
    assert resumed.cost.score == pytest.approx(before, rel=1e-12)
    assert resumed.plan.actions == trace.best_actions
    assert [problem.space.text(a) for a in resumed.actions] == list(trace.best_actions)
    assert (resumed.method, resumed.seed) == ("random", 4)
    assert resumed.trace.about["options"] == {"depth": 5}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mesh": {"data": 4, "model": 2}}, "mesh 'data=2,model=2', not 'data=4,model=2'"),
        ({"machine": "tpu-v3"}, "machine 'tpu-v5e', not 'tpu-v3'"),
        ({"memory_limit_bytes": 1e9}, r"memory_limit_bytes .*, not 1000000000.0"),
        ({"memory_weight": 1.0}, "memory_weight 10.0, not 1.0"),
        ({"paper_mode": True}, "paper_mode False, not True"),
        ({"program": "xxt"}, "program '.*', not '.*'"),
        ({"method": "beam"}, "method 'random', not 'beam'"),
        ({"seed": 5}, "seed 4, not 5"),
        ({"depth": 6}, "option depth=5, not 6"),
    ],
)
def test_another_search_is_refused_and_all_differences_are_said(first, changes, said):
    changes = dict(changes)
    analysis, mesh = analysed(changes.pop("program", "mlp")), changes.pop("mesh", MESH)
    asked = {k: changes.pop(k) for k in ("method", "seed", "depth") if k in changes}
    other = Problem(analysis, mesh, **changes)
    with pytest.raises(InvalidProblem, match=said):
        search(other, resume=first, budget=Budget(None, 10), **asked)


def test_all_that_differs_is_said_and_the_same_may_be_given_again(problem, first):
    with pytest.raises(
        InvalidProblem, match=r"method 'random', not 'beam'; seed 4, not 5; option depth=5, not 6\."
    ):
        search(problem, "beam", 5, resume=first, budget=Budget(None, 10), depth=6)
    with pytest.raises(InvalidProblem, match=r"option patience=\d+, not 7\."):
        search(problem, resume=first, patience=7)
    resumed = search(problem, "random", 4, resume=first, budget=Budget(None, 10), depth=5)
    assert resumed.trace.about["options"] == {"depth": 5}


def test_a_search_can_be_given_as_its_file(problem, first, tmp_path):
    first.save(tmp_path / "search.json")
    for path in (tmp_path / "search.json", str(tmp_path / "search.json")):
        resumed = search(problem, resume=path, budget=Budget(None, 10))
        assert resumed.cost.score <= min(s.score for s in first.trace.simulations)
        assert [s.actions for s in resumed.trace.simulations[: first.trace.row.n]] == [
            s.actions for s in first.trace.simulations
        ]

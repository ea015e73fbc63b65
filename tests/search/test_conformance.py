"""What every search must keep: valid plan, same seed same result, budget honoured, progress reported, cancel kept."""

import time

import pytest

from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.search.contract import METHODS, Budget, Status, search

OPTIONS = {"manual": {"actions": [("batch", "data"), ("d_model", "data")]}}
MESH = {"data": 2, "model": 2}


@pytest.fixture(scope="module")
def problem():
    return Problem(small_transformer(mode="forward"), MESH)


def run(problem, method, **kwargs):
    kwargs.setdefault("budget", Budget(seconds=None, evaluations=300))
    return search(problem, method, **{**OPTIONS.get(method, {}), **kwargs})


@pytest.mark.parametrize("method", METHODS)
def test_plan_is_valid_and_its_cost_is_the_price_of_the_plan(problem, method):
    result = run(problem, method)
    result.plan.check()
    cost = price(problem, result.plan)
    assert (cost.score, cost.peak_bytes) == (result.cost.score, result.cost.peak_bytes)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_result(problem, method):
    first, second = run(problem, method, seed=3), run(problem, method, seed=3)
    assert first.plan.key == second.plan.key
    assert [s.actions for s in first.trace.simulations] == [s.actions for s in second.trace.simulations]
    assert [s.score for s in first.trace.simulations] == [s.score for s in second.trace.simulations]


@pytest.mark.parametrize("method", [m for m in METHODS if m != "manual"])
def test_never_worse_than_unsharded(problem, method):
    assert run(problem, method).cost.score <= 1.0


@pytest.mark.parametrize("method", METHODS)
def test_reports_every_simulation_in_order_with_the_best_so_far(problem, method):
    seen = []
    result = run(problem, method, on_progress=seen.append)
    assert seen == result.trace.simulations
    assert [s.index for s in seen] == list(range(1, len(seen) + 1))
    if method != "manual":  # a person's actions are kept whatever their price
        assert seen[-1].best_score == pytest.approx(result.cost.score, rel=1e-12)
        best = [s.best_score for s in seen]
        assert best == sorted(best, reverse=True)


@pytest.mark.parametrize("method", ["mcts", "exhaustive"])
def test_evaluation_budget_is_honoured(problem, method):
    result = run(problem, method, budget=Budget(seconds=None, evaluations=50))
    assert result.status is Status.BUDGET
    assert 50 <= result.evaluations <= 52  # a simulation prices at most two new states


@pytest.mark.parametrize("method", ["mcts", "exhaustive"])
def test_time_budget_is_honoured(problem, method):
    run(problem, method)  # compiled code is ready
    began = time.monotonic()
    result = run(problem, method, budget=Budget(seconds=0.05))
    assert time.monotonic() - began < 2.0
    assert result.status in (Status.BUDGET, Status.CONVERGED, Status.COMPLETE)


@pytest.mark.parametrize("method", METHODS)
def test_cancel_keeps_what_was_found(problem, method):
    seen = []
    result = run(problem, method, on_progress=seen.append, cancel=lambda: len(seen) >= 2)
    assert result.status is Status.CANCELLED
    assert len(result.trace.simulations) in (2, 3)
    result.plan.check()


@pytest.mark.parametrize("method", METHODS)
def test_trace_nodes_form_a_tree_of_distinct_states(problem, method):
    nodes = run(problem, method).trace.nodes
    assert nodes[0].parent == -1
    assert all(nodes[n.parent].depth == n.depth - 1 for n in nodes[1:])
    assert len({n.key for n in nodes}) == len(nodes)


@pytest.mark.parametrize("method", ["mcts", "exhaustive"])
def test_a_mesh_that_nothing_divides_leaves_the_program_unsharded(method):
    result = run(Problem(analysed("mlp"), {"a": 7}), method)
    assert result.status is Status.NO_ACTIONS
    assert result.plan.actions == ()
    assert "no dimension divides" in result.message


def test_a_limit_that_nothing_meets_says_by_how_much():
    problem = Problem(small_transformer(mode="forward"), MESH, memory_limit_bytes=1000)
    result = run(problem, "mcts")
    assert not result.cost.fits
    assert "GiB over the limit" in result.message


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not():
    analysis = small_transformer(mode="train", batch=2)
    free = run(Problem(analysis, MESH), "mcts", budget=Budget(seconds=None, evaluations=2000))
    tight = Problem(analysis, MESH, memory_limit_bytes=0.9 * free.cost.peak_bytes, memory_weight=1e-6)
    found = run(tight, "mcts", budget=Budget(seconds=None, evaluations=2000))
    assert found.cost.fits
    assert found.cost.time_s >= free.cost.time_s


def test_manual_keeps_the_actions_even_if_they_are_bad():
    problem = Problem(analysed("attention"), MESH, "tpu-v5e")
    result = search(problem, "manual", actions=[("D", "data")])
    assert result.plan.actions == ("D->data",)
    assert result.cost.score > 1.0


def test_manual_refuses_an_action_without_effect():
    problem = Problem(analysed("mlp"), {"a": 3})
    with pytest.raises(InvalidPlan, match=r"B has size 256, not divisible by mesh axis \"a\" = 3"):
        search(problem, "manual", actions=[("B", "a")])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: search(p, "mtcs"), 'did you mean "mcts"'),
        (lambda p: search(p, "mcts", depht=3), "mcts has no option depht"),
        (lambda p: search(p, "mcts", depth=0), "depth=0"),
        (lambda p: search(p, "exhaustive", depth=0), "depth must be at least 1"),
        (lambda p: Budget(seconds=0), "seconds must be above 0"),
        (lambda p: Budget(seconds=None), "never ends"),
    ],
)
def test_bad_requests_are_refused(problem, call, message):
    with pytest.raises(InvalidProblem, match=message):
        call(problem)

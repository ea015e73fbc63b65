"""The contract that every search method must keep.

Valid plans, equal results for equal seeds, budgets and cancels honoured, progress reported.
"""

import math
import re
import time

import pytest

from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Status
from toast_lab.search.methods import METHODS

OPTIONS = {"manual": {"actions": [("batch", "data"), ("d_model", "data")]}}
MESH = {"data": 2, "model": 2}
PROVING = {"exhaustive"}  # gives a bound on the best score that can be reached
# Actions given by hand are kept whatever their price
SEARCHING = [name for name, cls in METHODS.items() if not cls.by_hand]


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
    assert [s.actions for s in first.trace.simulations] == [
        s.actions for s in second.trace.simulations
    ]
    assert [s.score for s in first.trace.simulations] == [s.score for s in second.trace.simulations]


@pytest.mark.parametrize("method", SEARCHING)
def test_never_worse_than_unsharded(problem, method):
    assert run(problem, method).cost.score <= 1.0


@pytest.mark.parametrize("method", METHODS)
def test_reports_every_simulation_in_order_with_the_best_so_far(problem, method):
    seen = []
    result = run(problem, method, on_progress=seen.extend)
    assert seen == list(result.trace.simulations)
    assert [s.index for s in seen] == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("method", SEARCHING)
def test_the_best_so_far_falls_to_the_score_of_the_result(problem, method):
    result = run(problem, method)
    simulations = list(result.trace.simulations)
    best = [s.best_score for s in simulations]
    assert best[-1] == pytest.approx(result.refined.cost.score, rel=1e-12)
    assert best == sorted(best, reverse=True)
    assert min(s.score for s in simulations) == best[-1]


@pytest.mark.parametrize("method", SEARCHING)
def test_evaluation_budget_is_honoured(problem, method):
    result = run(problem, method, budget=Budget(seconds=None, evaluations=50))
    assert result.evaluations <= 50 + 64  # trajectories are made in batches
    assert (result.status is Status.BUDGET) == (result.evaluations >= 50)


@pytest.mark.timing
@pytest.mark.parametrize("method", SEARCHING)
def test_time_budget_is_honoured(problem, method):
    run(problem, method)  # compile first
    if method == "mcts":
        # Also compiles refinement
        run(problem, method, budget=Budget(seconds=None, evaluations=6000))
    began = time.monotonic()
    result = run(problem, method, budget=Budget(seconds=0.05))
    assert time.monotonic() - began < 5.0  # of a search that goes on for minutes
    assert result.status is not Status.CANCELLED


@pytest.mark.parametrize("budget", [Budget(seconds=0), Budget(seconds=None, evaluations=0)])
@pytest.mark.parametrize("method", METHODS)
def test_a_budget_of_nothing_gives_the_unsharded_program(problem, method, budget):
    result = run(problem, method, budget=budget)
    assert result.status is Status.BUDGET
    assert result.plan.actions == ()
    assert result.cost.score == pytest.approx(1.0)
    assert "budget was used up" in result.message


@pytest.mark.parametrize("method", METHODS)
def test_cancel_keeps_what_was_found(problem, method):
    result = run(problem, method, cancel=lambda: True)
    assert result.status is Status.CANCELLED
    assert len(result.trace.simulations) == 1
    result.plan.check()


@pytest.mark.parametrize("method", METHODS)
def test_trace_nodes_form_a_tree_of_distinct_states(problem, method):
    nodes = run(problem, method).trace.nodes
    assert nodes[0].parent == -1
    assert all(nodes[n.parent].depth == n.depth - 1 for n in nodes[1:])
    assert len({n.key for n in nodes}) == len(nodes)


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_search_is_replayed_and_goes_on(problem, method, tmp_path):
    result = run(problem, method, seed=5)
    result.save(tmp_path / "search.json")
    resumed = search(
        problem,
        resume=tmp_path / "search.json",
        budget=Budget(seconds=None, evaluations=50),
        **OPTIONS.get(method, {}),
    )
    assert (resumed.method, resumed.seed) == (method, 5)
    before, again = (
        [s._replace(elapsed_s=0.0) for s in r.trace.simulations[: result.trace.row.n]]
        for r in (result, resumed)
    )
    assert again == before
    assert resumed.cost.score <= result.cost.score
    assert resumed.elapsed_s >= result.elapsed_s


@pytest.mark.parametrize("method", SEARCHING)
def test_a_mesh_that_nothing_divides_leaves_the_program_unsharded(method):
    result = run(Problem(analysed("mlp"), {"a": 7}), method)
    assert result.status is Status.NO_ACTIONS
    assert result.plan.actions == ()
    assert "divides no dim" in result.message


@pytest.mark.parametrize("method", [name for name in SEARCHING if name not in PROVING])
def test_who_proves_nothing_claims_no_gap(method):
    result = run(Problem(analysed("mlp"), MESH), method)
    assert (result.gap, result.bound) == (None, None)


@pytest.mark.parametrize("method", sorted(PROVING))
@pytest.mark.parametrize("evaluations", [20, 300])
def test_a_proven_bound_is_no_higher_than_the_plan(method, evaluations):
    budget = Budget(seconds=None, evaluations=evaluations)
    result = run(Problem(analysed("mlp"), MESH), method, budget=budget)
    assert result.bound <= result.cost.score * (1 + 1e-12)
    assert result.gap >= 0


@pytest.mark.parametrize("method", SEARCHING)
def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not(method):
    analysis = small_transformer(mode="train", batch=2)
    budget = Budget(seconds=None, evaluations=400)
    free = run(Problem(analysis, MESH), method, budget=budget)
    tight = Problem(
        analysis, MESH, memory_limit_bytes=0.9 * free.cost.peak_bytes, memory_weight=1e-6
    )
    result = run(tight, method, budget=budget)
    assert result.cost.fits
    fastest_s = min(s.time_s for s in result.trace.simulations if s.fits)
    assert result.cost.time_s == pytest.approx(fastest_s, rel=1e-12)
    assert any(s.time_s < fastest_s for s in result.trace.simulations if not s.fits)


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_that_nothing_meets_says_by_how_much_and_what_would(method):
    problem = Problem(
        analysed("transformer", layers=1, batch=64), MESH, memory_limit_bytes=0.25 * 2**30
    )
    result = run(problem, method)
    assert not result.cost.fits
    over = (result.cost.peak_bytes - problem.memory_limit_bytes) / 2**30
    assert f"{over:.2f} GiB over the limit of 0.25 GiB" in result.message
    fits_on = r"Its actions fit on the mesh (data|model)=\d+ \(.*\) \(0\.\d+ GiB\)"
    has_actions = bool(result.plan.actions and result.actions)
    assert bool(re.search(fits_on, result.message)) == has_actions


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
        (
            lambda p: search(p, "mcts", seconds=3),
            "no option seconds.*limits are given as budget=tl.Budget.seconds=...",
        ),
        (
            lambda p: search(p, budget=40),
            "budget must be a Budget, got 40; for 40 seconds give budget=tl.Budget.seconds=40",
        ),
        (lambda p: search(p, "mcts", depth=0), "depth=0"),
        (lambda p: search(p, "exhaustive", depth=0), "exhaustive: depth=0 must be at least 1"),
        (lambda p: Budget(seconds=-1), "seconds must not be below 0, got -1"),
        (lambda p: Budget(seconds=math.nan), "seconds must be a finite number, got nan"),
        (lambda p: Budget(seconds=None), "never ends"),
    ],
)
def test_bad_requests_are_refused(problem, call, message):
    with pytest.raises(InvalidProblem, match=message):
        call(problem)

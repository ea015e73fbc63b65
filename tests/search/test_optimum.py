"""mcts finds the optimum that exhaustive enumeration proves, for ten of ten seeds.

``exhaustive`` enumerates distinct final shardings with no depth limit on all of these (its status is COMPLETE).
The batch of 2 makes the Transformer's case harder: the batch alone cannot use both axes.
"""

import functools

import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.search.contract import Budget, Status, search

CASES = {
    "mlp": ("mlp", {}),
    "attention": ("attention", {}),
    "transformer": ("transformer", {"layers": 1, "mode": "forward"}),
    "transformer, batch 2": ("transformer", {"layers": 1, "mode": "forward", "batch": 2}),
}
EVALUATIONS = 20_000


@functools.cache
def solved(case, machine):
    name, sizes = CASES[case]
    problem = Problem(analysed(name, **sizes), {"data": 2, "model": 2}, machine)
    result = search(problem, "exhaustive", budget=Budget(seconds=240))
    assert result.status is Status.COMPLETE
    return problem, result


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("machine", ["tpu-v5e", "cpu"])
def test_mcts_finds_the_optimum(case, machine, seed):
    problem, best = solved(case, machine)
    found = search(problem, "mcts", seed=seed, budget=Budget(seconds=None, evaluations=EVALUATIONS))
    assert found.cost.score == pytest.approx(best.cost.score, rel=1e-12)
    assert found.evaluations < max(best.evaluations, 100)  # it did not simply enumerate


def test_exhaustive_agrees_with_brute_force_over_sequences():
    """On a tiny program, enumerate action sequences without state keys and compare the set of shardings reached."""
    from toast_lab.sharding.state import State, legal_actions

    problem = Problem(analysed("xxt"), {"a": 2, "b": 2})
    reached = set()

    def walk(state):
        reached.add((state.op_axis.tobytes(), state.value_axis.tobytes()))
        for action in legal_actions(state):
            child = state.copy()
            child.apply(action)
            walk(child)

    walk(State(problem.space))
    result = search(problem, "exhaustive", budget=Budget(seconds=100))
    assert result.evaluations == len(reached)

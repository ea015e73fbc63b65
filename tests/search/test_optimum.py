"""mcts finds the optimum that branch and bound proves, whatever the seed.

Three seeds of each case by default, twenty with ``-m slow``.

``exhaustive`` covers all distinct final shardings with no depth limit on all of these (its status
is COMPLETE). The batch of 2 makes the Transformer's case harder: the batch alone cannot use both
axes.
"""

import functools

import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Status

CASES = {
    "mlp": ("mlp", {}),
    "attention": ("attention", {}),
    "transformer": ("transformer", {"layers": 1, "mode": "forward"}),
    "transformer, batch 2": ("transformer", {"layers": 1, "mode": "forward", "batch": 2}),
}
# Distinct shardings on a mesh of 2x2, as counted by ``exhaustive`` with bounded=False.
SHARDINGS = {"mlp": 1024, "attention": 3481, "transformer": 85_264, "transformer, batch 2": 106_729}
# Nearly nine million each.
STEPS = {
    "training step": ("transformer", {"layers": 1, "mode": "train"}),
    "training step, batch 2": ("transformer", {"layers": 1, "mode": "train", "batch": 2}),
}
EVALUATIONS = 20_000


@functools.cache
def solved(case, machine, mesh="2x2"):
    name, sizes = CASES.get(case) or STEPS[case]
    problem = Problem(analysed(name, **sizes), mesh, machine)
    result = search(problem, "exhaustive", budget=Budget(seconds=240))
    assert result.status is Status.COMPLETE
    return problem, result


ALL_SEEDS = [("tpu-v5e", seed) for seed in range(20)] + [("cpu", seed) for seed in range(4)]
EVERY_RUN = [("tpu-v5e", 0), ("tpu-v5e", 1), ("cpu", 0)]


@pytest.mark.parametrize(
    ("machine", "seed"),
    [
        pytest.param(*pair, marks=() if pair in EVERY_RUN else pytest.mark.slow)
        for pair in ALL_SEEDS
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_mcts_finds_the_optimum(case, machine, seed):
    problem, best = solved(case, machine)
    result = search(
        problem, "mcts", seed=seed, budget=Budget(seconds=None, evaluations=EVALUATIONS), refine=0
    )
    assert result.cost.score == pytest.approx(best.cost.score, rel=1e-12)
    assert result.evaluations < SHARDINGS[case]  # it did not simply enumerate


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("case", STEPS)
@pytest.mark.parametrize("mesh", ["2x2", "4x4"])
def test_mcts_finds_the_optimum_of_a_training_step(case, mesh, seed):
    problem, best = solved(case, "tpu-v5e", mesh)
    result = search(
        problem, "mcts", seed=seed, budget=Budget(seconds=None, evaluations=EVALUATIONS), refine=0
    )
    assert result.cost.score == pytest.approx(best.cost.score, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_shardings_are_as_many_as_written_here(case):
    problem, best = solved(case, "tpu-v5e")
    every = search(problem, "exhaustive", bounded=False, budget=Budget(seconds=500))
    assert every.evaluations == SHARDINGS[case]
    assert every.cost.score == pytest.approx(best.cost.score, rel=1e-12)


def test_exhaustive_agrees_with_brute_force_over_sequences():
    """``exhaustive`` reaches the same shardings as an enumeration without state keys.

    All action sequences of a tiny program are enumerated, and the sets of shardings compared.
    """
    from toast_lab.sharding.state import State, legal_actions

    problem = Problem(analysed("xxt"), {"a": 2, "b": 2})
    reached = set()

    def walk(state):
        reached.add((state.op_factor.tobytes(), state.value_dim.tobytes()))
        for action in legal_actions(state):
            child = state.copy()
            child.apply(action)
            walk(child)

    walk(State(problem.space))
    result = search(problem, "exhaustive", bounded=False, budget=Budget(seconds=100))
    assert result.evaluations == len(reached)

"""Numbers that users pass to the library are checked at once, and errors name them."""

from __future__ import annotations

import pytest

import toast_lab as tl
from toast_lab.errors import InvalidProblem


@pytest.mark.parametrize(
    "value", [-1, 0.5, float("nan"), float("inf"), 10**20, "1", None, True, [1]]
)
def test_numbers_of_the_library_are_refused_with_their_name(value):
    """The error for a wrong seed, budget, count or limit names it.

    It is raised before any work is done.
    """
    problem = tl.Problem(tl.analyse(tl.load("mlp")), "2")
    small = tl.Budget(seconds=None, evaluations=1)
    model, plan = tl.load("mlp"), tl.Plan.from_actions(problem, [])
    calls = {
        "seed": [
            lambda: tl.search(problem, seed=value, budget=small),
            lambda: tl.race(problem, ["random"], small, seed=value),
            lambda: tl.run(model, plan, seed=value),
            lambda: tl.compare(model, [plan], seed=value),
        ],
        "repeats": [
            lambda: tl.run(model, plan, repeats=value),
            lambda: tl.compare(model, [plan], repeats=value),
            lambda: tl.replay(model, plan, repeats=value),
        ],
        "evaluations": [lambda: tl.Budget(evaluations=value)],
        "memory_weight": [lambda: tl.Problem(problem.analysis, "2", memory_weight=value)],
        "depth": [lambda: tl.search(problem, "beam", budget=small, depth=value)],
        "time_limit_s": [lambda: tl.run(model, plan, time_limit_s=value)],
    }
    none_is_fine = {"evaluations", "seed"} if value is None else set()
    fine = {0.5: {"memory_weight", "time_limit_s"}}.get(
        value if isinstance(value, float) else None, set()
    )
    fine = fine | ({"memory_weight", "depth"} if value == 10**20 else set())
    for name, each in calls.items():
        if name in none_is_fine | fine:
            continue
        for call in each:
            with pytest.raises(InvalidProblem, match=name):
                call()

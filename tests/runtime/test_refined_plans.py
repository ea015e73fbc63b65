"""Plans that refinement and integer programs made compute what the unsharded program computes."""

import pytest

import toast_lab as tl

SIZES = {
    "layers": 1,
    "batch": 4,
    "sequence": 1024,
    "d_model": 64,
    "hidden": 128,
    "vocab": 512,
    "heads": 4,
}


@pytest.mark.parametrize(
    ("solve", "made_by"), [(False, "refined in "), (True, ("colours: ", "roles: "))]
)
def test_a_refined_training_step_is_the_unsharded_one(solve, made_by):
    model = tl.load("transformer", **SIZES)
    problem = tl.Problem(tl.analyse(model), "4x2", "tpu-v3")
    budget = tl.Budget(seconds=None, evaluations=20_000)
    result = tl.search(problem, seed=1, restarts=0, budget=budget, solve=solve)
    assert result.plan.actions[-1].startswith(made_by)
    run = tl.run(model, result.plan, devices="cpu:8", repeats=1)
    assert run.max_relative_error is not None
    assert run.max_relative_error < 1e-5

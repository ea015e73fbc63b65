"""Plans that refinement made compute what the unsharded program computes."""

import pytest

import toast_lab as tl


@pytest.mark.parametrize(
    ("sizes", "mesh", "machine"),
    [
        (
            {"layers": 1, "batch": 4, "sequence": 1024, "d_model": 64, "hidden": 128, "vocab": 512, "heads": 4},
            "4x2",
            "tpu-v3",
        )
    ],
)
def test_a_refined_training_step_is_the_unsharded_one(sizes, mesh, machine):
    model = tl.load("transformer", **sizes)
    problem = tl.Problem(tl.analyse(model), mesh, machine)
    result = tl.search(problem, seed=1, restarts=0, budget=tl.Budget(seconds=None, evaluations=20_000))
    assert result.plan.actions[-1].startswith("refined in ")
    run = tl.run(model, result.plan, devices="cpu:8", repeats=1)
    assert run.max_relative_error is not None
    assert run.max_relative_error < 1e-5

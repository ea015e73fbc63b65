"""A search that also chooses what layers keep for the backward pass."""

from __future__ import annotations

from typing import Any

import pytest

import toast_lab as tl
from toast_lab.errors import InvalidProblem

SIZES = {"layers": 2, "batch": 8, "sequence": 1024, "d_model": 64, "hidden": 128, "heads": 4}
BUDGET = tl.Budget(seconds=None, evaluations=400)


def problem_of(limit_share: float = 1.0, **sizes: Any) -> tl.Problem:
    model = tl.load("transformer", **SIZES, vocab=128, **sizes)
    whole = tl.Problem(tl.analyse(model), {"data": 4, "model": 2})
    if limit_share == 1.0:
        return whole
    best = tl.search(whole, budget=BUDGET)
    return tl.Problem(
        whole.analysis, whole.mesh, memory_limit_bytes=limit_share * best.cost.peak_bytes
    )


def test_what_does_not_fit_fits_with_recomputation_and_says_how() -> None:
    problem = problem_of(0.6)
    plain = tl.search(problem, budget=BUDGET)
    assert not plain.cost.fits
    result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=2000), recompute=True)
    assert result.cost.fits
    assert result.choices[0].fits
    assert [row.name for row in result.choices if not row.policies] == ["as written"]
    assert result.choices[0].name in result.message
    (row,) = result.plan.analysis.model.recompute
    assert str(row) in result.plan.describe()
    best = result.choices[0]
    assert (best.time_s, best.peak_bytes) == (result.cost.time_s, result.cost.peak_bytes)


def test_a_patch_writes_what_is_kept() -> None:
    result = tl.search(problem_of(), budget=BUDGET, recompute={"layer": "products"})
    written = result.written(budget=tl.Budget(seconds=None, evaluations=60))
    assert "layer keeps products" in str(written)
    patch = written.to_patch()
    wanted = "jax.checkpoint(run_layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims"
    assert wanted in patch.text
    (source,) = (text for file, text in patch.sources.items() if file.endswith("transformer.py"))
    compile(source, "transformer.py", "exec")
    assert "layer keeps products" in written.to_python()


def test_a_users_own_checkpoint_is_undone_where_it_does_not_pay() -> None:
    result = tl.search(problem_of(remat=True), budget=BUDGET, recompute=True)
    names = [row.name for row in result.choices]
    assert "as written" in names
    assert "layer keeps everything" in names
    assert len(names) == 3, "keeping inputs is what is written"


def test_bad_input_is_said() -> None:
    problem = problem_of()
    with pytest.raises(InvalidProblem, match="no layer is called 'block'; layers: layer"):
        tl.search(problem, budget=BUDGET, recompute={"block": "inputs"})
    with pytest.raises(InvalidProblem, match="no policy is called 'nothing'"):
        tl.search(problem, budget=BUDGET, recompute="nothing")
    mlp = tl.Problem(tl.analyse(tl.load("mlp", batch=64)), {"data": 2})
    with pytest.raises(InvalidProblem, match="mlp has no layers that could be recomputed"):
        tl.search(mlp, budget=BUDGET, recompute=True)
    with pytest.raises(InvalidProblem, match="a judge cannot choose what to recompute"):
        tl.search(problem, judge="cpu:8", recompute=True)
    with pytest.raises(InvalidProblem, match="cannot be resumed"):
        tl.search(problem, resume="x.json", recompute=True)

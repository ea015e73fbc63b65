"""Why a plan does not fit, and the single changes that make it fit."""

from __future__ import annotations

from typing import Any

import pytest

import toast_lab as tl
from toast_lab.errors import InvalidPlan

SIZES = {"layers": 2, "batch": 16, "sequence": 1024, "d_model": 64, "hidden": 128, "vocab": 128}
ACTIONS = ["batch->data", "hidden->model"]


def problem_of(share: float, mesh: Any = None, **sizes: Any) -> tuple[tl.Problem, tl.Plan]:
    """A problem whose limit is a share of what a plan of data parallelism needs, and the plan."""
    model = tl.load("transformer", **{**SIZES, "heads": 4, **sizes})
    problem = tl.Problem(tl.analyse(model), mesh or {"data": 4, "model": 2})
    peak_bytes = tl.price(problem, tl.Plan.from_actions(problem, ACTIONS)).peak_bytes
    problem = tl.Problem(problem.analysis, problem.mesh, memory_limit_bytes=share * peak_bytes)
    return problem, tl.Plan.from_actions(problem, ACTIONS)


@pytest.fixture(scope="module")
def reasons() -> Any:
    return tl.why_not(*problem_of(0.7))


def test_what_is_in_memory_adds_up_and_is_sorted_by_use(reasons: Any) -> None:
    cost, program = reasons.cost, reasons.plan.program
    assert sum(part.bytes for part in reasons.parts) == pytest.approx(cost.peak_bytes)
    bytes_of = {part.kind: part.bytes for part in reasons.parts}
    assert reasons.parts[0].kind == "kept for the backward pass"
    parameter_bytes, state_bytes = (
        sum(held.bytes for held in cost.at_peak if held.value.startswith(f"{name}["))
        for name in ("params", "opt_state")
    )
    assert bytes_of["weights"] == pytest.approx(parameter_bytes)
    # The step's own counter is no state of a parameter
    assert bytes_of["optimizer states"] == pytest.approx(state_bytes, rel=1e-3)
    kept = next(part for part in reasons.parts if part.kind == "kept for the backward pass")
    assert kept.lines[0][1] == max(held for _, held in kept.lines)
    assert kept.lines[0][0].startswith("transformer.py:")
    assert program is reasons.problem.analysis.program


def test_each_change_is_a_problem_and_a_plan_of_its_own(reasons: Any) -> None:
    kinds = {change.kind for change in reasons.changes}
    assert {"action", "recomputation", "batch", "mesh", "machine"} <= kinds
    for change in reasons.changes:
        cost = tl.price(change.problem, change.plan)
        assert cost.peak_bytes == pytest.approx(change.peak_bytes), str(change)
        assert cost.fits == change.fits
        steps = 16 // change.problem.analysis.model.lowerings.child[1].sizes["batch"]
        if change.kind != "batch":
            assert steps == 1
        assert cost.time_s * steps == pytest.approx(change.time_s), str(change)
        assert change.plan.history[:2] == reasons.plan.history
    fitting = [change for change in reasons.changes if change.fits]
    assert fitting == list(reasons.changes[: len(fitting)])
    same_devices = [change for change in fitting if change.kind not in ("mesh", "machine")]
    assert same_devices == fitting[: len(same_devices)]
    text = str(reasons)
    assert "does not fit into" in text.splitlines()[0]
    assert str(reasons.changes[0].text) in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("share", "sizes"), [(0.9, {}), (0.6, {}), (0.5, {"batch": 32}), (0.7, {"scan": True})]
)
def test_the_first_change_fits_or_it_is_said_that_none_does(
    share: float, sizes: dict[str, Any]
) -> None:
    problem, plan = problem_of(share, **sizes)
    found = tl.why_not(problem, plan)
    assert not found.fits
    if found.changes and found.changes[0].fits:
        first = found.changes[0]
        assert tl.price(first.problem, first.plan).fits
    else:
        assert "No single change that was tried makes it fit." in str(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("mlp", {"batch": 4096}),
        ("gns", {"nodes": 512, "edges": 2048, "latent": 32, "hidden": 32, "steps": 2}),
        ("unet", {"batch": 8, "channels": 32, "heads": 4, "blocks": 1, "multipliers": [1, 2]}),
        ("transformer", {**SIZES, "heads": 4, "scan": True}),
        ("t7b", {"layers": 2, "batch": 8, "sequence": 256}),
        ("itx", {"layers": 2, "batch": 16}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_advice_makes_a_searched_plan_fit(model: str, sizes: dict[str, Any]) -> None:
    analysis = tl.analyse(tl.load(model, **sizes))
    roomy = tl.Problem(analysis, {"data": 2, "model": 2})
    plan = tl.search(roomy, budget=tl.Budget(seconds=None, evaluations=150)).plan
    limit_bytes = 0.8 * tl.price(roomy, plan).peak_bytes
    problem = tl.Problem(analysis, roomy.mesh, memory_limit_bytes=limit_bytes)
    found = tl.why_not(problem, plan)
    assert not found.fits
    assert found.parts
    first = found.changes[0]
    assert first.fits
    assert tl.price(first.problem, first.plan).peak_bytes <= first.problem.memory_limit_bytes


def test_what_cannot_be_tried_is_said() -> None:
    model = tl.load("transformer", **SIZES, heads=4)
    text = tl.from_stablehlo(model.stablehlo, name="file")
    problem = tl.Problem(tl.analyse(text), {"data": 2}, memory_limit_bytes=2**20)
    found = tl.why_not(problem, tl.replicated(problem))
    assert len(found.left_out) == 2
    assert "No change of recomputation was tried: file has no function" in found.left_out[0]
    assert "No change of batch was tried: the batch of file is not known" in found.left_out[1]
    assert found.to_json()["left_out"] == list(found.left_out)


def test_a_plan_of_another_mesh_is_refused() -> None:
    problem, _ = problem_of(0.9)
    _, other = problem_of(0.9, mesh={"data": 2, "model": 2})
    with pytest.raises(InvalidPlan):
        tl.why_not(problem, other)


def test_it_ends_with_what_was_priced_when_it_is_cancelled() -> None:
    polled = []

    def cancel() -> bool:
        polled.append(1)
        return True

    found = tl.why_not(*problem_of(0.7), cancel=cancel)
    assert len(found.changes) <= 1
    assert polled

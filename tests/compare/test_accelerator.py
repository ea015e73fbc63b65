"""Comparisons and replays on an attached GPU; one device is enough."""

from __future__ import annotations

import jax
import pytest

from tests.compare.test_compare import plan_of, scores
from tests.compare.test_replay import SMALL, flops_of_a_device
from tests.helpers import analysed, model, plan
from toast_lab.compare.compare import compare
from toast_lab.compare.replay import replay
from toast_lab.cost.problem import Problem

pytestmark = pytest.mark.accelerator


@pytest.fixture(autouse=True)
def _gpu() -> None:
    try:
        jax.devices("gpu")
    except RuntimeError:
        pytest.skip("no GPU is attached")


def test_plans_take_turns_on_a_gpu() -> None:
    built = scores()
    plans = {"one": plan_of(built, {"d": 1}), "two": plan_of(built, {"d": 1, "m": 1})}
    comparison = compare(built, plans, "gpu", repeats=6, rounds=2, machine="h100")
    assert [(row.status, row.message) for row in comparison.rows] == [("ok", "")] * 2
    for row in comparison.rows:
        assert row.certificate is not None
        assert row.certificate.passed
        assert row.certificate.gradients
        assert row.allocator_peak_bytes
        assert row.device_kind != "cpu"
        assert [len(b) for b in row.batches_s] == [3, 3]
    assert "one after the other" in comparison.order


def test_a_share_of_a_large_mesh_on_a_gpu() -> None:
    built = model("transformer", **SMALL)
    problem = Problem(analysed("transformer", **SMALL), {"d": 4, "m": 2}, "h100")
    sharded = plan(problem, ("batch", "d"), ("hidden", "m"))
    replayed = replay(built, sharded, "gpu", problem=problem)
    assert replayed.device_kind != "cpu"
    assert replayed.allocator_peak_bytes
    assert replayed.finite
    assert replayed.removed_counts["all_reduce"] > 0
    assert replayed.median_s > 0
    assert flops_of_a_device(sharded) > 0

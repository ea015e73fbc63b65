"""Models that others wrote load, are analysed, and compute the same when sharded."""

from __future__ import annotations

import pytest

from evaluation.foreign_models.command import MODELS, installed, measure

SLOW = {"flax_gpt2", "torch_llama"}  # a minute and more on a busy machine


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS]
)
def test_a_foreign_model_runs_sharded(name: str) -> None:
    if not installed(name):
        pytest.skip(f"{' and '.join(MODELS[name].packages)} are not all installed")
    row = measure(name, seconds=3.0)
    assert row.actions, "an empty plan would prove nothing"
    assert row.collectives > 0
    assert row.error < 1e-4
    assert set(row.without_rule) <= {"while"}, "only loops may be without a rule"

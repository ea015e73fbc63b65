"""The programs that a test run keeps for its workers are the traced ones."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from evaluation.kept_models import kept
from toast_lab.frontends import from_jax
from toast_lab.ir.model import Model


def test_a_program_is_traced_by_whoever_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOAST_LAB_TESTS_DATA", str(tmp_path))
    traced: list[Model] = []

    def make() -> Model:
        traced.append(from_jax(jnp.tanh, jax.ShapeDtypeStruct((4, 2), jnp.float32)))
        return traced[-1]

    first, second = kept("tanh", make), kept("tanh", make)
    assert len(traced) == 1
    assert first.stablehlo == second.stablehlo == traced[0].stablehlo
    assert first.function is second.function is None  # also for the caller that traced it
    kept("another", make)
    assert len(traced) == 2

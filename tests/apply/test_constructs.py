"""What plans must run and export: every construct, on every road from the call and back."""

from __future__ import annotations

from typing import Any

import pytest

from tests import eight_devices
from tests.apply.constructs import CONSTRUCTS, WIDE

ROADS = {"plan.jit", "to_python", "to_patch", "run", "compare"}


def here(name: str, *args: Any) -> Any:
    return eight_devices.call(f"tests.apply.constructs:{name}", *args)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_construct_runs_and_is_exported_as_under_jax_jit(name: str) -> None:
    assert here("roads", name, False) == {road: [] for road in ROADS}


@pytest.mark.parametrize("name", WIDE)
def test_constructs_with_64_bit_types(name: str) -> None:
    assert here("roads", name, True) == {road: [] for road in ROADS}


def test_calls_may_be_more_or_less_weakly_typed_than_planned() -> None:
    assert here("weakly_typed_calls") == []


def test_results_on_a_mesh_with_explicit_axes_meet_other_arrays() -> None:
    found = here("explicit_mode")
    refused = found.pop("refused")
    assert found == {road: pytest.approx(0, abs=1e-4) for road in found}
    assert len(found) == 4
    assert "{'data': 8}" in refused
    assert "jax.set_mesh" in refused
    assert "mesh=" in refused


def test_other_types_and_memories_are_named() -> None:
    messages = here("wrong_arguments")
    assert "s: f32[64, 64] in host memory in the plan, f32[64, 64] here" in messages["memory"]
    assert "bf16[64, 64] here" in messages["type"]

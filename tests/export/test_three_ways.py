"""Three ways to execute a plan give the same program.

They are ``plan.jit``, its fewest constraints under ``jax.jit``, and exported Python.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests import eight_devices
from tests.helpers import SMALL

DM = {"d": 2, "m": 4}
SEQUENCE = [("batch", "d"), ("hidden", "m"), ("heads", "m"), ("vocab", "m"), ("sequence", "m", 1)]
MEGATRON = SEQUENCE[:4]
FSDP = [("batch", "d"), ("d_model", "d")]
ONE = {**SMALL, "layers": 1}
CASES = {
    "mlp": ("mlp", {}, 0, {"data": 4, "model": 2}),
    "attention": ("attention", {}, 1, {"data": 4, "model": 2}),
    "fsdp": ("transformer", {**ONE, "mode": "forward"}, FSDP, DM),
    "megatron, training": ("transformer", {**ONE, "mode": "train"}, MEGATRON, DM),
    "scan": ("transformer", {**SMALL, "layers": 2, "mode": "forward", "scan": True}, SEQUENCE, DM),
}


def here(name: str, *args: Any, **options: Any) -> Any:
    return eight_devices.call(f"tests.export.programs:{name}", *args, **options)


@pytest.mark.parametrize("case", CASES)
def test_the_same_shardings_collectives_and_numbers(case: str) -> None:
    outcome = here("three_ways", *CASES[case])
    ways = outcome["ways"]
    for way in ("jit", "constraints", "python"):
        assert ways[way]["error"] < 1e-4
        assert ways[way]["same_tree"]
        assert ways[way]["arguments"] == ways["jit"]["arguments"]
        assert ways[way]["results"] == ways["jit"]["results"]
    assert ways["python"]["collectives"] == ways["constraints"]["collectives"]
    if outcome["exact"]:
        assert ways["constraints"]["collectives"] == ways["jit"]["collectives"]
    else:
        assert ways["constraints"]["collectives"] != ways["jit"]["collectives"]
        assert outcome["remaining"]
    assert outcome["exact"]
    assert sum(ways["jit"]["collectives"].values()) > 0
    if case == "megatron, training":
        assert outcome["constraints"] == 0  # propagation finds the whole plan


def test_a_sequence_parallel_transformer_needs_four_places_a_layer() -> None:
    sizes = {**SMALL, "layers": 2, "mode": "forward"}
    outcome = here("three_ways", "transformer", sizes, SEQUENCE, DM)
    assert outcome["exact"]
    assert outcome["ways"]["constraints"]["collectives"] == outcome["ways"]["jit"]["collectives"]
    per_layer = [row for row in outcome["rows"] if " and 1 alike" in row]
    assert 1 <= len(per_layer) <= 4
    assert len(outcome["rows"]) - len(per_layer) <= 2  # those of the embedding and the last norm


def test_constraints_of_two_layers_hold_for_five() -> None:
    outcome = here("deeper", {**SMALL, "layers": 2, "mode": "forward"}, 5, SEQUENCE, DM)
    assert outcome["exact"]
    assert outcome["constraints"] > 0
    assert outcome["constrained"] == outcome["planned"]


def test_what_is_found_when_time_runs_out_is_judged_and_said() -> None:
    outcome = here(
        "three_ways", "transformer", {**ONE, "mode": "forward"}, SEQUENCE, DM, seconds=0.1
    )
    assert not outcome["complete"]
    assert not outcome["exact"]
    assert outcome["remaining"]
    assert outcome["ways"]["constraints"]["collectives"] != outcome["ways"]["jit"]["collectives"]
    assert outcome["ways"]["constraints"]["error"] < 1e-4


def test_the_patch_applied_is_the_plan() -> None:
    sizes = {**ONE, "mode": "forward"}
    outcome = here("patched", "transformer", sizes, FSDP, DM, proof="propagated")
    assert outcome["error"] < 1e-4
    changed = [line for line in outcome["text"].splitlines() if line.startswith("+ ")]
    assert any(
        'with_sharding_constraint(params["wq"], P(None, None, None))' in line for line in changed
    )
    gathered = {k: n for k, n in outcome["planned"].items() if k.startswith("all_gather")}
    assert gathered
    # The patch leaves only the scales of norms to the partitioner: 256 bytes.
    differ = {
        k
        for k in {*outcome["planned"], *outcome["collectives"]}
        if outcome["planned"].get(k) != outcome["collectives"].get(k)
    }
    assert {k.rpartition(" ")[2] for k in differ} <= {"256"}
    assert all("transformer.py" in text for text in outcome["left_out"])


def test_the_exported_test_fails_on_drift(tmp_path: Path) -> None:
    outcome = here("drift", str(tmp_path))
    assert outcome["same"].startswith("0 ")
    assert outcome["record"].startswith("1 ")
    assert "recorded" in outcome["record"]
    assert outcome["model"].startswith("1 ")


@pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")
@pytest.mark.parametrize("nested", [False, True])
def test_exported_python_changes_flax_modules_in_place(nested: bool) -> None:
    outcome = here("flax_steps", nested)
    assert outcome["same"]  # the caller's own modules hold the placed arrays
    assert (None, "model") in outcome["placed"]
    assert outcome["losses"] == pytest.approx(outcome["plain"], rel=1e-4)
    assert outcome["losses"][-1] < outcome["losses"][0]
    assert outcome["kernel"] == (None, "model")
    assert outcome["weights"] < 1e-3

"""``plan.jit`` runs the planned program within the user's own.

It has to work with the user's pytrees, modules and transforms.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests import eight_devices
from tests.helpers import SMALL

SMALL_GNS = {
    "steps": 2,
    "nodes": 64,
    "edges": 256,
    "latent": 32,
    "hidden": 16,
    "hidden_layers": 1,
    "features": 8,
}
CASES = [
    ("mlp", {}, 0),
    ("attention", {}, 1),
    ("transformer", {**SMALL, "layers": 2}, 2),
    ("transformer", {**SMALL, "layers": 2, "scan": True}, 3),
    ("gns", SMALL_GNS, 4),
]


def here(name: str, *args: Any, module: str = "programs") -> Any:
    return eight_devices.call(f"tests.apply.{module}:{name}", *args)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "sizes", "seed"), CASES, ids=[f"{n}-{s}" for n, _, s in CASES])
def test_the_plan_is_carried_out_to_the_collective(
    name: str, sizes: dict[str, Any], seed: int
) -> None:
    found = here("zoo", name, sizes, seed)
    assert found["error"] < 1e-3
    assert found["same_tree"]
    assert found["collectives"] == found["direct"]
    assert sum(found["direct"].values()) > 0
    assert found["results"] == found["planned"]
    assert found["arguments"] == found["planned_arguments"]
    if name == "transformer":
        assert found["aliases"] > 10  # donated parameters and moments


def test_gradients_scans_and_training_loops() -> None:
    found = here("transforms")
    assert found.pop("moved") > 1e-3
    assert found == {k: pytest.approx(0, abs=2e-5) for k in found}
    assert len(found) == 5


def test_indexing_by_position_sends_nothing_where_the_batch_is_cut() -> None:
    outcome = here("by_position", module="indexing")
    assert outcome["errors"] == {key: pytest.approx(0, abs=1e-6) for key in outcome["errors"]}
    assert outcome["priced"] == 0
    assert outcome["compiled"] == {}


def test_ops_on_examples_of_their_own_send_nothing_where_the_batch_is_cut() -> None:
    outcome = here("examples_alone", module="batched_ops")
    assert outcome["errors"] == {key: pytest.approx(0, abs=1e-6) for key in outcome["errors"]}
    assert outcome["priced"] == 0
    assert outcome["compiled"] == {}


def test_donated_state_is_reused_and_stays_where_the_plan_has_it() -> None:
    found = here("donation")
    assert found["error"] < 1e-5
    assert found["steps"] == 5
    assert all(found["gone"])
    assert found["placed"]
    assert found["named"] == [True] * 3
    assert found["kinds"] > 1


def test_random_keys_and_python_numbers() -> None:
    found = here("keys_and_numbers")
    assert found["error"] < 1e-6
    assert found["number"] < 1e-6
    assert found["key"]
    assert found["is_key"]
    assert found["spec"] == ("data", "model")


@pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")
def test_flax_modules_are_changed_in_place() -> None:
    found = here("flax_modules")
    mine, theirs = found["losses"]
    assert mine == pytest.approx(theirs, rel=1e-4)
    assert theirs[-1] < theirs[0]
    assert found["weights"] < 1e-3
    assert found["statistics"] < 1e-4
    assert found["kernel"] == found["planned"] != "P()"
    assert found["traced"] == (1, 2)
    assert found["scaled"][0] == pytest.approx(found["scaled"][1], rel=1e-4)
    assert found["scaled"][0] != pytest.approx(mine[-1], rel=0.05)


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    said = here("refusals")
    assert "x: f32[16, 8] in the plan, f32[8, 8] here" in said["shapes"]
    assert "Their arguments agree" in said["program"]
    assert "this plan is for 8 devices" in said["few"]
    assert "there are 4" in said["few"]
    assert "'data': 4, 'model': 2" in said["mesh"]
    assert "not both" in said["both"]
    assert not [k for k, v in said.items() if v.startswith("unexpected") and k != "around"]


LOOPS = {
    "linen_train_state": "flax",
    "linen_batch_norm_and_dropout": "flax",
    "nnx_in_place": "flax",
    "nnx_as_values": "flax",
    "nnx_module_under_jax_jit": "flax",
    "equinox_filter_jit": "equinox",
    "equinox_state": "equinox",
    "equinox_under_jax_jit": "equinox",
    "haiku_with_state": "haiku",
    "dataclass_and_numbers": "jax",
    "bound_method": "jax",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", LOOPS)
def test_training_loops_see_what_the_library_s_own_jit_gives(case: str) -> None:
    if importlib.util.find_spec(LOOPS[case]) is None:
        pytest.skip(f"{LOOPS[case]} is not installed")
    for donated, found in here("loop", case, module="loops").items():
        assert found["wrong"] == [], donated
        assert found["error"] < 1e-3
        assert found["moved"] > 1e-3  # the loop changes values
        assert found["traced"] <= 2


@pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")
def test_attributes_of_modules_change_as_under_nnx_jit() -> None:
    found = here("attributes", module="loops")
    assert [row["calls"] for row in found["rows"]] == [(1, 1), (2, 2), (2, 2)]
    assert [row["mode"] for row in found["rows"][:2]] == [("called 1",) * 2, ("called 2",) * 2]
    assert all(
        row["values"][0] == pytest.approx(row["values"][1], rel=1e-5) for row in found["rows"]
    )
    assert found["same"]
    assert "not for step" in found["said"]

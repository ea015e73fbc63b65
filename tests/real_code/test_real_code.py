"""Training steps as they are written in production: with kernels, sharded by hand, scanned.

They are loaded, planned around their kernels, audited, exported, compiled and executed.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests import eight_devices
from tests.runtime.test_gpu_compile import needs_wheels

HERE = "tests.real_code.trial"
WHICH = ("decoder", "experts")
TARGETS = [
    pytest.param(
        "tpu-v5e",
        "tpu:v5e:2x4",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
        ),
    ),
    pytest.param("h100", "gpu:h100:8", marks=needs_wheels),
]


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100"])
def test_a_decoder_is_planned_around_its_kernels(machine: str) -> None:
    facts = eight_devices.call(f"{HERE}:facts", "decoder", machine)
    assert facts["platforms"] == [{"tpu-v5e": "tpu", "h100": "gpu"}[machine]]
    assert facts["shard_maps"] >= 5  # attention and loss, forward and backward
    assert facts["kernels"] >= 3  # forward, again for the backward pass, and backward
    assert facts["relative"] < 0.6
    assert "shard_map" in facts["listed"]
    assert any("in host memory" in note for note in facts["notes"])


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100"])
def test_experts_cost_what_the_compiler_multiplies(machine: str) -> None:
    facts = eight_devices.call(f"{HERE}:facts", "experts", machine)
    rate = {"tpu-v5e": 197e12, "h100": 395e12}[machine]
    # Three products of every token's two experts forward, and their gradients: of the weights of
    # each, and of the tokens for the last alone, since those of a step's tokens are not needed.
    # Over all eight experts libtpu makes the gradients of weights, and the compiler for GPUs every
    # product, in TF32.
    products = {"tpu-v5e": 3 + 8 * 3 + 1, "h100": 8 * (3 + 3 + 1)}[machine]
    flops = products * 2 * (16384 * 2) * 2048 * 8192
    assert 1.0 < facts["unsharded"] * rate / flops < 1.3
    assert facts["relative"] < 0.6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", WHICH)
def test_two_steps_by_the_plan_are_those_sharded_by_hand(which: str) -> None:
    differences = eight_devices.call(f"{HERE}:executed", which)
    # The decoder computes in bfloat16
    assert differences["loss"] < (1e-3 if which == "decoder" else 1e-4)
    assert differences["state"] < (3e-2 if which == "decoder" else 1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", WHICH)
def test_the_exported_python_runs_as_the_unsharded_step(which: str) -> None:
    run = eight_devices.call(f"{HERE}:exported", which)
    # Arguments are cut, if few: constraints are not part of the file
    assert run["whole"] < 0.8
    # The decoder computes in bfloat16
    assert run["loss"] < (1e-3 if which == "decoder" else 1e-4)
    assert run["state"] < (3e-2 if which == "decoder" else 1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize(("machine", "topology"), TARGETS)
def test_plans_compile_for_their_target(which: str, machine: str, topology: str) -> None:
    compiled = eight_devices.call(f"{HERE}:compiled", which, machine, topology)
    assert not compiled["refused"]
    assert compiled["timed"]
    assert compiled["peak_bytes"] > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize(("machine", "topology"), TARGETS)
def test_the_audit_names_the_lines_of_what_is_sharded_by_hand(
    which: str, machine: str, topology: str
) -> None:
    audit = eight_devices.call(f"{HERE}:audited", which, machine, topology)
    assert any(f"{which}.py" in line for line in audit["lines"])
    if which == "experts":
        # Nobody says how the products of tokens and experts are cut, so their results are whole
        assert "replicated work" in audit["kinds"]
        assert "inner = jax.lax.with_sharding_constraint(inner, " in audit["text"]


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100"])
def test_a_kernel_of_another_platform_is_refused_by_name(machine: str) -> None:
    message = eight_devices.call(f"{HERE}:refused_for", machine)
    assert {"tpu-v5e": "TPU", "h100": "GPU"}[machine] in message
    assert "decoder.py" in message

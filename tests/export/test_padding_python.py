"""Exported padding runs without TOAST Lab, and with the rules of its plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import toast_lab as tl
from tests import gpt2_model
from toast_lab.errors import InvalidPlan
from toast_lab.export.padding_python import to_padding

SIZES = {"layers": 1, "batch": 4, "positions": 7, "heads": 5, "key": 4, "vocabulary": 13}

#: compares three steps of the exported padding and sharding with those of the function as it is
SCRIPT = """
import sys
import jax, numpy as np
import gpt2_model, step_padding, step_sharding

sizes = {sizes}
fn, shapes, _ = gpt2_model.training(**sizes, dtype="float32")
random = np.random.default_rng(0)
draw = lambda s: random.normal(size=s.shape).astype(s.dtype) / 4
weights, momentum = jax.tree.map(draw, shapes[:2])
tokens = random.integers(0, sizes["vocabulary"], shapes[2].shape).astype("int32")

step = step_padding.padded_step(fn, weights, momentum, tokens)
run = step_sharding.shard(step, *step.pad(weights, momentum, tokens))
state = step_sharding.place(*step.pad(weights, momentum, tokens))
assert not state[0]["wte"].sharding.is_fully_replicated
for _ in range(3):
    weights, momentum, loss = jax.jit(fn)(weights, momentum, tokens)
    *kept, own = run(*state)
    state = (*kept, step_sharding.place(*step.pad(weights, momentum, tokens))[2])
    np.testing.assert_allclose(own, loss, rtol=1e-5)
cut = step.cut((*kept, own))
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), cut[0], weights)
assert "toast_lab" not in sys.modules
print("same")
"""


@pytest.fixture(scope="module")
def written() -> tl.Plan:
    fn, arguments, options = gpt2_model.training(**SIZES, dtype="float32")
    model = tl.from_jax(fn, *arguments, **options)
    own = tl.padded(model, {"heads": 8, "vocab": 16, "sequence": 8})
    problem = tl.Problem(tl.analyse(own), {"data": 2, "model": 4})
    plan = tl.Plan.from_actions(problem, ["heads->model", "batch->data", "vocab->model"])
    return plan.written(problem=problem, budget=tl.Budget(seconds=None, evaluations=60))


def test_an_exported_file_pads_and_shards_the_step(written: tl.Plan, tmp_path: Path) -> None:
    (tmp_path / "step_padding.py").write_text(written.to_padding())
    sharding = written.to_python()
    assert "step = padded_step(step, weights, momentum, tokens)" in sharding
    assert "padded: heads 5 to 8, vocab 13 to 16, sequence 7 to 8" in sharding
    (tmp_path / "step_sharding.py").write_text(sharding)
    source = Path(gpt2_model.__file__).read_text()
    (tmp_path / "gpt2_model.py").write_text(source)
    (tmp_path / "run.py").write_text(SCRIPT.format(sizes=SIZES))
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; sys.path.insert(0, '.'); import run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            "PATH": "",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
    )
    assert done.stdout.strip() == "same", done.stderr[-3000:]


def test_what_is_not_padded_has_no_padding_to_export() -> None:
    with pytest.raises(InvalidPlan, match="mlp is not padded"):
        to_padding(tl.load("mlp", batch=64))

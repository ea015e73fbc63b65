"""A function is lowered for the platform of the problem's machine, not for that of the host."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import toast_lab as tl
from toast_lab.errors import FrontendError

S = jax.ShapeDtypeStruct
ALL = {"cpu", "tpu", "gpu"}


def f32(*shape: int) -> S:
    return S(shape, "float32")


def ragged(x: Any, w: Any, sizes: Any) -> Any:
    return jnp.tanh(jax.lax.ragged_dot(x, w, sizes))


RAGGED = (f32(512, 64), f32(4, 64, 128), S((4,), "int32"))


def problem_on(model: Any, machine: str) -> Any:
    return tl.Problem(tl.analyse(model), {"data": 4, "model": 2}, machine=machine)


@pytest.mark.parametrize(
    ("fn", "args", "platforms"),
    [
        (lambda x, w: jax.nn.softmax(x @ w).sum(), (f32(8, 4), f32(4, 4)), ALL),
        (lambda x: jnp.cumsum(jnp.fft.rfft(x).real, -1).argmax(), (f32(8, 4),), ALL),
        (ragged, RAGGED, {"cpu"}),
        (jnp.linalg.cholesky, (f32(8, 8),), {"cpu"}),
        # Its rule is one for all platforms, but uses primitives whose rules differ.
        (jnp.linalg.qr, (f32(8, 8),), {"cpu"}),
        (lambda key: jax.random.normal(key, (4,)), (S((2,), "uint32"),), {"cpu"}),
        (lambda seed: jax.random.normal(jax.random.key(seed), (4,)), (S((), "int32"),), {"cpu"}),
        (
            lambda x: jax.lax.scan(lambda c, _: (jnp.linalg.cholesky(c), None), x, length=3)[0],
            (f32(8, 8),),
            {"cpu"},
        ),
        (
            lambda x: jax.lax.platform_dependent(x, tpu=jnp.sin, default=jnp.cos),
            (f32(8),),
            {"cpu", "gpu"},
        ),
    ],
    ids="plain cumulative ragged cholesky qr random typed_key scanned chosen".split(),
)
def test_a_model_knows_for_which_platforms_its_program_is(
    fn: Any, args: Any, platforms: set[str]
) -> None:
    model = tl.from_jax(fn, *args, platform="cpu")
    assert model.platforms == platforms
    assert ("as lowered for" in str(model)) == (platforms != ALL)
    for platform in sorted(platforms):
        other = tl.from_jax(fn, *args, platform=platform)
        assert other.program.digest() == model.program.digest()


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100"])
def test_a_problem_is_of_the_program_for_its_machine(machine: str) -> None:
    model = tl.from_jax(ragged, *RAGGED)
    problem = problem_on(model, machine)
    program = problem.analysis.program
    assert "chlo.ragged_dot" in program.kind
    assert "chlo.ragged_dot" not in model.program.kind
    # Each row meets one expert: as many FLOPs as a product with a single one.
    assert program.flops.sum() == 2 * 512 * 64 * 128
    assert problem_on(model, machine).analysis.program is program
    plan = tl.replicated(problem)
    assert plan.is_of(program)
    assert not plan.is_of(model.program)
    assert tl.replicated(problem_on(model, "cpu")).is_of(model.program)


def test_names_that_a_user_gave_hold_on_other_platforms() -> None:
    analysis = tl.analyse(tl.from_jax(ragged, *RAGGED, platform="cpu"))
    name = next(group.name for group in analysis.groups if group.size == 128)
    problem = tl.Problem(analysis.renamed({name: "features"}), {"data": 2}, machine="tpu-v5e")
    assert "features" in problem.analysis.group_name


def test_a_model_that_cannot_be_lowered_anew_says_what_to_do() -> None:
    model = pickle.loads(pickle.dumps(tl.from_jax(ragged, *RAGGED, platform="cpu")))
    with pytest.raises(FrontendError, match=r'platform="tpu"'):
        problem_on(model, "tpu-v5e")
    with pytest.raises(FrontendError, match="cpu, tpu, gpu"):
        tl.from_jax(ragged, *RAGGED, platform="cuda")


def test_what_the_target_lacks_is_told_with_the_platform_and_the_line() -> None:
    model = tl.from_jax(lambda x: jax.scipy.linalg.schur(x)[0], f32(8, 8))
    with pytest.raises(FrontendError, match=r"for TPU: (.|\n)*schur \(test_platforms"):
        problem_on(model, "tpu-v5e")


def scaled(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def with_kernel(x: Any, w: Any) -> Any:
    return pl.pallas_call(scaled, out_shape=S(x.shape, x.dtype))(x) @ w


def test_a_kernel_that_the_host_cannot_run_is_lowered_for_its_platform() -> None:
    model = tl.from_jax(with_kernel, f32(64, 64), f32(64, 64))
    assert model.platforms == {"tpu"}
    assert any("lowered for TPU" in note for note in model.notes)
    interpreted = model.lowered_for("cpu")
    assert "custom_call" not in interpreted.program.kind
    assert any("interpreted" in note for note in interpreted.notes)
    assert "custom_call" in problem_on(model, "h100").analysis.program.kind


def test_attention_of_cudnn_is_lowered_without_cudnn() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")

    q = S((2, 128, 4, 64), "bfloat16")
    model = tl.from_jax(attention, q, q, q)
    assert model.platforms == {"gpu"}
    assert "__cudnn$fmhaSoftmax" in model.program.detail
    with pytest.raises(FrontendError, match="cannot be lowered for TPU"):
        problem_on(model, "tpu-v5e")


def test_a_loaded_model_is_lowered_in_a_child(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "made_for_platforms.py").write_text(
        "import jax\n"
        "def make():\n"
        "    return jax.numpy.linalg.cholesky, (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    model = tl.load("made_for_platforms:make")
    assert model.platforms == {"cpu"}
    model = pickle.loads(pickle.dumps(model))
    assert "cholesky" in problem_on(model, "tpu-v5e").analysis.program.kind
    assert tl.load("made_for_platforms:make", platform="tpu").platforms == {"tpu"}

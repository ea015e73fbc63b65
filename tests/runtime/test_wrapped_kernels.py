"""Kernels that a plan cuts run on parts, with equal numbers, or are refused; never otherwise."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import toast_lab as tl
from toast_lab.errors import FrontendError, InvalidInput, InvalidPlan
from toast_lab.ir import kernel_rules

S = jax.ShapeDtypeStruct


def f32(*shape: int) -> S:
    return S(shape, "float32")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = kernel_rules.registered()
    yield
    for rule in kernel_rules.registered():
        if rule not in before:
            kernel_rules.forget(rule.name)


def attend(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
    q, k, v = q_ref[0, 0], k_ref[0, 0], v_ref[0, 0]
    scores = jnp.dot(q, k.T, preferred_element_type=jnp.float32)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    o_ref[0, 0] = jnp.dot(weights, v, preferred_element_type=jnp.float32).astype(o_ref.dtype)


@tl.kernel_rule("b h s d, b h t d, b h t d -> b h s d", whole="s d", flops="4*b*h*s*t*d")
def attention(q: Any, k: Any, v: Any) -> Any:
    batch, heads, length, size = q.shape

    def block(rows: int) -> Any:
        return pl.BlockSpec((1, 1, rows, size), lambda i, j: (i, j, 0, 0))

    keys = k.shape[2]
    return pl.pallas_call(
        attend,
        grid=(batch, heads),
        in_specs=[block(length), block(keys), block(keys)],
        out_specs=block(length),
        out_shape=S(q.shape, q.dtype),
    )(q, k, v)


def layer(attended: Any, x: Any, w: Any, wo: Any) -> Any:
    q, k, v = jnp.einsum("bsm,nmhd->nbhsd", x, w)
    return jnp.einsum("bhsd,hdm->bsm", attended(q, k, v), wo)


def net(x: Any, w: Any, wo: Any) -> Any:
    return layer(attention, x, w, wo)


def plain(x: Any, w: Any, wo: Any) -> Any:
    def attended(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k))
        return jnp.einsum("bhst,bhtd->bhsd", weights, v)

    return layer(attended, x, w, wo)


ARGS = (f32(4, 128, 32), f32(3, 32, 2, 128), f32(2, 128, 32))


def inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple((rng.normal(size=arg.shape) / 8).astype("f4") for arg in ARGS)


@pytest.fixture(scope="module")
def model() -> Any:
    return tl.from_jax(net, *ARGS)


@pytest.fixture(scope="module")
def plan(model: Any) -> Any:
    problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2}, machine="tpu-v5e")
    return tl.Plan.from_specs(
        problem, {"x": ("data",), "w": (None, None, "model"), "wo": ("model",)}
    )


def test_a_wrapped_kernel_is_one_op_of_every_platform(model: Any, plan: Any) -> None:
    assert model.platforms == {"cpu", "tpu", "gpu"}
    (kernel,) = (op for op in model.program.ops() if model.program.kind[op] == "custom_call")
    assert model.program.detail[kernel] == "attention"
    assert model.program.flops[kernel] == 4 * 4 * 2 * 128 * 128 * 128
    assert (plan.op_factor[kernel] >= 0).all()
    # Outside of TOAST Lab it is the function, in JAX's transformations as well.
    text = jax.jit(net).trace(*ARGS).lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text
    assert kernel_rules.WRAPPED not in text


def test_it_runs_on_parts_with_equal_numbers(model: Any, plan: Any) -> None:
    measured = tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0, inputs=inputs())
    assert measured.agrees
    # Only the sum over heads: no gather around the kernel.
    assert set(measured.collective_counts) == {"all_reduce"}
    assert measured.notes == ()
    if len(jax.devices()) >= 4:
        result = plan.jit(net, devices=jax.devices()[:4])(*inputs())
        np.testing.assert_allclose(result, plain(*inputs()), rtol=1e-4, atol=1e-5)


def test_compilers_get_the_kernel_of_the_part(model: Any, plan: Any) -> None:
    text = tl.annotate(model, plan, platform="tpu")
    assert "sdy.manual_computation" in text
    assert f"@{kernel_rules.WRAPPED}" not in text
    calls = [line for line in text.splitlines() if "tpu_custom_call" in line]
    assert calls
    # 4 examples over 2 and 2 heads over 2
    assert all("tensor<2x1x128x128xf32>" in line for line in calls)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_the_compiler_for_tpus_takes_it(model: Any, plan: Any) -> None:
    compiled = tl.compile(model, plan, topology="tpu:v5e:2x2", store=False)
    assert compiled.fits
    assert set(compiled.bytes_by_kind()) <= {"all_reduce", "reduce_scatter", "all_gather"}


def test_training_through_a_custom_derivative(model: Any) -> None:
    @tl.kernel_rule("b d, d -> b d", whole="d")
    def forward(x: Any, w: Any) -> Any:
        return pl.pallas_call(
            lambda x_ref, w_ref, o_ref: o_ref.__setitem__(..., x_ref[...] * w_ref[...]),
            out_shape=S(x.shape, x.dtype),
        )(x, w)

    @jax.custom_vjp
    def scale(x: Any, w: Any) -> Any:
        return forward(x, w)

    scale.defvjp(
        lambda x, w: (forward(x, w), (x, w)),
        lambda saved, g: (forward(g, saved[1]), (g * saved[0]).sum(0)),
    )

    def loss(w: Any, x: Any) -> Any:
        return (scale(x, w) ** 2).sum()

    trained = tl.from_jax(jax.grad(loss), f32(128), f32(8, 128))
    problem = tl.Problem(tl.analyse(trained), {"data": 2})
    plan = tl.Plan.from_specs(problem, {"x": ("data",)})
    kernels = [op for op in trained.program.ops() if trained.program.kind[op] == "custom_call"]
    assert kernels
    assert (plan.op_factor[kernels] >= 0).all()
    assert tl.run(trained, plan, devices="cpu:2", repeats=1, warmup=0).agrees


def test_a_kernel_known_by_name_alone_is_refused_with_its_shard_map() -> None:
    tl.kernel_rule("doubled_by_name", "a b -> a b")

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def fn(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=S(x.shape, x.dtype), name="doubled_by_name")(x) + 1

    model = tl.from_jax(fn, f32(64, 128), platform="tpu")
    problem = tl.Problem(tl.analyse(model), {"data": 2})
    plan = tl.Plan.from_specs(problem, {"x": ("data", None)})
    with pytest.raises(InvalidPlan, match=r"doubled_by_name .*test_wrapped_kernels") as caught:
        tl.annotate(model, plan)
    assert "in_specs=(P('data', None),), out_specs=P('data', None)" in str(caught.value)
    assert '@tl.kernel_rule("a b -> a b")' in str(caught.value)
    tl.annotate(model, tl.replicated(problem))  # whole kernels need nothing
    # On a CPU it is interpreted, which is not bound to whole shapes.
    assert tl.run(model, plan, devices="cpu:2", repeats=1, warmup=0).agrees


def test_a_plan_that_cuts_a_kernel_is_written_with_the_kernel_whole(model: Any, plan: Any) -> None:
    """``jax.jit`` alone calls a kernel whole, and so does what propagation makes of rules."""
    written = tl.Plan.of(plan).written(
        problem=tl.Problem(tl.analyse(model), plan.mesh), budget=tl.Budget(1.0)
    )
    kernels = [op for op, kind in enumerate(plan.program.kind) if kind == "custom_call"]
    assert kernels
    assert (written.plan.op_factor[kernels] < 0).all()


def test_a_kernel_with_blocks_of_one_dim_is_lowered_for_tpus_anywhere() -> None:
    def kernel(x_ref: Any, scale_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * scale_ref[...]

    def fn(x: Any, scale: Any) -> Any:
        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(8,),
            in_specs=[rows, pl.BlockSpec((128,), lambda i: (0,))],
            out_specs=rows,
            out_shape=S(x.shape, x.dtype),
        )(x, scale)

    model = tl.from_jax(fn, f32(64, 128), f32(128), platform="tpu")
    assert "tpu_custom_call" in model.stablehlo


def test_a_call_whose_code_holds_no_shapes_runs_on_parts() -> None:
    tl.kernel_rule("my_ffi_norm", "a b -> a b", whole="b")
    call = jax.ffi.ffi_call("my_ffi_norm", f32(8, 16))
    model = tl.from_jax(lambda x: call(x, eps=1e-5), f32(8, 16))
    problem = tl.Problem(tl.analyse(model), {"data": 2})
    text = tl.annotate(model, tl.Plan.from_specs(problem, {"x": ("data",)}))
    (line,) = (line for line in text.splitlines() if "custom_call @my_ffi_norm" in line)
    assert "tensor<4x16xf32>" in line
    assert "eps" in line
    assert "sdy.manual_computation" in text


MODULE = """
import jax, toast_lab as tl

@tl.kernel_rule("a b, b -> a b", whole="b", flops="a*b")
def scaled(x, w):
    return x * w

def make():
    shapes = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16,), "float32")
    return (lambda x, w: scaled(x, w) + 1), shapes
"""


def test_kernels_of_a_loaded_module_are_made_in_a_child(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "module_with_kernel.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    model = pickle.loads(pickle.dumps(tl.load("module_with_kernel:make")))
    assert model.program.flops.sum() >= 8 * 16
    problem = tl.Problem(tl.analyse(model), {"data": 2})
    plan = tl.Plan.from_specs(problem, {"x": ("data",)})
    assert tl.run(model, plan, devices="cpu:2", repeats=1, warmup=0).agrees


def test_a_mapped_kernel_keeps_its_rule_with_a_new_first_dim() -> None:
    @tl.kernel_rule("a b, b, * -> a b", whole="b", flops="3*a*b")
    def scaled(x: Any, w: Any, shift: Any) -> Any:
        return x * w + shift

    def fn(x: Any, w: Any, shift: Any) -> Any:
        return jax.vmap(scaled, in_axes=(1, None, 0), out_axes=1)(x, w, shift) * 2

    model = tl.from_jax(fn, f32(8, 4, 16), f32(16), f32(4, 16))
    (kernel,) = (op for op in model.program.ops() if model.program.kind[op] == "custom_call")
    assert model.program.flops[kernel] == 3 * 8 * 4 * 16
    problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
    plan = tl.Plan.from_specs(problem, {"x": ("data", "model"), "shift": ("model",)})
    assert (plan.op_factor[kernel] >= 0).all()
    measured = tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0)
    assert measured.agrees
    assert not measured.collective_counts
    # Mapped twice, and outside of TOAST Lab.
    twice = jax.vmap(jax.vmap(scaled, in_axes=(0, None, None)), in_axes=(0, None, 0))
    x = jnp.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    np.testing.assert_allclose(
        twice(x, jnp.ones(5), jnp.ones((2, 5))), x + 1, rtol=1e-6, err_msg="vmap"
    )


def test_a_cost_that_cannot_leave_its_process_is_refused(tmp_path: Any, monkeypatch: Any) -> None:
    text = MODULE.replace('flops="a*b"', 'flops=lambda sizes: sizes["a"]')
    (tmp_path / "module_with_lambda.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(FrontendError, match="local functions") as caught:
        tl.load("module_with_lambda:make")
    assert "scaled: a b, b -> a b" in str(caught.value)


def test_a_declared_sum_is_cut_and_the_results_of_parts_are_added() -> None:
    @tl.kernel_rule("a c, c b -> a b", reduces="c", flops="2*a*b*c")
    def product(x: Any, w: Any) -> Any:
        return pl.pallas_call(
            lambda x_ref, w_ref, o_ref: o_ref.__setitem__(..., x_ref[...] @ w_ref[...]),
            out_shape=S((x.shape[0], w.shape[1]), x.dtype),
        )(x, w)

    model = tl.from_jax(lambda x, w: product(x, w) + 1, f32(8, 16), f32(16, 4))
    problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2}, machine="tpu-v5e")
    plan = tl.Plan.from_specs(problem, {"x": ("data", "model"), "w": ("model",)})
    (collective,) = tl.price(problem, plan).collectives
    assert (collective.kind, collective.axes) == ("all_reduce", ("model",))
    measured = tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0)
    assert measured.agrees
    assert measured.collective_counts == {"all_reduce": 1}
    with pytest.raises(InvalidInput, match="reduces='a'"):
        tl.kernel_rule("some", "a c, c b -> a b", reduces="a")

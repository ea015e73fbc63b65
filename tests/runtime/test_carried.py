"""A plan of the program for one platform runs on another, which says what differs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import toast_lab as tl
from toast_lab.errors import InvalidPlan
from toast_lab.sharding.carried import carry

S = jax.ShapeDtypeStruct


def f32(*shape: int) -> S:
    return S(shape, "float32")


def layer(x: Any, w: Any, sizes: Any, v: Any) -> Any:
    experts = jax.nn.relu(jax.lax.ragged_dot(x, w, sizes))
    return jnp.tanh(experts @ v)


ARGS = (f32(64, 32), f32(4, 32, 16), S((4,), "int32"), f32(16, 8))


@pytest.fixture(scope="module")
def model() -> Any:
    return tl.from_jax(layer, *ARGS)


@pytest.fixture(scope="module")
def problem(model: Any) -> Any:
    return tl.Problem(tl.analyse(model), {"data": 2, "model": 2}, machine="tpu-v5e")


@pytest.fixture(scope="module")
def plan(problem: Any) -> Any:
    return tl.Plan.from_specs(problem, {"w": (None, None, "model"), "x": (None, "data")})


def test_ops_with_a_counterpart_keep_their_shardings(model: Any, plan: Any) -> None:
    carried = carry(model, plan, "cpu")
    assert carried.plan.is_of(model.program)
    carried.plan.check()
    assert carried.plan.argument_specs() == plan.argument_specs()
    assert carried.plan.result_specs() == plan.result_specs()
    own, target = plan.program, carried.plan.program
    # The products after the experts, of which each program has one, are split alike.
    (last,), (target_last,) = (
        [
            op
            for op in program.ops()
            if program.kind[op] == "dot_general"
            and len(program.dims(program.results(op)[0])) == 2
            and program.dims(program.results(op)[0]) == (64, 8)
        ]
        for program in (own, target)
    )
    assert (
        plan.lowered.kept[own.results(last)[0]]
        == (carried.plan.lowered.kept[target.results(target_last)[0]])
    )
    # The dense product, which has no counterpart, follows its operands.
    dense = next(op for op in target.ops() if target.kind[op] == "dot_general")
    assert (carried.plan.op_factor[dense] >= 0).all()
    (note,) = carried.notes
    assert note.startswith("ragged_dot (test_carried.py:25) runs as ")
    assert note.endswith("other ops on the CPU")
    assert carry(model, plan, "tpu").plan is plan


def test_ops_that_a_platform_adds_are_named_with_their_line() -> None:
    model = tl.from_jax(lambda x, w: x @ w, S((64, 32), "bfloat16"), f32(32, 16))
    problem = tl.Problem(tl.analyse(model), {"data": 2}, machine="tpu-v5e")
    plan = tl.Plan.from_specs(problem, {"x": ("data", None)})
    assert carry(model, plan, "tpu").notes == ()
    (note,) = carry(model, plan, "gpu").notes
    assert note.startswith("2 convert (test_carried.py:")
    assert note.endswith(") run in addition on the GPU")


def inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, w, v = (rng.normal(size=shape).astype("f4") for shape in ((64, 32), (4, 32, 16), (16, 8)))
    return x, w, np.array([10, 20, 30, 4], np.int32), v


def test_run_and_jit_execute_what_the_cpu_can(model: Any, plan: Any) -> None:
    measured = tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0, inputs=inputs())
    assert measured.agrees
    assert "ragged_dot" in measured.notes[0]
    assert measured.notes[0] in str(measured)
    step = plan.jit(layer, devices=jax.devices()[:4]) if len(jax.devices()) >= 4 else None
    if step is not None:
        np.testing.assert_allclose(step(*inputs()), layer(*inputs()), rtol=1e-5, atol=1e-5)
        assert step.notes == measured.notes


def test_compare_says_it_too(model: Any, plan: Any, problem: Any) -> None:
    compared = tl.compare(
        model, {"mine": plan}, "cpu:4", problem=problem, repeats=1, rounds=1, inputs=inputs()
    )
    assert compared["mine"].status == "ok"
    assert compared["mine"].certificate.passed
    assert any("ragged_dot" in note for note in compared.notes)
    # Its price stays that of the program that the plan is for.
    assert compared["mine"].predicted.time_s == tl.price(problem, plan).time_s


def scaled(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def test_kernels_are_interpreted_on_the_cpu() -> None:
    def fn(x: Any, w: Any) -> Any:
        return pl.pallas_call(scaled, out_shape=S(x.shape, x.dtype))(x) @ w

    model = tl.from_jax(fn, f32(16, 16), f32(16, 8))
    problem = tl.Problem(tl.analyse(model), {"data": 2}, machine="tpu-v5e")
    plan = tl.Plan.from_specs(problem, {"w": (None, "data")})
    x, w = (
        np.random.default_rng(1).normal(size=shape).astype("f4") for shape in ((16, 16), (16, 8))
    )
    measured = tl.run(model, plan, devices="cpu:2", repeats=1, warmup=0, inputs=(x, w))
    assert measured.agrees
    assert any("custom_call (test_carried.py" in note for note in measured.notes)


def test_a_plan_of_another_function_is_still_refused(model: Any, plan: Any) -> None:
    other = tl.from_jax(lambda x: jnp.linalg.cholesky(x), f32(8, 8))
    with pytest.raises(InvalidPlan, match="this plan is for the program layer"):
        carry(other, plan, "cpu")

from __future__ import annotations

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import SMALL, analysed, model, plan
from toast_lab import _jaxlib, frontends
from toast_lab.compare import local_program, replay
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, UnsupportedOp
from toast_lab.ir.model import Model
from toast_lab.lowering.annotate import annotate
from toast_lab.models.registry import on_axes
from toast_lab.sharding.plan import ShardingPlan

S = jax.ShapeDtypeStruct
GNS = {
    "steps": 1,
    "nodes": 16,
    "edges": 64,
    "latent": 64,
    "hidden": 64,
    "hidden_layers": 1,
    "features": 8,
}
COLLECTIVE = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "partition_id",
    "sdy.",
)


def flops_of_a_device(plan: ShardingPlan) -> float:
    """One device's FLOPs by the cost model: each op's over the sizes of the axes that split it."""
    sizes = np.asarray(plan.mesh.sizes)
    ways = np.where(plan.op_factor >= 0, sizes, 1).prod(axis=1)
    return float((plan.program.flops * plan.program.trips / ways).sum())


CASES: dict[str, tuple[str, dict[str, Any], dict[str, int], tuple[Any, ...]]] = {
    "mlp": ("mlp", {}, {"d": 2, "m": 2}, (("B", "d"), ("U", "m"))),
    "attention": ("attention", {}, {"d": 4}, ("S@1->d",)),
    "transformer": ("transformer", SMALL, {"d": 4, "m": 2}, (("batch", "d"), ("hidden", "m"))),
    "gns": ("gns", GNS, {"data": 8}, ()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_the_local_program_does_its_share_of_the_work(name: str) -> None:
    which, sizes, mesh, actions = CASES[name]
    built = model(which, **sizes)
    problem = Problem(analysed(which, **sizes), mesh)
    if name == "gns":
        actions = tuple(on_axes(built.expert_plans["edge sharding"], {"data": "data"}))
    sharded = plan(problem, *actions)
    replayed = replay.replay(built, sharded, problem=problem, repeats=3, warmup=1)
    whole = replay.replay(
        built, plan(Problem(analysed(which, **sizes), {"one": 1})), repeats=1, warmup=0
    )
    share = flops_of_a_device(sharded)
    assert replayed.product_flops == replayed.planned_product_flops == share
    assert not replayed.divided_otherwise
    # XLA's count includes every element-wise op, too.
    assert replayed.flops is not None
    assert whole.flops is not None
    assert share <= replayed.flops < share * 1.5
    assert replayed.flops / whole.flops == pytest.approx(
        share / flops_of_a_device(plan(problem)), rel=0.2
    )
    assert whole.removed == ()
    assert replayed.removed
    assert replayed.finite
    assert len(replayed.step_times_s) == 3
    assert replayed.peak_bytes < whole.peak_bytes
    assert replayed.allocator_peak_bytes is None
    cost = price(problem, sharded)
    assert replayed.priced_collectives_s == cost.comm_s > 0
    assert replayed.estimate_s == replayed.median_s + cost.comm_s
    assert replayed.predicted_time_s == cost.time_s
    assert (
        f"removed: {', '.join(f'{n} {k}' for k, n in sorted(replayed.removed_counts.items()))}"
        in str(replayed)
    )
    assert json.loads(json.dumps(replayed.to_json()))["estimate_s"] == replayed.estimate_s


def test_data_parallel_work_is_divided_exactly() -> None:
    built = model("mlp")
    flops = [
        replay.replay(
            built, plan(Problem(analysed("mlp"), {"d": n}), *actions), repeats=1, warmup=0
        ).flops
        for n, actions in ((1, ()), (8, [("B", "d")]), (64, [("B", "d")]))
    ]
    assert flops[0]
    assert flops == [flops[0], flops[0] / 8, flops[0] / 64]


def test_what_xla_divides_otherwise_is_told() -> None:
    """In this plan only positions are split over ``model``.

    In the backward pass XLA splits some products over that idle axis, too.
    """
    built = model("transformer", **SMALL)
    problem = Problem(analysed("transformer", **SMALL), {"data": 4, "model": 2})
    sharded = plan(problem, *built.expert_plans["megatron+sp"])
    replayed = replay.replay(built, sharded, problem=problem, repeats=1, warmup=0)
    assert replayed.product_flops is not None
    assert replayed.planned_product_flops == flops_of_a_device(sharded)
    assert replayed.product_flops < replayed.planned_product_flops
    assert "it divides some of them otherwise" in str(replayed)


def divided(built: Model, sharded: ShardingPlan) -> local_program.LocalProgram:
    n_devices = sharded.mesh.n_devices
    return replay.divided(built, n_devices, annotate(built, sharded), "cpu", {"time_limit_s": 100})


def test_local_shapes_and_no_collectives() -> None:
    names = {"w": ("inner", "outer"), "x": ("batch", "inner")}

    def step(w, x):
        def layer(h, _):
            return jnp.tanh(h @ w @ w.T), jnp.sum(h)

        last, sums = jax.lax.scan(layer, x, None, length=3)
        new = jax.lax.cond(jnp.sum(sums) > 0, lambda: w - 0.1, lambda: w * 0.9)
        return new, jnp.concatenate([last, last], axis=1)

    built = frontends.from_jax(
        step, S((32, 64), "float32"), S((16, 32), "float32"), donate_argnums=0, dim_names=names
    )
    problem = Problem(analyse(built), {"d": 2, "m": 4})
    sharded = plan(problem, ("batch", "d"), ("outer", "m"))
    local = divided(built, sharded)
    assert not [word for word in COLLECTIVE if word in local.text]
    assert "stablehlo.while" in local.text
    assert "buffer_donor" in local.text
    assert local.argument_shapes == ((32, 16), (8, 32))
    assert local.result_shapes == ((32, 16), (8, 64))
    assert {r.kind for r in local.removed} == {"all_reduce"}
    assert replay.replay(built, sharded, problem=problem, repeats=1, warmup=1).finite


STAND_INS = {
    "all_gather": (
        '"stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = dense<[[0, 1]]> '
        ": tensor<1x2xi64>}> "
        ": (tensor<4x6xf32>) -> tensor<4x12xf32>",
        (4, 12),
        192,
    ),
    "all_to_all": (
        '"stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 1 : i64, '
        "split_count = 2 : i64, "
        "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4x6xf32>) -> "
        "tensor<2x12xf32>",
        (2, 12),
        96,
    ),
    "collective_permute": (
        '"stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : '
        "tensor<2x2xi64>}> "
        ": (tensor<4x6xf32>) -> tensor<4x6xf32>",
        (4, 6),
        96,
    ),
    "reduce_scatter": (
        '"stablehlo.reduce_scatter"(%x) <{scatter_dimension = 1 : i64, replica_groups = '
        "dense<[[0, 1]]> : "
        "tensor<1x2xi64>}> ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b "
        ": tensor<f32> "
        "stablehlo.return %s : tensor<f32> }) : (tensor<4x6xf32>) -> tensor<4x3xf32>",
        (4, 3),
        96,
    ),
}


def local_of(
    body: str, result: tuple[int, ...], platform: str = "cpu"
) -> local_program.LocalProgram:
    shape = "x".join(map(str, result))
    head = f"func.func public @main(%x: tensor<4x6xf32>) -> tensor<{shape}xf32>"
    text = f"{head} {{ {body} return %y : tensor<{shape}xf32> }}"
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, text)
    with context, _jaxlib.ir.Location.unknown(context):
        return local_program._local(module, [True], platform, divided=True)


@pytest.mark.parametrize("kind", STAND_INS)
def test_stand_ins_have_the_right_shape_and_run(kind: str) -> None:
    text, shape, size = STAND_INS[kind]
    local = local_of(f"%y = {text}", shape)
    assert local.removed == (local_program.Removed(kind, size),)
    assert local.result_shapes == (shape,)
    assert kind not in local.text
    assert local.text.count("optimization_barrier") >= 1
    # It reads nothing else: all numbers of the result are numbers of the operand.
    from toast_lab.runtime import _jax_private

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    loaded = _jax_private.compile_module(local.text, jax.devices()[:1])
    result = np.asarray(_jax_private.execute(loaded, [jax.device_put(x)])[0][0])
    assert result.shape == shape
    assert set(result.ravel()) <= set(x.ravel())
    assert result.size == math.prod(shape)


def test_ops_that_cannot_be_replayed_are_all_listed() -> None:
    calls = "".join(
        f"%{v} = stablehlo.custom_call @{target}(%{x}) : (tensor<4x6xf32>) -> tensor<4x6xf32> "
        for v, x, target in (
            ("a", "x", "lapack_sgeqrf_ffi"),
            ("b", "a", "lapack_sorgqr_ffi"),
            ("y", "b", "theirs"),
        )
    )
    with pytest.raises(
        UnsupportedOp, match=r"(?s)on gpu cannot run:\n.*lapack_sgeqrf_ffi.*\n.*lapack_sorgqr_ffi"
    ) as e:
        local_of(calls, (4, 6), "gpu")
    assert "theirs" not in str(e.value)
    assert local_of(calls, (4, 6), "cpu").removed == ()


def test_wrong_requests() -> None:
    built, problem = model("mlp"), Problem(analysed("mlp"), {"d": 2})
    with pytest.raises(InvalidPlan, match="for the mesh d=4, not for d=2"):
        replay.replay(built, plan(Problem(analysed("mlp"), {"d": 4})), problem=problem)
    with pytest.raises(InvalidPlan, match="this plan is for the program"):
        replay.replay(model("attention"), plan(problem))
    with pytest.raises(InvalidProblem, match="repeats must be at least 1"):
        replay.replay(built, plan(problem), repeats=0)
    if jax.default_backend() == "cpu":
        with pytest.raises(InvalidProblem, match="no gpu is attached"):
            replay.replay(built, plan(problem), "gpu")


def test_the_number_of_a_device_comes_from_outside_of_loops() -> None:
    """XLA for GPUs fails on a barrier in values computed from a loop's counter."""
    text = """
module @looped {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %device = stablehlo.partition_id : tensor<ui32>
      %offset = stablehlo.convert %device : (tensor<ui32>) -> tensor<i32>
      %place = stablehlo.add %i, %offset : tensor<i32>
      %cut = stablehlo.dynamic_slice %y, %place, sizes = [1] :
        (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
      %new = stablehlo.dynamic_update_slice %y, %cut, %zero :
        (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %new : tensor<i32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}
"""
    local = local_program.divide(text, 1, "", [False], "gpu")
    assert "partition_id" not in local.text
    assert local.text.count("optimization_barrier") == 1
    assert local.text.index("optimization_barrier") < local.text.index("stablehlo.while")

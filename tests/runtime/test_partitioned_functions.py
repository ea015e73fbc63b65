"""Functions of ``custom_partitioning`` are cut as their rules say, by what they give for parts."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning

import toast_lab as tl
from toast_lab.ir.program import NEED_REPLICATION, PASS, REDUCTION

S = jax.ShapeDtypeStruct


def f32(*shape: int) -> S:
    return S(shape, "float32")


def normed(x: Any, w: Any) -> Any:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True) * w


def as_asked(fn: Any) -> Any:
    """A partition function that takes whatever shardings it gets."""

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        return mesh, fn, result.sharding, tuple(operand.sharding for operand in operands)

    return partition


def kernel_of(model: Any) -> int:
    kinds = model.program.kind
    (kernel,) = (op for op in model.program.ops() if kinds[op] == "custom_call")
    return kernel


def classes_of(model: Any) -> list[int]:
    program = model.program
    return [int(program.factor_class[factor]) for factor in program.factors(kernel_of(model))]


def cut(model: Any, **specs: Any) -> tuple[Any, Any]:
    problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2}, machine="tpu-v5e")
    return problem, tl.Plan.from_specs(problem, specs)


def test_a_rule_is_read_and_each_device_runs_its_part() -> None:
    scaled = custom_partitioning(normed)
    scaled.def_partition(
        as_asked(normed), sharding_rule="... d, d -> ... d", need_replication_factors=("d",)
    )
    model = tl.from_jax(lambda x, w: scaled(x * 2, w) + 1, f32(8, 16, 4), f32(4))
    assert model.platforms == {"cpu", "tpu", "gpu"}
    assert sorted(classes_of(model)) == sorted([PASS, PASS, NEED_REPLICATION])
    kernel = kernel_of(model)
    assert model.program.detail[kernel] == "normed"
    assert model.program.flops[kernel] > 8 * 16 * 4
    problem, plan = cut(model, x=("data", "model"))
    assert (plan.op_factor[kernel] >= 0).all()
    assert not tl.price(problem, plan).collectives
    text = tl.annotate(model, plan, platform="tpu")
    assert "tensor<4x8x4xf32>" in text.partition("sdy.manual_computation")[2]
    measured = tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0)
    assert measured.agrees
    assert not measured.collective_counts


def test_what_is_summed_over_is_cut_with_the_functions_own_collective() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        axes = operands[0].sharding.spec[1]

        def part(x: Any, w: Any) -> Any:
            return jax.lax.psum(x @ w, axes) if axes else x @ w

        return mesh, part, result.sharding, tuple(operand.sharding for operand in operands)

    summed = custom_partitioning(product)
    summed.def_partition(partition, sharding_rule="i k, k j -> i j", reduction_factors=("k",))
    model = tl.from_jax(lambda x, w: summed(x, w) + 1, f32(8, 16), f32(16, 4))
    assert sorted(classes_of(model)) == sorted([PASS, PASS, REDUCTION])
    problem, plan = cut(model, x=("data", "model"), w=("model",))
    (collective,) = tl.price(problem, plan).collectives
    assert collective.kind == "all_reduce"
    measured = tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0)
    assert measured.agrees
    assert measured.collective_counts == {"all_reduce": 1}


def test_a_rule_that_promises_too_much_is_narrowed_and_this_is_said() -> None:
    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        rows = jax.sharding.PartitionSpec(operands[0].sharding.spec[0], None)
        sharding = jax.sharding.NamedSharding(mesh, rows)
        return mesh, jnp.fft.fft, sharding, (sharding,)

    def transformed(x: Any) -> Any:
        return jnp.fft.fft(x)

    batched = custom_partitioning(transformed)
    batched.def_partition(partition, sharding_rule="... i -> ... i")
    model = tl.from_jax(lambda x: batched(x) + 1, S((8, 16), "complex64"))
    assert sorted(classes_of(model)) == sorted([PASS, NEED_REPLICATION])
    (note,) = model.notes
    assert "transformed: a dim of 16 stays whole" in note
    assert "test_partitioned_functions.py:" in note


def test_without_a_rule_it_is_the_ops_inside_and_this_is_said() -> None:
    scaled = custom_partitioning(normed)
    scaled.def_partition(as_asked(normed))
    model = tl.from_jax(lambda x, w: scaled(x, w) + 1, f32(8, 4), f32(4))
    assert "custom_call" not in model.program.kind
    (note,) = model.notes
    assert "custom_partitioning of normed (test_partitioned_functions.py:" in note
    assert "has no sharding_rule" in note


MODULE = """
import jax
from jax.experimental.custom_partitioning import custom_partitioning

@custom_partitioning
def scaled(x, w):
    return x * w

scaled.def_partition(
    lambda mesh, operands, result: (
        mesh, lambda x, w: x * w, result.sharding, tuple(o.sharding for o in operands)
    ),
    sharding_rule="a b, b -> a b",
)

def make():
    shapes = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16,), "float32")
    return (lambda x, w: scaled(x, w) + 1), shapes
"""


def test_functions_of_a_loaded_module_are_partitioned_in_a_child(
    tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "module_with_partition.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    model = pickle.loads(pickle.dumps(tl.load("module_with_partition:make")))
    _, plan = cut(model, x=("data", "model"))
    assert tl.run(model, plan, devices="cpu:4", repeats=1, warmup=0).agrees

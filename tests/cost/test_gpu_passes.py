"""Ops that make a GPU read data several times, and its rates of convolutions and f32 products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import traced
from toast_lab.cost.gpu_passes import gpu_passes
from toast_lab.cost.problem import Problem, price
from toast_lab.machines.catalogue import machine
from toast_lab.plan_verbs import Plan

S = jax.ShapeDtypeStruct


def compute_s(fn: Callable[..., Any], *arguments: Any, on: str = "h100") -> float:
    problem = Problem(traced(fn, *arguments), {"a": 2}, on)
    return price(problem, Plan.from_actions(problem, [])).compute_s


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_numbers_that_meet_are_slow(dtype: str) -> None:
    program = traced(
        lambda table, places, rows: table.at[places].add(rows),
        S((512, 64), dtype),
        S((128,), jnp.int32),
        S((128, 64), dtype),
    ).program
    (scatter,) = [op for op in program.ops() if program.kind[op] == "scatter"]
    passes = gpu_passes(program)[program.uses(scatter).start : program.uses(scatter).stop]
    assert passes.tolist() == [1.0, 1.0, 14.0 if dtype == "bfloat16" else 1.0]


def test_what_is_put_and_not_added_is_written_once() -> None:
    program = traced(
        lambda table, places, rows: table.at[places].set(rows),
        S((512, 64), "bfloat16"),
        S((128,), jnp.int32),
        S((128, 64), "bfloat16"),
    ).program
    assert set(gpu_passes(program)) == {1.0}


def test_a_sort_takes_as_long_as_many_reads() -> None:
    numbers, h100 = 2**24, machine("h100")
    once_s = 2 * 4 * numbers / h100.product_bytes_per_s
    shape = S((numbers,), jnp.float32)
    sorted_s = compute_s(jnp.sort, shape) - h100.op_overhead_s
    assert sorted_s == pytest.approx(18 * once_s)
    # On other devices a sort is priced by its traffic
    other = machine("tpu-v5e")
    assert compute_s(jnp.sort, shape, on="tpu-v5e") < 3 * 8 * numbers / other.product_bytes_per_s
    selected = compute_s(lambda x: lax.top_k(x, 8), S((2**16, 256), jnp.float32))
    assert selected > 17 * 4 * numbers / h100.product_bytes_per_s


def convolved(features: int, dtype: str = "bfloat16") -> float:
    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return compute_s(
        convolve, S((64, 28, 28, features), dtype), S((3, 3, features, features), dtype)
    )


def test_convolutions_of_more_features_fill_a_gpu_better() -> None:
    flops = {features: 2 * 64 * 28 * 28 * 9 * features**2 for features in (64, 256, 1024)}
    reached = {features: count / convolved(features) for features, count in flops.items()}
    assert reached[64] < reached[256] < reached[1024]
    assert reached[64] == pytest.approx(0.36 * 989e12, rel=0.2)
    assert reached[1024] == pytest.approx(0.6 * 989e12, rel=0.05)


def test_full_float32_has_no_matrix_unit() -> None:
    shape = S((4096, 4096), jnp.float32)
    default_s = compute_s(jnp.matmul, shape, shape)
    full_s = compute_s(lambda x, y: jnp.matmul(x, y, precision="highest"), shape, shape)
    # The ratio of their peaks, 494 to 67
    assert full_s == pytest.approx(default_s * 494 / 67, rel=0.1)
    narrow = S((4096, 4096), jnp.bfloat16)
    wanted = compute_s(lambda x, y: jnp.matmul(x, y, precision="highest"), narrow, narrow)
    assert wanted == compute_s(jnp.matmul, narrow, narrow)

"""Ragged products are priced by what each compiler multiplies for them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import megablox

import toast_lab as tl

S = jax.ShapeDtypeStruct
ROWS, FEATURES, HIDDEN, GROUPS = 32768, 2048, 8192, 8
FLOPS = 2.0 * ROWS * FEATURES * HIDDEN  # that one product needs
BF16 = {"tpu-v5e": 197e12, "h100": 990e12}


def product(x: Any, w: Any, sizes: Any) -> Any:
    return jax.lax.ragged_dot(x, w, sizes)


def of_rows(w: Any, sizes: Any, dy: Any) -> Any:
    x = jnp.zeros((ROWS, FEATURES), dy.dtype)
    return jax.vjp(lambda x: product(x, w, sizes), x)[1](dy)[0]


def of_weights(x: Any, sizes: Any, dy: Any) -> Any:
    w = jnp.zeros((GROUPS, FEATURES, HIDDEN), dy.dtype)
    return jax.vjp(lambda w: product(x, w, sizes), w)[1](dy)[0]


@functools.cache
def problem_of(which: str, machine: str, dtype: str = "bfloat16") -> tl.Problem:
    x, w, dy = (
        S(shape, dtype) for shape in ((ROWS, FEATURES), (GROUPS, FEATURES, HIDDEN), (ROWS, HIDDEN))
    )
    sizes = S((GROUPS,), "int32")
    fn, args = {
        "product": (product, (x, w, sizes)),
        "of rows": (of_rows, (w, sizes, dy)),
        "of weights": (of_weights, (x, sizes, dy)),
    }[which]
    return tl.Problem(tl.analyse(tl.from_jax(fn, *args)), {"data": 2, "model": 2}, machine=machine)


@pytest.mark.parametrize("which", ["product", "of rows", "of weights"])
def test_libtpu_tiles_all_but_gradients_of_weights(which: str) -> None:
    problem = problem_of(which, "tpu-v5e")
    cost = tl.price(problem, tl.replicated(problem))
    groups = GROUPS if which == "of weights" else 1
    assert cost.time_s == pytest.approx(groups * FLOPS / BF16["tpu-v5e"], rel=0.05)
    assert problem.analysis.program.flops.sum() == FLOPS  # what it needs stays known
    said = [note for note in cost.notes if "8 times the FLOPs" in note and "megablox" in note]
    assert len(said) == (which == "of weights")


# Of the modules that XLA compiles for H100: milliseconds of the copies and of the product by its
# clock, and GiB in memory beside arguments and results (``of rows`` has a transposed weight too)
@pytest.mark.parametrize(
    ("which", "dtype", "compiled_ms", "beside_gib"),
    [
        ("product", "float32", 0.80 + 21.82, 2.0),
        ("product", "bfloat16", 0.40 + 11.27, 1.0),
        ("of rows", "float32", 3.57 + 23.05, 8.5),
        ("of weights", "float32", 4.01 + 26.25, 10.0),
    ],
)
def test_gpus_multiply_all_groups_and_copy_the_rows_for_each(
    which: str, dtype: str, compiled_ms: float, beside_gib: float
) -> None:
    problem = problem_of(which, "h100", dtype)
    cost = tl.price(problem, tl.replicated(problem))
    assert 1e3 * cost.time_s == pytest.approx(compiled_ms, rel=0.25)
    program = problem.analysis.program
    ends = [value for op in range(program.n_ops) for value in program.results(op)]
    held_bytes = sum(np.prod(program.dims(v)) * program.itemsize[v] for v in ends)
    assert (cost.peak_bytes - held_bytes) / 2**30 == pytest.approx(beside_gib, rel=0.1)
    assert any("ragged_dot_mgpu" in note for note in cost.notes)


def test_a_cut_shares_products_and_copies() -> None:
    problem = problem_of("product", "h100", "float32")
    features = next(g for g in problem.analysis.groups if g.size == FEATURES).name
    whole = tl.price(problem, tl.replicated(problem))
    cut = tl.price(problem, tl.Plan.from_actions(problem, [f"{features}->model"]))
    assert cut.compute_s == pytest.approx(whole.compute_s / 2, rel=0.05)


def test_a_grouped_kernel_needs_no_more_than_its_rows() -> None:
    x, w = S((ROWS, FEATURES), "bfloat16"), S((GROUPS, FEATURES, HIDDEN), "bfloat16")

    def loss(x: Any, w: Any, sizes: Any) -> Any:
        tiles = (512, 2048, 2048)  # with its own, of 128, it reads its operands too often
        result = megablox.gmm(x, w, sizes, preferred_element_type=jnp.bfloat16, tiling=tiles)
        return result.sum()

    gradient = jax.grad(loss, argnums=(0, 1))
    model = tl.from_jax(gradient, x, w, S((GROUPS,), "int32"))
    problem = tl.Problem(tl.analyse(model), {"data": 2}, machine="tpu-v5e")
    cost = tl.price(problem, tl.replicated(problem))
    assert cost.time_s == pytest.approx(3 * FLOPS / BF16["tpu-v5e"], rel=0.1)
    assert not any("over all groups" in note for note in cost.notes)

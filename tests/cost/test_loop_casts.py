"""A TPU casts a matrix to bfloat16 once, before the loop that multiplies with it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.sharding.plan import make_plan

ROUNDS, SIZE = 20, 8192
MATRIX_BYTES = 4 * SIZE * SIZE  # more than the vector memory of any TPU
CAST_ONCE = (1.5 + 0.5 * ROUNDS) * MATRIX_BYTES
#: Tolerance: the bytes that the product reads and writes besides the matrix
ROOM = 0.05 * MATRIX_BYTES * ROUNDS

Solver = Callable[[jax.Array, jax.Array], jax.Array]


def leaf(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def rounds_with(precision: str | None = None) -> Solver:
    """Return a function whose loop multiplies with the same matrix in every round."""

    def solve(matrix: jax.Array, x: jax.Array) -> jax.Array:
        def step(_: int, y: jax.Array) -> jax.Array:
            return jnp.tanh(jnp.dot(matrix, y, precision=precision))

        return jax.lax.fori_loop(0, ROUNDS, step, x)

    return solve


def made_first(matrix: jax.Array, x: jax.Array) -> jax.Array:
    return rounds_with()(jnp.sin(matrix), x)


def made_in_each(matrix: jax.Array, x: jax.Array) -> jax.Array:
    def step(_: int, y: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.optimization_barrier(jnp.roll(matrix, 1) * y[0, 0]) @ y)

    return jax.lax.fori_loop(0, ROUNDS, step, x)


def once(matrix: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(matrix @ x)


def product_bytes(found: tl.Problem, plan: tl.Plan) -> float:
    (row,) = (row for row in tl.price(found, plan).ops if row.kind == "dot_general")
    return row.moved_bytes


@pytest.mark.parametrize(
    ("solve", "dtype", "machine", "expected"),
    [
        pytest.param(rounds_with(), "float32", "tpu-v5e", CAST_ONCE, id="v5e"),
        pytest.param(rounds_with(), "float32", "tpu-v3", CAST_ONCE, id="v3"),
        pytest.param(
            rounds_with("highest"), "float32", "tpu-v3", ROUNDS * MATRIX_BYTES, id="six passes"
        ),
        pytest.param(
            rounds_with(), "bfloat16", "tpu-v3", ROUNDS * MATRIX_BYTES / 2, id="bfloat16 already"
        ),
        pytest.param(made_first, "float32", "tpu-v3", CAST_ONCE, id="made in front of the loop"),
        pytest.param(
            made_in_each, "float32", "tpu-v3", ROUNDS * MATRIX_BYTES, id="made in the loop"
        ),
        pytest.param(once, "float32", "tpu-v3", MATRIX_BYTES, id="no loop"),
        pytest.param(rounds_with(), "float32", "a100", ROUNDS * MATRIX_BYTES, id="GPU"),
    ],
)
def test_a_matrix_is_cast_once_in_front_of_its_loop(
    solve: Solver, dtype: str, machine: str, expected: float
) -> None:
    model = tl.from_jax(solve, leaf(SIZE, SIZE, dtype=dtype), leaf(SIZE, 128, dtype=dtype))
    problem = tl.Problem(tl.analyse(model), "1", machine)
    moved = product_bytes(problem, tl.Plan.from_actions(problem, []))
    assert moved == pytest.approx(expected, abs=ROOM)


def test_a_matrix_that_is_kept_whole_is_cast_whole() -> None:
    model = tl.from_jax(rounds_with(), leaf(SIZE, SIZE), leaf(SIZE, 128))
    problem = tl.Problem(tl.analyse(model), "d=4", "tpu-v3")
    rows = tl.Plan.from_actions(problem, [("matrix_rows", "d", "1")])
    assert product_bytes(problem, rows) == pytest.approx(CAST_ONCE / 4, abs=ROOM)
    sharding = rows.sharding.copy()
    sharding.value_dim[0] = -1  # kept whole, its rows cut out in the loop
    whole_plan = make_plan(problem.analysis, problem.mesh, sharding, key=sharding.key())
    expected = (1.5 + 0.5 * ROUNDS / 4) * MATRIX_BYTES
    assert product_bytes(problem, whole_plan) == pytest.approx(expected, abs=ROOM)

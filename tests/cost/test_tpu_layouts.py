"""The cost of TPU memory layouts: padded rows, products of vectors, parts cut out of values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.typing import ArrayLike

import toast_lab as tl
from toast_lab.sharding.plan import make_plan

N, ROWS, D = 4096, 1_000_000, 256


def leaf(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def problem(function: Any, *args: Any, mesh: str, machine: str) -> tl.Problem:
    return tl.Problem(tl.analyse(tl.from_jax(function, *args)), mesh, machine)


def lookup(machine: str, ways: int) -> tl.Cost:
    """Price sums of looked-up rows, with the width of the table cut in ``ways`` parts."""

    def summed(table: jax.Array, ids: jax.Array) -> ArrayLike:
        return jnp.tanh(table[ids]).sum(axis=1)

    args = leaf(ROWS, D), leaf(N, 32, dtype="int32")
    posed = problem(summed, *args, mesh=f"d={ways}", machine=machine)
    actions = [("table.1", "d")] if ways > 1 else []
    return tl.price(posed, tl.Plan.from_actions(posed, actions))


def test_rows_that_are_looked_up_fill_lines_of_memory() -> None:
    by_ways = {ways: lookup("tpu-v5e", ways) for ways in (1, 2, 16)}
    halved = by_ways[2].time_s / by_ways[1].time_s
    assert halved == pytest.approx(0.5, rel=0.1)
    # A line holds 128 numbers; rows of 16 take as much time and memory
    assert by_ways[16].time_s == pytest.approx(by_ways[2].time_s, rel=0.1)
    table_bytes = {ways: ROWS * D * 4 / ways for ways in by_ways}  # arguments are not padded
    rows_bytes = {ways: by_ways[ways].peak_bytes - table_bytes[ways] for ways in by_ways}
    assert rows_bytes[16] == pytest.approx(rows_bytes[2], rel=0.15)


def test_other_machines_keep_rows_of_any_length() -> None:
    assert lookup("h100", 16).time_s < 0.3 * lookup("h100", 2).time_s


def attention(machine: str, heads: int, mesh: str = "1", *actions: tuple[str, str]) -> float:
    """Return the computing time of the scores of one query a head with its cached keys."""

    def scores(query: jax.Array, keys: jax.Array) -> ArrayLike:
        return jnp.einsum("bhk,bthk->bht", query, keys)

    args = leaf(64, heads, 128, dtype="bfloat16"), leaf(64, 2048, heads, 128, dtype="bfloat16")
    posed = problem(scores, *args, mesh=mesh, machine=machine)
    return tl.price(posed, tl.Plan.from_actions(posed, list(actions))).compute_s


def test_products_of_vectors_take_the_time_of_the_vector_unit() -> None:
    """libtpu 0.0.42 takes 316 us for 16 x 2048 x 8 x 128 numbers in a decoding step on v5e."""
    in_four = attention("tpu-v5e", 8, "d=4", ("query.0", "d"))
    assert in_four == pytest.approx(316e-6, rel=0.15)
    # 8 heads fill the sublanes: cutting them saves nothing, and other dims would save time
    uncut = attention("tpu-v5e", 8)
    assert attention("tpu-v5e", 8, "d=4", ("query.1", "d")) == pytest.approx(uncut, rel=0.05)
    assert attention("tpu-v5e", 32, "d=4", ("query.1", "d")) == pytest.approx(uncut, rel=0.05)


def test_products_with_more_rows_are_the_matrix_units_affair() -> None:
    def scores(query: jax.Array, keys: jax.Array) -> ArrayLike:
        return jnp.einsum("bshk,bthk->bhst", query, keys)

    args = leaf(64, 128, 8, 128, dtype="bfloat16"), leaf(64, 2048, 8, 128, dtype="bfloat16")
    posed = problem(scores, *args, mesh="1", machine="tpu-v5e")
    priced = tl.price(posed, tl.Plan.from_actions(posed, []))
    assert priced.compute_s < 1.3 * attention("tpu-v5e", 8)  # 128 times the work


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100", "cpu"])
def test_a_part_that_a_product_reads_is_cut_out_before(machine: str) -> None:
    """Each device multiplies with some columns of weights that are kept whole."""

    def forward(x: jax.Array, w: jax.Array) -> ArrayLike:
        return x @ w

    posed = problem(forward, leaf(8, N), leaf(N, N), mesh="d=4", machine=machine)
    columns = tl.Plan.from_actions(posed, [("w.1", "d")])
    sharding = columns.sharding.copy()
    sharding.value_dim[1] = -1
    whole_plan = make_plan(posed.analysis, posed.mesh, sharding, key=sharding.key())
    cut_out_s = tl.price(posed, whole_plan).time_s - tl.price(posed, columns).time_s
    part_s = N * N * 4 / 4 / posed.machine.memory_bytes_per_s
    # A TPU casts the part, so that the product reads half as much, at a lower rate
    passes = 1.5 - 0.5 / 0.75 if machine == "tpu-v5e" else 2
    assert cut_out_s == pytest.approx(passes * part_s, rel=0.05)


def picked(machine: str, heads: int, *actions: tuple[str, str]) -> float:
    """Return the bytes moved, over all rounds of a scan, to pick each round's cached keys."""

    def scores(query: jax.Array, cache: jax.Array) -> jax.Array:
        def layer(total: jax.Array, keys: jax.Array) -> tuple[jax.Array, None]:
            return total + jnp.einsum("bhk,bthk->bht", query, keys), None

        return jax.lax.scan(layer, jnp.zeros((16, heads, 512), "bfloat16"), cache)[0]

    args = leaf(16, heads, 128, dtype="bfloat16"), leaf(2, 16, 512, heads, 128, dtype="bfloat16")
    posed = problem(scores, *args, mesh="d=4", machine=machine)
    priced = tl.price(posed, tl.Plan.from_actions(posed, list(actions)))
    return sum(row.moved_bytes for row in priced.ops if row.kind == "dynamic_slice")


@pytest.mark.parametrize(
    ("machine", "compiled_s"), [("tpu-v3", 708e-6), ("tpu-v5e", 456e-6), ("tpu-v6e", 193e-6)]
)
def test_products_that_wait_for_memory_reach_a_share_of_its_rate(
    machine: str, compiled_s: float
) -> None:
    """Times of libtpu 0.0.42 for 64 rows times a matrix of 8192 x 16384."""
    args = leaf(64, 8192, dtype="bfloat16"), leaf(8192, 16384, dtype="bfloat16")
    posed = problem(lambda x, w: x @ w, *args, mesh="1", machine=machine)
    took_s = tl.price(posed, tl.Plan.from_actions(posed, [])).compute_s
    assert took_s == pytest.approx(compiled_s, rel=0.05)


def test_a_loop_keeps_a_matrix_that_it_reads_in_both_ways() -> None:
    """In conjugate gradients of normal equations, ``a`` and its transpose are one matrix."""

    def solve(a: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 20, lambda _, x: a.T @ (a @ x), x)

    posed = problem(solve, leaf(4096, 4096), leaf(4096, 16), mesh="1", machine="tpu-v5e")
    priced = tl.price(posed, tl.Plan.from_actions(posed, []))
    # Vector memory holds 64 MiB twice, but not three times
    read_s = 20 * 4096 * 4096 * 4 / posed.machine.memory_bytes_per_s
    assert priced.compute_s < 0.6 * read_s

"""The cost of loops and branches.

Rounds multiply times, buffers that rounds hand on count once, slices read only their part.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.sharding.plan import make_plan

F32 = "float32"
L, D, B = 12, 64, 32


def leaf(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, F32)


def problem(
    fn: Any, *args: Any, mesh: str = "1", machine: str = "tpu-v5e", **options: Any
) -> tl.Problem:
    return tl.Problem(tl.analyse(tl.from_jax(fn, *args)), mesh, machine, **options)


def cost(fn: Any, *args: Any, **options: Any) -> Any:
    posed = problem(fn, *args, **options)
    return tl.price(posed, tl.Plan.from_actions(posed, []))


def scanned(ws: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def unrolled(ws: jax.Array, x: jax.Array) -> jax.Array:
    for i in range(ws.shape[0]):
        x = jnp.tanh(x @ ws[i])
    return x


def test_a_scan_costs_as_much_compute_as_its_layers_one_by_one() -> None:
    one, many = cost(scanned, leaf(L, D, D), leaf(B, D)), cost(unrolled, leaf(L, D, D), leaf(B, D))
    flops = sum(row.flops for row in one.ops)
    assert flops == sum(row.flops for row in many.ops) == L * 2 * B * D * D
    dot = next(row for row in one.ops if row.kind == "dot_general")
    assert dot.flops == flops
    # The loop's last state is in vector memory, where the result of unrolled code is not.
    assert one.time_s == pytest.approx(many.time_s, rel=0.03)


def test_rounds_multiply_collectives() -> None:
    times = []
    for layers in (L, 2 * L):
        posed = problem(scanned, leaf(layers, D, D), leaf(B, D), mesh="4")
        plan = tl.Plan.from_actions(posed, [("ws.1", posed.mesh.axes[0], "1")])
        inside = [
            c
            for c in tl.price(posed, plan).collectives
            if posed.analysis.program.trips[c.op] == layers
        ]
        assert inside
        times.append(sum(c.time_s for c in inside))
    assert times[1] == pytest.approx(2 * times[0])


def test_stacked_weights_are_read_once_in_all() -> None:
    priced = cost(scanned, leaf(L, D, D), leaf(B, D))
    read = {row.kind: row.moved_bytes for row in priced.ops}
    stack, states = L * D * D * 4, 2 * L * B * D * 4
    # The product itself reads the weights, besides its state
    assert "dynamic_slice" not in read
    assert stack <= read["dot_general"] <= stack + states


def test_what_a_loop_hands_on_unchanged_is_no_second_copy() -> None:
    wide = 2 * D  # fills whole lanes of memory
    priced = cost(scanned, leaf(L, wide, wide), leaf(B, wide))
    stack, state = L * wide * wide * 4, B * wide * 4
    assert stack + state <= priced.peak_bytes < stack + wide * wide * 4 + 6 * state


def test_what_a_loop_reads_lives_until_it_ends() -> None:
    big = 64 * B * D * 4

    def fn(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
        wide = jnp.sin(y @ w)  # made before the loop, read early in each round
        return jax.lax.fori_loop(0, 5, lambda i, h: jnp.tanh(jnp.tanh(h @ wide[:D]) @ w), x)

    def early(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
        narrow = jnp.sin(y @ w)[:D]
        return jax.lax.fori_loop(0, 5, lambda i, h: jnp.tanh(jnp.tanh(h @ narrow) @ w), x)

    at = {}
    for f in (fn, early):
        # On a TPU v3 even such small values are not in vector memory
        posed = problem(f, leaf(B, D), leaf(D, D), leaf(64 * B, D), machine="tpu-v3")
        body = next(r for r in posed.analysis.program.regions if r.kind == "body")
        at[f] = tl.price(posed, tl.Plan.from_actions(posed, [])).timeline_bytes[body.end - 1]
    assert at[fn] >= at[early] + 0.9 * big


def test_updates_in_place_write_what_they_bring() -> None:
    def step(cache: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(cache, new, (at, 0))

    args = leaf(4096, D), leaf(1, D), jax.ShapeDtypeStruct((), "int32")
    moved = {}
    for donate in (True, False):
        model = tl.from_jax(step, *args, donate_argnums=(0,) if donate else ())
        posed = tl.Problem(tl.analyse(model), "1")
        priced = tl.price(posed, tl.Plan.from_actions(posed, []))
        moved[donate] = sum(
            row.moved_bytes for row in priced.ops if row.kind == "dynamic_update_slice"
        )
    row = D * 4
    assert moved[True] <= 4 * row
    # The old cache is still needed, so all of it is copied
    assert moved[False] >= 2 * 4096 * row


def test_a_gather_reads_the_rows_it_delivers() -> None:
    width = 2 * D  # which fills a line of a TPU's memory
    priced = cost(
        lambda table, ids: table[ids], leaf(100_000, width), jax.ShapeDtypeStruct((8,), "int32")
    )
    (row,) = (r for r in priced.ops if r.kind == "gather")
    assert row.moved_bytes < 4 * 8 * width * 4


def test_a_branch_counts_as_often_as_it_is_taken() -> None:
    def fn(c: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.cond(c, lambda h: h @ w, lambda h: h, x)

    priced = cost(fn, jax.ShapeDtypeStruct((), bool), leaf(B, D), leaf(D, D))
    assert sum(row.flops for row in priced.ops) == pytest.approx(0.5 * 2 * B * D * D)


def test_what_is_gathered_where_it_enters_a_loop_is_gathered_in_every_round() -> None:
    """The loop hands its state on in parts, and the op that needs all of it is inside."""

    def rounds(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, z: jnp.tanh(z @ w), x)

    model = tl.from_jax(rounds, leaf(D, D), leaf(D, D))
    posed = tl.Problem(tl.analyse(model), "d=4", "cpu")
    columns = tl.Plan.from_actions(posed, [("w_rows", "d", "1")])
    program = posed.analysis.program
    enters = [op for op in range(program.n_ops) if program.kind[op] == "while.enter"]
    (entered,) = (op for op in enters if program.operands(op) == [1])  # x
    (state,) = program.results(entered)
    sharding = columns.sharding.copy()
    sharding.value_dim[state] = -1  # kept whole inside, handed on in parts
    plan = make_plan(posed.analysis, posed.mesh, sharding, key=sharding.key())
    (gather,) = tl.price(posed, plan).collectives
    assert (gather.kind, gather.op, gather.times) == ("all_gather", entered, 7.0)
    (in_body,) = tl.price(posed, columns).collectives
    assert in_body.times == 7.0
    assert gather.time_s == pytest.approx(in_body.time_s)
    compiled = tl.compile(model, plan, topology="cpu:4", store=False)
    ours = [(row.kind, row.times * row.local_bytes) for row in tl.price(posed, plan).collectives]
    theirs = [(row.kind, row.times * row.bytes) for row in compiled.collectives]
    assert ours == theirs

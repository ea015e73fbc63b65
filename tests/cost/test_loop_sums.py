"""Gradients that a loop only adds up are summed over devices once; small weights stay on chip."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.typing import ArrayLike

import toast_lab as tl
from evaluation.compiled_rows import key
from evaluation.corpus import compiled, plans, programs
from evaluation.corpus.targets import target
from toast_lab.sharding.plan import make_plan

ROUNDS, D, B = 12, 512, 64


def leaf(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def gradient(w: jax.Array, x: jax.Array) -> ArrayLike:
    """Gradient of a recurrent network that uses ``w`` in every round."""

    def loss(w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=ROUNDS)[0].sum()

    return jax.grad(loss)(w)


def gates_gradient(w: jax.Array, x: jax.Array) -> ArrayLike:
    """The same with the weights of two gates in one product, as libraries write it."""

    def loss(gates: tuple[jax.Array, jax.Array]) -> jax.Array:
        def one_round(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            left, right = jnp.split(h @ jnp.concatenate(gates, axis=1), 2, axis=1)
            return jnp.tanh(left) * right, None

        return jax.lax.scan(one_round, x, None, length=ROUNDS)[0].sum()

    return jax.grad(loss)((w, w + 1.0))[0]


def collectives(function: Any, machine: str, *, over: str = "x.0") -> list[Any]:
    analysis = tl.analyse(tl.from_jax(function, leaf(D, D), leaf(B, D)))
    problem = tl.Problem(analysis, "d=4", machine)
    return list(tl.price(problem, tl.Plan.from_actions(problem, [(over, "d")])).collectives)


@pytest.mark.parametrize(("machine", "times"), [("tpu-v5e", 1), ("h100", 1), ("cpu", ROUNDS)])
def test_what_a_loop_only_adds_up_is_summed_behind_it(machine: str, times: int) -> None:
    (summed,) = collectives(gradient, machine)
    assert (summed.kind, summed.times) == ("all_reduce", times)
    assert summed.local_bytes == D * D * 4


def test_what_a_loop_also_reads_is_summed_in_every_round() -> None:
    def descent(w: jax.Array, x: jax.Array) -> ArrayLike:
        """Each round's gradient changes the weights of the next."""
        loss = lambda w: jnp.tanh(x @ w).sum()  # noqa: E731
        return jax.lax.fori_loop(0, ROUNDS, lambda _, w: w + jax.grad(loss)(w), w)

    (summed,) = collectives(descent, "tpu-v5e")
    assert (summed.kind, summed.times) == ("all_reduce", ROUNDS)


def test_slices_of_one_sum_are_added_up_too_if_their_dim_is_whole() -> None:
    whole = [row for row in collectives(gates_gradient, "tpu-v5e") if row.kind == "all_reduce"]
    assert whole
    assert {row.times for row in whole} == {1.0}
    analysis = tl.analyse(tl.from_jax(gates_gradient, leaf(D, D), leaf(B, D)))
    problem = tl.Problem(analysis, "d=4,m=2", "tpu-v5e")
    program = analysis.program
    summed = next(
        op
        for op in range(program.n_ops)
        if program.kind[op] == "dot_general" and program.dims(program.results(op)[0]) == (2 * D, D)
    )
    plan = tl.Plan.from_actions(problem, [("x.0", "d")])
    sharding = plan.sharding.copy()
    (result,), axis = program.results(summed), problem.mesh.axes.index("m")
    sharding.op_factor[summed, axis] = program.def_names(result)[0]
    sharding.value_dim[result, axis] = 0
    cut = make_plan(analysis, problem.mesh, sharding, key=sharding.key())
    times = [
        [row.times for row in tl.price(problem, one).collectives if row.op == summed]
        for one in (plan, cut)
    ]
    assert times == [[1.0], [ROUNDS]]


@pytest.mark.parametrize("where", ["in the addition", "where it is transposed"])
def test_a_sum_of_which_each_device_adds_up_a_part_is_made_in_every_round(where: str) -> None:
    """Each part would have to be cut out before the sum over devices."""
    analysis = tl.analyse(tl.from_jax(gradient, leaf(D, D), leaf(B, D)))
    program, problem = analysis.program, tl.Problem(analysis, "d=4", "tpu-v5e")
    plan = tl.Plan.from_actions(problem, [("x.0", "d")])
    (add,) = (
        op
        for op in program.ops()
        if program.kind[op] == "add"
        and program.trips[op] == ROUNDS
        and program.dims(program.results(op)[0]) == (D, D)
    )
    enter = int(program.value_op[program.operands(add)[0]])
    begun = int(program.value_op[program.operands(enter)[0]])
    handed_out = [
        op
        for op in program.ops()
        if program.kind[op] == "while.result" and program.owner[op] == enter
    ]
    cut = plan.sharding.copy()
    for op in (begun, enter, add, *handed_out):
        (result,) = program.results(op)
        if program.owner[op] == op:
            cut.op_factor[op, 0] = program.def_names(result)[0]
        cut.value_dim[result, 0] = 0
    if where == "where it is transposed":
        cut.value_dim[program.operands(add)[1], 0] = 0
    parts = make_plan(analysis, problem.mesh, cut, key=cut.key())
    whole_s, parts_s = (tl.price(problem, one).time_s for one in (plan, parts))
    (summed,) = tl.price(problem, plan).collectives
    assert summed.times == 1
    # Adding up parts reads and writes fewer bytes
    saved_s = whole_s + (ROUNDS - 1) * summed.time_s - parts_s
    assert 0.0 < saved_s < 2.0 * summed.time_s


@pytest.mark.parametrize("topology", ["tpu:v5e:4x4", "gpu:h100:8"])
def test_the_compilers_sum_a_recurrent_steps_gradients_once(topology: str) -> None:
    """Compares with the collectives of their compiled programs, kept in the corpus."""
    traced = programs.traced("gated_recurrence")
    assert traced is not None
    _, analysis, digest = traced
    rows = {key(row): row for row in compiled.rows()}
    row = rows["gated_recurrence", digest, topology, "data both"]
    theirs = sum(size * times for kind, _, size, _, times, _ in row["collectives"])
    where = target(topology)
    problem = tl.Problem(analysis, where.mesh, where.machine)
    ours = tl.price(problem, plans.decoded(problem, row["sharding"])).collectives
    assert sum(one.local_bytes * one.times for one in ours) == pytest.approx(theirs, rel=0.01)


def product(machine: str, *, width: int) -> Any:
    """Price the product inside a forward loop of ``ROUNDS`` rounds."""

    def rounds(w: jax.Array, x: jax.Array) -> ArrayLike:
        return jax.lax.fori_loop(0, ROUNDS, lambda _, h: jnp.tanh(h @ w), x)

    analysis = tl.analyse(tl.from_jax(rounds, leaf(width, width), leaf(8, width)))
    problem = tl.Problem(analysis, "1", machine)
    cost = tl.price(problem, tl.Plan.from_actions(problem, []))
    return next(row for row in cost.ops if row.kind == "dot_general")


def test_weights_of_a_loop_are_read_from_memory_once_if_they_fit_on_the_chip() -> None:
    small_bytes, large_bytes = 4 * 2048**2, 4 * 8192**2
    stays = product("tpu-v5e", width=2048).moved_bytes
    assert small_bytes < stays < 0.3 * ROUNDS * small_bytes
    # Cast once, then read in every round: see ``loop_casts``
    cast, read = 1.5, 0.5
    assert product("tpu-v5e", width=8192).moved_bytes >= (cast + read * ROUNDS) * large_bytes
    # A TPU v3 has no such memory
    assert product("tpu-v3", width=2048).moved_bytes > (cast + read * ROUNDS) * small_bytes

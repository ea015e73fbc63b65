"""A ``shard_map`` is one op of the program, with its body as a program of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.shard_map_programs import PROGRAMS, SIZES, abstract_mesh, struct
from toast_lab.conflicts.analysis import analyse
from toast_lab.conflicts.coverage import coverage
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import FrontendError, InvalidProblem
from toast_lab.frontends import from_jax, from_stablehlo
from toast_lab.ir.model import Model
from toast_lab.ir.shard_maps import axes_of_groups
from toast_lab.sharding.plan import unsharded_plan


def traced(name: str) -> Model:
    fn, shapes = PROGRAMS[name](abstract_mesh())
    return from_jax(fn, *shapes)


def one(body: Any, in_specs: Any, out_specs: Any, mesh: Any = None, **options: Any) -> Any:
    return jax.shard_map(
        body,
        mesh=mesh or abstract_mesh(),
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
        **options,
    )


def test_it_has_the_specs_that_the_user_wrote() -> None:
    program = traced("vocabulary_loss").program
    forward, backward = program.shard_maps
    assert forward.mesh == (("data", 4), ("model", 2))
    assert forward.manual_axes == ("data", "model")
    assert forward.operand_specs == ((("data",), ()), ((), ("model",)), (("data",),))
    # A residual, which newer versions of JAX cut along both axes
    assert forward.result_specs[-1][0][0] == "data"
    assert {program.kind[row.op] for row in program.shard_maps} == {"shard_map"}
    assert backward.result_specs == ((("data",), ()), ((), ("model",)))
    # A device has 8 of 32 rows, and 128 of 256 columns of the table.
    assert [forward.body.dims(i) for i in range(3)] == [(8, 64), (64, 128), (8,)]
    assert program.flops[forward.op] == 8 * 2 * 8 * 64 * 128


def test_collectives_inside_know_their_axes() -> None:
    ring = traced("ring_attention").program.shard_maps[0].body
    assert [(row.kind, row.axes) for row in ring.collectives] == [
        ("collective_permute", ("data",)),
        ("collective_permute", ("data",)),
    ]
    assert {ring.trips[row.op] for row in ring.collectives} == {4.0}
    experts = traced("exchanged_experts").program.shard_maps[0].body
    assert [(row.kind, row.axes) for row in experts.collectives] == [("all_to_all", ("data",))] * 2
    layers = traced("recomputed_layers").program
    assert [[row.axes for row in each.body.collectives] for each in layers.shard_maps] == [
        [("model",)],
        [("model",)],
        [("model",), ("data",)],
    ]


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([[0, 1], [2, 3], [4, 5], [6, 7]], (("model",), True)),
        ([[0, 2, 4, 6], [1, 3, 5, 7]], (("data",), True)),
        ([[0, 1, 2, 3, 4, 5, 6, 7]], (("data", "model"), True)),
        ([[0, 2], [4, 6], [1, 3], [5, 7]], (("data",), False)),
        ([[0], [1], [2], [3], [4], [5], [6], [7]], ((), True)),
    ],
)
def test_groups_of_devices_are_read_as_axes(groups: Any, axes: Any) -> None:
    assert axes_of_groups(groups, (("data", 4), ("model", 2))) == axes


def test_dims_with_the_same_axes_and_size_share_a_colour() -> None:
    analysis = analyse(traced("ring_attention"))
    program = analysis.program
    (shard_map,) = program.shard_maps
    (result,) = program.results(shard_map.op)
    q = program.operands(shard_map.op)[0]
    colours = [[analysis.colour[name] for name in program.def_names(v)] for v in (q, result)]
    assert colours[0][:2] == colours[1][:2]
    assert coverage(analysis).complete


def test_another_program_inside_is_another_program() -> None:
    def digest(body: Any) -> str:
        return from_jax(one(body, P("data"), P("data")), struct(8, 4)).program.digest()

    assert digest(jnp.sin) == digest(jnp.sin)
    assert digest(jnp.sin) != digest(jnp.cos)


def test_free_axes_are_said() -> None:
    fn = one(lambda x: jax.lax.psum(jnp.sin(x), "data"), P("data"), P(), axis_names={"data"})
    model = from_jax(fn, struct(8, 4))
    (shard_map,) = model.program.shard_maps
    assert (shard_map.manual_axes, shard_map.free_axes) == (("data",), ("model",))
    assert "whole over the axes that it leaves free (model)" in str(coverage(analyse(model)))


def test_vmapped_and_custom_derivatives_are_read() -> None:
    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return one(lambda x: 2 * x, P("data"), P("data"))(x)

    twice.defvjp(
        lambda x: (twice(x), None),
        lambda _, g: (one(lambda g: jax.lax.psum(2 * g, "model") / 2, P("data"), P("data"))(g),),
    )
    program = from_jax(jax.grad(lambda x: jnp.sum(twice(x) ** 2)), struct(8, 4)).program
    assert [len(row.body.collectives) for row in program.shard_maps] == [0, 1]
    mapped = from_jax(jax.vmap(one(jnp.sin, P("data"), P("data"))), struct(3, 8)).program
    assert mapped.shard_maps[0].operand_specs == (((), ("data",)),)


# -- refused ---------------------------------------------------------------------------------------


def test_another_mesh_is_refused_with_every_line() -> None:
    analysis = analyse(traced("vocabulary_loss"))
    with pytest.raises(InvalidProblem) as raised:
        Problem(analysis, {"data": 2, "model": 4})
    message = str(raised.value)
    assert "shard_map_programs.py:" in message
    assert "data is 2; model is 4" in message
    assert 'Give the problem the mesh {"data": 4, "model": 2}' in message
    with pytest.raises(InvalidProblem, match="has no axis model"):
        Problem(analysis, {"data": 4, "tensor": 2})
    with pytest.raises(InvalidProblem, match="in another order"):
        Problem(analysis, {"model": 2, "data": 4})
    with pytest.raises(InvalidProblem, match="has no axis data"):
        Problem(analysis, SIZES).on_mesh({"a": 8})


def test_shard_maps_on_different_meshes_are_all_listed() -> None:
    other = abstract_mesh(x=8)

    def fn(x: Any) -> Any:
        return one(jnp.sin, P("data"), P("data"))(x) + one(jnp.cos, P("x"), P("x"), other)(x)

    try:
        model = from_jax(fn, struct(8, 4))
    except FrontendError as error:
        pytest.skip(f"this JAX refuses it itself: {error}")
    with pytest.raises(InvalidProblem) as raised:
        Problem(analyse(model), {"data": 8})
    assert str(raised.value).count("shard_map (") == 2
    assert "on one mesh" in str(raised.value)


def test_nested_ones_are_refused() -> None:
    def outer(x: Any) -> Any:
        inner = jax.shard_map(
            lambda y: jax.lax.psum(y, "model"),
            in_specs=P(None, "model"),
            out_specs=P(),
            axis_names={"model"},
        )
        return inner(x)

    fn = jax.shard_map(
        outer, mesh=abstract_mesh(), in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    with pytest.raises(FrontendError, match=r"inside the body of another(.|\n)*one shard_map over"):
        from_jax(fn, struct(8, 4))


def test_a_permute_along_two_axes_is_read() -> None:
    size = np.prod(list(SIZES.values()))

    def part(x: Any) -> Any:
        ring = [(i, (i + 1) % size) for i in range(size)]
        return jax.lax.ppermute(x, ("data", "model"), ring)

    both = P(("data", "model"))
    (shard_map,) = from_jax(one(part, both, both), struct(8, 4)).program.shard_maps
    assert [row.axes for row in shard_map.body.collectives] == [("data", "model")]


def test_rounds_of_a_loop_inside_can_be_given() -> None:
    def settle(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.sum(x) > 1.0, lambda x: x @ x, x)

    model = from_jax(one(settle, P(), P()), struct(16, 16))
    assert any("are not known and counted as 1" in note for note in model.notes)
    counted = model.with_rounds(10)
    (before, after) = (each.program.shard_maps[0] for each in (model, counted))
    assert after.flops == 10 * before.flops == counted.program.flops[after.op]
    times = [price_of(each).time_s for each in (model, counted)]
    assert times[1] > 5 * times[0]


def price_of(model: Model) -> Any:
    problem = Problem(analyse(model), SIZES)
    return price(problem, unsharded_plan(problem.analysis, problem.mesh))


def test_a_file_is_read_like_the_function() -> None:
    fn, shapes = PROGRAMS["recomputed_layers"](abstract_mesh())
    text = jax.jit(fn).trace(*shapes).lower(lowering_platforms=("cpu",)).as_text()
    read, ours = from_stablehlo(text).program, traced("recomputed_layers").program
    assert [row[1:5] for row in read.shard_maps] == [row[1:5] for row in ours.shard_maps]
    assert [row.body.digest() for row in read.shard_maps] == [
        row.body.digest() for row in ours.shard_maps
    ]

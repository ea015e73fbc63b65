"""The size of a plan and its text: rules for arguments, and places in the source."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, plan, small_transformer, traced
from toast_lab.cost.problem import Problem
from toast_lab.ir.argument_paths import folded_path, own_words
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan_rules import (
    argument_rules,
    constraint_places,
    plan_size,
)
from toast_lab.sharding.plan_text import places_by_function, short_path
from toast_lab.sharding.sharding import Sharding

MESH = {"data": 2, "model": 2}


def s(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def with_axis(plan: Plan, paths: dict[str, int], axis: int = 0) -> Sharding:
    """Return a plan's sharding with a dim of each given argument on an axis."""
    sharding = plan.sharding.copy()
    for path, dim in paths.items():
        sharding.value_dim[plan.program.value_name.index(path), axis] = dim
    return sharding


@pytest.mark.parametrize("layers", [1, 4])
def test_repeated_layers_and_equal_roles_count_once(layers: int) -> None:
    """Data parallelism has two rules, Megatron five more, whatever the depth."""
    problem = Problem(small_transformer(layers=layers), MESH)
    data = plan(problem, ("batch", "data"))
    assert (data.size.rules, data.size.places) == (2, 0), "tokens and targets"
    megatron = plan(problem, ("batch", "data"), ("heads", "model"), ("hidden", "model"))
    roles = {rule.role for rule in argument_rules(problem.analysis.program, megatron.sharding)}
    assert roles == {"tokens", "targets", "wq", "wo", "w_gate", "w_up", "w_down"}
    assert megatron.size.places == 0
    assert plan(problem).size.total == 0


def test_a_layer_that_differs_is_an_exception() -> None:
    problem = Problem(small_transformer(layers=3), MESH)
    base = plan(problem, ("hidden", "model"))
    odd = base.sharding.copy()
    value = base.program.value_name.index("params['layers'][1]['w_up']")
    odd.value_dim[value] = -1
    rules = argument_rules(base.program, odd)
    (exception,) = [rule for rule in rules if rule.exception]
    assert [base.program.value_name[i] for i in exception.arguments] == [
        "params['layers'][1]['w_up']"
    ]
    assert exception.layout == 0
    assert plan_size(base.program, odd).rules == plan_size(base.program, base.sharding).rules + 1


def test_size_and_lists_agree() -> None:
    """Counting and listing are separate code, which must agree on rules and places."""
    problem = Problem(small_transformer(), MESH)
    generator = np.random.default_rng(3)
    program = problem.analysis.program
    base = plan(problem, ("batch", "data"), ("d_model", "model"))
    for _ in range(30):
        sharding = base.sharding.copy()
        values = generator.integers(0, program.n_values, 12)
        sharding.value_dim[values] = -1
        ops = generator.integers(program.n_arguments, program.n_ops, 12)
        sharding.op_factor[ops] = -1
        size = plan_size(program, sharding)
        assert size.rules == len(argument_rules(program, sharding))
        assert size.places == len(constraint_places(program, sharding))
        assert size.places > 0


def test_a_change_of_sharding_is_a_place_at_its_line() -> None:
    def f(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        y = x @ w
        return jnp.tanh(y) @ v

    problem = Problem(traced(f, s(64, 32), s(32, 16), s(16, 8)), {"a": 2})
    base_plan = plan(problem, ("x.0", "a"))
    assert plan_size(base_plan.program, base_plan.sharding).places == 0
    gathered = base_plan.sharding.copy()
    program = base_plan.program
    tanh = program.kind.index("tanh")
    gathered.op_factor[tanh] = -1
    gathered.value_dim[program.results(tanh)[0]] = -1
    places = constraint_places(program, gathered)
    # Two places: y is gathered, and the whole tanh(y) is cut for a product with nothing else cut
    assert [place.line.rsplit(":", 1)[0] for place in places] == [__file__] * 2
    assert (
        "y [whole]"
        in Plan.of(
            type(base_plan)(program, base_plan.mesh, gathered, analysis=base_plan.analysis)
        ).describe()
    )


def test_an_operand_that_follows_another_needs_no_place() -> None:
    """A whole bias is cut where it is added to a cut matrix, without a constraint."""
    problem = Problem(traced(lambda x, b: x + b, s(8, 16), s(8, 16)), {"a": 2})
    both = plan(problem, ("x.1", "a"))
    whole = both.sharding.copy()
    whole.value_dim[1] = -1
    assert plan_size(both.program, both.sharding).places == 0
    assert plan_size(both.program, whole).places == 0


def test_one_constraint_on_a_result_does_for_two_operands() -> None:
    """A result with rows on a and columns on b determines both operands of its product."""
    problem = Problem(traced(lambda x, w: x @ w, s(64, 32), s(32, 16)), {"a": 2, "b": 2})
    base_plan = plan(problem, ("x.0", "a"), ("w.1", "b"))
    program, product = base_plan.program, base_plan.program.kind.index("dot_general")
    assert plan_size(base_plan.program, base_plan.sharding).places == 0
    moved = with_axis(base_plan, {"x": 1}, axis=0)
    (operand,) = constraint_places(program, moved)
    assert [program.value_name[value] for value in operand.values] == ["x"]
    moved.value_dim[1, 1] = 0
    (result,) = constraint_places(program, moved)
    assert result.values == tuple(program.results(product))
    # With the contracted dim cut as well, only constraints on the operands say so.
    moved.op_factor[product, 1] = -1
    moved.value_dim[program.results(product)[0], 1] = -1
    places = constraint_places(program, moved)
    assert [program.value_name[value] for place in places for value in place.values] == ["x", "w"]


def test_what_several_ops_read_in_one_sharding_is_written_once() -> None:
    def f(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        left = x @ w
        return left + x @ v

    problem = Problem(traced(f, s(64, 32), s(32, 16), s(32, 16)), {"a": 2})
    read = with_axis(plan(problem), {"x": 1})
    (place,) = constraint_places(problem.analysis.program, read)
    assert (place.values, place.layout) == ((0,), 0)
    assert plan_size(problem.analysis.program, read).places == 1


def test_places_are_counted_by_function() -> None:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def f(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sin(layer(layer(x, w), v) * 2.0)

    problem = Problem(traced(f, s(64, 32), s(32, 32), s(32, 32)), {"a": 2})
    base_plan = plan(problem, ("x.0", "a"))
    program, gathered = base_plan.program, base_plan.sharding.copy()
    ops = [op for op in program.ops() if program.kind[op] in ("tanh", "multiply")]
    gathered.op_factor[ops] = -1
    gathered.value_dim[[program.results(op)[0] for op in ops]] = -1
    places = constraint_places(program, gathered)
    # A layer gathers its product and cuts tanh again; the doubled value is cut again for sine.
    assert places_by_function(places) == {"layer": 2, "f": 1}
    text = Plan.of(
        type(base_plan)(program, base_plan.mesh, gathered, analysis=base_plan.analysis)
    ).describe()
    assert "places, by function: layer 2, f 1\n" in text


def test_gradients_follow_their_parameters() -> None:
    """A value of the shape and the sharding of an argument needs no place of its own."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w))

    problem = Problem(traced(jax.grad(loss), s(32, 16), s(64, 32)), {"a": 2})
    data = plan(problem, ("x.0", "a"))
    fsdp = data.sharding.copy()
    program = data.program
    fsdp.value_dim[0] = 0
    fsdp.value_dim[program.outputs] = 0
    places = constraint_places(program, fsdp)
    assert [tuple(program.value_name[v] for v in place.values) for place in places] == [("w",)]


def test_paths_are_folded_and_roots_left_out() -> None:
    assert folded_path("blocks_3.norm") == "blocks_*.norm"
    assert folded_path("w1") == "w1"
    assert own_words(["layers[0].wq", "layers[1].wq"]) == [
        ["layers", "0", "wq"],
        ["layers", "1", "wq"],
    ], "a place in a list is no root"


def test_a_plan_prints_in_the_words_of_the_model() -> None:
    problem = Problem(small_transformer(layers=2), MESH)
    megatron = plan(problem, ("batch", "data"), ("heads", "model"), ("hidden", "model"))
    text = str(megatron)
    assert text == megatron.describe()
    lines = text.splitlines()
    assert lines[0].endswith("on data=2,model=2: 7 argument rules and 0 places")
    assert any(line.split()[:3] == ["hidden", "on", "model"] for line in lines)
    (heads,) = [line for line in lines if line.split()[:3] == ["heads", "on", "model"]]
    assert heads.split()[3:5] == ["wo,", "wq"]
    assert "refined" not in text
    assert "every device holds" in str(plan(problem))
    assert len(megatron.describe(3).splitlines()) == 4, "three lines and how many more there are"


def test_a_plan_without_its_analysis_names_dims_by_number() -> None:
    problem = Problem(analysed("mlp"), {"a": 2})
    bare = Plan(problem.analysis.program, problem.mesh, plan(problem, ("B", "a")).sharding)
    assert "dim 0 on a" in bare.describe()
    assert bare.size == plan(problem, ("B", "a")).size


def test_arguments_of_lists_and_tuples_have_the_name_of_their_list() -> None:
    def f(p, x):
        return jnp.tanh(x @ p[0]) @ p[1]

    problem = Problem(traced(f, (s(16, 32), s(32, 16)), s(8, 16)), {"d": 2})
    text = plan(problem, ("x.0", "d"), ("p[0].1", "d")).describe()
    assert " p[0], p[1] [whole]" in text
    names = {
        "params['layers'][0]['w']": "w",
        "opt[0].mu['w'][1]": "w[1]",
        "p['0']": "p['0']",
        "p['linear-1']": "linear-1",
        "layers.0.weight": "weight",
        "params.0": "params.0",
        "p[<flat index 3>]": "p[3]",
        "x": "x",
        "0": "0",
    }
    assert {path: short_path(path) for path in names} == names

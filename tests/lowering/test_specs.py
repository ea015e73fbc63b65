from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model
from toast_lab.lowering.specs import to_partition_spec
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan

S = jax.ShapeDtypeStruct
NAMES = {"w": ("inner", "outer"), "b": ("outer",), "x": ("batch", "inner")}


def layer(params, x):
    return {"y": jnp.tanh(x @ params["w"] + params["b"]), "norm": jnp.sum(x)}


def layer_model(*, trees: bool = True) -> Model:
    params = {"w": S((32, 64), "float32"), "b": S((64,), "float32")}
    model = frontends.from_jax(layer, params, S((16, 32), "float32"), dim_names=NAMES)
    return model if trees else frontends.from_stablehlo(model.stablehlo)


def plan_of(model: Model, *actions: object, mesh: dict[str, int]) -> ShardingPlan:
    analysis = analyse(model)
    return Plan.from_actions(Problem(analysis, mesh), actions)


def test_specs_come_in_the_callers_pytrees() -> None:
    plan = plan_of(layer_model(), ("batch", "d"), ("outer", "m"), mesh={"d": 2, "m": 4})
    arguments, results = plan.partition_specs()
    assert arguments == ({"w": P(None, "m"), "b": P("m")}, P("d"))
    assert results == {"y": P("d", "m"), "norm": P()}


def test_specs_come_by_path_where_the_pytrees_are_unknown() -> None:
    model = layer_model(trees=False)
    analysis = analyse(model)
    problem = Problem(analysis, {"d": 2})
    plan = Plan.from_specs(problem, {"x": ("d", None)})
    arguments, results = plan.partition_specs()
    assert arguments == {"params['b']": P(), "params['w']": P(), "x": P("d")}
    assert list(results.values()).count(P("d")) == 1


def test_the_specs_run_under_jit() -> None:
    """With a plan's specs, jit computes what the function computes.

    The results have the promised shardings.
    """
    plan = plan_of(layer_model(), ("batch", "d"), ("outer", "m"), mesh={"d": 1, "m": 1})
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("d", "m"))
    arguments, results = jax.tree.map(
        lambda spec: jax.sharding.NamedSharding(mesh, spec),
        plan.partition_specs(),
        is_leaf=lambda x: isinstance(x, P),
    )
    params = {"w": jnp.ones((32, 64)), "b": jnp.zeros(64)}
    out = jax.jit(layer, in_shardings=arguments, out_shardings=results)(params, jnp.ones((16, 32)))
    assert out["y"].shape == (16, 64)


def test_several_axes_on_one_dim_stand_together() -> None:
    assert to_partition_spec((("d", "m"), (), ("a",), ())) == P(("d", "m"), None, "a")
    assert to_partition_spec(((), ())) == P()
    assert to_partition_spec(()) == P()


def test_constraints_say_where_a_weight_is_gathered() -> None:
    plan = plan_of(layer_model(), ("batch", "d"), ("inner", "d"), mesh={"d": 4})
    rows = [row for row in plan.constraints() if row.value == "params['w']"]
    assert [row.partition_spec for row in rows] == [P()]
    assert rows[0].where.endswith(f"test_specs.py:{layer.__code__.co_firstlineno + 1}")


def test_constraints_pin_partial_sums_that_are_scattered_and_nothing_that_follows_by_itself() -> (
    None
):
    attention = frontends.load("attention")
    plan = plan_of(attention, "S@1->d", mesh={"d": 2, "m": 4})
    assert [(row.value, row.partition_spec) for row in plan.constraints()] == [
        ("k", P()),
        ("z", P("d")),
    ]
    assert plan.lowered.natural[int(attention.program.outputs[0])] == ((), ())
    data_parallel = plan_of(layer_model(), ("batch", "d"), mesh={"d": 4})
    assert data_parallel.constraints() == []


def test_one_row_for_each_sharding_in_which_a_value_is_used() -> None:
    def twice(x, y, w):
        return x @ w, y @ w

    names = {"x": ("batch", "inner"), "w": ("inner", "outer")}
    shapes = S((16, 32), "float32"), S((16, 32), "float32"), S((32, 64), "float32")
    model = frontends.from_jax(twice, *shapes, dim_names=names)
    plan = plan_of(model, ("batch", "d"), ("inner", "d"), mesh={"d": 4})
    assert [row.value for row in plan.constraints()].count("w") == 1

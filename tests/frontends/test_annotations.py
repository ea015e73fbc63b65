"""Shardings that a program comes with are read, and can be kept as pins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import toast_lab as tl
from toast_lab.errors import InvalidProblem
from toast_lab.search.methods import METHODS
from toast_lab.sharding.propagate import Propagation


def auto(*axes: object):
    """Axis types that let the compiler shard along the axes.

    From jax 0.12 on, meshes have other axis types by default.
    """
    return (AxisType.Auto,) * len(axes)


MESH = AbstractMesh((4, 2), ("data", "model"), auto("data", "model"))
ARGUMENTS = [
    jax.ShapeDtypeStruct((64, 32), jnp.float32),
    jax.ShapeDtypeStruct((16, 64), jnp.float32),
]
FEW = tl.Budget(seconds=None, evaluations=200)


def sharded(*spec, mesh=MESH):
    return NamedSharding(mesh, P(*spec))


def step(w, x):
    h = jax.nn.relu(x @ w)
    h = jax.lax.with_sharding_constraint(h, sharded("data", P.UNCONSTRAINED))
    return {"y": h * 2, "mean": h.mean()}


def plain(w, x):
    return {"y": jax.nn.relu(x @ w) * 2}


def problem_of(model, mesh="data=4,model=2"):
    return tl.Problem(tl.analyse(model), mesh)


def said(model):
    return [(a.kind, a.name, a.mesh, a.spec) for a in tl.annotations(model)]


AXES = (("data", 4), ("model", 2))


def test_a_constraint_is_read_with_its_line_mesh_and_open_dims():
    model = tl.from_jax(step, *ARGUMENTS)
    (found,) = model.annotations
    assert (found.kind, found.mesh, found.spec) == ("constraint", AXES, (("data",), ("*",)))
    assert model.program.kind[int(model.program.value_op[found.value])] == "sdy.sharding_constraint"
    line = step.__code__.co_firstlineno + 2
    assert found.where.endswith(f"test_annotations.py:{line}")
    assert f"({found.where}): (data, *) on data=4,model=2" in str(found)


def test_shardings_of_arguments_and_results_are_read():
    jitted = jax.jit(
        plain,
        in_shardings=(sharded(None, "model"), sharded(("data", "model"))),
        out_shardings={"y": sharded("data")},
    )
    model = tl.from_jax(jitted, *ARGUMENTS)
    found = said(model)
    assert ("argument", "w", AXES, ((), ("model",))) in found
    assert ("argument", "x", AXES, (("data", "model"), ())) in found
    assert ("result", "result['y']", AXES, (("data",), ())) in found
    assert model.notes == ()


def test_static_arguments_and_devices_that_are_there_make_no_difference():
    one = Mesh(jax.devices()[:1], ("data",), auto("data"))

    def scaled(times, w, x):
        return plain(w, x)["y"] * times

    jitted = jax.jit(scaled, static_argnums=0, in_shardings=(None, sharded("data", mesh=one)))
    assert said(tl.from_jax(jitted, 3.0, *ARGUMENTS))[0] == (
        "argument",
        "x",
        (("data", 1),),
        (("data",), ()),
    )


def test_annotations_change_nothing_of_the_program():
    jitted = jax.jit(plain, in_shardings=(sharded(None, "model"), None))
    models = [tl.from_jax(fn, *ARGUMENTS) for fn in (jitted, plain)]
    assert models[0].annotations
    assert not models[1].annotations
    with_constraint = tl.from_jax(step, *ARGUMENTS)
    without = tl.Program(**{**vars(with_constraint.program), "annotations": ()})
    assert without.digest() == with_constraint.program.digest()
    assert problem_of(models[1]).keep_annotations().pins is None


TEXT = """
module @m {
  sdy.mesh @mesh = <["data"=4, "model"=2]>
  func.func public @main(
      %a: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", ?}, {}]>},
      %b: tensor<64x32xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{}, {\\22model\\22}]>"}},
      %c: tensor<16x32xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}
  ) -> (tensor<16x32xf32> {jax.result_info = "out", sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}], replicated={"model"}>}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x32xf32>) -> tensor<16x32xf32>
    %1 = stablehlo.add %0, %c : tensor<16x32xf32>
    return %1 : tensor<16x32xf32>
  }
}
"""  # fmt: skip  # noqa: E501


def test_stablehlo_brings_its_own_and_what_jax_export_writes():
    model = tl.from_stablehlo(TEXT)
    assert said(model) == [
        ("argument", "arg0", AXES, (("data", "*"), ())),
        ("argument", "arg1", AXES, ((), ("model",))),
        ("argument", "arg2", (), ((), ())),
        ("result", "out", AXES, (("*",), ("*",))),
    ]
    assert "names no mesh axes: " in model.annotations[2].trouble
    problem = problem_of(model)
    with pytest.raises(
        InvalidProblem, match=r"cannot be kept[^\n]*\n  argument arg2: .*devices=\[4,2\]<=\[8\]"
    ):
        problem.keep_annotations()
    kept = problem.keep_annotations(strict=False)
    assert kept.pins.texts == ["pin arg0=(data+*, -)", "pin arg1=(-, model)", "pin out=(*, *)"]
    (note,) = kept.pins.notes
    assert "left out: argument arg2" in note
    plan = tl.search(kept, budget=FEW).plan
    assert plan.argument_specs()["arg1"] == ((), ("model",))
    assert all("model" not in dim for dim in plan.result_specs()["out"])


@pytest.mark.parametrize("method", [m for m in METHODS if m != "manual"])
def test_what_is_kept_is_in_the_plan_of_every_method(method):
    jitted = jax.jit(step, in_shardings=(sharded(None, "model"), None))
    model = tl.from_jax(jitted, *ARGUMENTS)
    problem = problem_of(model).keep_annotations().pin("result['y']", (None, "data"))
    plan = tl.search(problem, method, budget=FEW).plan
    assert plan.argument_specs()["w"] == ((), ("model",))
    assert plan.result_specs()["result['y']"] == ((), ("data",))
    specs = plan.value_specs()  # as lowering keeps them, not only as the plan's arrays have them
    constraint = next(a for a in model.annotations if a.kind == "constraint" and "*" in a.spec[1])
    assert specs[constraint.value][0] == ("data",)


def test_a_constraint_stays_where_it_is_even_where_no_use_wants_it():
    """A kept constraint holds even if no use reads the value in that sharding.

    Other values would then be left as their op leaves them.
    """

    def odd(w, x):
        h = jax.lax.with_sharding_constraint(x @ w, sharded("model", "data"))
        return h * 2

    model = tl.from_jax(odd, *ARGUMENTS)
    problem = (
        problem_of(model)
        .keep_annotations()
        .what_if([("x", ("data", None)), ("result", ("data", None))])
    )
    plan = tl.search(problem, "exhaustive", budget=FEW).plan
    assert plan.value_specs()[model.annotations[0].value] == (("model",), ("data",))
    assert "sdy.sharding_constraint" in tl.annotate(model, plan)


def test_propagation_does_not_split_the_op_of_a_constraint_otherwise():
    def held(w, x):
        return jax.lax.with_sharding_constraint(x @ w, sharded(None, None)) * 2

    model = tl.from_jax(held, *ARGUMENTS)
    problem = problem_of(model).keep_annotations()
    propagation = Propagation(problem.analysis, problem.mesh, problem.pins)
    state = propagation.start()
    # x, the product and the values after it
    assert propagation.shard(state, np.asarray([1]), 0, 0) > 2
    assert problem.pins.broken(*state) == []
    op = int(model.program.value_op[model.annotations[0].value])
    assert (state.op_factor[op] < 0).all()


def test_what_this_mesh_cannot_keep_is_listed():
    other = AbstractMesh((3, 2, 2), ("data", "expert", "model"), auto(1, 2, 3))

    def f(w, x):
        w = jax.lax.with_sharding_constraint(w, sharded("expert", None, mesh=other))
        x = jax.lax.with_sharding_constraint(x, sharded(None, ("model", "data"), mesh=other))
        return jax.lax.with_sharding_constraint(x @ w, sharded(None, "model", mesh=other))

    w, x = jax.ShapeDtypeStruct((66, 32), jnp.float32), jax.ShapeDtypeStruct((15, 66), jnp.float32)
    problem = problem_of(tl.from_jax(f, w, x), "data=3,model=2")
    with pytest.raises(InvalidProblem) as error:
        problem.keep_annotations()
    text = str(error.value)
    assert "no mesh axis is called 'expert'" in text
    assert "in the order model, data" in text
    kept = problem.keep_annotations(strict=False)
    assert len(kept.pins.notes) == 2
    assert [t.partition("=")[2] for t in kept.pins.texts] == ["(-, model)"]
    sizes = problem_of(tl.from_jax(f, w, x), "data=3,model=5,expert=2")
    with pytest.raises(InvalidProblem, match="dim 1 has size 32, not divisible by model=5"):
        sizes.keep_annotations()


def test_annotations_that_contradict_pins_or_each_other_are_named():
    def f(w, x):
        return jax.lax.with_sharding_constraint(x @ w, sharded("data", None))

    jitted = jax.jit(f, out_shardings=sharded(None, "data"))
    model = tl.from_jax(jitted, *ARGUMENTS)
    assert {a.kind for a in model.annotations} >= {"constraint", "result"}
    problem = problem_of(tl.from_jax(f, *ARGUMENTS))
    with pytest.raises(
        InvalidProblem,
        match=r"puts dim 0 of .* \(size 16\) over data=4, which contradicts pin result=\(-, -\)",
    ):
        problem.pin("result", (None, None)).keep_annotations()
    loose = problem.pin("result", (None, None)).keep_annotations(strict=False)
    assert loose.pins.texts == ["pin result=(-, -)"]
    assert "contradicts pin result=(-, -)" in loose.pins.notes[0]

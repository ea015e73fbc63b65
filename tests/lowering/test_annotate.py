from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from toast_lab import _jaxlib, frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.ir.model import Model
from toast_lab.ir.read import parse
from toast_lab.lowering.annotate import annotate, specs_on_ops
from toast_lab.pipeline import replicated
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.run import run
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding

S = jax.ShapeDtypeStruct
SMALL = {
    "layers": 1,
    "d_model": 64,
    "hidden": 128,
    "heads": 4,
    "key_size": 16,
    "vocab": 128,
    "batch": 8,
    "sequence": 32,
}


def problem_of(model: Model, mesh: dict[str, int]) -> Problem:
    return Problem(analyse(model), mesh)


def plan_of(model: Model, mesh: dict[str, int], *actions: object) -> ShardingPlan:
    return Plan.from_actions(problem_of(model, mesh), actions)


def code(text: str) -> str:
    """Module text without locations and whitespace layout."""
    lines = (re.sub(r"\s*loc\((?:[^()]|\([^()]*\))*\)", "", line) for line in text.splitlines())
    return "\n".join(line.strip() for line in lines if line.strip() and not line.startswith("#loc"))


def constraints(text: str) -> list[tuple[str, str]]:
    """(operand, dim shardings) of every constraint, in order."""
    return re.findall(r"sdy\.sharding_constraint (%\S+) <@mesh, (\[.*?\])>", text)


def test_an_fsdp_weight_is_gathered_where_it_is_used() -> None:
    def layer(x, w):
        return x @ w

    model = frontends.from_jax(
        layer,
        S((16, 32), "float32"),
        S((32, 64), "float32"),
        dim_names={"x": ("batch", "inner"), "w": ("inner", "outer")},
    )
    plan = plan_of(model, {"d": 4}, ("batch", "d"), ("inner", "d"))
    assert code(annotate(model, plan)) == code(
        """
        module @jit_layer attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
        sdy.mesh @mesh = <["d"=4]>
        func.func public @main(%arg0: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, %arg1: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<16x64xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
        %0 = sdy.sharding_constraint %arg1 <@mesh, [{}, {}]> : tensor<32x64xf32>
        %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x32xf32>, tensor<32x64xf32>) -> tensor<16x64xf32>
        %2 = sdy.sharding_constraint %1 <@mesh, [{"d"}, {}]> : tensor<16x64xf32>
        return %2 : tensor<16x64xf32>
        }
        }
        """  # noqa: E501
    )


def test_a_value_brought_to_one_sharding_for_two_uses_has_one_constraint() -> None:
    def twice(x, y, w):
        return x @ w, y @ w

    names = {"x": ("batch", "inner"), "w": ("inner", "outer")}
    shapes = S((16, 32), "float32"), S((16, 32), "float32"), S((32, 64), "float32")
    model = frontends.from_jax(twice, *shapes, dim_names=names)
    plan = plan_of(model, {"d": 4}, ("batch", "d"), ("inner", "d"))
    assert constraints(annotate(model, plan)).count(("%arg2", "[{}, {}]")) == 1
    assert constraints(annotate(model, plan, reuse=False)).count(("%arg2", "[{}, {}]")) == 2


def test_an_op_is_pinned_as_it_leaves_its_result_and_the_value_as_it_is_kept() -> None:
    """The result of an op first has the op's sharding, then the value's.

    The op here is split on an axis that its result does not keep.
    """

    def double(x):
        return x + x

    model = frontends.from_jax(double, S((8, 8), "float32"))
    problem = problem_of(model, {"d": 4})
    plan = replicated(problem)
    add = model.program.n_arguments
    op_factor = plan.op_factor.copy()
    op_factor[add, 0] = model.program.def_names(model.program.results(add)[0])[1]
    plan = ShardingPlan(plan.program, plan.mesh, Sharding(op_factor, plan.value_dim))
    text = annotate(model, plan)
    assert constraints(text) == [
        ("%arg0", '[{}, {"d"}]'),
        ("%1", '[{}, {"d"}]'),
        ("%2", "[{}, {}]"),
    ]
    assert specs_on_ops(plan)[1] == ((), ("d",))
    assert "return %3" in text


def test_partial_sums_are_scattered_by_the_op_itself() -> None:
    model = frontends.load("attention")
    plan = plan_of(model, {"d": 2, "m": 4}, "S@1->d")
    z = int(model.program.outputs[0])
    assert specs_on_ops(plan)[z] == (("d",), ()) == plan.value_specs()[z]


def test_a_constant_is_cut_where_it_is_used_and_nowhere_else() -> None:
    def scaled(x):
        return x * jnp.arange(16.0)

    model = frontends.from_jax(scaled, S((8, 16), "float32"), dim_names={"x": ("batch", "inner")})
    text = annotate(model, plan_of(model, {"d": 4}, ("inner", "d")))
    (operand, product) = (operand for operand, _ in constraints(text))
    assert f"{product} = stablehlo.multiply" in text
    assert re.search(rf"{operand} = stablehlo.broadcast_in_dim", text)
    assert {dims for _, dims in constraints(text)} == {'[{}, {"d"}]'}


def test_donation_stays_where_the_shardings_agree_and_turns_into_a_hint_where_not() -> None:
    def step(w, x):
        return w + x, x.sum()

    shapes = S((8, 16), "float32"), S((8, 16), "float32")
    model = frontends.from_jax(
        step, *shapes, donate_argnums=0, dim_names={"w": ("rows", "columns")}
    )
    plan = plan_of(model, {"d": 4}, ("rows", "d"))
    assert "tf.aliasing_output = 0" in annotate(model, plan)
    value_dim = plan.value_dim.copy()
    value_dim[int(model.program.outputs[0]), 0] = -1
    other = ShardingPlan(plan.program, plan.mesh, Sharding(plan.op_factor, value_dim))
    text = annotate(model, other)
    assert "tf.aliasing_output" not in text
    assert "jax.buffer_donor = true" in text


def test_foreign_annotations_make_way() -> None:
    text = """
    module @m attributes {mhlo.num_partitions = 2 : i32} {
      sdy.mesh @mesh = <["x"=2]>
      sdy.mesh @other = <["x"=2]>
      func.func public @main(%arg0: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) -> tensor<8x4xf32> {
        %0 = sdy.sharding_constraint %arg0 <@other, [{"x"}, {}]> : tensor<8x4xf32>
        %1 = stablehlo.add %0, %0 {sdy.sharding = #sdy.sharding_per_value<[<@other, [{"x"}, {}]>]>} : tensor<8x4xf32>
        return %1 : tensor<8x4xf32>
      }
    }
    """  # noqa: E501
    model = frontends.from_stablehlo(text)
    problem = problem_of(model, {"d": 4})
    name = problem.analysis.groups[0].name
    written = annotate(model, Plan.from_actions(problem, [(name, "d")]))
    assert written.count("sdy.mesh @") == 1
    assert "@other" not in written
    assert "mhlo.sharding" not in written
    assert 'sdy.sharding_constraint %arg0 <@mesh, [{"d"}, {}]>' in written


def test_loops_keep_their_own_attributes_untouched() -> None:
    def scan(c, w):
        return jax.lax.scan(lambda c, wi: (jnp.tanh(c @ wi), c.sum()), c, w)

    model = frontends.from_jax(scan, S((8, 16), "float32"), S((3, 16, 16), "float32"))
    text = annotate(model, replicated(problem_of(model, {"d": 4})))
    assert "stablehlo.while" in text
    assert not re.search(r"attributes \{[^}]*sdy\.sharding", text.split("stablehlo.while")[1])


@pytest.mark.parametrize("mesh", [{"d": 2, "m": 4}, {"d": 8}])
def test_a_transformer_step_written_from_text_and_from_the_model_is_the_same_module(
    mesh: dict[str, int],
) -> None:
    model = frontends.load("transformer", **SMALL)
    plan = plan_of(model, mesh, ("batch", "d"), ("d_model", "d"))
    text = annotate(model, plan)
    assert text == annotate(model.stablehlo, plan)
    module = _jaxlib.parse_module(_jaxlib.make_context(), text)
    assert module.operation.verify()
    # Every argument and every output carries its sharding, and every result that is no constant and
    # no scalar has a constraint.
    kept = plan.value_specs()
    computed = [
        value
        for value in range(model.program.n_arguments, model.program.n_values)
        if not model.program.value_is_constant[value] and model.program.dims(value)
    ]
    constrained = {operand for operand, _ in constraints(text) if not operand.startswith("%arg")}
    assert len(constrained) >= len(computed)
    assert text.count("= #sdy.sharding<@mesh") == model.program.n_arguments + len(
        model.program.outputs
    )
    assert any(any(spec) for spec in kept)


def test_another_program_is_refused() -> None:
    model = frontends.load("mlp")
    plan = plan_of(model, {"d": 4})
    with pytest.raises(InvalidPlan, match=r"this plan is for the program mlp .* not for attn"):
        annotate(frontends.load("attention"), plan)
    with pytest.raises(
        InvalidPlan, match=r"shards \d+ arguments, but @main of this module has \d+"
    ):
        annotate(frontends.load("attention").stablehlo, plan)


def test_sums_that_cannot_be_scattered_beside_what_is_there_are_made_whole_first() -> None:
    """Sums that cannot be scattered are made whole by the op, and the value's sharding follows.

    Here 4 experts are split over d; scattering the sum over m onto them would cut 4 into 8. With
    the kept sharding on the op itself, XLA would compute wrong numbers.
    """
    model = frontends.from_jax(
        lambda x, w: jnp.einsum("esd,edh->esh", x, w),
        S((4, 8, 8), "float32"),
        S((4, 8, 16), "float32"),
    )
    program = model.program
    whole = replicated(problem_of(model, {"d": 2, "m": 4}))
    (op,) = program.ops()
    experts = program.use_names(int(program.use_ptr[op]))[0]
    inner = program.use_names(int(program.use_ptr[op]))[2]
    op_factor, value_dim = whole.op_factor.copy(), whole.value_dim.copy()
    op_factor[op] = experts, inner
    value_dim[program.results(op)[0]] = 2, 0
    plan = dataclasses.replace(whole, sharding=Sharding(op_factor, value_dim))
    assert specs_on_ops(plan)[-1] == (("d",), (), ())
    assert constraints(annotate(model, plan))[-2:] == [
        ("%2", '[{"d"}, {}, {}]'),
        ("%3", '[{"m"}, {}, {"d"}]'),
    ]


def test_no_op_carries_a_sharding_that_xla_could_move_onto_another_op() -> None:
    """XLA replaces ``x - 0`` by ``x`` and puts the attributes of the one onto the op of the other.

    An op of several results, such as the barrier of ``jax.checkpoint``, then has one sharding for
    all of them, and XLA refuses the program.
    """
    shapes = S((4, 16, 16), "float32"), S((8, 4, 16), "float32")
    model = frontends.from_jax(checkpointed_gradient, *shapes)
    assert "stablehlo.optimization_barrier" in model.stablehlo
    plan = plan_of(model, {"d": 4}, ("x.0", "d"))
    for constrained in (None, frozenset[int]()):
        body = annotate(model, plan, constrained=constrained).partition(" {\n    ")[2]
        assert "sdy.sharding_constraint" in body
        assert "sdy.sharding =" not in body


def test_scanned_and_recomputed_layers_that_take_zero_away_run_to_the_same_result() -> None:
    shapes = S((4, 16, 16), "float32"), S((8, 4, 16), "float32")
    model = frontends.from_jax(checkpointed_gradient, *shapes)
    plan = plan_of(model, {"d": 4}, ("x.0", "d"))
    measured = run(model, plan, "cpu:4", repeats=1, warmup=0)
    assert measured.max_relative_error < 1e-5


def checkpointed_gradient(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Gradient of scanned layers with recomputation, which take a mean of zero away, as RMSNorm."""

    def layer(hidden: jax.Array, weight: jax.Array) -> jax.Array:
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(hidden), axis=-1, keepdims=True) + 1e-6)
        return hidden + jnp.tanh((hidden - jnp.zeros((8, 4, 1))) * scale @ weight)

    def loss(weights: jax.Array) -> jax.Array:
        def scanned(hidden: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jax.checkpoint(layer)(hidden, weight), None

        return (jax.lax.scan(scanned, x, weights)[0] ** 2).mean()

    return jax.grad(loss)(weights)


def test_for_shardy_an_op_carries_its_number_and_is_pinned_to_what_its_operands_imply() -> None:
    model = frontends.load("mlp", batch=16, inputs=8, hidden=16, outputs=8)
    plan = plan_of(model, {"m": 4}, ("U", "m"), ("B", "m"))
    assert "toast.op" not in annotate(model, plan)
    text = annotate(model, plan, scattered=False, numbered=True)
    last = [line for line in text.splitlines() if "stablehlo.dot_general" in line][-1]
    assert f"toast.op = {model.program.n_ops - 1} : i32" in last
    result = last.split()[0]
    assert next(dims for operand, dims in constraints(text) if operand == result) == "[{}, {}]"


def test_devices_compute_their_own_groups_of_a_convolution() -> None:
    def own_kernels(x, k):
        return jax.vmap(
            lambda x, k: jax.lax.conv_general_dilated(
                x[None], k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )[0]
        )(x, k)

    model = frontends.from_jax(
        own_kernels, S((16, 8, 8, 4), "float32"), S((16, 3, 3, 4, 6), "float32")
    )
    plan = plan_of(model, {"d": 4}, "x.0->d")
    text = annotate(model, plan)
    assert "feature_group_count = 16" in model.stablehlo
    assert "feature_group_count = 4" in text
    (local,) = re.findall(r"stablehlo\.convolution.*->\s*tensor<(\S+)xf32>", text)
    assert local == "1x8x8x24", "four of the sixteen examples, side by side in the features"
    again = parse(text)
    assert "convolution" in again.program.kind
    assert "feature_group_count = 16" in again.text

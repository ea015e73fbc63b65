"""The plans that experts try first, and the dim that is taken for the batch by default."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.conflicts.colour_roles import roles
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import InvalidInput, InvalidPlan
from toast_lab.frontends import from_jax, load
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import data_parallel, usual_plans


def shape(*sizes: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def chosen(fn: Any, *args: Any) -> tuple[int, Analysis]:
    """Return the size of the dim that is taken for the batch, and the analysis."""
    analysis = analyse(from_jax(fn, *args))
    (batch,) = roles(analysis).groups("batch")
    return analysis.groups[batch].size, analysis


PARAMS = {"emb": shape(512, 64), "w1": shape(64, 256), "b1": shape(256), "w2": shape(256, 64)}


def hidden(params: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ params["w1"] + params["b1"]) @ params["w2"] + x


def updated(params: Any, momentum: Any, loss: Any) -> Any:
    value, gradient = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum, value


def test_the_batch_of_a_training_step_is_that_of_its_tokens() -> None:
    def step(params: Any, momentum: Any, ids: Any) -> Any:
        def loss(p: Any) -> Any:
            logits = hidden(p, p["emb"][ids[:, :-1]]) @ p["emb"].T
            likely = jax.nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(likely, ids[:, 1:, None], axis=-1))

        return updated(params, momentum, loss)

    assert chosen(step, PARAMS, PARAMS, shape(32, 17, dtype="int32"))[0] == 32


def test_inputs_that_come_back_updated_are_no_batch() -> None:
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        return updated(params, momentum, lambda p: jnp.mean((hidden(p, x) - y) ** 2))

    assert chosen(step, PARAMS, PARAMS, shape(48, 64), shape(48, 64))[0] == 48


def test_of_a_forward_pass_the_batch_is_on_most_values() -> None:
    assert chosen(hidden, PARAMS, shape(48, 64))[0] == 48


def test_in_doubt_all_candidates_are_named() -> None:
    def both(left: Any, right: Any) -> Any:
        return jnp.sum(left * 2), jnp.sum(right * 2)

    analysis = analyse(from_jax(both, shape(24, dtype="int32"), shape(36, dtype="int32")))
    with pytest.raises(InvalidPlan) as refused:
        data_parallel(Problem(analysis, {"d": 4}))
    assert "several dims could be the batch" in str(refused.value)
    assert "size 24, of left" in str(refused.value)
    assert "size 36, of right" in str(refused.value)


def test_the_steps_of_a_sequence_are_no_batch() -> None:
    """A loop takes one step a round; time is the first dim, as in Haiku's recurrent networks."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            first = jnp.zeros(x.shape[1:])
            state, states = jax.lax.scan(lambda h, now: (jnp.tanh((h + now) @ w),) * 2, first, x)
            return (states**2).mean() + state.sum()

        return w - 0.1 * jax.grad(loss)(w)

    size, _ = chosen(step, shape(512, 512), shape(32, 1024, 512))
    assert size == 1024


def updated_step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
    return updated(params, momentum, lambda p: jnp.mean((hidden(p, x) - y) ** 2))


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (
            {"d": 4, "m": 2},
            {
                "data parallel": ("d+m,-", "-,-"),
                "fully sharded": ("d+m,-", "-,d+m"),
                "tensor parallel": ("-,-", "-,d+m"),
                "data + tensor parallel": ("d,-", "-,m"),
                "fully sharded + tensor parallel": ("d,-", "-,d+m"),
            },
        ),
        (
            {"d": 4},
            {
                "data parallel": ("d,-", "-,-"),
                "fully sharded": ("d,-", "-,d"),
                "tensor parallel": ("-,-", "-,d"),
            },
        ),
    ],
)
def test_usual_plans_cut_the_batch_and_the_weights(
    mesh: dict[str, int], expected: dict[str, tuple[str, str]]
) -> None:
    """The hidden dim is on more bytes of weights than the width of the residual stream is."""
    weights = {"w1": shape(64, 256), "b1": shape(256), "w2": shape(256, 64)}
    analysis = analyse(from_jax(updated_step, weights, weights, shape(48, 64), shape(48, 64)))
    problem = Problem(analysis, mesh)

    def text(spec: Any) -> str:
        return ",".join("+".join(axes) or "-" for axes in spec)

    texts = {}
    for name, actions in usual_plans(problem).items():
        specs = Plan.from_actions(problem, actions).argument_specs()
        texts[name] = text(specs["x"]), text(specs["params['w1']"])
    assert texts == expected


def test_where_no_axis_divides_there_is_no_usual_plan() -> None:
    analysis = analyse(from_jax(hidden, PARAMS, shape(48, 64)))
    usual = usual_plans(Problem(analysis, {"odd": 7}))
    assert dict(usual) == {}
    assert "odd=7 does not divide" in usual.missing["data parallel"]
    with pytest.raises(InvalidPlan, match="odd=7 does not divide"):
        usual.actions("data parallel")
    with pytest.raises(InvalidPlan, match="no usual plan is called 'data paralel'"):
        usual.actions("data paralel")


def test_an_axis_that_divides_nothing_is_left_out_and_noted() -> None:
    analysis = analyse(from_jax(updated_step, PARAMS, PARAMS, shape(48, 64), shape(48, 64)))
    usual = usual_plans(Problem(analysis, {"d": 4, "o": 5, "m": 2}))
    assert [action.axis for action in usual["data parallel"]] == [0, 2]
    (note,) = usual.notes["data parallel"]
    assert note.startswith("o is left out: o=5 does not divide ")
    assert note.endswith(" (48)")


# -- what experts write by hand --------------------------------------------------------------------


def costs_of(model: Any, mesh: Any = "data=4,model=4") -> tuple[dict[str, Cost], Any]:
    """The cost of each usual plan and of each plan that an expert wrote, and the usual plans."""
    problem = Problem(analyse(model), mesh, "tpu-v5e")
    usual = usual_plans(problem)
    plans = dict(usual) | {
        f"expert {name}": actions
        for name, actions in model.expert_plans.items()
        if {role for _, role, *_ in actions} <= {"data", "model"}
    }
    costs = {name: price(problem, Plan.from_actions(problem, plan)) for name, plan in plans.items()}
    return costs, usual


@pytest.mark.parametrize("options", [{}, {"scan": True}])
def test_megatron_and_its_kin_are_what_experts_write(options: dict[str, Any]) -> None:
    costs, usual = costs_of(load("t2b", layers=2, batch=16, sequence=1024, **options))
    for name, expert in {
        "data + tensor parallel": "data+megatron",
        "data + tensor + sequence parallel": "data+megatron+sp",
        "fully sharded + tensor parallel": "fsdp+megatron",
        "fully sharded + tensor + sequence parallel": "fsdp+megatron+sp",
    }.items():
        assert costs[name].time_s == costs[f"expert {expert}"].time_s, name
        assert costs[name].peak_bytes == costs[f"expert {expert}"].peak_bytes, name
    assert usual.missing == {"expert parallel": "no colour plays the part of experts"}
    text = str(usual)
    assert "data + tensor parallel: batch->data, " in text
    assert "no expert parallel plan: no colour plays the part of experts" in text


def test_heads_that_do_not_divide_are_said() -> None:
    _, usual = costs_of(load("transformer", layers=1))
    (note,) = usual.notes["data + tensor parallel"]
    assert "whole on model=4" in note
    assert "['wk'] [512, 1, 64]" in note


def test_fully_sharded_cuts_every_weight_and_moment() -> None:
    model = load("t2b", layers=2, batch=16, sequence=256)
    problem = Problem(analyse(model), "data=4,model=4", "tpu-v5e")
    plan = Plan.from_actions(problem, usual_plans(problem)["fully sharded"])
    for path, spec in plan.argument_specs().items():
        if "opt" in path or "params" in path:
            is_scalar = not spec
            assert is_scalar or sum(len(axes) for axes in spec) == 2, path


def test_a_decoding_step_cuts_weights_by_heads_and_the_cache_by_batch() -> None:
    costs, usual = costs_of(load("itx", layers=2))
    for name, expert in {
        "data + tensor parallel": "data+megatron",
        "tensor parallel, cache by batch": "data+multi-query+megatron",
    }.items():
        assert costs[name].time_s == costs[f"expert {expert}"].time_s, name
    assert any(
        "all heads share a key and a value" in note for note in usual.notes["tensor parallel"]
    )
    assert usual.missing["data + sequence parallel"] == "no colour plays the part of sequence"


def test_a_cache_with_heads_is_cut_by_them() -> None:
    def decode(params: Any, cache: Any, token: Any, position: Any) -> Any:
        x = params["embed"][token]
        k, v = (jnp.einsum("bd,dhk->bhk", x, params[name]) for name in ("wk", "wv"))
        q = jnp.einsum("bd,dhk->bhk", x, params["wq"])
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new[:, None], position, 1)
            for old, new in zip(cache, (k, v), strict=True)
        )
        weights = jax.nn.softmax(jnp.einsum("bhk,bthk->bht", q, keys))
        mixed = jnp.einsum("bht,bthk->bhk", weights, values)
        return jnp.einsum("bhk,hkd->bd", mixed, params["wo"]), [keys, values]

    weight = shape(64, 8, 16)
    params = {"embed": shape(512, 64), "wq": weight, "wk": weight, "wv": weight}
    params["wo"] = shape(8, 16, 64)
    inputs = [shape(16, 128, 8, 16)] * 2, shape(16, dtype="int32"), shape(dtype="int32")
    problem = Problem(analyse(from_jax(decode, params, *inputs)), {"data": 4, "model": 4})
    usual = usual_plans(problem)
    specs = Plan.from_actions(problem, usual["data + tensor parallel"]).argument_specs()
    assert specs["cache[0]"] == (("data",), (), ("model",), ())
    assert specs["params['wq']"] == ((), ("model",), ())
    assert specs["params['wo']"] == (("model",), (), ())
    assert "a dim of heads" in usual.missing["tensor parallel, cache by batch"]


def test_experts_are_spread_over_devices() -> None:
    from tests.conflicts.test_colour_roles import experts_loss, sgd

    params = {"router": shape(32, 8), "up": shape(8, 32, 128), "down": shape(8, 128, 32)}
    analysis = analyse(from_jax(sgd(experts_loss), params, shape(64, 32), shape(64, 32)))
    problem = Problem(analysis, {"data": 2, "model": 4})
    specs = Plan.from_actions(problem, usual_plans(problem)["expert parallel"]).argument_specs()
    assert specs["params['up']"] == (("model",), (), ())
    assert specs["inputs[0]"][0] == ("data", "model")


def test_experts_of_ragged_products_stay_together() -> None:
    from tests.conflicts.test_colour_roles import ragged_loss, sgd

    params = {"router": shape(32, 8), "up": shape(8, 32, 128), "down": shape(8, 128, 32)}
    args = params, shape(64, 32), shape(64, 32)
    analysis = analyse(from_jax(sgd(ragged_loss), *args, platform="tpu"))
    usual = usual_plans(Problem(analysis, {"data": 2, "model": 4}, "tpu-v5e"))
    assert usual.missing["expert parallel"] == "ragged products need all experts on every device"


def test_a_graph_is_cut_by_edges_or_by_edges_and_nodes() -> None:
    model = load("gns", steps=1)
    problem = Problem(analyse(model), {"data": 4, "model": 2})
    usual = usual_plans(problem)
    names = {name: {analysis_name(problem, action) for action in usual[name]} for name in usual}
    assert names["data parallel"] == {"edges"}
    assert names["edges + nodes"] == {"edges", "nodes"}
    assert "there is no batch; cut by edges" in usual.notes["data parallel"]


def analysis_name(problem: Problem, action: Any) -> str:
    return problem.analysis.group_name[action.group]


def test_a_walked_sequence_is_not_cut() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            first = jnp.zeros(x.shape[1:])
            _, states = jax.lax.scan(lambda h, now: (jnp.tanh((h + now) @ w),) * 2, first, x)
            return (states**2).mean()

        return w - 0.1 * jax.grad(loss)(w)

    analysis = analyse(from_jax(step, shape(64, 64), shape(32, 128, 64)))
    usual = usual_plans(Problem(analysis, {"data": 4, "model": 2}))
    assert usual.missing["data + sequence parallel"] == "a loop walks the sequence step by step"


def test_a_step_with_dropout_has_its_usual_plans() -> None:
    """The key's two words are not the batch."""

    def step(params: Any, momentum: Any, x: Any, y: Any, key: Any) -> Any:
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        return updated_step(params, momentum, jnp.where(kept, x, 0.0), y)

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    analysis = analyse(from_jax(step, PARAMS, PARAMS, shape(48, 64), shape(48, 64), key))
    usual = usual_plans(Problem(analysis, {"data": 4, "model": 2}))
    assert {"data parallel", "fully sharded", "data + tensor parallel"} <= set(usual)
    assert analysis.groups[usual["data parallel"][0].group].size == 48


def test_a_listing_is_narrow_and_a_missing_plan_says_why() -> None:
    problem = Problem(analyse(load("t2b", layers=2)), {"data": 4, "model": 4})
    usual = usual_plans(problem)
    assert max(map(len, str(usual).splitlines())) <= 100
    # Layers are told together
    assert "params['layers'][*]['wk']" in str(usual)
    assert "['layers'][1]" not in str(usual)
    with pytest.raises(KeyError, match="no colour plays the part of experts"):
        usual["expert parallel"]
    with pytest.raises(KeyError, match="no usual plan is called 'fsdp'"):
        usual["fsdp"]
    assert usual.get("fsdp") is None
    assert "data parallel" in repr(usual)
    with pytest.raises(InvalidInput, match=r"'batches' .did you mean .batch."):
        roles(problem.analysis).groups("batches")


@pytest.mark.parametrize("name", [-1, 0, None, ["data parallel"], b"data parallel"])
def test_a_name_that_is_no_text_is_refused_with_the_names(name: Any) -> None:
    usual = usual_plans(Problem(analyse(load("mlp")), {"data": 2}))
    with pytest.raises(KeyError, match=r"no usual plan is called .*data parallel"):
        usual[name]
    with pytest.raises(InvalidPlan, match=r"no usual plan is called .*data parallel"):
        usual.actions(name)

"""What plans are called: told from the plan alone, whatever names and actions led to it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import analysed, traced
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.written.parts import program_parts
from toast_lab.written.traits import Trait, plan_paragraph, plan_words

MESH = {"a": 2, "b": 2}
LAYERS = 4
WEIGHTS = {
    "wq": (32, 4, 8),
    "wk": (32, 4, 8),
    "wv": (32, 4, 8),
    "wo": (4, 8, 32),
    "up": (32, 96),
    "down": (96, 32),
}
#: the same in words that say nothing, or the wrong thing
OTHER_NAMES = dict(zip(WEIGHTS, ("z", "vocab", "batch_3", "key", "heads", "experts"), strict=True))


def shape(*sizes: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def training_step(names: dict[str, str]) -> Any:
    """A step of a small Transformer with momentum, whose weights have these names."""

    def layer(p: Any, x: Any) -> Any:
        query, key, value = (
            jnp.einsum("bsd,dhk->bshk", x, p[names[w]]) for w in ("wq", "wk", "wv")
        )
        scores = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", query, key))
        mixed = jnp.einsum("bhqs,bshk->bqhk", scores, value)
        x = x + jnp.einsum("bqhk,hkd->bqd", mixed, p[names["wo"]])
        return x + jax.nn.gelu(x @ p[names["up"]]) @ p[names["down"]]

    def loss(params: Any, tokens: Any) -> Any:
        table, layers = params
        x = table[tokens]
        for p in layers:
            x = layer(p, x)
        likely = jax.nn.log_softmax(x @ table.T)
        return -jnp.mean(jnp.take_along_axis(likely, tokens[..., None], axis=-1))

    def step(params: Any, momentum: Any, tokens: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    return step


@functools.cache
def problem(renamed: bool = False) -> Problem:
    names = OTHER_NAMES if renamed else {name: name for name in WEIGHTS}
    layer = {names[name]: shape(*sizes) for name, sizes in WEIGHTS.items()}
    params = (shape(512, 32), [layer] * LAYERS)
    tokens = shape(8, 16, dtype="int32")
    return Problem(traced(training_step(names), params, params, tokens), MESH)


def traits(plan: ShardingPlan, of: Problem) -> set[tuple[str, tuple[str, ...]]]:
    """Terms with their axes, what stays whole left out."""
    return {(trait.term, trait.axes) for trait in plan_words(of, plan) if trait.term != "whole"}


def usual(name: str, of: Problem) -> Plan:
    return Plan.from_actions(of, usual_plans(of)[name])


def told(plan: ShardingPlan, of: Problem) -> str:
    return " ".join(plan_paragraph(plan_words(of, plan)).split())


DATA, SHARDED = ("data parallel", ("a",)), ("fully sharded", ("a",))
TENSOR, VOCABULARY = ("tensor parallel", ("b",)), ("vocabulary parallel", ("b",))
USUAL = {
    "data parallel": {("data parallel", ("a", "b"))},
    "fully sharded": {("data parallel", ("a", "b")), ("fully sharded", ("a", "b"))},
    "tensor parallel": {("tensor parallel", ("a", "b")), ("vocabulary parallel", ("a", "b"))},
    "data + tensor parallel": {DATA, TENSOR, VOCABULARY},
    "data + sequence parallel": {DATA, ("context parallel", ("b",))},
    "data + tensor + sequence parallel": {
        DATA,
        TENSOR,
        VOCABULARY,
        ("sequence parallel", ("b",)),
    },
    "fully sharded + tensor parallel": {DATA, SHARDED, TENSOR, VOCABULARY},
}


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("name", USUAL)
def test_usual_plans_are_told_as_what_they_are(name: str, renamed: bool) -> None:
    of = problem(renamed)
    assert traits(usual(name, of), of) == USUAL[name]


def test_names_make_no_difference() -> None:
    for name in USUAL:
        texts = [told(usual(name, of), of) for of in (problem(), problem(True))]
        assert texts[0] == texts[1]


def test_actions_make_no_difference() -> None:
    of = problem()
    plan = usual("fully sharded + tensor parallel", of)
    bare = make_plan(of.analysis, of.mesh, plan.sharding.copy())
    assert plan_words(of, bare) == plan_words(of, plan)


def with_axis(plan: ShardingPlan, axis: int, dims: dict[int, int]) -> ShardingPlan:
    """A plan with a dim of some values on an axis besides."""
    sharding = plan.sharding.copy()
    for value, dim in dims.items():
        sharding.value_dim[value, axis] = dim
    assert plan.analysis is not None
    return make_plan(plan.analysis, plan.mesh, sharding)


def momentum_of(plan: ShardingPlan) -> list[int]:
    program = plan.program
    states = [
        value
        for value in range(program.n_arguments)
        if program.value_name[value].startswith("momentum")
    ]
    results = [
        int(value)
        for value, path in zip(program.outputs, program.output_paths, strict=True)
        if path.startswith("result[1]")
    ]
    return states + results


def test_states_cut_alone_are_zero_1() -> None:
    of = problem()
    plan = usual("data parallel", of)
    values = momentum_of(plan)
    assert len(values) == 2 * (6 * LAYERS + 1)
    dims = {
        value: next(dim for dim, size in enumerate(plan.program.dims(value)) if size % 4 == 0)
        for value in values
    }
    zero = with_axis(with_axis(plan, 0, dims), 1, dims)
    assert traits(zero, of) == {("data parallel", ("a", "b")), ("ZeRO-1", ("a", "b"))}
    assert "all weights whole on every device" in told(zero, of)
    assert "optimizer states whole" not in told(zero, of)


def colour_of(of: Problem, path: str, dim: int) -> str:
    analysis = of.analysis
    value = analysis.program.value_name.index(path)
    name = analysis.program.def_names(value)[dim]
    return analysis.group_name[analysis.group[analysis.colour[name]]]


def test_vocabulary_alone() -> None:
    of = problem()
    vocabulary = colour_of(of, "params[0]", 0)
    plan = Plan.from_actions(of, [(vocabulary, "b")])
    assert traits(plan, of) == {VOCABULARY}
    assert "embedding and logits" in told(plan, of)
    assert "nothing is cut over a" in told(plan, of)
    assert "of the FLOPs done alike by all devices along b" in told(plan, of)


@pytest.mark.parametrize(
    ("path", "dim", "words"),
    [
        ("params[1][0]['up']", 1, "feed-forward only, hidden"),
        ("params[1][0]['wq']", 1, "attention only, heads"),
    ],
)
def test_half_of_megatron_is_said(path: str, dim: int, words: str) -> None:
    of = problem()
    plan = Plan.from_actions(of, [(colour_of(of, path, dim), "b")])
    assert traits(plan, of) == {TENSOR}
    assert words in told(plan, of)


def test_features_have_no_term_and_are_told_plainly() -> None:
    of = problem()
    plan = Plan.from_actions(of, [(colour_of(of, "params[0]", 1), "b")])
    assert traits(plan, of) == {("cut otherwise", ("b",))}
    assert "Features of" in told(plan, of)
    cost = price(of, plan)
    (trait,) = [t for t in plan_words(of, plan, cost) if t.term == "cut otherwise"]
    assert "of the time" in trait.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_layers_that_deviate_are_counted(count: int) -> None:
    """Hidden is cut over b in some of the layers only, as after single ops were changed."""
    of = problem()
    plan = usual("data + tensor parallel", of)
    analysis, program, sharding = of.analysis, plan.program, plan.sharding.copy()
    (group,) = [
        group for group in analysis.groups if group.name == colour_of(of, "params[1][0]['up']", 1)
    ]
    whole = set(sorted(group.colours)[count:])
    colour = analysis.colour
    for op in range(program.n_ops):
        factor = int(sharding.op_factor[op, 1])
        if factor >= 0 and int(colour[factor]) in whole:
            sharding.op_factor[op, 1] = -1
    for value in range(program.n_values):
        dim = int(sharding.value_dim[value, 1])
        if dim >= 0 and int(colour[program.def_names(value)[dim]]) in whole:
            sharding.value_dim[value, 1] = -1
    mixed = make_plan(analysis, of.mesh, sharding)
    assert traits(mixed, of) == {DATA, TENSOR, VOCABULARY}
    assert f"heads and hidden in {count} of {LAYERS} layers" in told(mixed, of)


def test_experts() -> None:
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            scores = jax.nn.softmax(x @ params["router"])
            hidden = jax.nn.relu(jnp.einsum("bd,edh->beh", x, params["up"]))
            return jnp.mean((jnp.einsum("beh,ehd,be->bd", hidden, params["down"], scores) - y) ** 2)

        gradient = jax.grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    params = {"router": shape(32, 8), "up": shape(8, 32, 64), "down": shape(8, 64, 32)}
    of = Problem(traced(step, params, params, shape(16, 32), shape(16, 32)), MESH)
    plan = Plan.from_actions(of, [("e", "b"), *usual_plans(of)["data parallel"][:1]])
    assert {DATA, ("expert parallel", ("b",))} <= traits(plan, of)


def test_the_cache_of_a_decoding_step() -> None:
    of = Problem(analysed("itx", layers=2), {"a": 4, "b": 4})
    plan = usual("data + tensor parallel", of)
    assert ("decoding cache", ("a",)) in traits(plan, of)
    assert "decoding cache cut along batch over a" in told(plan, of)
    alone = usual("tensor parallel", of)
    assert "decoding cache whole on every device" in told(alone, of)


def test_nothing_cut() -> None:
    of = problem()
    plan = Plan.from_actions(of, [])
    assert traits(plan, of) == set()
    assert told(plan, of).startswith("Nothing is cut over a and b")
    assert all(isinstance(trait, Trait) for trait in plan_words(of, plan))


def with_ops(of: Problem, plan: ShardingPlan, axis: int, factors: dict[int, int]) -> ShardingPlan:
    """A plan in which some ops are split along other factors."""
    sharding = plan.sharding.copy()
    for op, factor in factors.items():
        sharding.op_factor[op, axis] = factor
    return make_plan(of.analysis, of.mesh, sharding)


def test_heads_cut_in_attention_alone_and_positions_elsewhere() -> None:
    """DeepSpeed's Ulysses: projections keep their positions, attention has its heads."""
    of = problem()
    plan = usual("data + sequence parallel", of)
    program, colour = plan.program, of.analysis.colour
    heads = colour_of(of, "params[1][0]['wq']", 1)
    factors = {}
    for op in program_parts(of.analysis).attention:
        for factor in program.factors(op):
            if of.analysis.group_name[of.analysis.group[colour[factor]]] == heads:
                factors[op] = factor
    assert factors
    mixed = with_ops(of, plan, 1, factors)
    assert traits(mixed, of) == {DATA, ("sequence parallel", ("b",))}
    assert "with heads cut in attention (Ulysses)" in told(mixed, of)


def test_weights_gathered_in_some_layers() -> None:
    of = problem()
    plan = usual("data parallel", of)
    program = plan.program
    dims = {
        value: 0
        for value in range(program.n_arguments)
        if program.value_name[value].startswith(("params[1][0]", "params[1][1]", "params[1][2]"))
    }
    mixed = with_axis(plan, 0, dims)
    assert traits(mixed, of) == {("data parallel", ("a", "b")), ("fully sharded", ("a",))}
    assert f"over a in 3 of {LAYERS} layers" in told(mixed, of)


def test_heads_of_keys_are_told_apart() -> None:
    """Where several heads of queries share one of keys, either can be cut."""

    def attend(wq: Any, wk: Any, wo: Any, x: Any) -> Any:
        query = jnp.einsum("bsd,dhgk->bshgk", x, wq)
        key = jnp.einsum("bsd,dhk->bshk", x, wk)
        scores = jax.nn.softmax(jnp.einsum("bqhgk,bshk->bhgqs", query, key))
        mixed = jnp.einsum("bhgqs,bshk->bqhgk", scores, key)
        return x + jnp.einsum("bqhgk,hgkd->bqd", mixed, wo)

    shapes = (shape(64, 4, 2, 8), shape(64, 4, 8), shape(4, 2, 8, 64), shape(8, 16, 64))
    of = Problem(traced(attend, *shapes), MESH)
    keys = Plan.from_actions(of, [(colour_of(of, "wk", 1), "b")])
    assert "over b: kv heads" in told(keys, of)
    queries = Plan.from_actions(of, [(colour_of(of, "wq", 2), "b")])
    assert "over b: heads" in told(queries, of)

"""Names of colours say what a dim is, in programs that nobody named."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.conflicts.test_colour_roles import (
    DECODER,
    decode_by_slice,
    experts_loss,
    key_shape,
    sgd,
    shape,
)
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.conflicts.argument_words import distinct_text, module_words
from toast_lab.conflicts.colour_roles import roles
from toast_lab.cost.problem import Problem, price
from toast_lab.frontends import from_jax, load
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.space import parse_action

#: a size or a count, a place in a matrix, or an op that only moves numbers
BAD = re.compile(r"\d+|.*_(\d+|rows|columns)|(reshape|transpose|broadcast_in_dim|convert)_dim\d+")


def transformer_loss(params: Any, tokens: Any) -> Any:
    x = params["wte"][tokens]
    mask = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))
    for layer in params["blocks"]:
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, layer[name]) for name in ("wq", "wk", "wv"))
        scores = jnp.where(mask, jnp.einsum("bshk,bthk->bhst", q, k), -1e9)
        mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v)
        x = x + jnp.einsum("bshk,hkd->bsd", mixed, layer["wo"])
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    likely = jax.nn.log_softmax(x @ params["wte"].T)
    return -jnp.mean(jnp.take_along_axis(likely, tokens[..., None], axis=-1))


def transformer(layers: int, width: int = 64, trains: bool = True) -> Analysis:
    layer = {name: shape(width, 4, 16) for name in ("wq", "wk", "wv")}
    layer |= {"wo": shape(4, 16, width), "up": shape(width, 256), "down": shape(256, width)}
    params = {"wte": shape(512, width), "blocks": [layer] * layers}
    step = sgd(transformer_loss) if trains else transformer_loss
    return analyse(from_jax(step, params, shape(8, 32, dtype="int32")))


def perceptron() -> Analysis:
    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params["layers"][:-1]:
            x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
        return jnp.mean((x @ params["layers"][-1]["kernel"] - y) ** 2)

    sizes = (24, 96, 80, 40)
    layers = [
        {"kernel": shape(*pair), "bias": shape(pair[1])} for pair in itertools.pairwise(sizes)
    ]
    return analyse(from_jax(sgd(loss), {"layers": layers}, shape(16, 24), shape(16, 40)))


def decoder() -> Analysis:
    cache = [shape(8, 128, 4, 16)] * 2
    inputs = DECODER, cache, shape(8, dtype="int32"), shape(dtype="int32")
    return analyse(from_jax(decode_by_slice, *inputs))


def experts() -> Analysis:
    params = {"router": shape(32, 8), "up": shape(8, 32, 128), "down": shape(8, 128, 32)}
    return analyse(from_jax(sgd(experts_loss), params, shape(64, 32), shape(64, 32)))


def convolutions() -> Analysis:
    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = images
        for kernel in params["kernels"]:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        likely = jax.nn.log_softmax(x.mean((1, 2)) @ params["classifier"])
        return -jnp.mean(jnp.take_along_axis(likely, labels[:, None], axis=-1))

    params = {
        "kernels": [shape(3, 3, 3, 32), shape(5, 3, 32, 64)],
        "classifier": shape(64, 10),
    }
    inputs = shape(8, 16, 24, 3), shape(8, dtype="int32")
    return analyse(from_jax(sgd(loss), params, *inputs))


def equinox_perceptron() -> Analysis:
    equinox = pytest.importorskip("equinox")
    net = equinox.filter_eval_shape(equinox.nn.MLP, 24, 40, 96, 2, key=key_shape())
    arrays, static = equinox.partition(net, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def forward(arrays: Any, x: Any) -> Any:
        return jax.vmap(equinox.combine(arrays, static))(x)

    return analyse(from_jax(forward, arrays, shape(16, 24)))


def shown(analysis: Analysis) -> dict[str, int]:
    groups = analysis.groups
    return {group.name: group.size for group in groups if group.shardable and group.n_names > 1}


PROGRAMS: dict[Callable[[], Analysis], dict[str, int]] = {
    lambda: transformer(2): {
        "batch": 8,
        "sequence": 32,
        "heads": 4,
        "head_dim": 16,
        "value_dim": 16,
        "d_model": 64,
        "hidden": 256,
        "vocab": 512,
    },
    perceptron: {
        "batch": 16,
        "features": 24,
        "layers0_hidden": 96,
        "layers1_hidden": 80,
        "outputs": 40,
    },
    decoder: {
        "batch": 8,
        "cache": 128,
        "heads": 4,
        "d_model": 64,
        "hidden": 256,
        "vocab": 512,
    },
    experts: {"batch": 64, "experts": 8, "features": 32, "hidden": 128, "router": 8},
    convolutions: {
        "batch": 8,
        "height": 16,
        "width": 24,
        "inputs0_channels": 3,
        "kernels0_channels": 32,
        "kernels1_channels": 64,
        "kernels1_kernel_height": 5,
        "kernels1_kernel_width": 3,
        "classes": 10,
    },
    equinox_perceptron: {"batch": 16, "features": 24, "layers0_hidden": 96, "outputs": 40},
}


@pytest.mark.parametrize("make", PROGRAMS)
def test_dims_have_the_words_that_people_use(make: Callable[[], Analysis]) -> None:
    analysis = make()
    names, expected = shown(analysis), PROGRAMS[make]
    assert {name: names.get(name) for name in expected} == expected


@pytest.mark.parametrize("make", PROGRAMS)
def test_laws_of_names(make: Callable[[], Analysis]) -> None:
    analysis = make()
    assert len({*analysis.colour_name}) == len(analysis.colour_name)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in analysis.colour_name)
    known = {row.group for row in roles(analysis).played}
    for group in analysis.groups:
        if group.index in known:
            assert not BAD.fullmatch(group.name), group
        if group.shardable and group.n_names > 1:
            assert not re.fullmatch(r"\d+|.*_(rows|columns)", group.name), group
    program = analysis.program
    for argument in range(program.n_arguments):
        dims = [int(analysis.colour[name]) for name in program.def_names(argument)]
        texts = {analysis.group_name[analysis.group[colour]] for colour in dims}
        assert len(texts) == len({int(analysis.group[colour]) for colour in dims})


def test_names_stay_with_depth_and_sizes_and_without_a_backward_pass() -> None:
    names = list(shown(transformer(2)))
    assert list(shown(transformer(5))) == names
    assert list(shown(transformer(2, width=96))) == names
    assert {*shown(transformer(2, trains=False))} == {*names}


def test_names_of_dims_of_arguments_count_more_than_roles() -> None:
    assert {"d_model", "hidden", "U"}.isdisjoint(shown(perceptron()))
    assert {*shown(analyse(load("mlp")))} == {"B", "X", "U", "W"}


def test_words_of_paths() -> None:
    assert module_words("0") == ("argument0",)
    assert module_words("p['h']['0']['bias']", numbered=False) == ("p", "h")
    assert distinct_text(("p", "a", "w"), [("p", "b", "w")]) == "a_w"
    assert distinct_text(("p", "w"), [("p", "w")]) == "w", "nothing tells them apart"


def test_names_of_earlier_versions_are_understood(tmp_path: Path) -> None:
    problem = Problem(perceptron(), {"a": 2, "b": 2})
    analysis = problem.analysis
    earlier = {"inputs_in": "batch", "layers_in": "features", "layers_out": "layers0_hidden"}
    for old, new in earlier.items():
        assert old not in analysis.colour_name
        assert analysis.group_index(old) == analysis.group_index(new)
    plan = Plan.from_actions(problem, ["inputs_in->a", "layers_out->b"])
    assert plan.actions == ("batch->a", "layers0_hidden->b")
    pin, mesh = parse_action(analysis, problem.mesh, "inputs_in->a"), problem.mesh
    assert pin == parse_action(analysis, mesh, "batch->a")
    assert analysis.renamed({"inputs_in": "examples"}).renames == {"batch": "examples"}
    data = plan.to_json() | {
        "actions": ["inputs_in->a", "layers_out@0->b", "by an integer program"],
        "colours": {"inputs_in": "examples"},
    }
    (tmp_path / "plan.json").write_text(json.dumps(data))
    loaded = Plan.load(tmp_path / "plan.json", problem)
    assert loaded.actions == ("examples->a", "layers0_hidden@0->b")
    assert loaded.refinements == ("by an integer program",)
    assert price(problem, loaded).time_s == price(problem, plan).time_s

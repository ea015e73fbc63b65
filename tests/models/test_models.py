"""The built-in models.

Every one loads, every impossible size is named, and the sizes mean what they say.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest

from tests.helpers import model as cached
from toast_lab.errors import FrontendError, InvalidPlan
from toast_lab.frontends import load
from toast_lab.models import registry, transformer
from toast_lab.models.model_sizes import TransformerSizes

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 4, "inputs": 3, "hidden": 5, "outputs": 2},
    "xxt": {"rows": 6, "columns": 2},
    "crossed": {"mode": "transpose", "rows": 6, "columns": 2},
    "attention": {"sequence": 6, "d_model": 4, "key": 3, "value": 2},
    "transformer": {
        "layers": 1,
        "d_model": 8,
        "hidden": 12,
        "heads": 2,
        "kv_heads": 1,
        "key_size": 4,
        "vocab": 16,
        "batch": 2,
        "sequence": 6,
    },
    "itx": {
        "layers": 1,
        "d_model": 8,
        "hidden": 12,
        "heads": 2,
        "key_size": 4,
        "vocab": 15,
        "batch": 2,
        "prompt": 5,
        "sequence": 3,
    },
    "gns": {
        "steps": 1,
        "nodes": 6,
        "edges": 8,
        "latent": 4,
        "hidden": 5,
        "hidden_layers": 1,
        "features": 3,
        "outputs": 2,
    },
    "unet": {
        "channels": 4,
        "multipliers": (1, 2),
        "blocks": 1,
        "heads": 2,
        "groups": 2,
        "batch": 2,
        "image": 4,
    },
}
SMALL["t2b"] = SMALL["transformer"]
SMALL["t7b"] = {**SMALL["transformer"], "kv_heads": 2}


def test_every_model_has_small_sizes_here() -> None:
    assert set(SMALL) == set(registry.MODELS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", registry.MODELS)
def test_default_sizes_load(name: str) -> None:
    model = cached(name)
    assert model.name == name
    assert model.program.n_ops > model.program.n_arguments > 0
    assert model.program.missing_rules == ()


@pytest.mark.parametrize("name", SMALL)
def test_small_sizes_load(name: str) -> None:
    model = load(name, **SMALL[name])
    assert max(model.program.shape) <= 16


@pytest.mark.parametrize("mode", registry.choices("transformer")["mode"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_transformer_modes(mode: str, kv_heads: int) -> None:
    sizes = {**SMALL["transformer"], "heads": 4, "kv_heads": kv_heads}
    model = load("transformer", **sizes, mode=mode)
    n_params = 3 - 1 + 9  # embed, final_norm and nine a layer
    arguments = {"forward": n_params + 1, "gradient": n_params + 2, "train": 3 * n_params + 1 + 2}[
        mode
    ]
    results = {"forward": 1, "gradient": n_params + 1, "train": 3 * n_params + 1 + 1}[mode]
    assert model.program.n_arguments == arguments
    assert len(model.program.outputs) == results
    assert bool(model.program.donated.any()) == (mode == "train")


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_parameter_count(layers: int, kv_heads: int) -> None:
    d, f, h, k, v = 16, 48, 4, 6, 100
    config = TransformerSizes(layers, d, f, h, kv_heads, k, v, 2, 8)
    count = sum(
        math.prod(leaf.shape)
        for leaf in jax.tree_util.tree_leaves(transformer.param_shapes(config))
    )
    attention = d * h * k + 2 * d * kv_heads * k + h * k * d
    # The embedding is counted once: it is tied to the output layer.
    assert count == v * d + layers * (attention + 3 * d * f + 2 * d) + d


def test_the_embedding_is_tied() -> None:
    model = load("transformer", **SMALL["transformer"], mode="forward")
    embed = model.program.value_name.index("params['embed']")
    assert sum(int(value) == embed for value in model.program.use_value) >= 2


def test_all_impossible_sizes_are_listed() -> None:
    with pytest.raises(FrontendError) as caught:
        load("transformer", layers=0, heads=6, kv_heads=4, key_size=7, batch=-1)
    with pytest.raises(FrontendError, match="itx: impossible sizes: prompt=0; key_size=7 is odd"):
        load("itx", prompt=0, key_size=7)
    text = str(caught.value)
    for part in (
        "layers=0",
        "batch=-1",
        "heads=6 is not a multiple of kv_heads=4",
        "key_size=7 is odd",
    ):
        assert part in text
    assert "d_model" not in text


def test_an_unknown_mode() -> None:
    with pytest.raises(FrontendError, match="mode must be one of decode, prefill, not 'train'"):
        load("itx", mode="train")
    with pytest.raises(
        FrontendError, match="mode must be one of forward, gradient, train, not 'training'"
    ):
        load("transformer", mode="training")


@pytest.mark.parametrize("name", registry.MODELS)
def test_every_choice_of_a_word_loads(name: str) -> None:
    choices, defaults = registry.choices(name), registry.sizes(name)
    assert set(choices) == {k for k in ("mode", "dtype") if k in defaults}
    for key, words in choices.items():
        assert defaults[key] in words
        for word in words:
            registry.make(name, **{**SMALL[name], key: word})


@pytest.mark.parametrize("name", SMALL)
def test_an_unknown_size_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(
        FrontendError, match=rf"{name} has no parameter depht; it has \w+="
    ) as caught:
        load(name, depht=3)
    for size in registry.sizes(name):
        assert f"{size}=" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("mlp", {"batch": -4}), ("mlp", {"dtype": "float33"}), ("attention", {"sequence": -1})],
)
def test_impossible_sizes_are_errors_of_ours(name: str, sizes: dict[str, Any]) -> None:
    with pytest.raises(FrontendError):
        load(name, **sizes)


@pytest.mark.parametrize("name", registry.MODELS)
def test_dim_names_fit_the_arguments(name: str) -> None:
    model = cached(name)
    assert model.dim_names
    for key, dims in model.dim_names.items():
        fitting = [
            a
            for a in range(model.program.n_arguments)
            if key in model.program.value_name[a] and len(model.program.dims(a)) == len(dims)
        ]
        # Which of them there are depends on the mode
        assert fitting or key in ("tokens", "targets"), key


# -- what the registry says of the models without importing them -----------------------------------


@pytest.mark.parametrize("name", registry.FACTS)
def test_facts_are_what_the_default_sizes_give(name: str) -> None:
    example, facts = registry.make(name), registry.FACTS[name]
    assert example.parameter_count == facts.parameter_count
    assert tuple(example.expert_plans) == facts.expert_plans


def test_expert_plans_on_axes_of_other_names() -> None:
    plan = (("batch", "data"), ("sequence", "model", 1))
    assert registry.on_axes(plan, {"data": "x", "model": "y"}) == [
        ("batch", "x"),
        ("sequence", "y", 1),
    ]
    with pytest.raises(InvalidPlan, match="needs a mesh axis for 'model' too; given: data=x"):
        registry.on_axes(plan, {"data": "x"})

"""Layers of which the backward pass computes again what was not kept."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from toast_lab.errors import InvalidProblem
from toast_lab.frontends.recomputing import POLICIES, layers_of, recomputed
from toast_lab.frontends.site_finding import sites_of
from toast_lab.ir.model import Function, Model
from toast_lab.runtime import inputs

S = jax.ShapeDtypeStruct
DEPTH, ROWS, WIDTH = 3, 64, 16


def gate(x: Any) -> Any:
    return jnp.tanh(x) * jax.nn.sigmoid(x)


def block(weights: Any, x: Any, scale: float = 1.0) -> Any:
    return x + gate(x @ weights["up"]) @ weights["down"] * scale


def training(loss: Any) -> Any:
    def step(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step


def one_after_the_other(weights: Any, x: Any) -> Any:
    for own in weights:
        x = block(own, x)
    return jnp.mean(x**2)


def with_their_own(weights: Any, x: Any) -> Any:
    checkpointed = jax.checkpoint(block)
    for own in weights:
        x = checkpointed(own, x)
    return jnp.mean(x**2)


def with_numbers(weights: Any, x: Any) -> Any:
    run = functools.partial(block, scale=0.5)
    for own in weights:
        x = run(own, x)
    return jnp.mean(x**2)


def in_a_loop(weights: Any, x: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, own: (block(own, x), None), x, weights)
    return jnp.mean(x**2)


class Blocks:
    """Layers as objects that are called."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, weights: Any, x: Any) -> Any:
        return block(weights, x, self.scale)


def of_objects(weights: Any, x: Any) -> Any:
    blocks = [Blocks(1.0) for _ in weights]
    for own, run in zip(weights, blocks, strict=True):
        x = run(own, x)
    return jnp.mean(x**2)


def model_of(loss: Any) -> Model:
    stacked = (DEPTH,) if loss is in_a_loop else ()
    shape = {
        "up": S((*stacked, WIDTH, 4 * WIDTH), "float32"),
        "down": S((*stacked, 4 * WIDTH, WIDTH), "float32"),
    }
    weights = shape if stacked else [shape] * DEPTH
    return tl.from_jax(training(loss), weights, S((ROWS, WIDTH), "float32"))


def results(model: Model) -> list[np.ndarray]:
    function = model.function
    assert isinstance(function, Function)
    arrays = [jnp.asarray(array) for array in inputs.draw(model.program, 3)]
    given = jax.tree.unflatten(jax.tree.structure(function.given), arrays)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function.call)(*given))]


LOSSES = (one_after_the_other, with_their_own, with_numbers, in_a_loop, of_objects)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_whatever_is_kept_loss_and_gradients_are_the_same(loss: Any) -> None:
    model = model_of(loss)
    (layer,) = layers_of(model)
    assert layer.name == ("Blocks.__call__" if loss is of_objects else "block")
    assert layer.in_loop == (loss is in_a_loop)
    assert layer.times == (1 if loss is in_a_loop else DEPTH)
    assert layer.is_recomputed == (loss is with_their_own)
    expected, programs = results(model), {}
    for policy in POLICIES:
        again = recomputed(model, {layer.where: policy})
        programs[policy] = again.program
        assert again.program.value_name[:3] == model.program.value_name[:3]
        assert again.program.output_paths == model.program.output_paths
        for found, wanted in zip(results(again), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    tanh = {policy: program.kind.count("tanh") for policy, program in programs.items()}
    assert tanh["inputs"] > tanh["everything"], "tanh is computed again"
    dots = {policy: program.kind.count("dot_general") for policy, program in programs.items()}
    assert dots["everything"] <= dots["products"] < dots["inputs"]
    own = {"with_their_own": "inputs"}.get(loss.__name__, "everything")
    assert programs[own].digest() == model.program.digest()


def test_parts_of_layers_and_what_is_called_once_are_no_layers() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return block(weights[0], x).sum()

    assert layers_of(model_of(loss)) == ()
    forward = tl.from_jax(one_after_the_other, *_shapes())
    assert layers_of(forward) == (), "nothing is differentiated"


def _shapes() -> tuple[Any, ...]:
    shape = {"up": S((WIDTH, WIDTH), "float32"), "down": S((WIDTH, WIDTH), "float32")}
    return [shape] * 2, S((ROWS, WIDTH), "float32")


def test_bad_choices_are_said() -> None:
    model = model_of(one_after_the_other)
    (layer,) = layers_of(model)
    with pytest.raises(InvalidProblem, match=r"no policy is called 'input'.*inputs"):
        recomputed(model, {layer.where: "input"})
    with pytest.raises(InvalidProblem, match=r"nothing of .* calls elsewhere.py:3"):
        recomputed(model, {"elsewhere.py:3": "inputs"})
    with pytest.raises(InvalidProblem, match="no function that could be traced again"):
        layers_of(tl.from_stablehlo(model.stablehlo))


def test_what_checkpoint_cannot_wrap_is_said_beside_the_plan() -> None:
    def loss(weights: Any, x: Any) -> Any:
        for own in weights:
            x = block(own, x, 0.5)
        return x.sum()

    model = model_of(loss)
    (layer,) = layers_of(model)
    (row,) = recomputed(model, {layer.where: "inputs"}).recompute
    assert "no arrays" in row.refusal
    (row,) = recomputed(model_of(one_after_the_other), {layer.where: "inputs"}).recompute
    assert not row.refusal
    assert str(row) == f"block keeps inputs (test_recomputing.py:{layer.where.split(':')[-1]})"


def test_constraints_can_stand_in_layers_that_are_recomputed() -> None:
    model = model_of(one_after_the_other)
    (layer,) = layers_of(model)
    again = recomputed(model, {layer.where: "inputs"})
    before, after = (
        {(site.line, site.name): site.values for site in sites_of(each.program, each).sites}
        for each in (model, again)
    )
    assert before.keys() == after.keys()
    gated = gate.__code__.co_firstlineno + 1, ""
    assert len(before[gated]) == DEPTH
    assert len(after[gated]) == 2 * DEPTH, "what the backward pass computes again, too"

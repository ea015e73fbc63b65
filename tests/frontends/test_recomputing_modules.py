"""Layers that are modules of a library, whose state ``jax.checkpoint`` would not know."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from tests.frontends.test_recomputing import results
from toast_lab.frontends.recomputing import layers_of, recomputed
from toast_lab.ir.model import Model

S = jax.ShapeDtypeStruct
DEPTH, ROWS, WIDTH = 3, 32, 16
X = S((ROWS, WIDTH), "float32")


def step_of(loss: Callable[..., Any]) -> Any:
    def step(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step


def linen() -> Model:
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, scale: float, *, is_last: bool) -> Any:
            hidden = jnp.tanh(nn.Dense(4 * WIDTH)(x))
            return x + scale * nn.Dense(WIDTH, use_bias=not is_last)(hidden)

    class Net(nn.Module):
        def setup(self) -> None:
            self.blocks = [Block() for _ in range(DEPTH)]

        def __call__(self, x: Any) -> Any:
            for number, block in enumerate(self.blocks):
                x = block(x, 0.5, is_last=number == DEPTH - 1)
            return jnp.mean(x**2)

    net = Net()
    weights = jax.eval_shape(net.init, jax.random.key(0), X)
    return tl.from_jax(step_of(net.apply), weights, X)


def nnx() -> Model:
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

        def run(self, x: Any) -> Any:
            return x + self.down(jnp.tanh(self.up(x)))

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.blocks = nnx.List([Block(nnx.Rngs(number)) for number in range(DEPTH)])

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block.run(x)
            return jnp.mean(x**2)

    graph, state = nnx.split(Net())

    def loss(weights: Any, x: Any) -> Any:
        return nnx.merge(graph, weights)(x)

    return tl.from_jax(step_of(loss), jax.eval_shape(lambda: state), X)


def haiku() -> Model:
    import haiku as hk

    class Block(hk.Module):
        def __call__(self, x: Any) -> Any:
            return x + hk.Linear(WIDTH)(jnp.tanh(hk.Linear(4 * WIDTH)(x)))

    def net(x: Any) -> Any:
        for _ in range(DEPTH):
            block = Block()
            x = block(x)
        return jnp.mean(x**2)

    transformed = hk.without_apply_rng(hk.transform(net))
    weights = jax.eval_shape(transformed.init, jax.random.key(0), X)
    return tl.from_jax(step_of(transformed.apply), weights, X)


def equinox() -> Model:
    import equinox as eqx

    class Block(eqx.Module):
        up: Any
        down: Any

        def __call__(self, x: Any) -> Any:
            return x + jax.vmap(self.down)(jnp.tanh(jax.vmap(self.up)(x)))

    def made() -> Any:
        key = jax.random.key(0)
        up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=key)
        return [Block(up, eqx.nn.Linear(4 * WIDTH, WIDTH, key=key)) for _ in range(DEPTH)]

    blocks = jax.eval_shape(lambda: eqx.filter(made(), eqx.is_array))

    def loss(weights: Any, x: Any) -> Any:
        for block in weights:
            x = block(x)
        return jnp.mean(x**2)

    return tl.from_jax(step_of(loss), blocks, X)


@pytest.mark.parametrize(
    ("library", "make", "advice"),
    [
        ("flax", linen, "flax.linen.remat"),
        ("flax", nnx, "flax.nnx.remat"),
        ("haiku", haiku, "haiku.remat"),
        ("equinox", equinox, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_modules_are_recomputed_with_their_state(
    library: str, make: Callable[[], Model], advice: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    model = make()
    (layer,) = layers_of(model)
    assert (layer.name.rpartition("Block.")[1:], layer.times) in (
        (("Block.", "__call__"), DEPTH),
        (("Block.", "run"), DEPTH),
    )
    again = recomputed(model, {layer.where: "inputs"})
    assert again.program.kind.count("tanh") > model.program.kind.count("tanh") == DEPTH
    assert again.recompute[0].refusal.endswith(
        f"wrap it with {advice} where it is made" if advice else ""
    )
    for found, wanted in zip(results(again), results(model), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)

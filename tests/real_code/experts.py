"""A training step of a mixture of experts that drops no token, as it is written in production.

Each token goes to its best experts. Tokens are sorted by expert, and ``jax.lax.ragged_dot``
multiplies each group with the weights of its own expert, so that no capacity has to be chosen.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

MESH = {"data": 4, "tensor": 2}


class Sizes(NamedTuple):
    """Sizes of the layer."""

    tokens: int = 64
    embed: int = 32
    hidden: int = 64
    experts: int = 4
    chosen: int = 2  #: experts for each token


SPECS = {
    "router": P(None, None),
    "gate": P(None, None, "tensor"),
    "up": P(None, None, "tensor"),
    "down": P(None, "tensor", None),
}


def parameter_shapes(sizes: Sizes) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the parameters, float32."""
    embed, hidden, experts = sizes.embed, sizes.hidden, sizes.experts
    shapes = {
        "router": (embed, experts),
        "gate": (experts, embed, hidden),
        "up": (experts, embed, hidden),
        "down": (experts, hidden, embed),
    }
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def experts_of(x: jax.Array, weights: dict[str, jax.Array], chosen: int) -> jax.Array:
    """The mixture's result for tokens [tokens, embed]."""
    count = weights["router"].shape[1]
    share, expert = jax.lax.top_k(jax.nn.softmax(x @ weights["router"]), chosen)
    order = jnp.argsort(expert.reshape(-1))
    rows = jnp.repeat(x, chosen, axis=0)[order]
    sizes = jnp.bincount(expert.reshape(-1), length=count).astype(jnp.int32)
    inner = jax.nn.silu(jax.lax.ragged_dot(rows, weights["gate"], sizes))
    inner = inner * jax.lax.ragged_dot(rows, weights["up"], sizes)
    results = jax.lax.ragged_dot(inner, weights["down"], sizes)[jnp.argsort(order)]
    return jnp.sum(results.reshape(-1, chosen, x.shape[1]) * share[..., None], axis=1)


def loss(weights: Any, x: jax.Array, targets: jax.Array, chosen: int) -> jax.Array:
    return jnp.mean((x + experts_of(x, weights, chosen) - targets) ** 2)


def train_step(
    weights: Any, x: jax.Array, targets: jax.Array, *, chosen: int
) -> tuple[Any, jax.Array]:
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(weights, x, targets, chosen)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def make(sizes: Sizes | None = None, *, mesh: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """The step, jitted as it is sharded by hand if a mesh is given, and its arguments' shapes."""
    sizes = sizes or Sizes()
    step = functools.partial(train_step, chosen=sizes.chosen)
    x = jax.ShapeDtypeStruct((sizes.tokens, sizes.embed), jnp.float32)
    if mesh is not None:
        weights = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
        data = NamedSharding(mesh, P("data", None))
        step = jax.jit(
            step,
            in_shardings=(weights, data, data),
            out_shardings=(weights, NamedSharding(mesh, P())),
            donate_argnums=0,
        )
    return step, (parameter_shapes(sizes), x, x)


def values(sizes: Sizes | None = None, seed: int = 0) -> tuple[Any, ...]:
    """Values of the arguments."""
    sizes = sizes or Sizes()
    keys = iter(jax.random.split(jax.random.key(seed), 2 + len(SPECS)))
    weights = {
        name: 0.2 * jax.random.normal(next(keys), shape.shape, shape.dtype)
        for name, shape in parameter_shapes(sizes).items()
    }
    x, targets = (
        jax.random.normal(next(keys), (sizes.tokens, sizes.embed), jnp.float32) for _ in range(2)
    )
    return weights, x, targets

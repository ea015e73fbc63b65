"""Small training steps as people shard them by hand: two clean ones, and nine with one mistake.

Every maker returns (fn, args); ``mended=True`` writes the line that mends the mistake. No device
has to be attached: the meshes are abstract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 4), ("data", "model"))
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def constrain(x: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, on(*spec))


def shapes(tree: Any, dtype: str = "float32") -> Any:
    return jax.tree.map(
        lambda dims: jax.ShapeDtypeStruct(dims, dtype), tree, is_leaf=lambda x: isinstance(x, tuple)
    )


def shardings(tree: Any) -> Any:
    return jax.tree.map(lambda spec: on(*spec), tree, is_leaf=lambda x: isinstance(x, tuple))


# -- parts -----------------------------------------------------------------------------------------
def normed(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def heads_of(x: Any, heads: int) -> Any:
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads)


def attention(layer: Any, x: Any, heads: int) -> Any:
    queries = heads_of(x @ layer["query"], heads)
    keys = heads_of(x @ layer["key"], heads)
    values = heads_of(x @ layer["value"], heads)
    weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", queries, keys), axis=-1)
    mixed = jnp.einsum("bhst,bthd->bshd", weights, values)
    return mixed.reshape(x.shape) @ layer["mix"]


def momentum(params: Any, moments: Any, grads: Any) -> Any:
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    params = jax.tree.map(lambda p, m: p - 1e-3 * m, params, moments)
    return params, moments


def trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, moments: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        params, moments = momentum(params, moments, grads)
        return params, moments, value

    return step


def jitted(
    loss: Callable[..., Any],
    param_shapes: Any,
    specs: Any,
    batch: Any,
    batch_spec: Any,
    moment_specs: Any = None,
) -> Made:
    params, moments = shardings(specs), shardings(specs if moment_specs is None else moment_specs)
    step = jax.jit(
        trained(loss),
        in_shardings=(params, moments, shardings(batch_spec)),
        out_shardings=(params, moments, on()),
        donate_argnums=(0, 1),
    )
    return step, (shapes(param_shapes), shapes(param_shapes), batch)


# -- clean -----------------------------------------------------------------------------------------
def clean_data_parallel(mended: bool = False) -> Made:
    """A perceptron whose batch is cut over all devices."""

    def loss(params: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ params["first"])
        return jnp.mean((hidden @ params["second"] - x) ** 2)

    weights = {"first": (1024, 4096), "second": (4096, 1024)}
    x = jax.ShapeDtypeStruct((262144, 1024), "float32")
    return jitted(loss, weights, {"first": (), "second": ()}, x, (("data", "model"), None))


WIDTH, HIDDEN, HEADS = 4096, 16384, 32


def clean_fully_sharded(mended: bool = False) -> Made:
    """A decoder layer with batch and weights cut over all devices."""

    def loss(params: Any, x: Any) -> Any:
        x = constrain(x + attention(params, normed(x), HEADS), ("data", "model"), None, None)
        x = constrain(
            x + jax.nn.gelu(normed(x) @ params["up"]) @ params["down"],
            *(("data", "model"), None, None),
        )
        return jnp.mean(x * x)

    weights = {
        **dict.fromkeys(("query", "key", "value", "mix"), (WIDTH, WIDTH)),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    specs = {name: (("data", "model"), None) for name in weights}
    x = jax.ShapeDtypeStruct((64, 1024, WIDTH), "float32")
    return jitted(loss, weights, specs, x, (("data", "model"), None, None))


# -- one mistake each ------------------------------------------------------------------------------
def rematerialised(mended: bool = False) -> Made:
    """Patches come cut over features; behind the class token they are cut over the batch."""

    def loss(params: Any, patches: Any) -> Any:
        x = jnp.tanh(patches @ params["stem"])
        token = jnp.broadcast_to(params["token"], (x.shape[0], 1, x.shape[2]))
        if mended:
            x = constrain(x, "data", None, "model")
        x = constrain(jnp.concatenate([token, x], axis=1), "data", None, "model")
        x = x + jax.nn.gelu(normed(x) @ params["up"]) @ params["down"]
        return jnp.mean(x * x)

    weights = {"stem": (768, 2048), "token": (1, 1, 2048), "up": (2048, 8192), "down": (8192, 2048)}
    specs = {
        "stem": (None, ("data", "model")),
        "token": (),
        "up": (None, "model"),
        "down": ("model", None),
    }
    patches = jax.ShapeDtypeStruct((256, 255, 768), "float32")
    return jitted(loss, weights, specs, patches, ())


def replicated_optimizer(mended: bool = False) -> Made:
    """Weights cut over both axes (FSDP), moments whole on every device."""

    def loss(params: Any, x: Any) -> Any:
        for layer in params["layers"]:
            x = constrain(x + jax.nn.gelu(x @ layer["up"]) @ layer["down"], ("data", "model"), None)
        return jnp.mean(x * x)

    layer = {"up": (4096, 16384), "down": (16384, 4096)}
    cut = {"up": (("data", "model"), None), "down": (None, ("data", "model"))}
    whole = {"layers": [dict.fromkeys(layer, ())] * 2}
    x = jax.ShapeDtypeStruct((65536, 4096), "float32")
    return jitted(
        loss,
        {"layers": [layer] * 2},
        {"layers": [cut] * 2},
        x,
        (("data", "model"), None),
        None if mended else whole,
    )


def uneven_heads(mended: bool = False) -> Made:
    """Six heads on an axis of four."""
    heads = 6

    def loss(params: Any, x: Any) -> Any:
        def split(y: Any) -> Any:
            spec = (
                (("data", "model"), None, None, None) if mended else ("data", None, "model", None)
            )
            return constrain(heads_of(y, heads), *spec)

        queries, keys = split(x @ params["query"]), split(x @ params["key"])
        values = split(x @ params["value"])
        weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", queries, keys), axis=-1)
        mixed = jnp.einsum("bhst,bthd->bshd", weights, values)
        return jnp.mean((mixed.reshape(x.shape) @ params["mix"]) ** 2)

    weights = dict.fromkeys(("query", "key", "value", "mix"), (1536, 1536))
    specs = {**dict.fromkeys(("query", "key", "value"), (None, "model")), "mix": ("model", None)}
    x = jax.ShapeDtypeStruct((64, 2048, 1536), "float32")
    return jitted(loss, weights, specs, x, ("data", None, None))


def wrong_contraction(mended: bool = False) -> Made:
    """The second product sums over a dim that is whole: its weight is cut along the other one."""

    def loss(params: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ params["up"])
        return jnp.mean((hidden @ params["down"] - x) ** 2)

    specs = {"up": (None, "model"), "down": ("model", None) if mended else (None, "model")}
    weights = {"up": (2048, 32768), "down": (32768, 2048)}
    x = jax.ShapeDtypeStruct((32768, 2048), "float32")
    return jitted(loss, weights, specs, x, ("data", None))


def gather_in_scan(mended: bool = False) -> Made:
    """A table that every round reads whole is cut, so that every round gathers it."""

    def fn(table: Any, x: Any, inputs: Any) -> Any:
        if mended:
            table = constrain(table, None, None)

        def cell(state: Any, entry: Any) -> Any:
            state = jnp.tanh(constrain(state @ table + entry, ("data", "model"), None))
            return state, jnp.sum(state, axis=-1)

        return jax.lax.scan(cell, x, inputs)

    rows = ("data", "model")
    specs = on(None, rows), on(rows, None), on(None, rows, None)
    args = (
        jax.ShapeDtypeStruct((4096, 4096), "float32"),
        jax.ShapeDtypeStruct((1024, 4096), "float32"),
        jax.ShapeDtypeStruct((64, 1024, 4096), "float32"),
    )
    return jax.jit(fn, in_shardings=specs), args


def lost_in_reshape(mended: bool = False) -> Made:
    """Tokens are flattened with the length first, and the batch's sharding is lost."""

    def loss(params: Any, x: Any) -> Any:
        batch, length, width = x.shape
        tokens = x.swapaxes(0, 1).reshape(length * batch, width)
        if mended:
            tokens = constrain(tokens, "data", None)
        hidden = jax.nn.relu(tokens @ params["up"])
        return jnp.mean((hidden @ params["down"]) ** 2)

    weights = {"up": (2048, 8192), "down": (8192, 2048)}
    specs = {"up": (None, "model"), "down": ("model", None)}
    x = jax.ShapeDtypeStruct((64, 1023, 2048), "float32")
    return jitted(loss, weights, specs, x, ("data", None, None))


# -- mistakes on which nothing was tuned -----------------------------------------------------------
def gathered_logits(mended: bool = False) -> Made:
    """The vocabulary is cut, and a constraint on the logits makes it whole."""

    def loss(params: Any, x: Any) -> Any:
        x = constrain(jnp.tanh(x @ params["mix"]), "data", None, None)
        logits = x @ params["out"]
        logits = constrain(logits, "data", None, "model" if mended else None)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1))

    weights = {"mix": (2048, 2048), "out": (2048, 65536)}
    specs = {"mix": (None, None), "out": (None, "model")}
    x = jax.ShapeDtypeStruct((64, 256, 2048), "float32")
    return jitted(loss, weights, specs, x, ("data", None, None))


def forgotten_batch(mended: bool = False) -> Made:
    """The inputs are whole on every device, and so is everything computed from them."""

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"]) ** 2)

    weights = {"up": (4096, 16384), "down": (16384, 4096)}
    specs = {"up": (None, "model"), "down": ("model", None)}
    x = jax.ShapeDtypeStruct((32768, 4096), "float32")
    return jitted(loss, weights, specs, x, ("data", None) if mended else (None, None))


def turned_weight(mended: bool = False) -> Made:
    """One of the weights of attention is cut along its rows, the others along their columns."""
    heads = 32

    def loss(params: Any, x: Any) -> Any:
        x = constrain(x + attention(params, x, heads), "data", None, None)
        return jnp.mean(x * x)

    weights = dict.fromkeys(("query", "key", "value", "mix"), (4096, 4096))
    specs = {
        "query": (None, "model"),
        "key": (None, "model") if mended else ("model", None),
        "value": (None, "model"),
        "mix": ("model", None),
    }
    x = jax.ShapeDtypeStruct((64, 1024, 4096), "float32")
    return jitted(loss, weights, specs, x, ("data", None, None))

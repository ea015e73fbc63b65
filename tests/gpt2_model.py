"""GPT-2 as its paper has it, in plain JAX: a vocabulary of 50257 and, for XL, 25 heads.

The sizes are those that no power of two divides. Projections of queries, keys and values are one
matrix, as in the published weights; the table of the vocabulary is that of the last product, too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

S = jax.ShapeDtypeStruct
VOCABULARY, HEADS, KEY = 50257, 25, 64


def norm(x: Any, weights: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weights["g"] + weights["b"]


def attention(x: Any, weights: Any, heads: int) -> Any:
    batch, positions, width = x.shape
    fused = x @ weights["qkv"] + weights["qkv_bias"]
    query, key, value = (
        part.reshape(batch, positions, heads, -1) for part in jnp.split(fused, 3, axis=-1)
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    is_before = jnp.tril(jnp.ones((positions, positions), bool))
    shares = jax.nn.softmax(jnp.where(is_before, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(batch, positions, width)
    return mixed @ weights["out"] + weights["out_bias"]


def block(x: Any, weights: Any, heads: int) -> Any:
    x = x + attention(norm(x, weights["norm1"]), weights, heads)
    hidden = jax.nn.gelu(norm(x, weights["norm2"]) @ weights["up"] + weights["up_bias"])
    return x + hidden @ weights["down"] + weights["down_bias"]


def logits_of(weights: Any, tokens: Any, heads: int) -> Any:
    x = weights["wte"][tokens] + weights["wpe"][: tokens.shape[1]]
    for own in weights["layers"]:
        x = block(x, own, heads)
    return norm(x, weights["norm"]) @ weights["wte"].T


def loss_of(weights: Any, tokens: Any, heads: int) -> Any:
    logits = logits_of(weights, tokens[:, :-1], heads).astype("float32")
    likelihoods = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(likelihoods, tokens[:, 1:, None], axis=-1).mean()


def shapes(
    layers: int, heads: int, key: int, vocabulary: int, positions: int, dtype: str
) -> dict[str, Any]:
    width = heads * key

    def own(*shape: int) -> Any:
        return S(shape, dtype)

    pair = {"g": own(width), "b": own(width)}
    layer = {
        "norm1": pair,
        "norm2": pair,
        "qkv": own(width, 3 * width),
        "qkv_bias": own(3 * width),
        "out": own(width, width),
        "out_bias": own(width),
        "up": own(width, 4 * width),
        "up_bias": own(4 * width),
        "down": own(4 * width, width),
        "down_bias": own(width),
    }
    return {
        "wte": own(vocabulary, width),
        "wpe": own(positions, width),
        "norm": pair,
        "layers": [layer] * layers,
    }


def training(
    layers: int = 2,
    batch: int = 8,
    positions: int = 1024,
    heads: int = HEADS,
    key: int = KEY,
    vocabulary: int = VOCABULARY,
    dtype: str = "bfloat16",
) -> tuple[Any, ...]:
    """A step of stochastic gradient descent with momentum, whose sequences have ``positions``."""

    def train_step(weights: Any, momentum: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, tokens, heads)
        momentum = jax.tree.map(lambda m, g: (0.9 * m + g).astype(m.dtype), momentum, gradients)
        weights = jax.tree.map(lambda w, m: (w - 0.01 * m).astype(w.dtype), weights, momentum)
        return weights, momentum, loss

    own = shapes(layers, heads, key, vocabulary, positions, dtype)
    tokens = S((batch, positions + 1), "int32")
    return train_step, (own, own, tokens), {"donate_argnums": (0, 1)}


def decoding(
    layers: int = 2,
    batch: int = 8,
    positions: int = 1024,
    heads: int = HEADS,
    key: int = KEY,
    vocabulary: int = VOCABULARY,
    dtype: str = "bfloat16",
) -> tuple[Any, ...]:
    """The next token of each sequence, with what attention keeps of the earlier ones."""

    def decode(weights: Any, cache: Any, token: Any, position: Any) -> Any:
        x = weights["wte"][token] + weights["wpe"][position]
        kept = []
        is_before = jnp.arange(positions) <= position
        for own, (keys, values) in zip(weights["layers"], cache, strict=True):
            fused = norm(x, own["norm1"]) @ own["qkv"] + own["qkv_bias"]
            query, now, value = (
                part.reshape(batch, heads, key) for part in jnp.split(fused, 3, -1)
            )
            keys = jax.lax.dynamic_update_slice_in_dim(keys, now[:, None], position, axis=1)
            values = jax.lax.dynamic_update_slice_in_dim(values, value[:, None], position, axis=1)
            scores = jnp.einsum("bhd,bkhd->bhk", query, keys) / key**0.5
            shares = jax.nn.softmax(jnp.where(is_before, scores, -1e9), axis=-1)
            mixed = jnp.einsum("bhk,bkhd->bhd", shares, values).reshape(batch, heads * key)
            x = x + mixed @ own["out"] + own["out_bias"]
            hidden = jax.nn.gelu(norm(x, own["norm2"]) @ own["up"] + own["up_bias"])
            x = x + hidden @ own["down"] + own["down_bias"]
            kept.append((keys, values))
        logits = norm(x, weights["norm"]) @ weights["wte"].T
        return jnp.argmax(logits, axis=-1), kept

    own = shapes(layers, heads, key, vocabulary, positions, dtype)
    cache = [(S((batch, positions, heads, key), dtype),) * 2] * layers
    arguments = (own, cache, S((batch,), "int32"), S((), "int32"))
    return decode, arguments, {"donate_argnums": (1,)}

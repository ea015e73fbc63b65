"""Programs written on 2026-11-27, after all rules and to judge them: nothing is read off these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evaluation.corpus.own_programs import BF16, F32, Tree
from evaluation.corpus.program import Program, shapes
from toast_lab import frontends
from toast_lab.ir.model import Model

Arguments = tuple[Any, ...]
Built = tuple[Callable[..., Any], Arguments]
S, I32 = jax.ShapeDtypeStruct, jnp.int32


def adam_step(loss: Callable[..., jax.Array], decay: float = 0.1) -> Callable[..., Any]:
    """A step of Adam with weights in float32, which gives the loss too."""

    def step(p: Tree, m: Tree, v: Tree, *batch: Any) -> tuple[Tree, Tree, Tree, jax.Array]:
        value, g = jax.value_and_grad(loss)(p, *batch)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(F32), m, g)
        v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * jnp.square(g.astype(F32)), v, g)
        p = jax.tree.map(lambda p, m, v: p - 3e-4 * (m / (jnp.sqrt(v) + 1e-8) + decay * p), p, m, v)
        return p, m, v, value

    return step


def _root_mean_square(x: jax.Array, gain: Any) -> jax.Array:
    square = (x.astype(F32) ** 2).mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt(square + 1e-6).astype(x.dtype)) * gain


def _rotated(x: jax.Array) -> jax.Array:
    length, half = x.shape[1], x.shape[-1] // 2
    angle = jnp.arange(length)[:, None] * (1e4 ** (-jnp.arange(half) / half))[None]
    cosine = jnp.cos(angle)[None, :, None].astype(x.dtype)
    sine = jnp.sin(angle)[None, :, None].astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of groups of heads that share keys and values."""
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(batch, length, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(F32) / size**0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, -1).astype(q.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(batch, length, heads, size)


def label_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    size = jax.nn.logsumexp(logits, -1)
    return (size - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]).mean()


def _decoder_layers(layers: int, d: int, heads: int, kv_heads: int, size: int, hidden: int) -> Tree:
    """Shapes of the weights of a decoder's layers, stacked."""
    return {
        "ln1": (layers, d),
        "ln2": (layers, d),
        "q": (layers, d, heads, size),
        "k": (layers, d, kv_heads, size),
        "v": (layers, d, kv_heads, size),
        "o": (layers, heads, size, d),
        "gate": (layers, d, hidden),
        "up": (layers, d, hidden),
        "down": (layers, hidden, d),
    }


def scanned_llama() -> Built:
    """An Adam step of four layers in a scan, recomputed backward, with grouped heads."""
    batch, length, d, vocab = 16, 1024, 2048, 32000
    layers = _decoder_layers(4, d, 16, 4, 128, 5632)
    p = {
        "embed": S((vocab, d), F32),
        "layers": shapes(layers, F32),
        "final": S((d,), F32),
        "head": S((d, vocab), F32),
    }

    @jax.checkpoint
    def block(x: jax.Array, w: Tree) -> tuple[jax.Array, None]:
        w = jax.tree.map(lambda a: a.astype(BF16), w)
        h = _root_mean_square(x, w["ln1"])
        q = _rotated(jnp.einsum("btd,dhk->bthk", h, w["q"]))
        k = _rotated(jnp.einsum("btd,dhk->bthk", h, w["k"]))
        v = jnp.einsum("btd,dhk->bthk", h, w["v"])
        x = x + jnp.einsum("bthk,hkd->btd", _attend(q, k, v), w["o"])
        h = _root_mean_square(x, w["ln2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], None

    def loss(p: Tree, ids: jax.Array, labels: jax.Array) -> jax.Array:
        x = p["embed"].astype(BF16)[ids]
        x, _ = jax.lax.scan(block, x, p["layers"])
        normal = _root_mean_square(x, p["final"].astype(BF16))
        return label_loss((normal @ p["head"].astype(BF16)).astype(F32), labels)

    tokens = S((batch, length), I32)
    return adam_step(loss), (p, p, p, tokens, tokens)


def mixture_of_two() -> Built:
    """An Adam step of a mixture that sends each token to two experts by a scatter, with room."""
    d, hidden, experts, tokens, room = 1024, 4096, 8, 8192, 2560
    p = shapes(
        {
            "router": (d, experts),
            "wi": (experts, d, hidden),
            "wg": (experts, d, hidden),
            "wo": (experts, hidden, d),
        },
        F32,
    )

    def loss(p: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        chances = jax.nn.softmax(x.astype(F32) @ p["router"], -1)
        weight, expert = jax.lax.top_k(chances, 2)
        flat = expert.reshape(-1)
        chosen = jax.nn.one_hot(flat, experts, dtype=I32)
        place = (jnp.cumsum(chosen, 0) * chosen).sum(-1) - 1
        fits = place < room
        slot = jnp.where(fits, flat * room + place, experts * room)
        token = jnp.arange(2 * tokens) // 2
        sent = jnp.zeros((experts * room + 1, d), BF16).at[slot].set(x[token])[:-1]
        sent = sent.reshape(experts, room, d)
        gate = jax.nn.silu(jnp.einsum("ecd,edf->ecf", sent, p["wg"].astype(BF16)))
        inner = gate * jnp.einsum("ecd,edf->ecf", sent, p["wi"].astype(BF16))
        out = jnp.einsum("ecf,efd->ecd", inner, p["wo"].astype(BF16)).reshape(experts * room, d)
        out = jnp.concatenate([out, jnp.zeros((1, d), BF16)])[slot]
        out = out * weight.reshape(-1, 1).astype(BF16)
        result = x + out.reshape(tokens, 2, d).sum(1)
        return jnp.square((result - y).astype(F32)).mean()

    return adam_step(loss), (p, p, p, S((tokens, d), BF16), S((tokens, d), BF16))


def cached_decode() -> Built:
    """A token for each of 64 sequences, with caches of 4,096 that a scan over layers updates."""
    batch, length, d, vocab, layers = 64, 4096, 4096, 32000, 4
    heads, kv_heads, size = 32, 8, 128
    p = {
        "embed": S((vocab, d), BF16),
        "layers": shapes(_decoder_layers(layers, d, heads, kv_heads, size, 14336), BF16),
        "final": S((d,), BF16),
        "head": S((d, vocab), BF16),
    }
    kept = S((layers, batch, length, kv_heads, size), BF16)

    def step(p: Tree, cache: Tree, ids: jax.Array, position: jax.Array) -> tuple[jax.Array, Tree]:
        def layer(x: jax.Array, given: Tree) -> tuple[jax.Array, Tree]:
            w, keys, values = given
            h = _root_mean_square(x, w["ln1"])
            q = jnp.einsum("bd,dhk->bhk", h, w["q"])
            k = jnp.einsum("bd,dhk->bhk", h, w["k"])
            v = jnp.einsum("bd,dhk->bhk", h, w["v"])
            keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, position, 0, 0))
            values = jax.lax.dynamic_update_slice(values, v[:, None], (0, position, 0, 0))
            grouped = q.reshape(batch, kv_heads, heads // kv_heads, size)
            scores = jnp.einsum("bkgd,btkd->bkgt", grouped, keys).astype(F32) / size**0.5
            scores = jnp.where(jnp.arange(length) <= position, scores, -1e30)
            weights = jax.nn.softmax(scores, -1).astype(BF16)
            out = jnp.einsum("bkgt,btkd->bkgd", weights, values).reshape(batch, heads, size)
            x = x + jnp.einsum("bhk,hkd->bd", out, w["o"])
            h = _root_mean_square(x, w["ln2"])
            return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], (keys, values)

        x, (keys, values) = jax.lax.scan(
            layer, p["embed"][ids], (p["layers"], cache["k"], cache["v"])
        )
        logits = (_root_mean_square(x, p["final"]) @ p["head"]).astype(F32)
        return jnp.argmax(logits, -1).astype(I32), {"k": keys, "v": values}

    return step, (p, {"k": kept, "v": kept}, S((batch,), I32), S((), I32))


def low_rank_adapters() -> Built:
    """An Adam step of adapters of rank 16 beside the frozen weights of a layer."""
    batch, length, d, heads, hidden, rank, vocab = 32, 512, 2048, 16, 8192, 16, 32000
    base = shapes(
        {
            "q": (d, d),
            "k": (d, d),
            "v": (d, d),
            "o": (d, d),
            "up": (d, hidden),
            "down": (hidden, d),
            "head": (d, vocab),
            "embed": (vocab, d),
        },
        BF16,
    )
    sizes = {"q": (d, d), "v": (d, d), "up": (d, hidden), "down": (hidden, d)}
    adapters = {
        name: {"a": S((read, rank), F32), "b": S((rank, made), F32)}
        for name, (read, made) in sizes.items()
    }

    def loss(adapters: Tree, base: Tree, ids: jax.Array, labels: jax.Array) -> jax.Array:
        def linear(x: jax.Array, name: str) -> jax.Array:
            y = x @ base[name]
            if name in adapters:
                narrow = x @ adapters[name]["a"].astype(BF16)
                y = y + narrow @ adapters[name]["b"].astype(BF16) * 2
            return y

        def split(x: jax.Array) -> jax.Array:
            return x.reshape(batch, length, heads, d // heads)

        x = base["embed"][ids]
        h = _root_mean_square(x, 1.0)
        q, k = _rotated(split(linear(h, "q"))), _rotated(split(linear(h, "k")))
        seen = _attend(q, k, split(linear(h, "v"))).reshape(batch, length, d)
        x = x + linear(seen, "o")
        x = x + linear(jax.nn.gelu(linear(_root_mean_square(x, 1.0), "up")), "down")
        return label_loss((x @ base["head"]).astype(F32), labels)

    def step(adapters: Tree, m: Tree, v: Tree, *rest: Any) -> tuple[Tree, Tree, Tree, jax.Array]:
        value, g = jax.value_and_grad(loss)(adapters, *rest)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        moved = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), adapters, m, v)
        return moved, m, v, value

    tokens = S((batch, length), I32)
    return step, (adapters, adapters, adapters, base, tokens, tokens)


def programs(*written: tuple[Callable[[], Built], str]) -> tuple[Program, ...]:
    """Entries of functions that give what is traced, each with its family."""

    def make(build: Callable[[], Built]) -> Model:
        function, arguments = build()
        return frontends.from_jax(function, *arguments, name=build.__name__)

    return tuple(
        Program(build.__name__, family, functools.partial(make, build)) for build, family in written
    )


PROGRAMS = programs(
    (scanned_llama, "attention training"),
    (mixture_of_two, "mixture of experts"),
    (cached_decode, "attention decoding"),
    (low_rank_adapters, "attention training"),
)

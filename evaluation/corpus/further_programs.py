"""Programs of further families, written on 2026-11-28 after all rules and to judge them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evaluation.corpus.later_programs import Built, adam_step, label_loss, programs
from evaluation.corpus.own_programs import BF16, F32, Tree
from evaluation.corpus.program import shapes

S, I32 = jax.ShapeDtypeStruct, jnp.int32


def _normal(x: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def triangle_update() -> Built:
    """An Adam step on pairs of residues: two triangle products, attention along rows, a transition.

    Every dim of pairs is a batch dim of one op and contracted or attended over by the next.
    """
    residues, d, heads, size, hidden = 256, 128, 4, 32, 512
    p = shapes(
        {
            "left": (2, d, d),
            "right": (2, d, d),
            "gates": (2, d, d),
            "out": (2, d, d),
            "q": (d, heads, size),
            "k": (d, heads, size),
            "v": (d, heads, size),
            "bias": (d, heads),
            "o": (heads, size, d),
            "up": (d, hidden),
            "down": (hidden, d),
            "bins": (d, 64),
        },
        F32,
    )

    def loss(p: Tree, pairs: jax.Array, bins: jax.Array) -> jax.Array:
        w = jax.tree.map(lambda a: a.astype(BF16), p)
        z = pairs
        for turn, edges in enumerate(("nikc,njkc->nijc", "nkic,nkjc->nijc")):
            h = _normal(z)
            left = jax.nn.sigmoid(h @ w["gates"][turn]) * (h @ w["left"][turn])
            z = z + _normal(jnp.einsum(edges, left, h @ w["right"][turn])) @ w["out"][turn]
        h = _normal(z)
        q = jnp.einsum("nijc,chs->nijhs", h, w["q"]) * size**-0.5
        k = jnp.einsum("nijc,chs->nijhs", h, w["k"])
        scores = jnp.einsum("nijhs,nikhs->nihjk", q, k).astype(F32)
        scores = scores + jnp.einsum("njkc,ch->nhjk", h, w["bias"])[:, None].astype(F32)
        v = jnp.einsum("nijc,chs->nijhs", h, w["v"])
        seen = jnp.einsum("nihjk,nikhs->nijhs", jax.nn.softmax(scores, -1).astype(BF16), v)
        z = z + jnp.einsum("nijhs,hsc->nijc", seen, w["o"])
        z = z + jax.nn.relu(_normal(z) @ w["up"]) @ w["down"]
        return label_loss((_normal(z) @ w["bins"]).astype(F32), bins)

    pairs = (2, residues, residues)
    return adam_step(loss, 0.0), (p, p, p, S((*pairs, d), BF16), S(pairs, I32))


def radiance_field() -> Built:
    """An Adam step of a radiance field: points along rays, a network of each, light along a ray."""
    rays, points, frequencies, width, layers = 8192, 64, 10, 256, 8
    coded = 3 * 2 * frequencies
    p = {
        "first": S((coded, width), F32),
        "deep": [S((width, width), F32) for _ in range(layers - 2)],
        "again": S((width + coded, width), F32),
        "density": S((width,), F32),
        "colour": S((width, 3), F32),
    }

    def loss(p: Tree, origin: jax.Array, direction: jax.Array, seen: jax.Array) -> jax.Array:
        far = jnp.linspace(2.0, 6.0, points)
        place = origin[:, None] + far[None, :, None] * direction[:, None]
        angle = place[..., None] * (2.0 ** jnp.arange(frequencies))
        code = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).reshape(rays, points, coded)
        h = jax.nn.relu(code @ p["first"])
        for number, w in enumerate(p["deep"]):
            if number == layers // 2:
                h = jax.nn.relu(jnp.concatenate([h, code], -1) @ p["again"])
            h = jax.nn.relu(h @ w)
        thick = jax.nn.softplus(h @ p["density"]) * (4.0 / points)
        passed = jnp.exp(-jnp.cumsum(thick, 1) + thick)
        light = (passed * (1 - jnp.exp(-thick)))[..., None] * jax.nn.sigmoid(h @ p["colour"])
        return ((light.sum(1) - seen) ** 2).mean()

    ray = S((rays, 3), F32)
    return adam_step(loss, 0.0), (p, p, p, ray, ray, ray)


def blockwise_attention() -> Built:
    """A step of one layer over long sequences, whose attention goes block by block in a scan."""
    batch, length, d, heads, block = 4, 8192, 1024, 8, 512
    size = d // heads
    p = shapes({"qkv": (3, d, heads, size), "o": (heads, size, d), "up": (d, 4 * d)}, F32)
    p["down"] = S((4 * d, d), F32)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def blocks(x: jax.Array) -> jax.Array:
            return x.reshape(batch, length // block, block, heads, size).swapaxes(0, 1)

        @jax.checkpoint
        def one(state: Any, given: Any) -> tuple[Any, None]:
            highest, total, summed = state
            keys, values = given
            scores = jnp.einsum("bthk,bshk->bhts", q, keys).astype(F32) * size**-0.5
            higher = jnp.maximum(highest, scores.max(-1))
            weights = jnp.exp(scores - higher[..., None])
            fading = jnp.exp(highest - higher)
            part = jnp.einsum("bhts,bshk->bhtk", weights.astype(BF16), values).astype(F32)
            total = total * fading + weights.sum(-1)
            return (higher, total, summed * fading[..., None] + part), None

        start = jnp.full((batch, heads, length), -1e30, F32)
        zeros = jnp.zeros((batch, heads, length, size), F32)
        (_, total, summed), _ = jax.lax.scan(
            one, (start, jnp.zeros_like(start), zeros), (blocks(k), blocks(v))
        )
        return (summed / total[..., None]).astype(BF16)

    def loss(p: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        w = jax.tree.map(lambda a: a.astype(BF16), p)
        q, k, v = jnp.einsum("btd,ndhk->nbthk", _normal(x), w["qkv"])
        x = x + jnp.einsum("bhtk,hkd->btd", attend(q, k, v), w["o"])
        x = x + jax.nn.gelu(_normal(x) @ w["up"]) @ w["down"]
        return ((x - y).astype(F32) ** 2).mean()

    tokens = S((batch, length, d), BF16)
    return adam_step(loss), (p, p, p, tokens, tokens)


def k_means() -> Built:
    """Ten rounds of Lloyd's algorithm: distances, the nearest centre, means of what is near."""
    points, d, centres = 262_144, 128, 1024

    def rounds(x: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(_: int, c: jax.Array) -> jax.Array:
            distance = (c**2).sum(-1)[None] - 2 * x @ c.T
            near = jax.nn.one_hot(distance.argmin(-1), centres, dtype=F32)
            return (near.T @ x) / jnp.maximum(near.sum(0), 1.0)[:, None]

        c = jax.lax.fori_loop(0, 10, one, start)
        return c, ((c**2).sum(-1)[None] - 2 * x @ c.T).min(-1).sum()

    return rounds, (S((points, d), F32), S((centres, d), F32))


def latent_reader() -> Built:
    """An Adam step of a few latents that read a long input and think in layers of their own."""
    batch, length, read, latents, d, heads, layers = 16, 8192, 256, 512, 1024, 8, 3
    size = d // heads
    p = shapes(
        {
            "latents": (latents, d),
            "read_q": (d, heads, size),
            "read_kv": (2, read, heads, size),
            "read_o": (heads, size, d),
            "qkv": (layers, 3, d, heads, size),
            "o": (layers, heads, size, d),
            "up": (layers, d, 4 * d),
            "down": (layers, 4 * d, d),
            "classes": (d, 1000),
        },
        F32,
    )

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(F32) * size**-0.5
        return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, -1).astype(BF16), v)

    def loss(p: Tree, x: jax.Array, label: jax.Array) -> jax.Array:
        w = jax.tree.map(lambda a: a.astype(BF16), p)
        z = jnp.broadcast_to(w["latents"], (batch, latents, d))
        k, v = jnp.einsum("btd,ndhk->nbthk", _normal(x), w["read_kv"])
        q = jnp.einsum("btd,dhk->bthk", _normal(z), w["read_q"])
        z = z + jnp.einsum("bthk,hkd->btd", attend(q, k, v), w["read_o"])
        for layer in range(layers):
            q, k, v = jnp.einsum("btd,ndhk->nbthk", _normal(z), w["qkv"][layer])
            z = z + jnp.einsum("bthk,hkd->btd", attend(q, k, v), w["o"][layer])
            z = z + jax.nn.gelu(_normal(z) @ w["up"][layer]) @ w["down"][layer]
        return label_loss((_normal(z).mean(1) @ w["classes"]).astype(F32), label)

    return adam_step(loss), (p, p, p, S((batch, length, read), BF16), S((batch,), I32))


PROGRAMS = programs(
    (triangle_update, "proteins"),
    (radiance_field, "rendering"),
    (blockwise_attention, "attention training"),
    (k_means, "clustering"),
    (latent_reader, "vision and speech"),
)

"""Programs of the corpus that this project wrote: the built-in models, and kinds they lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evaluation.corpus.program import Program, shapes
from toast_lab import frontends
from toast_lab.ir.model import Model

F32, BF16 = jnp.float32, jnp.bfloat16
Tree = Any


def gradient_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of plain gradient descent on the first argument."""

    def step(parameters: Tree, *batch: Any) -> tuple[Tree, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, parameters, gradients), value

    return step


def trained(loss: Callable[..., Any], parameters: Tree, *batch: Any) -> Model:
    """A gradient step with its parameters donated."""
    return frontends.from_jax(gradient_step(loss), parameters, *batch, donate_argnums=0)


def _normalised(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of whole-number labels, in float32."""
    shifted = jax.nn.log_softmax(logits.astype(F32))
    return -jnp.take_along_axis(shifted, labels[..., None], -1).mean()


# -- the built-in models --------------------------------------------------------------------------
def transformer() -> Model:
    """Gradient of a Transformer layer of a vocabulary of 16,384."""
    return frontends.load(
        "transformer",
        layers=1,
        d_model=2048,
        hidden=8192,
        heads=8,
        key_size=256,
        vocab=16384,
        batch=64,
        sequence=1024,
        mode="gradient",
    )


def transformer_adam() -> Model:
    """An Adam step of two small bfloat16 layers."""
    return frontends.load(
        "transformer",
        layers=2,
        d_model=1024,
        hidden=4096,
        heads=16,
        vocab=8192,
        batch=32,
        sequence=512,
        dtype="bfloat16",
        mode="train",
    )


def itx() -> Model:
    """Prefill of an inference Transformer."""
    return frontends.load(
        "itx",
        layers=1,
        batch=64,
        prompt=1024,
        sequence=2048,
        key_size=256,
        vocab=16384,
        mode="prefill",
    )


def gns() -> Model:
    """A graph network simulator."""
    return frontends.load(
        "gns", steps=1, nodes=16384, edges=262144, hidden_layers=1, mode="forward"
    )


def gns_wide() -> Model:
    """Gradient of a graph network simulator with wide features."""
    return frontends.load(
        "gns",
        steps=1,
        nodes=4096,
        edges=65536,
        latent=1024,
        hidden_layers=1,
        mode="gradient",
    )


def mlp() -> Model:
    """Two layers with a large batch."""
    return frontends.load("mlp", batch=16384, inputs=8192, hidden=32768, outputs=8192)


def unet() -> Model:
    """A gradient of the paper's U-Net with few blocks."""
    return frontends.load(
        "unet",
        channels=256,
        multipliers=(1, 2),
        blocks=1,
        heads=8,
        batch=64,
        image=32,
        dtype="bfloat16",
        mode="gradient",
    )


# -- attention ------------------------------------------------------------------------------------
def decode() -> Model:
    """One token for each sequence of a batch, against a cache of 2,048 positions."""
    layers, batch, heads, size, d_model, hidden, cached = 2, 64, 32, 128, 4096, 16384, 2048

    def step(
        parameters: Tree, cache: Tree, tokens: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Tree]:
        x = parameters["embedding"][tokens]
        updated = []
        for layer, (keys, values) in zip(parameters["layers"], cache, strict=True):
            normal = _normalised(x)
            query = jnp.einsum("bd,dhk->bhk", normal, layer["query"])
            key = jnp.einsum("bd,dhk->bhk", normal, layer["key"])
            value = jnp.einsum("bd,dhk->bhk", normal, layer["value"])
            keys = jax.lax.dynamic_update_slice(keys, key[:, None], (0, position, 0, 0))
            values = jax.lax.dynamic_update_slice(values, value[:, None], (0, position, 0, 0))
            scores = jnp.einsum("bhk,bthk->bht", query, keys).astype(F32) / np.sqrt(size)
            scores = jnp.where(jnp.arange(cached) <= position, scores, -1e9)
            weights = jax.nn.softmax(scores).astype(BF16)
            x = x + jnp.einsum("bht,bthk,hkd->bd", weights, values, layer["out"])
            x = x + jax.nn.gelu(_normalised(x) @ layer["up"]) @ layer["down"]
            updated.append((keys, values))
        return jnp.argmax(x @ parameters["embedding"].T, -1), updated

    layer = {
        "query": (d_model, heads, size),
        "key": (d_model, heads, size),
        "value": (d_model, heads, size),
        "out": (heads, size, d_model),
        "up": (d_model, hidden),
        "down": (hidden, d_model),
    }
    parameters = {"embedding": (32768, d_model), "layers": [layer] * layers}
    cache = [((batch, cached, heads, size),) * 2] * layers
    return frontends.from_jax(
        step,
        shapes(parameters, BF16),
        shapes(cache, BF16),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.int32),
        donate_argnums=1,
        name="decode",
    )


def grouped_decode() -> Model:
    """One token against a cache of grouped heads, in a scan over two layers."""
    layers, batch, groups, share, size, d_model, hidden = 2, 128, 8, 4, 128, 4096, 11008
    cached = 1024

    def step(
        parameters: Tree, cache: Tree, x: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Tree]:
        def layer(x: jax.Array, row: Tree) -> tuple[jax.Array, Tree]:
            weights, (keys, values) = row
            normal = _normalised(x)
            query = jnp.einsum("bd,dgsk->bgsk", normal, weights["query"])
            new = jnp.einsum("bd,dcgk->bcgk", normal, weights["pair"])
            keys = jax.lax.dynamic_update_slice_in_dim(keys, new[:, 0, None], position, 1)
            values = jax.lax.dynamic_update_slice_in_dim(values, new[:, 1, None], position, 1)
            scores = jnp.einsum("bgsk,btgk->bgst", query, keys).astype(F32)
            shares = jax.nn.softmax(jnp.where(jnp.arange(cached) <= position, scores, -1e9)).astype(
                BF16
            )
            mixed = jnp.einsum("bgst,btgk->bgsk", shares, values)
            x = x + jnp.einsum("bgsk,gskd->bd", mixed, weights["out"])
            gate, up = jnp.split(_normalised(x) @ weights["up"], 2, -1)
            return x + (jax.nn.silu(gate) * up) @ weights["down"], (keys, values)

        x, cache = jax.lax.scan(layer, x, (parameters, cache))
        return x, cache

    parameters = {
        "query": (layers, d_model, groups, share, size),
        "pair": (layers, d_model, 2, groups, size),
        "out": (layers, groups, share, size, d_model),
        "up": (layers, d_model, 2 * hidden),
        "down": (layers, hidden, d_model),
    }
    cache = ((layers, batch, cached, groups, size),) * 2
    return frontends.from_jax(
        step,
        shapes(parameters, BF16),
        shapes(cache, BF16),
        jax.ShapeDtypeStruct((batch, d_model), BF16),
        jax.ShapeDtypeStruct((), jnp.int32),
        donate_argnums=1,
        name="grouped_decode",
    )


def window_decode() -> Model:
    """One token against a ring of the last 512 positions, in a scan over three layers."""
    layers, batch, heads, groups, size, d_model, hidden, window = 3, 96, 24, 8, 64, 1536, 6144, 512

    def step(
        parameters: Tree, ring: Tree, tokens: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Tree]:
        angle = position / 1e4 ** (jnp.arange(size // 2) / (size // 2))

        def turned(x: jax.Array) -> jax.Array:
            a, b = jnp.split(x.astype(F32), 2, -1)
            cos, sin = jnp.cos(angle), jnp.sin(angle)
            return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(BF16)

        def layer(x: jax.Array, row: Tree) -> tuple[jax.Array, Tree]:
            weights, kept = row
            normal = _normalised(x)
            query = turned(jnp.einsum("bd,dhk->bhk", normal, weights["query"]))
            key = turned(jnp.einsum("bd,dgk->bgk", normal, weights["key"]))
            value = jnp.einsum("bd,dgk->bgk", normal, weights["value"])
            both = jnp.stack([key, value], 1)[:, :, None]
            kept = jax.lax.dynamic_update_slice(kept, both, (0, 0, position % window, 0, 0))
            query = query.reshape(batch, groups, heads // groups, size)
            scores = jnp.einsum("bgsk,btgk->bgst", query, kept[:, 0]).astype(F32) / np.sqrt(size)
            shares = jax.nn.softmax(jnp.where(jnp.arange(window) <= position, scores, -1e9))
            mixed = jnp.einsum("bgst,btgk->bgsk", shares.astype(BF16), kept[:, 1])
            x = x + mixed.reshape(batch, heads * size) @ weights["out"]
            return x + jax.nn.gelu(_normalised(x) @ weights["up"]) @ weights["down"], kept

        x, ring = jax.lax.scan(layer, parameters["embedding"][tokens], (parameters["layers"], ring))
        return jnp.argmax(_normalised(x) @ parameters["embedding"].T, -1), ring

    stacked = {
        "query": (layers, d_model, heads, size),
        "key": (layers, d_model, groups, size),
        "value": (layers, d_model, groups, size),
        "out": (layers, heads * size, d_model),
        "up": (layers, d_model, hidden),
        "down": (layers, hidden, d_model),
    }
    return frontends.from_jax(
        step,
        shapes({"embedding": (50304, d_model), "layers": stacked}, BF16),
        shapes((layers, batch, 2, window, groups, size), BF16),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.int32),
        donate_argnums=1,
        name="window_decode",
    )


def scanned_training() -> Model:
    """A gradient step of four layers in a scan, with float32 weights cast to bfloat16."""
    layers, batch, sequence, heads, size, d_model, hidden, vocab = (
        4,
        32,
        512,
        16,
        64,
        1024,
        4096,
        8192,
    )

    def loss(parameters: Tree, tokens: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weights: Tree) -> tuple[jax.Array, None]:
            weights = jax.tree.map(lambda w: w.astype(BF16), weights)
            normal = _normalised(x)
            q, k, v = jnp.einsum("bsd,cdhk->cbshk", normal, weights["triple"])
            scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(F32) / np.sqrt(size)
            earlier = jnp.arange(sequence)[:, None] >= jnp.arange(sequence)
            shares = jax.nn.softmax(jnp.where(earlier, scores, -1e9)).astype(BF16)
            x = x + jnp.einsum("bhst,bthk,hkd->bsd", shares, v, weights["out"])
            return x + jax.nn.gelu(_normalised(x) @ weights["up"]) @ weights["down"], None

        x = parameters["embedding"].astype(BF16)[tokens]
        x = jax.lax.scan(layer, x, parameters["layers"])[0]
        logits = _normalised(x) @ parameters["embedding"].astype(BF16).T
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    stacked = {
        "triple": (layers, 3, d_model, heads, size),
        "out": (layers, heads, size, d_model),
        "up": (layers, d_model, hidden),
        "down": (layers, hidden, d_model),
    }
    return trained(
        loss,
        shapes({"embedding": (vocab, d_model), "layers": stacked}, F32),
        jax.ShapeDtypeStruct((batch, sequence), jnp.int32),
    )


# -- mixture of experts ---------------------------------------------------------------------------
def moe() -> Model:
    """A gradient step of a mixture whose tokens are dispatched by products."""
    groups, tokens, d_model, hidden, experts, room = 16, 1024, 1024, 4096, 16, 128

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax(jnp.einsum("gtd,de->gte", x, parameters["gate"]).astype(F32))
        chosen = jax.nn.one_hot(jnp.argmax(gates, -1), experts)
        place = (jnp.cumsum(chosen, 1) - 1) * chosen
        slot = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), room)
        dispatch = jnp.einsum("gte,gtc->gtec", chosen, slot).astype(BF16)
        inputs = jnp.einsum("gtec,gtd->egcd", dispatch, x)
        inner = jax.nn.gelu(jnp.einsum("egcd,edh->egch", inputs, parameters["up"]))
        outputs = jnp.einsum("egch,ehd->egcd", inner, parameters["down"])
        weighted = dispatch * gates.sum(-1)[..., None, None].astype(BF16)
        y = jnp.einsum("gtec,egcd->gtd", weighted, outputs)
        return ((x + y).astype(F32) ** 2).mean()

    parameters = {
        "gate": (d_model, experts),
        "up": (experts, d_model, hidden),
        "down": (experts, hidden, d_model),
    }
    return trained(
        loss, shapes(parameters, BF16), jax.ShapeDtypeStruct((groups, tokens, d_model), BF16)
    )


def moe_sorted() -> Model:
    """A mixture whose tokens are sorted by expert and gathered."""
    tokens, d_model, hidden, experts = 8192, 2048, 4096, 8
    room = tokens // experts

    def forward(parameters: Tree, x: jax.Array) -> jax.Array:
        expert = jnp.argmax(x @ parameters["gate"], -1)
        order = jnp.argsort(expert)
        grouped = x[order].reshape(experts, room, d_model)
        inner = jax.nn.relu(jnp.einsum("ecd,edh->ech", grouped, parameters["up"]))
        outputs = jnp.einsum("ech,ehd->ecd", inner, parameters["down"]).reshape(tokens, d_model)
        return x + jnp.zeros_like(x).at[order].set(outputs)

    parameters = {
        "gate": (d_model, experts),
        "up": (experts, d_model, hidden),
        "down": (experts, hidden, d_model),
    }
    return frontends.from_jax(
        forward, shapes(parameters, BF16), jax.ShapeDtypeStruct((tokens, d_model), BF16)
    )


# -- sequences without attention ------------------------------------------------------------------
def state_space() -> Model:
    """A gradient step of a diagonal linear recurrence with complex states."""
    batch, length, d_model, states = 32, 2048, 1024, 512

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        decay = jnp.exp(-jnp.exp(parameters["decay"]) + 1j * parameters["angle"])
        driven = jnp.einsum("btd,ds->bts", x, parameters["into"]).astype(jnp.complex64)

        def combine(left: Tree, right: Tree) -> Tree:
            return left[0] * right[0], right[0] * left[1] + right[1]

        decays = jnp.broadcast_to(decay, driven.shape)
        _, state = jax.lax.associative_scan(combine, (decays, driven), axis=1)
        y = jnp.einsum("bts,sd->btd", state.real, parameters["real"])
        y = y - jnp.einsum("bts,sd->btd", state.imag, parameters["imaginary"])
        mixed = x + jax.nn.gelu(y) @ parameters["mix"]
        return (mixed**2).mean()

    parameters = {
        "decay": (states,),
        "angle": (states,),
        "into": (d_model, states),
        "real": (states, d_model),
        "imaginary": (states, d_model),
        "mix": (d_model, d_model),
    }
    return trained(
        loss, shapes(parameters, F32), jax.ShapeDtypeStruct((batch, length, d_model), F32)
    )


def chunked_state_space() -> Model:
    """Structured state space duality: chunks by products, and a scan over the chunks."""
    batch, chunks, chunk, heads, size, states = 16, 16, 128, 16, 64, 128
    d_model = heads * size

    def forward(parameters: Tree, x: jax.Array) -> jax.Array:
        values = (x @ parameters["value"]).reshape(batch, chunks, chunk, heads, size)
        into = (x @ parameters["into"]).reshape(batch, chunks, chunk, states)
        out = (x @ parameters["out"]).reshape(batch, chunks, chunk, states)
        rate = jax.nn.softplus(x @ parameters["rate"]).reshape(batch, chunks, chunk, heads)
        total = jnp.cumsum(rate.astype(F32), 2)
        within = total[:, :, :, None] - total[:, :, None]
        causal = jnp.tril(jnp.ones((chunk, chunk), bool))[..., None]
        decay = jnp.exp(jnp.where(causal, -within, -1e9)).astype(BF16)
        scores = jnp.einsum("bnis,bnjs->bnij", out, into)
        local = jnp.einsum("bnij,bnijh,bnjhk->bnihk", scores, decay, values)
        left = jnp.exp(total[:, :, -1:] - total).astype(BF16)
        carried = jnp.einsum("bnjs,bnjh,bnjhk->bnhsk", into, left, values)
        whole = jnp.exp(-total[:, :, -1]).astype(BF16)

        def after(state: jax.Array, row: Tree) -> tuple[jax.Array, jax.Array]:
            fade, new = row
            return state * fade[..., None, None] + new, state

        start = jnp.zeros((batch, heads, states, size), BF16)
        rows = (whole.swapaxes(0, 1), carried.swapaxes(0, 1))
        _, before = jax.lax.scan(after, start, rows)
        reached = jnp.exp(-total).astype(BF16)
        far = jnp.einsum("bnis,nbhsk,bnih->bnihk", out, before, reached)
        mixed = (local + far).reshape(batch, chunks * chunk, d_model)
        return x + mixed @ parameters["mix"]

    parameters = {
        "value": (d_model, d_model),
        "into": (d_model, states),
        "out": (d_model, states),
        "rate": (d_model, heads),
        "mix": (d_model, d_model),
    }
    x = jax.ShapeDtypeStruct((batch, chunks * chunk, d_model), BF16)
    return frontends.from_jax(forward, shapes(parameters, BF16), x)


def gated_recurrence() -> Model:
    """A gradient step of a gated recurrent layer unrolled by a scan."""
    batch, length, inputs, hidden = 512, 32, 1024, 2048

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        driven = jnp.einsum("btd,dgh->tbgh", x, parameters["input"])

        def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            gates = row[:, :2] + jnp.einsum("bh,hgk->bgk", state, parameters["gates"])
            reset, update = jax.nn.sigmoid(gates[:, 0]), jax.nn.sigmoid(gates[:, 1])
            new = jnp.tanh(row[:, 2] + (reset * state) @ parameters["new"])
            state = update * state + (1 - update) * new
            return state, state

        _, states = jax.lax.scan(step, jnp.zeros((batch, hidden)), driven)
        return ((states @ parameters["head"]) ** 2).mean()

    parameters = {
        "input": (inputs, 3, hidden),
        "gates": (hidden, 2, hidden),
        "new": (hidden, hidden),
        "head": (hidden, inputs),
    }
    return trained(loss, shapes(parameters, F32), shapes((batch, length, inputs), F32))


def fourier_mixing() -> Model:
    """A gradient step of a layer that mixes tokens by a Fourier transform."""
    batch, length, d_model, hidden = 64, 1024, 1024, 4096

    def loss(parameters: Tree, x: jax.Array) -> jax.Array:
        mixed = _normalised(x + jnp.fft.fft(jnp.fft.fft(x, axis=-1), axis=-2).real)
        inner = jax.nn.gelu(mixed @ parameters["up"]) @ parameters["down"]
        return (_normalised(mixed + inner) ** 2).mean() + (inner**2).mean()

    parameters = {"up": (d_model, hidden), "down": (hidden, d_model)}
    return trained(loss, shapes(parameters, F32), shapes((batch, length, d_model), F32))


# -- implicit layers, linear algebra --------------------------------------------------------------
def equilibrium() -> Model:
    """Twelve rounds towards a fixed point of a layer, and a step down the last one's gradient."""
    batch, size = 4096, 4096

    parameters = {"input": (size, size), "inner": (size, size)}

    def step(parameters: Tree, x: jax.Array) -> Tree:
        fixed = jax.lax.stop_gradient(parameters)
        driven = x @ fixed["input"]

        def once(_: int, z: jax.Array) -> jax.Array:
            return jnp.tanh(z @ fixed["inner"] + driven)

        z = jax.lax.fori_loop(0, 12, once, jnp.zeros((batch, size)))

        def last(parameters: Tree) -> jax.Array:
            return (jnp.tanh(z @ parameters["inner"] + x @ parameters["input"]) ** 2).mean()

        return jax.tree.map(lambda p, g: p - 1e-3 * g, parameters, jax.grad(last)(parameters))

    return frontends.from_jax(
        step,
        shapes(parameters, F32),
        shapes((batch, size), F32),
        donate_argnums=0,
        name="equilibrium",
    )


def conjugate_gradients() -> Model:
    """Ridge regression by ten steps of conjugate gradients on the normal equations."""
    rows, columns, targets = 65536, 4096, 16

    def solve(x: jax.Array, y: jax.Array) -> jax.Array:
        def applied(w: jax.Array) -> jax.Array:
            return x.T @ (x @ w) + 0.1 * w

        right = x.T @ y

        def once(_: int, carry: Tree) -> Tree:
            w, residual, direction, size = carry
            image = applied(direction)
            length = size / (direction * image).sum(0)
            w, residual = w + length * direction, residual - length * image
            new = (residual**2).sum(0)
            return w, residual, residual + (new / size) * direction, new

        start = (jnp.zeros_like(right), right, right, (right**2).sum(0))
        return jax.lax.fori_loop(0, 10, once, start)[0]

    return frontends.from_jax(
        solve,
        shapes((rows, columns), F32),
        shapes((rows, targets), F32),
        name="conjugate_gradients",
    )


def orthogonal_iteration() -> Model:
    """Five Newton-Schulz iterations that make stacked matrices orthogonal (as Muon does)."""
    layers, rows, columns = 8, 2048, 4096

    def orthogonal(gradients: jax.Array) -> jax.Array:
        x = gradients / jnp.sqrt((gradients.astype(F32) ** 2).sum((1, 2), keepdims=True)).astype(
            BF16
        )
        for _ in range(5):
            gram = jnp.einsum("lij,lkj->lik", x, x)
            squared = jnp.einsum("lij,ljk->lik", gram, gram)
            x = 3.4 * x + jnp.einsum("lij,ljk->lik", -4.8 * gram + 2.0 * squared, x)
        return x

    return frontends.from_jax(
        orthogonal, shapes((layers, rows, columns), BF16), name="orthogonal_iteration"
    )


# -- recommendation -------------------------------------------------------------------------------
def ranking() -> Model:
    """A gradient step of a ranking model: large embedding tables, pairwise products, two MLPs."""
    batch, features, rows, size, dense = 8192, 16, 100_000, 128, 512

    def loss(parameters: Tree, numbers: jax.Array, ids: jax.Array, clicked: jax.Array) -> jax.Array:
        rows_of_features = jax.vmap(lambda table, index: table[index], (0, 1), 1)(
            parameters["tables"], ids
        )
        bottom = jax.nn.relu(numbers @ parameters["bottom"][0]) @ parameters["bottom"][1]
        together = jnp.concatenate([rows_of_features, bottom[:, None]], 1)
        pairs = jnp.einsum("bfs,bgs->bfg", together, together)
        upper, lower = np.triu_indices(features + 1, 1)
        top = jnp.concatenate([bottom, pairs[:, upper, lower]], 1)
        inner = jax.nn.relu(top @ parameters["top"][0])
        logit = (jax.nn.relu(inner @ parameters["top"][1]) @ parameters["top"][2])[:, 0]
        return (jnp.maximum(logit, 0) - logit * clicked + jnp.log1p(jnp.exp(-abs(logit)))).mean()

    count = size + (features + 1) * features // 2
    parameters = {
        "tables": (features, rows, size),
        "bottom": [(dense, 1024), (1024, size)],
        "top": [(count, 2048), (2048, 1024), (1024, 1)],
    }
    return trained(
        loss,
        shapes(parameters, F32),
        shapes((batch, dense), F32),
        jax.ShapeDtypeStruct((batch, features), jnp.int32),
        shapes((batch,), F32),
    )


def two_towers() -> Model:
    """A gradient step of two towers that are trained with the batch's own negatives."""
    batch, rows, size, hidden, history = 8192, 200_000, 256, 1024, 32

    def tower(layers: Tree, x: jax.Array) -> jax.Array:
        return _normalised(jax.nn.relu(x @ layers[0]) @ layers[1])

    def loss(parameters: Tree, seen: jax.Array, item: jax.Array) -> jax.Array:
        users = parameters["items"][seen].mean(1)
        left = tower(parameters["user"], users)
        right = tower(parameters["item"], parameters["items"][item])
        return cross_entropy(left @ right.T, jnp.arange(batch))

    layers = [(size, hidden), (hidden, size)]
    parameters = {"items": (rows, size), "user": layers, "item": layers}
    return trained(
        loss,
        shapes(parameters, F32),
        jax.ShapeDtypeStruct((batch, history), jnp.int32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
    )


# -- diffusion ------------------------------------------------------------------------------------
def diffusion_transformer() -> Model:
    """A gradient step of a diffusion Transformer block that is conditioned by modulation."""
    batch, tokens, d_model, heads, hidden = 64, 256, 1152, 16, 4608
    size = d_model // heads

    def loss(parameters: Tree, image: jax.Array, noise: jax.Array, t: jax.Array) -> jax.Array:
        share = t[:, None, None]
        x = (image * (1 - share) + noise * share) @ parameters["patch"]
        angles = t[:, None] * jnp.exp(-jnp.arange(d_model // 2) / 32.0)
        condition = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        shift, scale, gate, shift_inner, scale_inner, gate_inner = jnp.split(
            (jax.nn.silu(condition) @ parameters["modulation"])[:, None], 6, -1
        )
        normal = _normalised(x) * (1 + scale) + shift
        query, key, value = (
            (normal @ parameters[name]).reshape(batch, tokens, heads, size)
            for name in ("query", "key", "value")
        )
        scores = jax.nn.softmax(jnp.einsum("bihk,bjhk->bhij", query, key) / np.sqrt(size))
        mixed = jnp.einsum("bhij,bjhk->bihk", scores, value).reshape(batch, tokens, d_model)
        x = x + gate * (mixed @ parameters["out"])
        normal = _normalised(x) * (1 + scale_inner) + shift_inner
        x = x + gate_inner * (jax.nn.gelu(normal @ parameters["up"]) @ parameters["down"])
        return ((x @ parameters["unpatch"] - (noise - image)) ** 2).mean()

    parameters = {
        "patch": (64, d_model),
        "modulation": (d_model, 6 * d_model),
        "query": (d_model, d_model),
        "key": (d_model, d_model),
        "value": (d_model, d_model),
        "out": (d_model, d_model),
        "up": (d_model, hidden),
        "down": (hidden, d_model),
        "unpatch": (d_model, 64),
    }
    return trained(
        loss,
        shapes(parameters, F32),
        shapes((batch, tokens, 64), F32),
        shapes((batch, tokens, 64), F32),
        shapes((batch,), F32),
    )


# -- written after all pricing rules --------------------------------------------------------------
def token_mixer() -> Model:
    """Training two blocks that mix patches and channels by dense layers in turn."""
    batch, patches, channels, hidden = 256, 1024, 1024, 4096

    def block(x: jax.Array, parameters: Tree) -> jax.Array:
        across = jnp.einsum("bpc,ph->bch", _normalised(x), parameters["across"])
        x = x + jnp.einsum("bch,hp->bpc", jax.nn.gelu(across), parameters["back"])
        inner = jax.nn.gelu(_normalised(x) @ parameters["up"])
        return x + inner @ parameters["down"]

    def loss(parameters: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = images @ parameters["patch"]
        for one in parameters["blocks"]:
            x = block(x, one)
        return cross_entropy(x.mean(1) @ parameters["head"], labels)

    one = {
        "across": (patches, 512),
        "back": (512, patches),
        "up": (channels, hidden),
        "down": (hidden, channels),
    }
    parameters = {"patch": (768, channels), "blocks": [one, one], "head": (channels, 4096)}
    return trained(
        loss,
        shapes(parameters, BF16),
        shapes((batch, patches, 768), BF16),
        shapes((batch,), jnp.int32),
    )


def contrastive() -> Model:
    """Training two towers that tell the pairs of a large batch apart."""
    batch, features, hidden, size = 16384, 2048, 8192, 1024

    def tower(x: jax.Array, layers: Tree) -> jax.Array:
        x = jax.nn.relu(x @ layers["in"])
        x = x @ layers["out"]
        return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    def loss(parameters: Tree, left: jax.Array, right: jax.Array) -> jax.Array:
        scores = tower(left, parameters["left"]) @ tower(right, parameters["right"]).T
        scores = scores.astype(F32) * jnp.exp(parameters["scale"])
        rows, columns = jax.nn.log_softmax(scores, -1), jax.nn.log_softmax(scores, 0)
        return -(jnp.diagonal(rows) + jnp.diagonal(columns)).mean()

    layers = {"in": (features, hidden), "out": (hidden, size)}
    towers = shapes({"left": layers, "right": layers}, BF16)
    return trained(
        loss,
        {**towers, "scale": jax.ShapeDtypeStruct((), F32)},
        shapes((batch, features), BF16),
        shapes((batch, features), BF16),
    )


def linear_attention() -> Model:
    """Training a layer whose attention sums keys and values over chunks of the past."""
    batch, chunks, size, heads, width, hidden = 16, 16, 128, 16, 128, 8192
    d_model = heads * width

    def loss(parameters: Tree, x: jax.Array, target: jax.Array) -> jax.Array:
        normal = _normalised(x)
        query, key, value = (
            jnp.einsum("bcsd,dhk->bcshk", normal, parameters[name])
            for name in ("query", "key", "value")
        )
        query, key = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        states = jnp.einsum("bcshk,bcshv->bchkv", key, value)
        past = jnp.cumsum(states, 1) - states
        inside = jnp.einsum("bcshk,bcthk->bchst", query, key) * jnp.tri(size, dtype=BF16)
        mixed = jnp.einsum("bcshk,bchkv->bcshv", query, past)
        mixed = mixed + jnp.einsum("bchst,bcthv->bcshv", inside, value)
        x = x + jnp.einsum("bcshv,hvd->bcsd", mixed / size, parameters["out"])
        x = x + jax.nn.silu(_normalised(x) @ parameters["up"]) @ parameters["down"]
        return ((x - target).astype(F32) ** 2).mean()

    parameters = {
        "query": (d_model, heads, width),
        "key": (d_model, heads, width),
        "value": (d_model, heads, width),
        "out": (heads, width, d_model),
        "up": (d_model, hidden),
        "down": (hidden, d_model),
    }
    tokens = shapes((batch, chunks, size, d_model), BF16)
    return trained(loss, shapes(parameters, BF16), tokens, tokens)


def actor_critic() -> Model:
    """Training a policy and a critic on trajectories, with advantages summed back through time."""
    steps, batch, features, hidden, actions = 64, 1024, 1024, 4096, 512

    def advantages(rewards: jax.Array, values: jax.Array) -> jax.Array:
        def earlier(
            later: tuple[jax.Array, jax.Array], step: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            reward, value = step
            advantage = reward + 0.99 * later[1] - value + 0.95 * later[0]
            return (advantage, value), advantage

        none = jnp.zeros(rewards.shape[1], F32)
        return jax.lax.scan(earlier, (none, none), (rewards, values), reverse=True)[1]

    def loss(
        parameters: Tree,
        seen: jax.Array,
        taken: jax.Array,
        old_scores: jax.Array,
        rewards: jax.Array,
    ) -> jax.Array:
        x = jax.nn.silu(seen @ parameters["in"])
        x = x + jax.nn.silu(_normalised(x) @ parameters["middle"])
        scores = jax.nn.log_softmax((x @ parameters["policy"]).astype(F32))
        values = (x @ parameters["critic"]).astype(F32)[..., 0]
        score = jnp.take_along_axis(scores, taken[..., None], axis=-1)[..., 0]
        advantage = jax.lax.stop_gradient(advantages(rewards, values))
        ratio = jnp.exp(score - old_scores)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        spread = -(jnp.exp(scores) * scores).sum(-1)
        return (-gain - 0.01 * spread + (values - rewards) ** 2).mean()

    parameters = {
        "in": (features, hidden),
        "middle": (hidden, hidden),
        "policy": (hidden, actions),
        "critic": (hidden, 1),
    }
    return trained(
        loss,
        shapes(parameters, BF16),
        shapes((steps, batch, features), BF16),
        shapes((steps, batch), jnp.int32),
        shapes((steps, batch), F32),
        shapes((steps, batch), F32),
    )


def pair_filters() -> Model:
    """Training energies of molecules: atoms send messages through filters of their distances."""
    batch, atoms, width, shells, blocks = 64, 128, 512, 64, 2

    def energy(parameters: Tree, places: jax.Array, kinds: jax.Array) -> jax.Array:
        apart = places[:, :, None] - places[:, None]
        distance = jnp.sqrt((apart**2).sum(-1) + 1e-3)
        shell = jnp.linspace(0.0, 8.0, shells, dtype=F32)
        smeared = jnp.exp(-4.0 * (distance[..., None] - shell) ** 2).astype(BF16)
        x = parameters["kinds"][kinds]
        for one in parameters["blocks"]:
            filters = jax.nn.softplus(smeared @ one["first"]) @ one["second"]
            message = jnp.einsum("bijf,bjf->bif", filters, x @ one["in"])
            x = x + jax.nn.softplus(message @ one["out"])
        return (jax.nn.softplus(x @ parameters["last"]) @ parameters["energy"]).sum((1, 2))

    def loss(parameters: Tree, places: jax.Array, kinds: jax.Array, known: jax.Array) -> jax.Array:
        return ((energy(parameters, places, kinds).astype(F32) - known) ** 2).mean()

    one = {
        "first": (shells, width),
        "second": (width, width),
        "in": (width, width),
        "out": (width, width),
    }
    parameters = {
        "kinds": (128, width),
        "blocks": [one] * blocks,
        "last": (width, width),
        "energy": (width, 1),
    }
    return trained(
        loss,
        shapes(parameters, BF16),
        shapes((batch, atoms, 3), F32),
        shapes((batch, atoms), jnp.int32),
        shapes((batch,), F32),
    )


def conformer() -> Model:
    """Training speech recognition: Conformer blocks, attention beside depthwise convolutions."""
    batch, frames, width, heads, kernel, letters, blocks = 64, 512, 1024, 8, 15, 1024, 2

    def feed(x: jax.Array, one: Tree) -> jax.Array:
        return x + 0.5 * (jax.nn.silu(_normalised(x) @ one["up"]) @ one["down"])

    def attend(x: jax.Array, one: Tree) -> jax.Array:
        y = _normalised(x)
        q, k, v = (jnp.einsum("bfd,dhk->bfhk", y, one[name]) for name in "qkv")
        score = jnp.einsum("bfhk,bghk->bhfg", q, k).astype(F32) * (width // heads) ** -0.5
        mixed = jnp.einsum("bhfg,bghk->bfhk", jax.nn.softmax(score).astype(x.dtype), v)
        return x + jnp.einsum("bfhk,hkd->bfd", mixed, one["o"])

    def convolve(x: jax.Array, one: Tree) -> jax.Array:
        y = _normalised(x) @ one["in"]
        y = y[..., :width] * jax.nn.sigmoid(y[..., width:])
        y = jax.lax.conv_general_dilated(
            y, one["taps"], (1,), "SAME", None, None, ("NWC", "WIO", "NWC"), width
        )
        return x + jax.nn.silu(_normalised(y)) @ one["out"]

    def loss(parameters: Tree, heard: jax.Array, letters: jax.Array) -> jax.Array:
        x = heard @ parameters["heard"]
        for one in parameters["blocks"]:
            x = feed(convolve(attend(feed(x, one["first"]), one), one), one["last"])
        return cross_entropy(_normalised(x) @ parameters["letters"], letters)

    mlp = {"up": (width, 4 * width), "down": (4 * width, width)}
    head = (width, heads, width // heads)
    one = {
        "first": mlp,
        "last": mlp,
        **dict.fromkeys("qkv", head),
        "o": (heads, width // heads, width),
        "in": (width, 2 * width),
        "taps": (kernel, 1, width),
        "out": (width, width),
    }
    parameters = {"heard": (80, width), "blocks": [one] * blocks, "letters": (width, letters)}
    return trained(
        loss,
        shapes(parameters, BF16),
        shapes((batch, frames, 80), BF16),
        shapes((batch, frames), jnp.int32),
    )


def latent_attention() -> Model:
    """Training a few latents that read a long input by cross attention, and are read by labels."""
    batch, inputs, channels, latents, width, heads, classes = 64, 4096, 256, 256, 1024, 16, 1000

    def attend(x: jax.Array, y: jax.Array, one: Tree) -> jax.Array:
        q = jnp.einsum("bnd,dhk->bnhk", _normalised(x), one["q"])
        k, v = (jnp.einsum("bmc,chk->bmhk", _normalised(y), one[name]) for name in "kv")
        score = jnp.einsum("bnhk,bmhk->bhnm", q, k).astype(F32) * (width // heads) ** -0.5
        mixed = jnp.einsum("bhnm,bmhk->bnhk", jax.nn.softmax(score).astype(x.dtype), v)
        x = x + jnp.einsum("bnhk,hkd->bnd", mixed, one["o"])
        return x + jax.nn.gelu(_normalised(x) @ one["up"]) @ one["down"]

    def loss(parameters: Tree, seen: jax.Array, labels: jax.Array) -> jax.Array:
        x = jnp.broadcast_to(parameters["latents"], (batch, latents, width))
        x = attend(x, seen, parameters["read"])
        for one in parameters["blocks"]:
            x = attend(x, x, one)
        return cross_entropy(_normalised(x).mean(1) @ parameters["classes"], labels)

    def block(read: int) -> Tree:
        return {
            "q": (width, heads, width // heads),
            "k": (read, heads, width // heads),
            "v": (read, heads, width // heads),
            "o": (heads, width // heads, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }

    parameters = {
        "latents": (latents, width),
        "read": block(channels),
        "blocks": [block(width)] * 2,
        "classes": (width, classes),
    }
    return trained(
        loss,
        shapes(parameters, BF16),
        shapes((batch, inputs, channels), BF16),
        shapes((batch,), jnp.int32),
    )


def quantised_sound() -> Model:
    """Training an autoencoder of sound whose middle is the nearest of 4,096 code vectors."""
    batch, samples, width, codes = 32, 8192, 512, 4096
    lay = ("NWC", "WIO", "NWC")

    def shrink(x: jax.Array, taps: jax.Array) -> jax.Array:
        return jax.nn.elu(jax.lax.conv_general_dilated(x, taps, (4,), "SAME", None, None, lay))

    def grow(x: jax.Array, taps: jax.Array) -> jax.Array:
        return jax.lax.conv_transpose(jax.nn.elu(x), taps, (4,), "SAME", dimension_numbers=lay)

    def loss(parameters: Tree, sound: jax.Array) -> jax.Array:
        x = sound
        for taps in parameters["shrink"]:
            x = shrink(x, taps)
        book = parameters["codes"]
        apart = (book.astype(F32) ** 2).sum(-1) - 2.0 * (x @ book.T).astype(F32)
        nearest = book[jnp.argmin(apart, -1)]
        pull = (jax.lax.stop_gradient(nearest) - x).astype(F32)
        push = (nearest - jax.lax.stop_gradient(x)).astype(F32)
        y = x + jax.lax.stop_gradient(nearest - x)
        for taps in parameters["grow"]:
            y = grow(y, taps)
        off = (y - sound).astype(F32)
        return (off**2).mean() + 0.25 * (pull**2).mean() + (push**2).mean()

    parameters = {
        "shrink": [(8, 1, width // 2), (8, width // 2, width), (8, width, width)],
        "codes": (codes, width),
        "grow": [(8, width, width), (8, width, width // 2), (8, width // 2, 1)],
    }
    return trained(loss, shapes(parameters, BF16), shapes((batch, samples, 1), BF16))


def optimal_transport() -> Model:
    """Training two nets whose clouds of points are matched by rounds of Sinkhorn's scaling."""
    clouds, points, features, width, rounds = 16, 1024, 256, 1024, 8

    def embed(net: Tree, x: jax.Array) -> jax.Array:
        return jax.nn.relu(jax.nn.relu(x @ net["first"]) @ net["second"]) @ net["last"]

    def loss(parameters: Tree, one: jax.Array, other: jax.Array) -> jax.Array:
        x, y = embed(parameters["one"], one), embed(parameters["other"], other)
        apart = (x**2).sum(-1)[:, :, None] + (y**2).sum(-1)[:, None] - 2.0 * x @ y.mT
        kernel = -apart / width

        def scale(pair: Any, _: None) -> tuple[Any, None]:
            u, v = pair
            u = -jax.nn.logsumexp(kernel + v[:, None], 2)
            v = -jax.nn.logsumexp(kernel + u[:, :, None], 1)
            return (u, v), None

        zeros = jnp.zeros((clouds, points), F32)
        (u, v), _ = jax.lax.scan(scale, (zeros, zeros), None, length=rounds)
        return (jnp.exp(kernel + u[:, :, None] + v[:, None]) * apart).sum((1, 2)).mean()

    net = {"first": (features, width), "second": (width, width), "last": (width, width)}
    return trained(
        loss,
        shapes({"one": net, "other": net}, F32),
        shapes((clouds, points, features), F32),
        shapes((clouds, points, features), F32),
    )


def video() -> Model:
    """Training a net of three-dimensional convolutions that tells what happens in short films."""
    batch, pictures, side, width, classes = 16, 16, 56, 64, 400
    lay = ("NDHWC", "DHWIO", "NDHWC")

    def convolve(x: jax.Array, taps: jax.Array, stride: int = 1) -> jax.Array:
        return jax.lax.conv_general_dilated(x, taps, (stride,) * 3, "SAME", None, None, lay)

    def loss(parameters: Tree, films: jax.Array, labels: jax.Array) -> jax.Array:
        x = convolve(films, parameters["first"])
        for one in parameters["blocks"]:
            y = jax.nn.relu(_normalised(convolve(x, one["first"], 2)))
            y = _normalised(convolve(y, one["second"]))
            x = jax.nn.relu(y + convolve(x, one["skip"], 2))
        return cross_entropy(x.mean((1, 2, 3)) @ parameters["classes"], labels)

    def block(given: int, made: int) -> Tree:
        return {
            "first": (3, 3, 3, given, made),
            "second": (3, 3, 3, made, made),
            "skip": (1, 1, 1, given, made),
        }

    parameters = {
        "first": (3, 3, 3, 3, width),
        "blocks": [block(width, 2 * width), block(2 * width, 4 * width)],
        "classes": (4 * width, classes),
    }
    return trained(
        loss,
        shapes(parameters, BF16),
        shapes((batch, pictures, side, side, 3), BF16),
        shapes((batch,), jnp.int32),
    )


PROGRAMS = (
    Program("transformer", "attention training", transformer),
    Program("transformer_adam", "attention training", transformer_adam),
    Program("mlp", "dense", mlp),
    Program("itx", "attention prefill", itx),
    Program("decode", "attention decoding", decode),
    Program("grouped_decode", "attention decoding", grouped_decode),
    Program("window_decode", "attention decoding", window_decode),
    Program("scanned_training", "attention training", scanned_training),
    Program("moe", "mixture of experts", moe),
    Program("moe_sorted", "mixture of experts", moe_sorted),
    Program("unet", "U-Net", unet),
    Program("diffusion_transformer", "diffusion", diffusion_transformer),
    Program("state_space", "state space", state_space),
    Program("chunked_state_space", "state space", chunked_state_space),
    Program("gated_recurrence", "recurrent", gated_recurrence),
    Program("gns", "graph", gns),
    Program("gns_wide", "graph", gns_wide),
    Program("fourier_mixing", "Fourier", fourier_mixing),
    Program("equilibrium", "implicit and ODE", equilibrium),
    Program("conjugate_gradients", "linear algebra", conjugate_gradients),
    Program("orthogonal_iteration", "linear algebra", orthogonal_iteration),
    Program("ranking", "recommendation", ranking),
    Program("two_towers", "recommendation", two_towers),
    Program("token_mixer", "vision and speech", token_mixer),
    Program("contrastive", "contrastive", contrastive),
    Program("linear_attention", "linear attention", linear_attention),
    Program("actor_critic", "reinforcement learning", actor_critic),
    Program("pair_filters", "molecules", pair_filters),
    Program("conformer", "vision and speech", conformer),
    Program("latent_attention", "attention training", latent_attention),
    Program("quantised_sound", "vision and speech", quantised_sound),
    Program("optimal_transport", "implicit and ODE", optimal_transport),
    Program("video", "convolution", video),
)

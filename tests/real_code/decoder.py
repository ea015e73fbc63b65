"""A decoder's training step as it is written in production, sharded by hand.

Layers are stacked and scanned, each under ``jax.checkpoint`` with a policy that keeps values by
name. Arrays have logical axes, which a table of rules turns into axes of the mesh. Attention is a
hand-written kernel inside ``jax.shard_map``; so is the loss, which never gathers the vocabulary.
The states of Adam live in the host's memory between steps.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.gpu import attention as triton_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

MESH = {"data": 2, "fsdp": 2, "tensor": 2}
#: logical axis -> axes of the mesh
RULES: dict[str | None, Any] = {
    "batch": ("data", "fsdp"),
    "heads": "tensor",
    "hidden": "tensor",
    "vocabulary": "tensor",
    "embed": "fsdp",
}


class Sizes(NamedTuple):
    """Sizes of the decoder."""

    layers: int = 2
    batch: int = 4
    sequence: int = 128
    embed: int = 64
    heads: int = 4
    head_dim: int = 128
    hidden: int = 128
    vocabulary: int = 256


#: logical axes of the parameters; those of a layer are stacked along the first dim
PARAMETERS = {
    "embedding": ("vocabulary", "embed"),
    "query": ("layers", "embed", "heads", None),
    "key": ("layers", "embed", "heads", None),
    "value": ("layers", "embed", "heads", None),
    "output": ("layers", "heads", None, "embed"),
    "gate": ("layers", "embed", "hidden"),
    "up": ("layers", "embed", "hidden"),
    "down": ("layers", "hidden", "embed"),
    "attention_scale": ("layers", None),
    "mlp_scale": ("layers", None),
    "final_scale": (None,),
}


def spec(axes: tuple[str | None, ...]) -> P:
    """The mesh axes of logical axes; what has no rule stays whole."""
    return P(*(RULES.get(axis) for axis in axes))


def parameter_shapes(sizes: Sizes) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the parameters, float32."""
    size_of = sizes._asdict()
    unnamed = {"query": "head_dim", "key": "head_dim", "value": "head_dim", "output": "head_dim"}
    return {
        name: jax.ShapeDtypeStruct(
            tuple(size_of[axis or unnamed.get(name, "embed")] for axis in axes), jnp.float32
        )
        for name, axes in PARAMETERS.items()
    }


def constrain(x: jax.Array, mesh: Any, *axes: str | None) -> jax.Array:
    """``with_logical_constraint``."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(axes)))


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mesh: Any, kernel: str) -> jax.Array:
    """Causal attention over [batch, heads, sequence, head_dim], each device on its own heads.

    ``kernel`` is "splash" (TPUs), "interpreted" (the same where there is no TPU), "triton" (GPUs)
    or "plain".
    """
    qkv = spec(("batch", "heads", None, None))

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(qkv, qkv, qkv), out_specs=qkv, check_vma=False
    )
    def on_one_device(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        sequence = q.shape[2]
        if kernel == "plain":
            scores = jnp.einsum("bhsk,bhtk->bhst", q, k)
            causal = jnp.tril(jnp.ones((sequence, sequence), bool))
            return jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)
        if kernel == "triton":
            qkv = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
            attended = triton_attention.mha(*qkv, segment_ids=None, sm_scale=1.0, causal=True)
            return jnp.swapaxes(attended, 1, 2)
        mask = splash_attention_mask.MultiHeadMask(
            [splash_attention_mask.CausalMask((sequence, sequence)) for _ in range(q.shape[1])]
        )
        splash = splash_attention_kernel.make_splash_mha(
            mask, head_shards=1, q_seq_shards=1, interpret=kernel == "interpreted"
        )
        return jax.vmap(splash)(q, k, v)

    return on_one_device(q, k, v)


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * (1 + scale)


def layer(x: jax.Array, weights: dict[str, jax.Array], mesh: Any, kernel: str) -> jax.Array:
    """One decoder layer on [batch, sequence, embed]."""
    weights = {name: weight.astype(x.dtype) for name, weight in weights.items()}
    y = normalised(x, weights["attention_scale"])
    q, k, v = (jnp.einsum("bse,ehk->bhsk", y, weights[name]) for name in ("query", "key", "value"))
    scale = jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    attended = attend(q * scale, k, v, mesh, kernel)
    attended = checkpoint_name(attended, "attended")
    x = x + jnp.einsum("bhsk,hke->bse", attended, weights["output"])
    x = constrain(x, mesh, "batch", None, None)
    y = normalised(x, weights["mlp_scale"])
    inner = jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])
    inner = constrain(inner, mesh, "batch", None, "hidden")
    x = x + inner @ weights["down"]
    return constrain(x, mesh, "batch", None, None)


def vocabulary_parallel_loss(
    x: jax.Array, embedding: jax.Array, targets: jax.Array, mesh: Any
) -> jax.Array:
    """Mean cross-entropy; each device has the logits of its own part of the vocabulary."""
    batch, vocabulary = RULES["batch"], RULES["vocabulary"]

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(batch, None, None), P(vocabulary, None), P(batch, None)),
        out_specs=P(),
        check_vma=False,
    )
    def on_one_device(x: jax.Array, embedding: jax.Array, targets: jax.Array) -> jax.Array:
        logits = jnp.einsum("bse,ve->bsv", x, embedding).astype(jnp.float32)
        largest = jax.lax.pmax(jax.lax.stop_gradient(logits.max(axis=-1)), vocabulary)
        total = jax.lax.psum(jnp.exp(logits - largest[..., None]).sum(axis=-1), vocabulary)
        first = jax.lax.axis_index(vocabulary) * embedding.shape[0]
        local = targets - first
        is_here = (local >= 0) & (local < embedding.shape[0])
        index = jnp.clip(local, 0, embedding.shape[0] - 1)
        picked = jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]
        picked = jax.lax.psum(jnp.where(is_here, picked, 0.0), vocabulary)
        return jax.lax.pmean((jnp.log(total) + largest - picked).mean(), batch)

    return on_one_device(x, embedding, targets)


def loss(parameters: Any, tokens: jax.Array, targets: jax.Array, mesh: Any, kernel: str) -> Any:
    """Mean cross-entropy of [batch, sequence] tokens."""
    layers = {name: w for name, w in parameters.items() if PARAMETERS[name][0] == "layers"}
    keep = jax.checkpoint_policies.save_only_these_names("attended")
    body = jax.checkpoint(functools.partial(layer, mesh=mesh, kernel=kernel), policy=keep)
    x = jnp.take(parameters["embedding"], tokens, axis=0).astype(jnp.bfloat16)
    x = constrain(x, mesh, "batch", None, None)
    x, _ = jax.lax.scan(lambda x, weights: (body(x, weights), None), x, layers)
    x = normalised(x, parameters["final_scale"].astype(x.dtype))
    embedding = constrain(parameters["embedding"].astype(x.dtype), mesh, "vocabulary", None)
    return vocabulary_parallel_loss(x, embedding, targets, mesh)


class State(NamedTuple):
    """Parameters, and Adam's means and squares of their gradients."""

    parameters: Any
    means: Any
    squares: Any


def train_step(
    state: State, tokens: jax.Array, targets: jax.Array, *, mesh: Any, kernel: str, host: bool
) -> tuple[State, jax.Array]:
    """One step of Adam. With ``host``, its states come from and go back to the host's memory."""
    means, squares = state.means, state.squares
    if host:
        means, squares = jax.device_put((means, squares), jax.memory.Space.Device)
    value, gradients = jax.value_and_grad(loss)(state.parameters, tokens, targets, mesh, kernel)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradients)
    parameters = jax.tree.map(
        lambda w, m, s: w - 1e-2 * m / (jnp.sqrt(s) + 1e-8), state.parameters, means, squares
    )
    if host:
        means, squares = jax.device_put((means, squares), jax.memory.Space.Host)
    return State(parameters, means, squares), value


def make(
    sizes: Sizes | None = None, *, mesh: Any, kernel: str = "splash", host: bool = True
) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step as it is sharded by hand, and the shapes of its arguments."""
    sizes = sizes or Sizes()
    parameters = parameter_shapes(sizes)
    state = State(parameters, parameters, parameters)
    on_device = {name: NamedSharding(mesh, spec(axes)) for name, axes in PARAMETERS.items()}
    kept = {
        name: sharding.with_memory_kind("pinned_host") if host else sharding
        for name, sharding in on_device.items()
    }
    shardings = State(on_device, kept, kept)
    data = NamedSharding(mesh, P(RULES["batch"], None))
    step = jax.jit(
        functools.partial(train_step, mesh=mesh, kernel=kernel, host=host),
        in_shardings=(shardings, data, data),
        out_shardings=(shardings, NamedSharding(mesh, P())),
        donate_argnums=0,
    )
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.sequence), jnp.int32)
    return step, (state, tokens, tokens)


def values(sizes: Sizes | None = None, seed: int = 0) -> tuple[Any, ...]:
    """Values of the arguments."""
    sizes = sizes or Sizes()
    keys = iter(jax.random.split(jax.random.key(seed), 2 + len(PARAMETERS)))
    parameters = {
        name: 0.05 * jax.random.normal(next(keys), shape.shape, shape.dtype)
        for name, shape in parameter_shapes(sizes).items()
    }
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    shape = (sizes.batch, sizes.sequence)
    tokens, targets = (jax.random.randint(next(keys), shape, 0, sizes.vocabulary) for _ in range(2))
    return State(parameters, zeros, jax.tree.map(jnp.copy, zeros)), tokens, targets

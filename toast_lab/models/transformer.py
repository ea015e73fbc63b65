"""A Gemma-style decoder-only Transformer: forward pass, gradient and Adam training step.

RMSNorm, rotary embeddings, multi-query attention (any number of key/value heads that divides the
query heads), GeGLU and tied embeddings, in plain JAX with parameters in nested dicts and lists, so
that argument paths read like ``params['layers'][0]['wq']``.  With ``scan`` the layers are stacked
instead, ``params['layers']['wq']`` has a leading dim "layers", and one loop body serves all of
them.

``make`` only builds shapes: no weight is ever allocated.  Reference: TOAST section 5.1 (T2B, T7B).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.array_shapes import Training, arrays_of
from toast_lab.models.model_sizes import ItxSizes, TransformerSizes
from toast_lab.models.registry import Example

DIM_NAMES = {
    "embed": ("vocab", "d_model"),
    "final_norm": ("d_model",),
    "attn_norm": ("d_model",),
    "mlp_norm": ("d_model",),
    "wq": ("d_model", "heads", "key"),
    "wk": ("d_model", "kv_heads", "key"),
    "wv": ("d_model", "kv_heads", "value"),
    "wo": ("heads", "value", "d_model"),
    "w_gate": ("d_model", "hidden"),
    "w_up": ("d_model", "hidden"),
    "w_down": ("hidden", "d_model"),
    "tokens": ("batch", "sequence"),
    "targets": ("batch", "sequence"),
}


PER_LAYER = ("attn_norm", "mlp_norm", "wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")


def dim_names(sizes: TransformerSizes) -> dict[str, tuple[str, ...]]:
    """Names of the argument dims.

    Where every head has its own key and value, the heads of those are heads like any other.
    """
    names = dict(DIM_NAMES)
    if sizes.kv_heads == sizes.heads:
        names["wk"] = ("d_model", "heads", "key")
        names["wv"] = ("d_model", "heads", "value")
    if sizes.scan:
        names |= {weight: ("layers", *names[weight]) for weight in PER_LAYER}
    return names


def param_shapes(sizes: TransformerSizes) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of these sizes."""
    names = dim_names(sizes)
    shapes = shapes_of_dims(sizes, names, layers=sizes.layers, kv_heads=sizes.kv_heads)
    layer = {weight: shapes(weight) for weight in PER_LAYER}
    return {
        "embed": shapes("embed"),
        "layers": layer if sizes.scan else [layer] * sizes.layers,
        "final_norm": shapes("final_norm"),
    }


def shapes_of_dims(
    sizes: TransformerSizes | ItxSizes, names: Mapping[str, tuple[str, ...]], **others: int
) -> Callable[[str], jax.ShapeDtypeStruct]:
    """The shape of each weight, from the names of its dims; ``others`` are sizes by dim name."""
    size_of = {
        "d_model": sizes.d_model,
        "heads": sizes.heads,
        "hidden": sizes.hidden,
        "key": sizes.key_size,
        "value": sizes.key_size,
        "vocab": sizes.vocab,
        **others,
    }
    shape_of = arrays_of(sizes.dtype)
    return lambda weight: shape_of(*(size_of[dim] for dim in names[weight]))


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square normalisation over the last dim; the scale is stored around zero."""
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(variance + 1e-6) * (1 + scale)


def rotary(x: jax.Array, start: jax.Array | int = 0) -> jax.Array:
    """Rotary embedding of ``x: [batch, sequence, heads, key]``, whose first position is ``start``.

    Angles are computed in float32, since narrower types cannot tell late positions apart.
    """
    key = x.shape[-1]
    position = jnp.arange(x.shape[1], dtype=jnp.float32)
    if not isinstance(start, int) or start:
        position = position + start
    frequency = 10000.0 ** (-jnp.arange(0, key, 2, dtype=jnp.float32) / key)
    angle = position[:, None] * frequency[None, :]
    sin, cos = jnp.sin(angle)[None, :, None, :], jnp.cos(angle)[None, :, None, :]
    sin, cos = sin.astype(x.dtype), cos.astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Causal grouped-query attention; ``heads / kv_heads`` queries share a key/value head."""
    q = rotary(jnp.einsum("bsd,dhk->bshk", x, params["wq"]))
    k = rotary(jnp.einsum("bsd,dgk->bsgk", x, params["wk"]))
    v = jnp.einsum("bsd,dgv->bsgv", x, params["wv"])
    heads, groups = q.shape[2], k.shape[2]
    if groups == 1:
        scores = jnp.einsum("bshk,btk->bhst", q, k[:, :, 0, :])
    else:
        if groups < heads:
            k = jnp.repeat(k, heads // groups, axis=2)
            v = jnp.repeat(v, heads // groups, axis=2)
        scores = jnp.einsum("bshk,bthk->bhst", q, k)
    scores = scores / math.sqrt(q.shape[-1])
    length = x.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.where(causal[None, None], scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1)
    if groups == 1:
        mixed = jnp.einsum("bhst,btv->bshv", weights, v[:, :, 0, :])
    else:
        mixed = jnp.einsum("bhst,bthv->bshv", weights, v)
    return jnp.einsum("bshv,hvd->bsd", mixed, params["wo"])


def geglu(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Gated feed-forward layer."""
    gate = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, params["w_gate"]))
    up = jnp.einsum("bsd,df->bsf", x, params["w_up"])
    return jnp.einsum("bsf,fd->bsd", gate * up, params["w_down"])


def layer(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """One Transformer layer."""
    x = x + attention(params, rms_norm(x, params["attn_norm"]))
    x = x + geglu(params, rms_norm(x, params["mlp_norm"]))
    return x


def forward(params: dict[str, Any], tokens: jax.Array, remat: bool = False) -> jax.Array:
    """Logits ``[batch, sequence, vocab]`` of ``tokens: [batch, sequence]``.

    Stacked layers run in a loop.
    """
    x = params["embed"][tokens]
    x = x * math.sqrt(x.shape[-1])
    run_layer = jax.checkpoint(layer) if remat else layer
    if isinstance(params["layers"], dict):
        x, _ = jax.lax.scan(
            lambda x, layer_params: (run_layer(layer_params, x), None), x, params["layers"]
        )
    else:
        for layer_params in params["layers"]:
            x = run_layer(layer_params, x)
    x = rms_norm(x, params["final_norm"])
    return jnp.einsum("bsd,vd->bsv", x, params["embed"])


def loss_fn(
    params: dict[str, Any], tokens: jax.Array, targets: jax.Array, remat: bool = False
) -> jax.Array:
    """Mean cross entropy of the next token."""
    logits = forward(params, tokens, remat)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def train_step(
    params: dict[str, Any],
    opt_state: Any,
    tokens: jax.Array,
    targets: jax.Array,
    remat: bool = False,
) -> tuple[dict[str, Any], Any, jax.Array]:
    """One Adam step: ``(params, opt_state, loss)``."""
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, remat)
    updates, opt_state = OPTIMISER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


OPTIMISER = optax.adam(1e-3)

# -- expert plans ----------------------------------------------------------------------------------

DATA = (("batch", "data"),)
# After the batch: what has no batch dim, parameters and their moments, is cut so
FSDP = (*DATA, ("d_model", "data"))
MEGATRON = (("hidden", "model"), ("heads", "model"), ("vocab", "model"))


def expert_plans(sizes: TransformerSizes) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """Data parallelism, FSDP, Megatron and sequence parallelism, alone and together.

    Sequence parallelism is on Megatron's axis ("sp") or on an axis of its own ("sequence").  It
    cuts attention scores by the position of the query, such that keys and values are gathered,
    rather than by that of the key, such that the softmax and its result are summed over devices.
    """
    # The bit that means so depends on how the products are written, one key head being a case of
    # its own, and with remat there are two: what is computed again in the backward pass is resolved
    # apart.
    queries = 0 if sizes.kv_heads > 1 else 0b11 if sizes.remat and sizes.mode != "forward" else 1
    # After Megatron: what it leaves whole on its axis is cut by position
    sp = (("sequence", "model", queries),)
    sequence = (("sequence", "seq", queries),)
    return {
        "data": DATA,
        "fsdp": FSDP,
        "megatron": MEGATRON,
        "megatron+sp": (*MEGATRON, *sp),
        "data+megatron": (*DATA, *MEGATRON),
        "data+megatron+sp": (*DATA, *MEGATRON, *sp),
        "fsdp+megatron": (*FSDP, *MEGATRON),
        "fsdp+megatron+sp": (*FSDP, *MEGATRON, *sp),
        "fsdp+sequence": (*FSDP, *sequence),
        "fsdp+sequence+megatron": (*FSDP, *sequence, *MEGATRON),
    }


def make(**given: Any) -> Example:
    """A Transformer of any size; sizes as in ``TransformerSizes``.

    ``scan`` stacks the layers and runs them in a loop, ``remat`` keeps nothing but a layer's input
    for the backward pass; neither changes what is computed.  For the plans see ``expert_plans``.

    Raises ValueError listing every impossible size.
    """
    return build(TransformerSizes(**given))


def build(sizes: TransformerSizes) -> Example:
    """The Transformer of these sizes.  Raises ValueError listing every impossible size."""
    sizes.check()
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.sequence), jnp.int32)

    def with_remat(fn: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(fn, remat=True) if sizes.remat else fn

    training = Training(with_remat(forward), with_remat(loss_fn), with_remat(train_step), OPTIMISER)
    example = training.example(sizes.mode, param_shapes(sizes), inputs=(tokens,), targets=(tokens,))
    return example._replace(dim_names=dim_names(sizes), expert_plans=expert_plans(sizes))

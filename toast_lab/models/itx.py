"""The paper's inference Transformer: prefill and one decoding step with a key/value cache.

Rotary embeddings, multi-query attention and a cache that is updated in place, after Pope et al.,
"Efficiently scaling Transformer inference" (arXiv:2211.05102).  Reference: TOAST section 5.1 (ITX).

The paper gives d_model 2048, hidden 4096, 32 layers, 32 heads, vocabulary 50257, a prompt of 1024
and a sequence of 1024 tokens, and calls it a 5B model.  It does not give the head size, and the
usual d_model / heads = 64 leads nowhere near: with it there are 0.9 billion parameters.  What is
left to choose is chosen such that all of the paper's numbers hold, a feed-forward layer of two
matrices and a head size of 1024:

====================  ============================  =============
part                  shape                                count
====================  ============================  =============
embedding             50257 x 2048                    102,926,336
wq and wo, a layer    2 x 2048 x 32 x 1024            134,217,728
wk and wv, a layer    2 x 2048 x 1024                   4,194,304
w_in, w_out           2 x 2048 x 4096                  16,777,216
two norms, a layer    2 x 2048                              4,096
all layers            32 x 155,193,344              4,966,187,008
final norm                                                  2,048
**together**                                        5,069,115,392
====================  ============================  =============

The cache holds prompt and sequence, 2048 positions; batch and element type are a choice.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from toast_lab.models.array_shapes import arrays_of
from toast_lab.models.model_sizes import ItxSizes
from toast_lab.models.registry import Example, count_parameters
from toast_lab.models.transformer import rms_norm, rotary, shapes_of_dims

DIM_NAMES = {
    "embed": ("vocab", "d_model"),
    "final_norm": ("d_model",),
    "attn_norm": ("d_model",),
    "mlp_norm": ("d_model",),
    "wq": ("d_model", "heads", "key"),
    "wk": ("d_model", "key"),
    "wv": ("d_model", "value"),
    "wo": ("heads", "value", "d_model"),
    "w_in": ("d_model", "hidden"),
    "w_out": ("hidden", "d_model"),
    "k": ("batch", "positions", "key"),
    "v": ("batch", "positions", "value"),
    "tokens": ("batch", "prompt"),
    "token": ("batch",),
}
PER_LAYER = ("attn_norm", "mlp_norm", "wq", "wk", "wv", "wo", "w_in", "w_out")


def param_shapes(sizes: ItxSizes) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of these sizes."""
    shapes = shapes_of_dims(sizes, DIM_NAMES)
    layer = {weight: shapes(weight) for weight in PER_LAYER}
    return {
        "embed": shapes("embed"),
        "layers": [layer] * sizes.layers,
        "final_norm": shapes("final_norm"),
    }


def cache_shapes(sizes: ItxSizes) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Keys and values of every layer, one head each: ``[batch, prompt + sequence, key]``."""
    cache_half = arrays_of(sizes.dtype)(sizes.batch, sizes.prompt + sizes.sequence, sizes.key_size)
    return [{"k": cache_half, "v": cache_half}] * sizes.layers


def attention(
    params: dict[str, jax.Array],
    x: jax.Array,
    cache: dict[str, jax.Array],
    position: jax.Array | int,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Multi-query attention of ``x: [batch, new, d_model]``, whose first token is at ``position``.

    Their keys and values are written into the cache, and they look at all that is in it up to
    themselves.  Where ``position`` is the number 0 nothing was in it before, and only the new ones
    are looked at.
    """
    q = rotary(jnp.einsum("bsd,dhk->bshk", x, params["wq"]), position)
    k = rotary(jnp.einsum("bsd,dk->bsk", x, params["wk"])[:, :, None, :], position)[:, :, 0, :]
    v = jnp.einsum("bsd,dv->bsv", x, params["wv"])
    keys = jax.lax.dynamic_update_slice_in_dim(cache["k"], k, position, axis=1)
    values = jax.lax.dynamic_update_slice_in_dim(cache["v"], v, position, axis=1)
    seen_k, seen_v = (k, v) if isinstance(position, int) and position == 0 else (keys, values)
    scores = jnp.einsum("bshk,btk->bhst", q, seen_k) / math.sqrt(q.shape[-1])
    visible = jnp.arange(seen_k.shape[1])[None, :] <= position + jnp.arange(x.shape[1])[:, None]
    weights = jax.nn.softmax(jnp.where(visible[None, None], scores, -1e30), axis=-1)
    mixed = jnp.einsum("bhst,btv->bshv", weights, seen_v)
    return jnp.einsum("bshv,hvd->bsd", mixed, params["wo"]), {"k": keys, "v": values}


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Feed-forward layer of two matrices."""
    return jnp.einsum(
        "bsf,fd->bsd", jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, params["w_in"])), params["w_out"]
    )


def step(
    params: dict[str, Any],
    cache: list[dict[str, jax.Array]],
    tokens: jax.Array,
    position: jax.Array | int,
) -> tuple[jax.Array, list[dict[str, jax.Array]]]:
    """Logits ``[batch, vocab]`` after the last of ``tokens: [batch, new]``, and the new cache."""
    hidden = params["embed"][tokens]
    hidden = hidden * math.sqrt(hidden.shape[-1])
    updated = []
    for layer_params, layer_cache in zip(params["layers"], cache, strict=True):
        mixed, new_cache = attention(
            layer_params, rms_norm(hidden, layer_params["attn_norm"]), layer_cache, position
        )
        hidden = hidden + mixed
        hidden = hidden + mlp(layer_params, rms_norm(hidden, layer_params["mlp_norm"]))
        updated.append(new_cache)
    last_hidden = rms_norm(hidden[:, -1, :], params["final_norm"])
    return jnp.einsum("bd,vd->bv", last_hidden, params["embed"]), updated


def prefill(
    params: dict[str, Any], cache: list[dict[str, jax.Array]], tokens: jax.Array
) -> tuple[jax.Array, list[dict[str, jax.Array]]]:
    """Logits of the token after the prompt, ``tokens: [batch, prompt]``, and the filled cache."""
    return step(params, cache, tokens, 0)


def decode(
    params: dict[str, Any], cache: list[dict[str, jax.Array]], token: jax.Array, position: jax.Array
) -> tuple[jax.Array, list[dict[str, jax.Array]]]:
    """Logits of the token after ``token: [batch]`` at ``position: []``, and the updated cache."""
    return step(params, cache, token[:, None], position)


# -- expert plans ----------------------------------------------------------------------------------

DATA = (("batch", "data"),)
# 50257 = 29 x 1733: no usual axis divides the vocabulary
MEGATRON = (("hidden", "model"), ("heads", "model"))
MULTI_QUERY = (("hidden", "model"), ("d_model", "model"), ("batch", "model"))

EXPERT_PLANS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "data": DATA,
    "megatron": MEGATRON,
    "data+megatron": (*DATA, *MEGATRON),
    "multi-query+megatron": MULTI_QUERY,
    "data+multi-query+megatron": (*DATA, *MULTI_QUERY),
}


def make(**given: Any) -> Example:
    """The inference Transformer; sizes as in ``ItxSizes``.

    ``mode`` is "decode" (one token) or "prefill" (the prompt).  The cache is donated.

    Expert plans, with or without "data", which cuts the batch: "megatron" cuts the feed-forward
    layer by its hidden dim and the attention by its heads, so that each device keeps the whole
    cache of its examples, there being one key/value head only.  "multi-query" cuts cache and
    attention by batch on Megatron's axis as well: a device keeps its share of the cache, no weight
    moves, and queries and mixed values, small when decoding, change from the projections' layout to
    the batch and back.  Pope et al. cut the projections by heads there and go from heads to batch
    by an all_to_all.  Heads are one colour inside and outside of the attention, so that no action
    parts them there; d_model takes the place of the heads, and a reduce_scatter and an all_gather
    that of the all_to_alls. For the many tokens of a prefill "megatron" is the better one, as it is
    in Pope et al.

    Raises ValueError listing every impossible size.
    """
    sizes = ItxSizes(**given)
    sizes.check()
    params, cache = param_shapes(sizes), cache_shapes(sizes)

    numbers, decoding = arrays_of("int32"), sizes.mode == "decode"
    inputs = (
        (numbers(sizes.batch), numbers()) if decoding else (numbers(sizes.batch, sizes.prompt),)
    )
    return Example(
        fn=decode if decoding else prefill,
        args=(params, cache, *inputs),
        donate_argnums=(1,),
        dim_names=DIM_NAMES,
        expert_plans=EXPERT_PLANS,
        parameter_count=count_parameters(params),
    )

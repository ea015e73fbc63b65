"""A Gemma-style decoder-only Transformer: forward pass, gradient and Adam training step.

RMSNorm, rotary embeddings, multi-query attention (any number of key/value heads that divides the
query heads), GeGLU and tied embeddings, in plain JAX with parameters in nested dicts and lists, so
that argument paths read like ``params['layers'][0]['wq']``.  With ``scan`` the layers are stacked instead,
``params['layers']['wq']`` has a leading dim "layers", and one loop body serves all of them.

``make`` only builds shapes: no weight is ever allocated.  Reference: TOAST section 5.1 (T2B, T7B).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.registry import Example, count_parameters

MODES = ("forward", "gradient", "train")


class Config(NamedTuple):
    """Sizes of one Transformer; ``kv_heads=1`` is multi-query attention."""

    layers: int = 2
    d_model: int = 512
    hidden: int = 2048
    heads: int = 8
    kv_heads: int = 1
    key_size: int = 64
    vocab: int = 32768
    batch: int = 8
    sequence: int = 256
    dtype: str = "float32"
    scan: bool = False  #: layers stacked along a leading dim, run by one loop
    remat: bool = False  #: the backward pass computes each layer again instead of keeping what is inside it

    def check(self) -> None:
        """Raise ValueError naming every size that cannot work."""
        wrong = [f"{k}={v}" for k, v in self._asdict().items() if k not in ("dtype", "scan", "remat") and v < 1]
        if self.heads % max(1, self.kv_heads):
            wrong.append(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.key_size % 2:
            wrong.append(f"key_size={self.key_size} is odd, rotary embeddings need pairs")
        if wrong:
            raise ValueError("transformer: impossible sizes: " + "; ".join(wrong))


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


def dim_names(c: Config) -> dict[str, tuple[str, ...]]:
    """Names of the argument dims; where every head has its own key and value, theirs are heads like any other."""
    names = {
        k: tuple("heads" if d == "kv_heads" and c.kv_heads == c.heads else d for d in v) for k, v in DIM_NAMES.items()
    }
    return {k: ("layers", *v) if c.scan and k in PER_LAYER else v for k, v in names.items()}


def param_shapes(c: Config) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of ``c``."""
    stacked = (c.layers,) if c.scan else ()

    def s(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(c.dtype))

    def layer() -> dict[str, Any]:
        return {
            "attn_norm": s(*stacked, c.d_model),
            "wq": s(*stacked, c.d_model, c.heads, c.key_size),
            "wk": s(*stacked, c.d_model, c.kv_heads, c.key_size),
            "wv": s(*stacked, c.d_model, c.kv_heads, c.key_size),
            "wo": s(*stacked, c.heads, c.key_size, c.d_model),
            "mlp_norm": s(*stacked, c.d_model),
            "w_gate": s(*stacked, c.d_model, c.hidden),
            "w_up": s(*stacked, c.d_model, c.hidden),
            "w_down": s(*stacked, c.hidden, c.d_model),
        }

    return {
        "embed": s(c.vocab, c.d_model),
        "layers": layer() if c.scan else [layer() for _ in range(c.layers)],
        "final_norm": s(c.d_model),
    }


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square normalisation over the last dim; the scale is stored around zero."""
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(variance + 1e-6) * (1 + scale)


def rotary(x: jax.Array, start: jax.Array | int = 0) -> jax.Array:
    """Rotary position embedding of ``x: [batch, sequence, heads, key]``, whose first position is ``start``.

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


def attention(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Causal grouped-query attention; one key/value head is shared by ``heads / kv_heads`` queries."""
    q = rotary(jnp.einsum("bsd,dhk->bshk", x, p["wq"]))
    k = rotary(jnp.einsum("bsd,dgk->bsgk", x, p["wk"]))
    v = jnp.einsum("bsd,dgv->bsgv", x, p["wv"])
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
    return jnp.einsum("bshv,hvd->bsd", mixed, p["wo"])


def geglu(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Gated feed-forward layer."""
    gate = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, p["w_gate"]))
    up = jnp.einsum("bsd,df->bsf", x, p["w_up"])
    return jnp.einsum("bsf,fd->bsd", gate * up, p["w_down"])


def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """One Transformer layer."""
    x = x + attention(p, rms_norm(x, p["attn_norm"]))
    x = x + geglu(p, rms_norm(x, p["mlp_norm"]))
    return x


def forward(params: dict[str, Any], tokens: jax.Array, remat: bool = False) -> jax.Array:
    """Logits ``[batch, sequence, vocab]`` of ``tokens: [batch, sequence]``; stacked layers run in a loop."""
    x = params["embed"][tokens]
    x = x * math.sqrt(x.shape[-1])
    one = jax.checkpoint(layer) if remat else layer
    if isinstance(params["layers"], dict):
        x, _ = jax.lax.scan(lambda x, p: (one(p, x), None), x, params["layers"])
    else:
        for p in params["layers"]:
            x = one(p, x)
    x = rms_norm(x, params["final_norm"])
    return jnp.einsum("bsd,vd->bsv", x, params["embed"])


def loss_fn(params: dict[str, Any], tokens: jax.Array, targets: jax.Array, remat: bool = False) -> jax.Array:
    """Mean cross entropy of the next token."""
    logits = forward(params, tokens, remat)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def train_step(
    params: dict[str, Any], opt_state: Any, tokens: jax.Array, targets: jax.Array, remat: bool = False
) -> tuple[dict[str, Any], Any, jax.Array]:
    """One Adam step: ``(params, opt_state, loss)``."""
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, remat)
    updates, opt_state = OPTIMISER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


OPTIMISER = optax.adam(1e-3)

# -- expert plans ------------------------------------------------------------------------------------

DATA = (("batch", "data"),)
FSDP = (*DATA, ("d_model", "data"))  # after the batch: what has no batch dim, parameters and their moments, is cut so
MEGATRON = (("hidden", "model"), ("heads", "model"), ("vocab", "model"))


def expert_plans(c: Config, mode: str) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """Data parallelism, FSDP, Megatron, and sequence parallelism on Megatron's axis ("sp") or an axis of its own.

    Sequence parallelism cuts attention scores by the position of the query, such that keys and values are gathered,
    rather than by that of the key, such that the softmax and its result are summed over devices.
    """
    # The bit that means so depends on how the products are written, one key head being a case of its own, and with
    # remat there are two: what is computed again in the backward pass is resolved apart.
    queries = 0 if c.kv_heads > 1 else 0b11 if c.remat and mode != "forward" else 1
    sp = (("sequence", "model", queries),)  # after Megatron: what it leaves whole on its axis is cut by position
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


def make(
    layers: int = 2,
    d_model: int = 512,
    hidden: int = 2048,
    heads: int = 8,
    kv_heads: int = 1,
    key_size: int = 64,
    vocab: int = 32768,
    batch: int = 8,
    sequence: int = 256,
    dtype: str = "float32",
    mode: str = "train",
    scan: bool = False,
    remat: bool = False,
) -> Example:
    """A Transformer of any size; ``mode`` is "forward", "gradient" or "train".

    ``scan`` stacks the layers and runs them in a loop, ``remat`` keeps a layer's input only for the backward pass;
    neither changes what is computed.  For the plans see ``expert_plans``.

    Raises ValueError listing every impossible size.
    """
    config = Config(layers, d_model, hidden, heads, kv_heads, key_size, vocab, batch, sequence, dtype, scan, remat)
    return build(config, mode)


def build(config: Config, mode: str) -> Example:
    """The Transformer of ``config`` in one of the ``MODES``.  Raises ValueError listing every impossible size."""
    config.check()
    params = param_shapes(config)
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)

    def with_remat(fn: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(fn, remat=True) if config.remat else fn

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    if mode == "forward":
        fn, args = with_remat(forward), (params, tokens)
    elif mode == "gradient":
        fn, args = jax.value_and_grad(with_remat(loss_fn)), (params, tokens, tokens)
    elif mode == "train":
        state = jax.eval_shape(OPTIMISER.init, params)
        fn, args, donated = with_remat(train_step), (params, state, tokens, tokens), (0, 1)
    else:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    return Example(fn, args, donated, dim_names(config), expert_plans(config, mode), count_parameters(params))

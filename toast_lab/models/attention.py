"""The paper's simplified attention, with averaging in place of softmax.  Reference: TOAST section 3.2, figure 5."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from toast_lab.models.registry import Example


def attn(x: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array) -> jax.Array:
    """Keys times queries, normalised over the keys, times values."""
    k = x @ wk
    v = x @ wv
    q = x @ wq
    qt = q.T
    a = k @ qt
    b = jnp.sum(a, axis=0)
    c = jnp.broadcast_to(b, a.shape)
    d = a / c
    z = d @ v
    return z


def make(sequence: int = 64, d_model: int = 32, key: int = 16, value: int = 8, dtype: str = "float32") -> Example:
    """Any sizes; the paper gives none."""
    s = jax.ShapeDtypeStruct
    args = (
        s((sequence, d_model), dtype),
        s((d_model, key), dtype),
        s((d_model, key), dtype),
        s((d_model, value), dtype),
    )
    return Example(attn, args, (), {"x": ("S", "D"), "wq": ("D", "H1"), "wk": ("D", "H1"), "wv": ("D", "H2")})

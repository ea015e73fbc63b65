"""The paper's simplified attention, with averaging in place of softmax.

Reference: TOAST section 3.2, figure 5.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from toast_lab.models.array_shapes import arrays_of
from toast_lab.models.model_sizes import AttentionSizes
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


def make(**sizes: Any) -> Example:
    """Shapes of ``AttentionSizes``."""
    size = AttentionSizes(**sizes)
    array = arrays_of(size.dtype)
    return Example(
        fn=attn,
        args=(
            array(size.sequence, size.d_model),
            array(size.d_model, size.key),
            array(size.d_model, size.key),
            array(size.d_model, size.value),
        ),
        dim_names={"x": ("S", "D"), "wq": ("D", "H1"), "wk": ("D", "H1"), "wv": ("D", "H2")},
    )

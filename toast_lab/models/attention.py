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


def make(**given: Any) -> Example:
    """Shapes of ``AttentionSizes``."""
    sizes = AttentionSizes(**given)
    shape_of = arrays_of(sizes.dtype)
    return Example(
        fn=attn,
        args=(
            shape_of(sizes.sequence, sizes.d_model),
            shape_of(sizes.d_model, sizes.key),
            shape_of(sizes.d_model, sizes.key),
            shape_of(sizes.d_model, sizes.value),
        ),
        dim_names={"x": ("S", "D"), "wq": ("D", "H1"), "wk": ("D", "H1"), "wv": ("D", "H2")},
    )

"""The two-layer perceptron of the paper's first listings.  Reference: TOAST section 2.1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from toast_lab.models.registry import Example


def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    """Two linear layers with a ReLU between them."""
    y = x @ w1
    z = jnp.maximum(y, 0.0)
    w = z @ w2
    return w


def make(batch: int = 256, inputs: int = 32, hidden: int = 64, outputs: int = 16, dtype: str = "float32") -> Example:
    """Shapes as in the paper by default."""
    s = jax.ShapeDtypeStruct
    args = (s((batch, inputs), dtype), s((inputs, hidden), dtype), s((hidden, outputs), dtype))
    return Example(mlp, args, (), {"x": ("B", "X"), "w1": ("X", "U"), "w2": ("U", "W")})

"""The two-layer perceptron of the paper's first listings.  Reference: TOAST section 2.1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from toast_lab.models.array_shapes import arrays_of
from toast_lab.models.model_sizes import MlpSizes
from toast_lab.models.registry import Example


def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    """Two linear layers with a ReLU between them."""
    y = x @ w1
    z = jnp.maximum(y, 0.0)
    w = z @ w2
    return w


def make(**given: Any) -> Example:
    """Shapes of ``MlpSizes``, as in the paper by default."""
    sizes = MlpSizes(**given)
    shape_of = arrays_of(sizes.dtype)
    return Example(
        fn=mlp,
        args=(
            shape_of(sizes.batch, sizes.inputs),
            shape_of(sizes.inputs, sizes.hidden),
            shape_of(sizes.hidden, sizes.outputs),
        ),
        dim_names={"x": ("B", "X"), "w1": ("X", "U"), "w2": ("U", "W")},
    )

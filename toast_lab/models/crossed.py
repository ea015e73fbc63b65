"""Conflicts that are not compatible: paths of the dimension graph go across the box.

"row sums" adds to every column of a Gram matrix its row sums, so that dim 0 of the matrix reaches
dim 1 of its use; "transpose" adds the transposed matrix, and both dims go across.  Reference: TOAST
section 3.5, figure 6.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from toast_lab.models.array_shapes import arrays_of
from toast_lab.models.model_sizes import CrossedSizes
from toast_lab.models.registry import Example


def row_sums(x: jax.Array) -> jax.Array:
    """One path across."""
    y = x.T
    z = x @ y
    s = jnp.sum(z, axis=1)
    r = jnp.broadcast_to(s, z.shape)
    w = z + r
    return w


def transposed(x: jax.Array) -> jax.Array:
    """Two paths across."""
    y = x.T
    z = x @ y
    t = z.T
    w = z + t
    return w


def make(**given: Any) -> Example:
    """Shapes of ``CrossedSizes``."""
    sizes = CrossedSizes(**given)
    sizes.check()
    return Example(
        fn=row_sums if sizes.mode == "row sums" else transposed,
        args=(arrays_of(sizes.dtype)(sizes.rows, sizes.columns),),
        dim_names={"x": ("S", "T")},
    )

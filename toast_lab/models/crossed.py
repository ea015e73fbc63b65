"""Conflicts that are not compatible: paths of the dimension graph go across the box.

"row sums" adds to every column of a Gram matrix its row sums, so that dim 0 of the matrix reaches dim 1 of its use;
"transpose" adds the transposed matrix, and both dims go across.  Reference: TOAST section 3.5, figure 6.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from toast_lab.models.registry import Example

MODES = ("row sums", "transpose")


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


def make(mode: str = "row sums", rows: int = 32, columns: int = 4, dtype: str = "float32") -> Example:
    """Shapes as of ``x @ x.T``; the paper gives no program."""
    if mode not in MODES:
        raise ValueError(f"crossed: mode={mode!r}, not one of {', '.join(MODES)}")
    x = jax.ShapeDtypeStruct((rows, columns), dtype)
    return Example(row_sums if mode == "row sums" else transposed, (x,), (), {"x": ("S", "T")})

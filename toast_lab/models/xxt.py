"""``x @ x.T``: one tensor reaches one op along two paths.  Reference: TOAST section 2.2."""

from __future__ import annotations

import jax

from toast_lab.models.registry import Example


def f(x: jax.Array) -> jax.Array:
    """Gram matrix of the rows of ``x``."""
    y = x.T
    z = x @ y
    return z


def make(rows: int = 32, columns: int = 4, dtype: str = "float32") -> Example:
    """Shapes as in the paper by default."""
    return Example(f, (jax.ShapeDtypeStruct((rows, columns), dtype),), (), {"x": ("S", "T")})

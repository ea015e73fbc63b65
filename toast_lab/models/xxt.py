"""``x @ x.T``: one tensor reaches one op along two paths.  Reference: TOAST section 2.2."""

from __future__ import annotations

from typing import Any

import jax

from toast_lab.models.array_shapes import arrays_of
from toast_lab.models.model_sizes import XxtSizes
from toast_lab.models.registry import Example


def f(x: jax.Array) -> jax.Array:
    """Gram matrix of the rows of ``x``."""
    y = x.T
    z = x @ y
    return z


def make(**given: Any) -> Example:
    """Shapes of ``XxtSizes``, as in the paper by default."""
    sizes = XxtSizes(**given)
    shape_of = arrays_of(sizes.dtype)
    return Example(fn=f, args=(shape_of(sizes.rows, sizes.columns),), dim_names={"x": ("S", "T")})

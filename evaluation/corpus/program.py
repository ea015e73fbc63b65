"""``Program``: one entry of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from toast_lab.ir.model import Model


class Program(NamedTuple):
    """An entry of the corpus: a program and where it comes from."""

    name: str
    family: str
    make: Callable[[], Model]
    package: str = ""  #: PyPI package that the traced code is from; "": this project


def shapes(tree: Any, dtype: Any) -> Any:
    """A pytree of shapes (tuples of integers) as arrays that are never allocated."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype),
        tree,
        is_leaf=lambda leaf: (
            isinstance(leaf, tuple) and all(isinstance(size, int) for size in leaf)
        ),
    )


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """An array of integers that is never allocated."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def random_key() -> jax.Array:
    """A random key for models that are initialised as shapes only."""
    return jax.random.PRNGKey(0)

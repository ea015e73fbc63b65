"""``Program``: one entry of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from toast_lab.ir.model import Model


class Program(NamedTuple):
    """A program of the corpus."""

    name: str
    family: str
    make: Callable[[], Model]
    package: str = ""  #: of PyPI, that wrote what is traced; "": this project wrote it


def shapes(tree: Any, dtype: Any) -> Any:
    """A pytree of shapes (tuples of numbers) as arrays that are never made."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype),
        tree,
        is_leaf=lambda leaf: (
            isinstance(leaf, tuple) and all(isinstance(size, int) for size in leaf)
        ),
    )


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """An array of whole numbers that is never made."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def random_key() -> jax.Array:
    """The key for what is initialised as shapes only."""
    return jax.random.PRNGKey(0)

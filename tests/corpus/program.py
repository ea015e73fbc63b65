"""``Program``: one entry of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

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

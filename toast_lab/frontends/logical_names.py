"""Logical dim names that flax attaches to parameters: on boxes in linen, on variables in nnx."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

LogicalNames = dict[str, tuple[str | None, ...]]


def dim_names_of(paths: Sequence[str], given: Any) -> LogicalNames:
    """Dim names that boxes around the arguments carry, by argument path.

    Args:
        paths: of all arrays in ``given``, in order.
        given: the arguments, as pytrees of shapes.
    """
    import jax

    boxes = jax.tree_util.tree_leaves(given, is_leaf=lambda box: _names_of(box) is not None)
    names_by_path: LogicalNames = {}
    argument = 0
    for box in boxes:
        names, arrays = _names_of(box), jax.tree_util.tree_leaves(box)
        if names is not None and len(arrays) == 1 and len(names) == len(np.shape(arrays[0])):
            names_by_path[paths[argument]] = names
        argument += len(arrays)
    return names_by_path


def _names_of(box: Any) -> tuple[str | None, ...] | None:
    """Logical names of a flax box or nnx variable."""
    if not type(box).__module__.startswith("flax."):
        return None
    for key in ("names", "out_sharding", "sharding_names", "sharding"):
        # Flax warns of attributes that it renamed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            names = getattr(box, key, None)
        if (
            isinstance(names, tuple)
            and names
            and all(name is None or isinstance(name, str) for name in names)
        ):
            return names
    return None

"""Logical dim names that flax attaches to parameters: on boxes in linen, on variables in nnx."""

from __future__ import annotations

import warnings
from typing import Any

from toast_lab.ir.program import Program

LogicalNames = dict[str, tuple[str | None, ...]]


def dim_names_of(program: Program, given: Any) -> LogicalNames:
    """Dim names that boxes around the arguments carry, by argument path.

    Args:
        program: the traced program.
        given: its positional arguments, as pytrees.
    """
    import jax

    boxes = jax.tree_util.tree_leaves(given, is_leaf=lambda box: _names_of(box) is not None)
    names_by_path: LogicalNames = {}
    argument = 0
    for box in boxes:
        names, count = _names_of(box), len(jax.tree_util.tree_leaves(box))
        if names is not None and count == 1 and len(names) == len(program.dims(argument)):
            names_by_path[program.value_name[argument]] = names
        argument += count
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

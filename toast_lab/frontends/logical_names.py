"""Logical names of dims that flax puts on parameters: boxes of linen, variables of nnx."""

from __future__ import annotations

import warnings
from typing import Any

from toast_lab.ir.program import Program

LogicalNames = dict[str, tuple[str | None, ...]]


def dim_names_of(program: Program, given: Any) -> LogicalNames:
    """Dim names that boxes around the arguments carry, by our path.

    Args:
        program: that was traced.
        given: its positional arguments, as pytrees.
    """
    import jax

    flat = jax.tree_util.tree_leaves(given, is_leaf=lambda box: _names_of(box) is not None)
    names_by_path: LogicalNames = {}
    argument = 0
    for part in flat:
        names, count = _names_of(part), len(jax.tree_util.tree_leaves(part))
        if names is not None and count == 1 and len(names) == len(program.dims(argument)):
            names_by_path[program.value_name[argument]] = names
        argument += count
    return names_by_path


def _names_of(box: Any) -> tuple[str | None, ...] | None:
    """Logical names of a flax box or nnx variable."""
    if not type(box).__module__.startswith("flax."):
        return None
    for key in ("names", "out_sharding", "sharding_names", "sharding"):
        # Flax warns of what it renamed
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

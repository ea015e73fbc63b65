"""Modes of a mesh's axes: JAX's propagation shards values, or their types do."""

from __future__ import annotations

from toast_lab.errors import InvalidPlan

AUTO, EXPLICIT = "auto", "explicit"
#: what constrains a value, by mode
CONSTRAIN = {AUTO: "jax.lax.with_sharding_constraint", EXPLICIT: "jax.sharding.reshard"}


def check_mode(mode: str) -> None:
    """Raise InvalidPlan if there is no such mode."""
    if mode not in CONSTRAIN:
        raise InvalidPlan(f"mode {mode!r}: it is {' or '.join(map(repr, CONSTRAIN))}")

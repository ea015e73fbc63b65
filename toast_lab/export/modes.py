"""Modes of a mesh's axes: JAX's propagation shards values, or their types do."""

from __future__ import annotations

AUTO, EXPLICIT = "auto", "explicit"
#: what constrains a value, by mode
CONSTRAIN = {AUTO: "jax.lax.with_sharding_constraint", EXPLICIT: "jax.sharding.reshard"}

"""Models for tests of what happens to the worker that loads them."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp


def fine(size: int = 8) -> Any:
    """A model that loads normally, a single product."""
    return lambda x: x @ x, (jax.ShapeDtypeStruct((size, size), jnp.float32),)


def dies() -> Any:
    """A model that ends the process that loads it."""
    os._exit(7)

"""A user's model whose every name tries to run a script; served by the tests."""

from __future__ import annotations

from typing import Any

EVIL = "<img src=x onerror=\"document.title='pwned';console.error('pwned')\">"


def make() -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    shape = jax.ShapeDtypeStruct((32, 32), "float32")

    def step(arguments: dict[str, Any]) -> Any:
        return {EVIL: jnp.tanh(arguments[EVIL] @ arguments["w"].T) @ arguments[EVIL]}

    step.__name__ = EVIL
    return step, ({EVIL: shape, "w": shape},), {"dim_names": {"w": (EVIL, EVIL + "2")}}

"""Indexing by position, run with the batch cut; in a process with 8 virtual devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import toast_lab as tl
from tests.apply.programs import counts, error_of

B, N, D = 16, 6, 5


def searched(table: Any, index: Any, rows: Any, several: Any) -> dict[str, Any]:
    """Every kind of indexing by position in one program, with indices out of bounds."""
    batch = jnp.arange(B)

    def loss(table: Any) -> Any:
        return jnp.sin(table.at[batch, index].multiply(rows)[batch[:, None], several])

    def step(table: Any, j: Any) -> Any:
        return table.at[batch, (index + j) % N].set(rows), table[batch, j]

    value, pull = jax.vjp(loss, table)
    numbers = lax.ScatterDimensionNumbers((1, 2, 3), (), (1, 0))
    stacked = jnp.stack([index, batch], 1)
    return {
        "clip": table.at[batch, index].get(mode="clip"),
        "fill": table.at[batch, index].get(mode="fill", fill_value=3.0),
        "drop": table.at[batch, index].add(rows, mode="drop"),
        "window": lax.scatter_add(table, stacked, rows[:, None, None], numbers, mode="clip"),
        "gradient": pull(value),
        "scan": lax.scan(step, table, jnp.arange(3)),
        "vmap": jax.vmap(lambda t: t[batch, index], 2, 1)(table),
        "grid": table[batch[:, None], jnp.arange(N)[None], index[:, None]],
        "whole": table.at[batch].add(jnp.cos(table[batch])),
    }


def by_position() -> dict[str, Any]:
    """Errors of the planned program against the unsharded one, and its collectives."""
    random = np.random.default_rng(0)
    arguments = (
        random.normal(size=(B, N, D)).astype(np.float32),
        random.integers(-N - 3, N + 3, B).astype(np.int32),
        random.normal(size=(B, D)).astype(np.float32),
        random.integers(-N, N, (B, 3)).astype(np.int32),
    )
    problem = tl.Problem(
        tl.analyse(tl.from_jax(searched, *arguments)), {"data": 4, "model": 2}, "tpu-v5e"
    )
    plan = tl.Plan.from_specs(
        problem,
        {
            path: (("data", "model"), *(None for _ in argument.shape[1:]))
            for path, argument in zip(
                tl.replicated(problem).argument_specs(), arguments, strict=True
            )
        },
    )
    expected = jax.jit(searched)(*arguments)
    step = plan.jit(searched)
    results = step(*arguments)
    return {
        "errors": {key: error_of(results[key], expected[key]) for key in expected},
        "priced": len(tl.price(problem, plan).collectives),
        "compiled": counts(step.lower(*arguments).compile()),
    }

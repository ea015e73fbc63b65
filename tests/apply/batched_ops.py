"""Ops that XLA gathers although only their batch is cut; in a process with 8 virtual devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import toast_lab as tl
from tests.apply.programs import MESH, counts, error_of

B = 16


def convolved(images: Any, kernel: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        images,
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def batched(images: Any, kernel: Any, kernels: Any, scores: Any) -> dict[str, Any]:
    def loss(kernel: Any, image: Any) -> Any:
        return jnp.sum(jnp.tanh(convolved(image[None], kernel)))

    return {
        "groups of features": convolved(images, kernel[:, :, :2], groups=2),
        "a kernel an example": jax.vmap(lambda x, k: convolved(x[None], k)[0])(images, kernels),
        "gradients an example": jax.vmap(jax.grad(loss), (None, 0))(kernel, images),
        "top_k": lax.top_k(scores, 3),
    }


def examples_alone() -> dict[str, Any]:
    """Errors of the planned program against the unsharded one, and its collectives."""
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    arguments = (
        drawn(B, 6, 6, 4),
        drawn(3, 3, 4, 8),
        drawn(B, 3, 3, 4, 8),
        drawn(B, 32),
    )
    problem = tl.Problem(tl.analyse(tl.from_jax(batched, *arguments)), MESH, "tpu-v5e")
    plan = tl.Plan.from_specs(
        problem,
        {
            path: (
                ("data", "model") if argument.shape[0] == B else None,
                *(None for _ in argument.shape[1:]),
            )
            for path, argument in zip(
                tl.replicated(problem).argument_specs(), arguments, strict=True
            )
        },
    )
    expected = jax.jit(batched)(*arguments)
    step = plan.jit(batched)
    results = step(*arguments)
    return {
        "errors": {key: error_of(results[key], expected[key]) for key in expected},
        "priced": len(tl.price(problem, plan).collectives),
        "compiled": counts(step.lower(*arguments).compile()),
    }

"""``VisionTransformer`` of equimo.

An equinox module, vmapped over images, the gradient of a loss.
"""

from __future__ import annotations

from typing import Any

import equimo.models
import equinox as eqx
import jax
import jax.numpy as jnp


def make(
    batch: int = 8, size: int = 32, width: int = 64, heads: int = 4, layers: int = 2
) -> tuple[Any, Any]:
    """Loss and gradients with respect to the module."""

    def build() -> Any:
        return equimo.models.VisionTransformer(
            img_size=size,
            in_channels=3,
            dim=width,
            patch_size=8,
            num_heads=[heads],
            depths=[layers],
            num_classes=16,
            key=jax.random.PRNGKey(0),
        )

    @eqx.filter_jit
    def step(model: Any, images: Any, keys: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss(model: Any) -> Any:
            logits = jax.vmap(lambda x, key: model(x, key=key, inference=True))(images, keys)
            return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])

        return loss(model)

    images = jax.ShapeDtypeStruct((batch, 3, size, size), jnp.float32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.PRNGKey(1), batch))
    return step, (eqx.filter_eval_shape(build), images, keys)

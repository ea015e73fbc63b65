"""``hk.nets.ResNet18`` of dm-haiku.

Convolutions and batch norm, an SGD step of the classification loss.
"""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax


def make(batch: int = 16, size: int = 32, classes: int = 16) -> tuple[Any, Any, dict[str, Any]]:
    """A training step over NHWC images."""
    network = hk.transform_with_state(lambda x: hk.nets.ResNet18(classes)(x, is_training=True))
    optimiser = optax.sgd(1e-2, momentum=0.9)
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def step(params: Any, state: Any, moments: Any, images: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, new_state = network.apply(params, state, None, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new_state

        (value, new_state), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, new_moments = optimiser.update(gradients, moments)
        return optax.apply_updates(params, updates), new_state, new_moments, value

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    params, state = jax.eval_shape(network.init, key, images)
    moments = jax.eval_shape(optimiser.init, params)
    return step, (params, state, moments, images, labels), {"donate_argnums": (0, 1, 2)}

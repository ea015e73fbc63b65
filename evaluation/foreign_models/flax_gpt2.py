"""``FlaxGPT2LMHeadModel`` of transformers 4.

A flax linen model with dropout, an Adam step of the language model.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from transformers import FlaxGPT2LMHeadModel, GPT2Config


def make(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocab: int = 256,
    batch: int = 8,
    sequence: int = 16,
) -> tuple[Any, Any, dict[str, Any]]:
    """A training step over token ids."""
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=sequence
    )
    model = FlaxGPT2LMHeadModel(config, _do_init=False)

    def state() -> Any:
        params = model.init_weights(jax.random.PRNGKey(0), (batch, sequence))
        return TrainState.create(apply_fn=model.__call__, params=params, tx=optax.adam(1e-3))

    def step(state: Any, tokens: Any, dropout: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = state.apply_fn(tokens, params=params, dropout_rng=dropout, train=True).logits
            return optax.softmax_cross_entropy_with_integer_labels(
                logits[:, :-1], tokens[:, 1:]
            ).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    tokens = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return step, (jax.eval_shape(state), tokens, key), {"donate_argnums": 0}

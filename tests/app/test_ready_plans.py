"""Which dim is taken for the batch where nobody says so."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("panel")

from toast_lab.app.ready_plans import batch_group
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import from_jax


def shape(*sizes: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def chosen(fn: Any, *args: Any) -> tuple[int, Analysis]:
    """Size of the dim that is taken for the batch."""
    analysis = analyse(from_jax(fn, *args))
    return analysis.groups[batch_group(analysis)].size, analysis


PARAMS = {"emb": shape(512, 64), "w1": shape(64, 256), "b1": shape(256), "w2": shape(256, 64)}


def hidden(params: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ params["w1"] + params["b1"]) @ params["w2"] + x


def updated(params: Any, momentum: Any, loss: Any) -> Any:
    value, gradient = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum, value


def test_the_batch_of_a_training_step_is_that_of_its_tokens() -> None:
    def step(params: Any, momentum: Any, ids: Any) -> Any:
        def loss(p: Any) -> Any:
            logits = hidden(p, p["emb"][ids[:, :-1]]) @ p["emb"].T
            likely = jax.nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(likely, ids[:, 1:, None], axis=-1))

        return updated(params, momentum, loss)

    assert chosen(step, PARAMS, PARAMS, shape(32, 17, dtype="int32"))[0] == 32


def test_inputs_that_come_back_updated_are_no_batch() -> None:
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        return updated(params, momentum, lambda p: jnp.mean((hidden(p, x) - y) ** 2))

    assert chosen(step, PARAMS, PARAMS, shape(48, 64), shape(48, 64))[0] == 48


def test_of_a_forward_pass_the_batch_is_on_most_values() -> None:
    assert chosen(hidden, PARAMS, shape(48, 64))[0] == 48


def test_in_doubt_all_candidates_are_named() -> None:
    def both(left: Any, right: Any) -> Any:
        return jnp.sum(left * 2), jnp.sum(right * 2)

    with pytest.raises(InvalidPlan) as refused:
        chosen(both, shape(24, dtype="int32"), shape(36, dtype="int32"))
    assert "several dims could be the batch" in str(refused.value)
    assert "size 24, of left" in str(refused.value)
    assert "size 36, of right" in str(refused.value)


def test_the_steps_of_a_sequence_are_no_batch() -> None:
    """Time comes first, as recurrent nets of Haiku have it; each round of a loop takes a step."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            first = jnp.zeros(x.shape[1:])
            state, states = jax.lax.scan(lambda h, now: (jnp.tanh((h + now) @ w),) * 2, first, x)
            return (states**2).mean() + state.sum()

        return w - 0.1 * jax.grad(loss)(w)

    size, _ = chosen(step, shape(512, 512), shape(32, 1024, 512))
    assert size == 1024

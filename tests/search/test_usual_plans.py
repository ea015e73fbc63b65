"""The plans that everybody tries first, and the dim that is taken for the batch by default."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import from_jax
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import batch_group, usual_plans


def shape(*sizes: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def chosen(fn: Any, *args: Any) -> tuple[int, Analysis]:
    """Return the size of the dim that is taken for the batch, and the analysis."""
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
    """A loop takes one step a round; time is the first dim, as in Haiku's recurrent networks."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            first = jnp.zeros(x.shape[1:])
            state, states = jax.lax.scan(lambda h, now: (jnp.tanh((h + now) @ w),) * 2, first, x)
            return (states**2).mean() + state.sum()

        return w - 0.1 * jax.grad(loss)(w)

    size, _ = chosen(step, shape(512, 512), shape(32, 1024, 512))
    assert size == 1024


def updated_step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
    return updated(params, momentum, lambda p: jnp.mean((hidden(p, x) - y) ** 2))


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (
            {"d": 4, "m": 2},
            {
                "data parallel": ("d+m,-", "-,-"),
                "fully sharded": ("d+m,-", "d+m,-"),
                "tensor parallel": ("d,m", "m,-"),
            },
        ),
        (
            {"d": 4},
            {
                "data parallel": ("d,-", "-,-"),
                "fully sharded": ("d,-", "d,-"),
                "tensor parallel": ("-,d", "d,-"),
            },
        ),
        # An axis that divides neither 48 nor 64 is used by no plan
        (
            {"d": 4, "o": 5, "m": 2},
            {
                "data parallel": ("d+m,-", "-,-"),
                "fully sharded": ("d+m,-", "d+m,-"),
                "tensor parallel": ("d,m", "m,-"),
            },
        ),
    ],
)
def test_usual_plans_cut_the_batch_and_the_weights(
    mesh: dict[str, int], expected: dict[str, tuple[str, str]]
) -> None:
    """The width of 64 is on most bytes of arguments, and on the inputs too; it is not the batch."""
    analysis = analyse(from_jax(updated_step, PARAMS, PARAMS, shape(48, 64), shape(48, 64)))
    problem = Problem(analysis, mesh)

    def text(spec: Any) -> str:
        return ",".join("+".join(axes) or "-" for axes in spec)

    texts = {}
    for name, actions in usual_plans(problem).items():
        specs = Plan.from_actions(problem, actions).argument_specs()
        texts[name] = text(specs["x"]), text(specs["params['w1']"])
    assert texts == expected


def test_where_no_axis_divides_there_is_no_usual_plan() -> None:
    analysis = analyse(from_jax(hidden, PARAMS, shape(48, 64)))
    assert usual_plans(Problem(analysis, {"odd": 7})) == {}

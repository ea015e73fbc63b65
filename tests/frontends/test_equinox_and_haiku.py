"""Equinox modules, pytrees with some leaves that are no arrays, and haiku functions are read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from toast_lab.frontends import from_jax
from toast_lab.ir.model import Model

S = jax.ShapeDtypeStruct
X = S((8, 16), jnp.float32)


def arguments(model: Model) -> list[str]:
    return list(model.program.value_name[: model.program.n_arguments])


# -- equinox ---------------------------------------------------------------------------------------


@pytest.fixture
def eqx() -> Any:
    return pytest.importorskip("equinox")


def mlp(eqx: Any) -> Any:
    return eqx.filter_eval_shape(eqx.nn.MLP, 16, 4, 32, 2, key=jax.random.key(0))


WEIGHTS = [f"layers[{i}].{name}" for i in range(3) for name in ("weight", "bias")]


def test_equinox_module_as_an_argument(eqx: Any) -> None:
    model = from_jax(lambda net, x: jax.vmap(net)(x), mlp(eqx), X)
    assert arguments(model) == [*(f"net.{name}" for name in WEIGHTS), "x"]
    assert "bound, because they are not arrays: net.activation = " in model.notes[0]
    tree, _ = model.trees
    (net, x) = tree.unflatten(list(range(7)))
    assert (net.layers[2].bias, net.activation, x) == (5, None, 6)


def test_equinox_module_given_as_the_function(eqx: Any) -> None:
    model = from_jax(mlp(eqx), S((16,), jnp.float32), donate_argnums=0)
    assert arguments(model) == [*(f"model.{name}" for name in WEIGHTS), "x"]
    assert model.name == "MLP"
    assert model.program.donated.tolist() == [False] * 6 + [True], (
        "positions count the user's arguments"
    )


def test_equinox_filter_jit_step(eqx: Any) -> None:
    optimiser = optax.adam(1e-3)

    @eqx.filter_jit
    def step(net: Any, state: Any, x: jax.Array, times: int) -> Any:
        def loss(net: Any) -> jax.Array:
            y = x
            for _ in range(times):  # a Python number is static under filter_jit
                y = y * 2.0
            return jnp.mean(jax.vmap(net)(y) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(net)
        updates, state = optimiser.update(gradients, state, eqx.filter(net, eqx.is_array))
        return eqx.apply_updates(net, updates), state, value

    net = mlp(eqx)
    state = jax.eval_shape(optimiser.init, eqx.filter(net, lambda leaf: hasattr(leaf, "shape")))
    model = from_jax(step, net, state, X, 3)
    names = arguments(model)
    assert names[:6] == [f"net.{name}" for name in WEIGHTS]
    assert "state[0].mu.layers[0].weight" in names
    assert names[-1] == "x"
    # the new module comes back, without its activation functions
    assert model.program.output_paths[:2] == (
        "result[0].layers[0].weight",
        "result[0].layers[0].bias",
    )
    assert not [path for path in model.program.output_paths if "activation" in path]


def test_numbers_within_an_equinox_module_are_static(eqx: Any) -> None:
    class Repeat(eqx.Module):
        weight: Any
        times: int

        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(self.times):
                x = jnp.tanh(self.weight * x)
            return x

    model = from_jax(
        lambda nets, x, scale: nets[0](x) * scale, [Repeat(S((16,), jnp.float32), 2)], X, 3.0
    )
    assert arguments(model) == ["nets[0].weight", "x", "scale"]
    assert [model.program.kind[op] for op in model.program.ops()].count("tanh") == 2


def test_equinox_batch_norm_and_dropout(eqx: Any) -> None:
    class Net(eqx.Module):
        linear: Any
        norm: Any
        dropout: Any

        def __init__(self, key: jax.Array) -> None:
            self.linear = eqx.nn.Linear(16, 16, key=key)
            self.norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch")
            self.dropout = eqx.nn.Dropout(0.5)

        def __call__(self, x: jax.Array, state: Any, key: jax.Array) -> Any:
            x, state = self.norm(self.linear(x), state)
            return self.dropout(x, key=key), state

    net, state = eqx.filter_eval_shape(lambda: eqx.nn.make_with_state(Net)(jax.random.key(0)))

    def forward(net: Any, state: Any, x: jax.Array, keys: jax.Array) -> Any:
        run = jax.vmap(net, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        return run(x, state, keys)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    model = from_jax(forward, net, state, X, keys)
    assert {"net.linear.weight", "net.norm.weight", "x", "keys"} <= set(arguments(model))
    assert len(model.program.outputs) > 1, "the new statistics are results"


# -- haiku -----------------------------------------------------------------------------------------


def test_haiku_transform() -> None:
    hk = pytest.importorskip("haiku")

    def forward(x: jax.Array, is_training: bool) -> jax.Array:
        h = hk.BatchNorm(True, True, 0.9)(hk.nets.MLP([32, 8])(x), is_training)
        return hk.dropout(hk.next_rng_key(), 0.5, h)

    transformed = hk.transform_with_state(forward)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    params, state = jax.eval_shape(lambda k, x: transformed.init(k, x, True), key, X)
    model = from_jax(
        lambda params, state, rng, x: transformed.apply(params, state, rng, x, True),
        params,
        state,
        key,
        X,
    )
    names = arguments(model)
    assert "params['mlp/~/linear_0']['w']" in names
    assert "state['batch_norm/~/mean_ema']['average']" in names
    assert names[-2:] == ["rng", "x"]
    assert "result[1]['batch_norm/~/var_ema']['average']" in model.program.output_paths


def test_haiku_apply_itself() -> None:
    hk = pytest.importorskip("haiku")
    transformed = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(4)(x)))
    params = jax.eval_shape(transformed.init, jax.eval_shape(lambda: jax.random.PRNGKey(0)), X)
    names = arguments(from_jax(transformed.apply, params, X))
    assert names[:2] == ["params['linear']['b']", "params['linear']['w']"]

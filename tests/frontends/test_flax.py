"""Flax models are read as their users write them.

Linen has variables and TrainState; nnx has modules that change.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from toast_lab.frontends import from_jax
from toast_lab.ir.model import Model

nnx = pytest.importorskip("flax.nnx")
nn = pytest.importorskip("flax.linen")

S = jax.ShapeDtypeStruct
X = S((8, 16), jnp.float32)


def arguments(model: Model) -> list[str]:
    return list(model.program.value_name[: model.program.n_arguments])


def kinds(model: Model) -> set[str]:
    return {model.program.kind[op] for op in model.program.ops()}


# -- linen -----------------------------------------------------------------------------------------


class Block(nn.Module):
    width: int = 32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        h = nn.BatchNorm(use_running_average=not train)(nn.Dense(self.width)(x))
        h = nn.Dropout(0.5, deterministic=not train)(nn.relu(h))
        return nn.Dense(x.shape[-1], name="out")(h)


def variables(module: Any, *args: Any, **options: Any) -> Any:
    return jax.eval_shape(
        lambda key: module.init(key, *(jnp.zeros(a.shape) for a in args), **options), key()
    )


def key() -> Any:
    return jax.random.key(0)


def test_linen_apply() -> None:
    module = Block()
    model = from_jax(module.apply, variables(module, X), X)
    assert model.name == "apply"
    assert arguments(model) == [
        "variables['batch_stats']['BatchNorm_0']['mean']",
        "variables['batch_stats']['BatchNorm_0']['var']",
        "variables['params']['BatchNorm_0']['bias']",
        "variables['params']['BatchNorm_0']['scale']",
        "variables['params']['Dense_0']['bias']",
        "variables['params']['Dense_0']['kernel']",
        "variables['params']['out']['bias']",
        "variables['params']['out']['kernel']",
        "args[0]",
    ]
    assert model.program.missing_rules == ()


def test_linen_frozen_variables() -> None:
    from flax.core import freeze

    module = Block()
    plain, frozen = variables(module, X), freeze(variables(module, X))
    assert (
        from_jax(module.apply, frozen, X).program.digest()
        == from_jax(module.apply, plain, X).program.digest()
    )


def test_linen_batch_statistics_and_dropout() -> None:
    module = Block()

    def forward(variables: Any, x: jax.Array, dropout: jax.Array) -> Any:
        return module.apply(
            variables, x, train=True, rngs={"dropout": dropout}, mutable=["batch_stats"]
        )

    model = from_jax(forward, variables(module, X), X, jax.eval_shape(key))
    assert arguments(model)[-2:] == ["x", "dropout"]
    assert model.program.output_paths == (
        "result[0]",
        "result[1]['batch_stats']['BatchNorm_0']['mean']",
        "result[1]['batch_stats']['BatchNorm_0']['var']",
    )


def test_linen_train_state_step() -> None:
    from flax.training.train_state import TrainState

    module = nn.Dense(4)

    def make() -> Any:
        params = module.init(key(), jnp.zeros((1, 16)))["params"]
        return TrainState.create(apply_fn=module.apply, params=params, tx=optax.adam(1e-3))

    @jax.jit
    def step(state: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean(state.apply_fn({"params": params}, x) ** 2)

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    model = from_jax(step, jax.eval_shape(make), X, donate_argnums=0)
    assert {"state.step", "state.params['kernel']", "state.opt_state[0].mu['kernel']"} <= set(
        arguments(model)
    )
    assert model.program.output_paths[0] == "result[0].step"
    assert "result[0].opt_state[0].nu['bias']" in model.program.output_paths
    assert model.program.donated.tolist() == [True] * (len(arguments(model)) - 1) + [False]


def test_linen_scan_over_layers_with_remat() -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> Any:
            return x + nn.tanh(nn.Dense(16)(x)), None

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            layers = nn.scan(
                nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            return layers()(x, None)[0]

    module = Stack()
    loss = lambda params, x: jnp.sum(module.apply(params, x) ** 2)  # noqa: E731
    model = from_jax(jax.grad(loss), variables(module, X), X)
    kernel = arguments(model)[1]
    assert kernel.startswith("params['params']['Scan")
    assert kernel.endswith("['Dense_0']['kernel']")
    assert model.program.dims(1) == (3, 16, 16)


# -- nnx -------------------------------------------------------------------------------------------


class Net(nnx.Module):
    def __init__(self, rngs: Any, activation: Any = jax.nn.relu) -> None:
        self.layers = nnx.List([nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.dropout(self.activation(self.norm(self.layers[0](x)))))


def abstract() -> Any:
    return nnx.eval_shape(lambda: Net(nnx.Rngs(0)))


WEIGHTS = [f"layers[{i}].{name}" for i in range(2) for name in ("bias", "kernel")]


def test_nnx_split_and_merge() -> None:
    graph, state = nnx.split(abstract())

    def forward(state: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(x)

    names = arguments(from_jax(forward, state, X))
    assert "state['layers'][0]['kernel']" in names
    assert not [name for name in names if ".value" in name]


@pytest.mark.parametrize("jit", [lambda fn: fn, nnx.jit], ids=["plain", "nnx.jit"])
def test_an_nnx_module_is_its_state(jit: Any) -> None:
    def forward(model: Any, x: jax.Array) -> jax.Array:
        model.eval()
        return model(x)

    model = from_jax(jit(forward), abstract(), X)
    names = arguments(model)
    assert [n for n in names if "layers" in n] == [f"model.{name}" for name in WEIGHTS]
    assert "model.dropout.rngs.key" in names
    assert names[-1] == "x"
    # the module is unchanged, so the function's result is the only one
    assert model.program.output_paths == ("result",)


def test_an_nnx_module_given_as_the_function() -> None:
    model = from_jax(abstract(), X)
    assert arguments(model)[-1] == "x"
    assert "model.layers[0].kernel" in arguments(model)
    assert model.program.output_paths[0] == "result"
    # BatchNorm in training mode updates its statistics, and dropout counts its keys
    assert set(model.program.output_paths[1:]) == {
        "model.norm.mean",
        "model.norm.var",
        "model.dropout.rngs.count",
    }


def test_nnx_train_step() -> None:
    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> jax.Array:
        def loss(model: Any) -> jax.Array:
            return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    def make() -> Any:
        net = Net(nnx.Rngs(0))
        return net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)

    batch = {"x": X, "y": S((8, 4), jnp.float32)}
    traced = from_jax(step, *nnx.eval_shape(make), batch, donate_argnums=(0, 1))
    names = arguments(traced)
    assert "optimizer.opt_state[0].mu.layers[0].kernel" in names
    assert names[-2:] == ["batch['x']", "batch['y']"]
    updated = set(traced.program.output_paths[1:])
    assert {f"model.{name}" for name in WEIGHTS} <= updated
    assert "optimizer.opt_state[0].nu.layers[1].bias" in updated
    assert updated <= set(names), "what was changed is called what it was"
    # the graph computes what nnx itself computes
    model, optimizer = make()
    values = dict(zip(names, _leaves(model, optimizer), strict=False))
    data = {"x": np.ones((8, 16), np.float32), "y": np.zeros((8, 4), np.float32)}
    from toast_lab.runtime._jax_private import compile_module, execute
    from toast_lab.runtime.child import relative_error

    given = [np.asarray(values.get(n, data.get(n[7:8]))) for n in names]
    found = execute(
        compile_module(traced.stablehlo, jax.devices()[:1]), [jax.device_put(a) for a in given]
    )
    expected = step(model, optimizer, data)
    results = {
        path: np.asarray(parts[0])
        for path, parts in zip(traced.program.output_paths, found, strict=True)
    }
    assert relative_error(results["result"], np.asarray(expected)) < 1e-5
    assert (
        relative_error(
            results["model.layers[0].kernel"], np.asarray(model.layers[0].kernel.get_value())
        )
        < 1e-5
    )


def _leaves(*modules: Any) -> list[Any]:
    leaves = jax.tree_util.tree_leaves(nnx.split(modules)[1])
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in leaves
    ]

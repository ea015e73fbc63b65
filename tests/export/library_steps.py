"""Training steps of several libraries, which run where TOAST Lab is not installed.

Each function gives a ``Case``. Its step has a statement that can carry a constraint:
``hidden = ...``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

WIDTH, HIDDEN, BATCH = 16, 32, 8
OPTIMISER = optax.adam(1e-2)


@dataclasses.dataclass(frozen=True)
class Case:
    """A step, and how to run it again and again."""

    step: Callable[..., Any]
    fresh: Callable[[], tuple[Any, ...]]  #: new arguments
    #: (arguments, result) -> (arguments of the next step, loss)
    follow: Callable[[tuple[Any, ...], Any], tuple[tuple[Any, ...], Any]]
    donated: tuple[int, ...] = ()


def batch() -> tuple[Any, Any]:
    """Inputs and targets."""
    keys = jax.random.split(jax.random.key(7))
    return tuple(jax.random.normal(key, (BATCH, WIDTH)) for key in keys)


def follow_state(count: int) -> Callable[..., Any]:
    """The first ``count`` results are the first arguments of the next step, the loss is last."""
    return lambda args, result: ((*result[:count], *args[count:]), result[-1])


def updated(params: Any, opt_state: Any, gradients: Any) -> tuple[Any, Any]:
    """One step of the optimiser."""
    updates, opt_state = OPTIMISER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def plain(layers: int = 2, width: int = WIDTH) -> Case:
    """Layers in a list of dicts."""

    def layer(params: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ params["up"] + params["bias"])
        return x + hidden @ params["down"]

    def step(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            out = x
            for layer_params in params["layers"]:
                out = layer(layer_params, out)
            return jnp.mean((out - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        return *updated(params, opt_state, gradients), loss

    def fresh() -> Any:
        keys = jax.random.split(jax.random.key(0), layers)
        params = {
            "layers": [
                {
                    "up": jax.random.normal(key, (width, 2 * width)) / 4,
                    "bias": jnp.zeros(2 * width),
                    "down": jax.random.normal(key, (2 * width, width)) / 8,
                }
                for key in keys
            ]
        }
        keys = jax.random.split(jax.random.key(7))
        x, y = (jax.random.normal(key, (BATCH, width)) for key in keys)
        return params, OPTIMISER.init(params), x, y

    return Case(step, fresh, follow_state(2), donated=(0, 1))


def offloaded() -> Case:
    """The plain step, with the states of the optimiser in host memory."""
    whole = plain()

    def step(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        opt_state = jax.device_put(opt_state, jax.memory.Space.Device)
        params, opt_state, loss = whole.step(params, opt_state, x, y)
        return params, jax.device_put(opt_state, jax.memory.Space.Host), loss

    def fresh() -> Any:
        params, opt_state, x, y = whole.fresh()
        return params, jax.device_put(opt_state, jax.memory.Space.Host), x, y

    return dataclasses.replace(whole, step=step, fresh=fresh)


def with_options() -> Case:
    """A step with a static argument, and one that is passed by keyword."""

    def step(params: Any, rounds: int, x: Any, *, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            hidden = x
            for _ in range(rounds):
                hidden = jnp.tanh(hidden @ params)
            return jnp.mean((hidden - y) ** 2)

        loss, gradient = jax.value_and_grad(loss_fn)(params)
        return loss, params - gradient

    def fresh() -> Any:
        return jnp.eye(WIDTH), 2, *batch()

    def follow(args: Any, result: Any) -> Any:
        return (result[1], *args[1:]), result[0]

    return Case(step, fresh, follow)


def linen() -> Case:
    """A flax linen module whose parameters are boxed with logical names."""
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            start = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
            hidden = nn.Dense(HIDDEN, kernel_init=start, name="up")(x)
            return nn.Dense(WIDTH, name="down")(nn.relu(hidden))

    net = Net()

    def step(variables: Any, opt_state: Any, x: Any, y: Any) -> Any:
        def loss_fn(variables: Any) -> Any:
            return jnp.mean((net.apply(variables, x) - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(variables)
        return *updated(variables, opt_state, gradients), loss

    def fresh() -> Any:
        x, y = batch()
        variables = net.init(jax.random.key(0), x)
        return variables, OPTIMISER.init(variables), x, y

    return Case(step, fresh, follow_state(2), donated=(0, 1))


def nnx() -> Case:
    """A module and an optimizer of flax's nnx, which the step changes in place."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List(
                [nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)]
            )
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            hidden = nnx.relu(self.layers[0](x))
            return self.layers[1](self.dropout(hidden))

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    def fresh() -> Any:
        net = Net(nnx.Rngs(0))
        return net, nnx.Optimizer(net, OPTIMISER, wrt=nnx.Param), *batch()

    return Case(step, fresh, lambda args, result: (args, result))


def equinox() -> Case:
    """An equinox module with activations among its leaves."""
    import equinox as eqx

    def step(model: Any, opt_state: Any, x: Any, y: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            hidden = jax.vmap(model)(x)
            return jnp.mean((hidden - y) ** 2)

        loss, gradients = eqx.filter_value_and_grad(loss_fn)(model)
        updates, opt_state = OPTIMISER.update(gradients, opt_state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    def fresh() -> Any:
        model = eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 2, key=jax.random.key(0))
        return model, OPTIMISER.init(eqx.filter(model, eqx.is_array)), *batch()

    return Case(step, fresh, follow_state(2))


def haiku() -> Case:
    """A haiku network with state."""
    import haiku as hk

    def network(x: Any) -> Any:
        hidden = jax.nn.relu(hk.Linear(HIDDEN)(x))
        hidden = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(hidden, True)
        return hk.Linear(WIDTH)(hidden)

    net = hk.without_apply_rng(hk.transform_with_state(network))

    def step(params: Any, state: Any, opt_state: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            out, new_state = net.apply(params, state, x)
            return jnp.mean((out - y) ** 2), new_state

        (loss, new_state), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        params, opt_state = updated(params, opt_state, gradients)
        return params, new_state, opt_state, loss

    def fresh() -> Any:
        x, y = batch()
        params, state = net.init(jax.random.key(0), x)
        return params, state, OPTIMISER.init(params), x, y

    return Case(step, fresh, follow_state(3), donated=(0, 1, 2))


def by_position(case: Case) -> Callable[..., Any]:
    """The step of a case, with all arguments by position."""
    takes_keyword = "*" in str(inspect.signature(case.step))
    return (lambda *args: case.step(*args[:-1], y=args[-1])) if takes_keyword else case.step


def losses(case: Case, run: Any, args: tuple[Any, ...], count: int = 3) -> list[float]:
    """Losses of the first steps."""
    values = []
    for _ in range(count):
        args, loss = case.follow(args, run(*args))
        values.append(float(loss))
    return values

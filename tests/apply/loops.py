"""Training loops as users of JAX's libraries write them.

Each makes ten steps, by the library's own jit and by ``plan.jit``.

Each case gives ``(step, fresh, fed)``: the jitted step, a maker of fresh arguments, and a function
that makes the next step's arguments of the last step's arguments and result. Everything that the
caller sees after each step is compared: the structure of result and arguments, types and weakness
of arrays, leaves that are no arrays, and values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import toast_lab as tl
from tests.apply.programs import MESH, random_plan

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
STEPS = 10
Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], Callable[..., tuple[Any, ...]]]


def schedule() -> Any:
    return optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 10)


def first(args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    """All results but the last become the first arguments of the next step."""
    new = result[:-1]
    return (*new, *args[len(new) :])


def linen_train_state(*, donate: bool) -> Case:
    from flax import linen as nn
    from flax.training.train_state import TrainState

    module = nn.Sequential([nn.Dense(32), nn.tanh, nn.Dense(8)])

    @functools.partial(jax.jit, donate_argnums=(0,) if donate else ())
    def step(state: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((state.apply_fn({"params": p}, x) - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule()))

    def fresh() -> Any:
        params = module.init(jax.random.key(0), X)["params"]
        return TrainState.create(apply_fn=module.apply, params=params, tx=tx), X, Y

    return step, fresh, first


def linen_batch_norm_and_dropout(*, donate: bool) -> Case:
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            h = nn.BatchNorm(use_running_average=False)(nn.Dense(32)(x))
            return nn.Dense(8)(nn.Dropout(0.1, deterministic=False)(nn.relu(h)))

    net, tx = Net(), optax.inject_hyperparams(optax.sgd)(learning_rate=schedule(), momentum=0.9)

    @functools.partial(jax.jit, donate_argnames=("state",) if donate else ())
    def step(state: Any, key: Any, x: Any, y: Any) -> Any:
        key, sub = jax.random.split(key)

        def loss(p: Any) -> Any:
            variables = {"params": p, "batch_stats": state["batch_stats"]}
            out, new = net.apply(variables, x, mutable=["batch_stats"], rngs={"dropout": sub})
            return jnp.mean((out - y) ** 2), new["batch_stats"]

        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, opt = tx.update(gradients, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return (
            {"params": params, "batch_stats": stats, "opt": opt, "nothing": None, "lr": 0.5},
            key,
            value,
        )

    def fresh() -> Any:
        variables = net.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)
        opt = tx.init(variables["params"])
        return {**variables, "opt": opt, "nothing": None, "lr": 0.5}, jax.random.key(2), X, Y

    return step, fresh, first


def nnx_in_place(*, donate: bool) -> Case:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List(
                [nnx.Linear(8, 32, use_bias=False, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)]
            )
            self.norm, self.dropout = nnx.BatchNorm(32, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
            self.seen = nnx.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, x: Any) -> Any:
            self.seen[...] = self.seen[...] + x.shape[0]
            return self.layers[1](self.dropout(nnx.relu(self.norm(self.layers[0](x)))))

    tx = optax.adam(schedule())

    @functools.partial(nnx.jit, donate_argnums=(0, 1) if donate else ())
    def step(model: Any, optimizer: Any, metrics: Any, count: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            return jnp.mean((model(x) - y) ** 2)

        model.train()
        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        metrics.update(loss=value)
        count[...] = count[...] + 1
        model.eval()
        return {
            "value": value,
            "model": model,
            "first": model.layers[0],
            "number": 3,
            "twice": 2 * count[...],
        }

    def fresh() -> Any:
        net = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
        return (
            net,
            optimizer,
            nnx.MultiMetric(loss=nnx.metrics.Average("loss")),
            nnx.Variable(jnp.zeros(())),
            X,
            Y,
        )

    def fed(args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        assert result["model"] is args[0]
        assert result["first"] is args[0].layers[0]
        return args

    return step, fresh, fed


def nnx_as_values(*, donate: bool) -> Case:
    from flax import nnx

    tx = optax.adam(1e-2)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2) if donate else ())
    def step(graph: Any, state: Any, opt: Any, x: Any, y: Any) -> Any:
        def loss(state: Any) -> Any:
            return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(state)
        updates, opt = tx.update(gradients, opt, state)
        return graph, optax.apply_updates(state, updates), opt, value

    def fed(args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        return (args[0], *result[1:3], *args[3:])

    # The graph is no array, so jax.jit cannot return it; as an argument it has no leaves.
    def fresh() -> Any:
        graph, state = nnx.split(nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
        return graph, state, tx.init(state), X, Y

    return step, fresh, fed


def nnx_module_under_jax_jit(*, donate: bool) -> Case:
    from flax import nnx

    @functools.partial(jax.jit, donate_argnums=(0,) if donate else ())
    def step(model: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            return jnp.mean((model(x) - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(model)
        return jax.tree.map(lambda p, g: p - 0.1 * g, model, gradients), value

    return step, lambda: (nnx.Linear(8, 8, rngs=nnx.Rngs(0)), X, Y), first


def equinox_filter_jit(*, donate: bool) -> Case:
    import equinox as eqx

    class Net(eqx.Module):
        mlp: eqx.nn.MLP
        scale: float
        table: Any
        name: str
        activation: Any
        flag: bool
        nothing: None = None
        size: int = eqx.field(static=True, default=3)

        def __call__(self, x: Any) -> Any:
            return jax.vmap(self.mlp)(self.activation(x)) * self.scale + self.table

    tx = optax.adam(schedule())

    @eqx.filter_jit(donate="all" if donate else "none")
    def step(net: Any, opt: Any, x: Any, y: Any, rate: float) -> Any:
        def loss(net: Any) -> Any:
            return jnp.mean((net(x) - y) ** 2) * rate

        value, gradients = eqx.filter_value_and_grad(loss)(net)
        updates, opt = tx.update(gradients, opt, eqx.filter(net, eqx.is_inexact_array))
        net = eqx.apply_updates(net, updates)
        return (
            net,
            opt,
            {"loss": value, "rate": rate, "text": "step", "number": np.float32(2), "f": jnp.tanh},
        )

    def fresh() -> Any:
        mlp = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))
        net = Net(mlp, 0.5, np.ones(8, np.float32), "net", jax.nn.relu, True)
        return (
            net,
            tx.init(eqx.filter(net, eqx.is_inexact_array)),
            jnp.asarray(X),
            jnp.asarray(Y),
            1.5,
        )

    def fed(args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        return (*result[:2], jnp.asarray(X), jnp.asarray(Y), 1.5)

    return step, fresh, fed


def equinox_state(*, donate: bool) -> Case:
    import equinox as eqx

    class Net(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key: Any) -> None:
            self.linear = eqx.nn.Linear(8, 8, key=key)
            self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")

        def __call__(self, x: Any, state: Any) -> Any:
            return self.norm(self.linear(x), state)

    @eqx.filter_jit(donate="all-except-first" if donate else "none")
    def step(data: Any, net: Any, state: Any) -> Any:
        x, y = data

        def loss(net: Any, state: Any) -> Any:
            batched = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            out, state = batched(x, state)
            return jnp.mean((out - y) ** 2), state

        (value, state), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(net, state)
        return eqx.apply_updates(net, jax.tree.map(lambda g: -0.1 * g, gradients)), state, value

    def fresh() -> Any:
        return (jnp.asarray(X), jnp.asarray(Y)), *eqx.nn.make_with_state(Net)(jax.random.key(0))

    return step, fresh, lambda args, result: (args[0], *result[:2])


def equinox_under_jax_jit(*, donate: bool) -> Case:
    import equinox as eqx

    class Net(eqx.Module):
        linear: eqx.nn.Linear
        scale: float

    @functools.partial(jax.jit, donate_argnums=(0,) if donate else ())
    def step(net: Any, x: Any, y: Any) -> Any:
        def loss(net: Any) -> Any:
            return jnp.mean((jax.vmap(net.linear)(x) * net.scale - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(net)
        return jax.tree.map(lambda p, g: p - 0.1 * g, net, gradients), value

    return step, lambda: (Net(eqx.nn.Linear(8, 8, key=jax.random.key(0)), 0.5), X, Y), first


def haiku_with_state(*, donate: bool) -> Case:
    import haiku as hk

    def forward(x: Any) -> Any:
        h = hk.BatchNorm(True, True, 0.9)(hk.Linear(32, with_bias=False)(x), is_training=True)
        return hk.Linear(8)(hk.dropout(hk.next_rng_key(), 0.1, jax.nn.relu(h)))

    net = hk.transform_with_state(forward)
    tx = optax.MultiSteps(
        optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(schedule())), 3
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2) if donate else ())
    def step(params: Any, state: Any, opt: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            out, new = net.apply(params, state, key, x)
            return jnp.mean((out - y) ** 2), new

        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt = tx.update(gradients, opt, params)
        return optax.apply_updates(params, updates), state, opt, jax.random.fold_in(key, 1), value

    def fresh() -> Any:
        params, state = net.init(jax.random.key(0), X)
        return params, state, tx.init(params), jax.random.key(1), X, Y

    return step, fresh, first


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["params", "opt", "count"], meta_fields=["name"]
)
@dataclasses.dataclass
class Dataclass:
    params: Any
    opt: Any
    count: Any
    name: str


def dataclass_and_numbers(*, donate: bool) -> Case:
    labels = {"a": "fast", "b": "frozen"}
    tx = optax.multi_transform({"fast": optax.adam(0.1), "frozen": optax.set_to_zero()}, labels)

    @functools.partial(jax.jit, static_argnames=("mode",), donate_argnums=(0,) if donate else ())
    def step(state: Any, x: Any, y: Any, rate: Any, *, mode: str) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** (2 if mode == "square" else 4))

        value, gradients = jax.value_and_grad(loss)(state.params)
        updates, opt = tx.update(gradients, state.opt, state.params)
        params = jax.tree.map(lambda p, u: p + rate * u, state.params, updates)
        rest = {"loss": value, "number": 1, "flag": True, "nothing": None, "rate": rate}
        return Dataclass(params, opt, state.count + 1, state.name), rest

    def fresh() -> Any:
        params = {"a": jnp.ones((8, 16)) / 8, "b": jnp.asarray(np.eye(16, 8, dtype=np.float32))}
        return Dataclass(params, tx.init(params), 0, "state"), X, Y, 0.5

    return step, fresh, first


def bound_method(*, donate: bool) -> Case:
    class Trainer:
        def __init__(self) -> None:
            self.tx = optax.sgd(schedule(), momentum=0.9, nesterov=True)

        @functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=(1, 2) if donate else ())
        def step(self, params: Any, opt: Any, x: Any, power: int) -> Any:
            value, gradients = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"]) ** power))(params)
            updates, opt = self.tx.update(gradients, opt, params)
            return optax.apply_updates(params, updates), opt, value

    trainer = Trainer()

    def fresh() -> Any:
        params = {"w": jnp.ones((8, 16))}
        return params, trainer.tx.init(params), X, 2

    return trainer.step, fresh, first


CASES = {
    "linen_train_state": linen_train_state,
    "linen_batch_norm_and_dropout": linen_batch_norm_and_dropout,
    "nnx_in_place": nnx_in_place,
    "nnx_as_values": nnx_as_values,
    "nnx_module_under_jax_jit": nnx_module_under_jax_jit,
    "equinox_filter_jit": equinox_filter_jit,
    "equinox_state": equinox_state,
    "equinox_under_jax_jit": equinox_under_jax_jit,
    "haiku_with_state": haiku_with_state,
    "dataclass_and_numbers": dataclass_and_numbers,
    "bound_method": bound_method,
}
# A normalisation removes the bias before it, so that the bias's gradient is mere rounding, which
# Adam makes large. So layers before a normalisation have no bias here.
KEYWORDS: dict[str, dict[str, Any]] = {"dataclass_and_numbers": {"mode": "square"}}


def seen(x: Any) -> Any:
    """Everything that a caller sees of a leaf but its value."""
    if isinstance(x, jax.Array):
        return "array", x.shape, str(x.dtype), bool(getattr(x, "weak_type", False))
    if isinstance(x, np.ndarray | np.generic):
        return type(x).__name__, x.shape, str(x.dtype)
    return type(x).__name__, repr(x)


def differences(mine: Any, theirs: Any) -> list[str]:
    """Describe how two pytrees differ to a caller, values apart."""
    trees = [jax.tree_util.tree_structure(t) for t in (mine, theirs)]
    if trees[0] != trees[1]:
        mine_text, text = map(str, trees)
        at = next((i for i, (a, b) in enumerate(zip(mine_text, text, strict=False)) if a != b), 0)
        return [
            f"structure ...{mine_text[at - 60 : at + 60]} instead of ...{text[at - 60 : at + 60]}"
        ]
    found = []
    leaves = [jax.tree_util.tree_leaves_with_path(t) for t in (mine, theirs)]
    for (path, a), (_, b) in zip(*leaves, strict=True):
        if seen(a) != seen(b):
            found.append(f"{jax.tree_util.keystr(path)}: {seen(a)} instead of {seen(b)}")
    return found


def numbers(tree: Any) -> list[np.ndarray]:
    """Values of all arrays in a pytree; random keys give their data."""
    found = [x for x in jax.tree_util.tree_leaves(tree) if isinstance(x, jax.Array)]
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in found]
    return [
        np.asarray(jax.random.key_data(x) if k else x, np.float64)
        for x, k in zip(found, keys, strict=True)
    ]


def loop(name: str) -> dict[str, dict[str, Any]]:
    """Compare the library's jit with ``plan.jit`` on a case, with arguments donated and kept."""
    return {"kept": one_loop(name, donate=False), "donated": one_loop(name, donate=True)}


def one_loop(name: str, *, donate: bool, steps: int = STEPS) -> dict[str, Any]:
    """How the two loops differ after each step, and the largest error."""
    step, fresh, fed = CASES[name](donate=donate)
    options = KEYWORDS.get(name, {})
    problem = tl.Problem(tl.analyse(tl.from_jax(step, *fresh(), **options)), MESH, "cpu")
    plan = random_plan(problem, 3, 4)
    sharded = plan.jit(step)
    mine, theirs = fresh(), fresh()
    wrong: list[str] = differences(mine, theirs)
    error, begun = 0.0, None
    for i in range(steps):
        got, expected = sharded(*mine, **options), step(*theirs, **options)
        mine, theirs = fed(mine, got), fed(theirs, expected)
        wrong += [f"step {i}, result: {text}" for text in differences(got, expected)]
        wrong += [f"step {i}, arguments: {text}" for text in differences(mine, theirs)]
        pairs = zip(numbers((got, mine)), numbers((expected, theirs)), strict=True)
        error = max(
            [
                error,
                *(
                    float(np.max(np.abs(a - b))) / (float(np.max(np.abs(b))) + 1e-3)
                    for a, b in pairs
                ),
            ]
        )
        begun = numbers(mine) if begun is None else begun
    moved = max(
        float(np.max(np.abs(a - b))) for a, b in zip(begun or (), numbers(mine), strict=True)
    )
    return {"wrong": wrong[:10], "error": error, "moved": moved, "traced": len(sharded._traced)}


def attributes() -> dict[str, Any]:
    """Compare attributes of an nnx module that are no arrays, changed within a planned step.

    Variables that a step creates are tested, too.
    """
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear, self.calls, self.mode = nnx.Linear(8, 8, rngs=rngs), 0, "new"

        def __call__(self, x: Any) -> Any:
            self.calls += 1
            self.mode = f"called {self.calls}"
            if self.calls == 3:
                self.last = nnx.Variable(x[0])
                del self.mode
            return self.linear(x)

    @nnx.jit
    def step(model: Any, x: Any) -> Any:
        y = model(x)
        model.linear.kernel[...] = 0.9 * model.linear.kernel[...]
        return y.sum()

    mine, theirs = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    kernel = mine.linear.kernel
    problem = tl.Problem(tl.analyse(tl.from_jax(step, mine, X)), MESH, "cpu")
    sharded = random_plan(problem, 3, 4).jit(step)
    rows = []
    for i in range(3):
        # The third step creates a variable and so returns one more array: another program.
        values = (
            [float(f(m, X)) for f, m in ((sharded, mine), (step, theirs))] if i < 2 else [0.0, 0.0]
        )
        rows.append(
            {
                "values": values,
                "calls": (mine.calls, theirs.calls),
                "mode": (mine.mode, theirs.mode),
            }
        )
    try:
        sharded(mine, X)
        message = ""
    except tl.ToastError as error:
        message = str(error)
    return {"rows": rows, "said": message, "same": mine.linear.kernel is kernel}

"""Functions that the tests of ``apply`` run, each in a process of its own.

They run on 8 virtual devices and return plain data.
"""

from __future__ import annotations

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import toast_lab as tl
from toast_lab.errors import ToastError
from toast_lab.models.registry import make
from toast_lab.runtime import _jax_private, hlo, inputs
from toast_lab.sharding.state import State, legal_actions

MESH = {"data": 4, "model": 2}


def error_of(found: Any, expected: Any) -> float:
    """Largest difference between leaves of two pytrees, relative to the largest expected number."""
    pairs = zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / (np.max(np.abs(b)) + 1e-30))
        for a, b in pairs
    )


def counts(compiled: Any) -> dict[str, int]:
    """Collectives of a compiled program by kind and axes."""
    found = hlo.collectives(compiled.as_text(), MESH)
    return dict(collections.Counter(f"{c.kind} {c.axes}" for c in found))


def random_plan(problem: tl.Problem, seed: int, length: int = 8) -> tl.Plan:
    """A plan of random actions."""
    rng, state, taken = np.random.default_rng(seed), State(problem.space), []
    while len(taken) < length and len(actions := legal_actions(state)):
        taken.append(actions[rng.integers(len(actions))])
        state.apply(taken[-1])
    return tl.Plan.from_state(state, taken)


def zoo(name: str, sizes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Compare a zoo model's random plan by ``plan.jit`` with its annotated program, compiled."""
    example = make(name, **sizes)
    model = tl.load(name, **sizes)
    problem = tl.Problem(tl.analyse(model), MESH, "tpu-v5e")
    plan = random_plan(problem, seed)
    sharded = plan.jit(example.fn, donate_argnums=example.donate_argnums)
    leaves = inputs.draw(model.program, seed)
    tree = jax.tree_util.tree_structure(example.args)
    compiled = sharded.lower(*tree.unflatten(leaves)).compile()
    text = tl.annotate(model, plan, located=True)
    direct = _jax_private.optimised_hlo(_jax_private.compile_module(text, jax.devices()))
    alone = collections.Counter(f"{c.kind} {c.axes}" for c in hlo.collectives(direct, MESH))
    expected = jax.jit(example.fn)(*tree.unflatten([jnp.asarray(x) for x in leaves]))
    got = sharded(*tree.unflatten([jnp.asarray(x) for x in leaves]))
    specs = plan.result_specs()
    return {
        "error": error_of(got, expected),
        "same_tree": jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(expected),
        "collectives": counts(compiled),
        "direct": dict(alone),
        "results": [str(x.sharding.spec) for x in jax.tree_util.tree_leaves(got)],
        "planned": [str(sharded.result_shardings[path].spec) for path in specs],
        "arguments": [str(s.spec) for s in jax.tree_util.tree_leaves(compiled.input_shardings)],
        "planned_arguments": [str(s.spec) for s in sharded.argument_shardings.values()],
        "aliases": len(
            re.findall(r"\(\d+, \{\}, (?:may|must)-alias\)", compiled.as_text().split("\n", 1)[0])
        ),
    }


def _mlp(params: dict[str, Any], x: Any) -> Any:
    h = jnp.tanh(x @ params["w1"])
    return h @ params["w2"], jnp.sum(h)


def _mlp_arguments(batch: int = 16) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    params = {"w1": rng.normal(size=(8, 32)), "w2": rng.normal(size=(32, 8))}
    return {k: jnp.asarray(v, jnp.float32) for k, v in params.items()}, jnp.asarray(
        rng.normal(size=(batch, 8)), jnp.float32
    )


def _mlp_plan(batch: int = 16) -> tl.Plan:
    problem = tl.Problem(tl.analyse(tl.from_jax(_mlp, *_mlp_arguments(batch))), MESH, "cpu")
    return tl.Plan.from_specs(problem, {"x": ("data", None), "params['w1']": (None, "model")})


def transforms() -> dict[str, Any]:
    """Gradients in both modes, a scan and a loop around a planned function."""
    (params, x), plan = _mlp_arguments(), _mlp_plan()
    sharded = plan.jit(_mlp)

    def loss(f: Any) -> Any:
        return lambda params, x: jnp.mean(f(params, x)[0] ** 2) + 0.01 * f(params, x)[1]

    def loop(f: Any) -> Any:
        return lambda params, x: jax.lax.scan(lambda c, _: f(params, c), x, None, length=3)

    gradient = jax.jit(jax.grad(loss(sharded)))(params, x)
    tangents = (jax.tree_util.tree_map(jnp.ones_like, params), jnp.ones_like(x))
    descended, plainly = [dict(params), dict(params)], [loss(sharded), loss(_mlp)]
    for i, f in enumerate(plainly):
        step = jax.jit(
            lambda p, x, f=f: jax.tree_util.tree_map(lambda a, g: a - 0.1 * g, p, jax.grad(f)(p, x))
        )
        for _ in range(3):
            descended[i] = step(descended[i], x)
    return {
        "gradient": error_of(gradient, jax.grad(loss(_mlp))(params, x)),
        "outside_jit": error_of(
            jax.grad(loss(sharded))(params, x), jax.grad(loss(_mlp))(params, x)
        ),
        "jvp": error_of(
            jax.jvp(sharded, (params, x), tangents), jax.jvp(_mlp, (params, x), tangents)
        ),
        "scan": error_of(jax.jit(loop(sharded))(params, x), loop(_mlp)(params, x)),
        "descended": error_of(*descended),
        "moved": error_of(descended[1], params),
    }


def donation() -> dict[str, Any]:
    """A training loop whose state is donated."""

    def step(state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.mean(_mlp(p, x)[0] ** 2))(state["params"])
        params = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, state["params"], gradient)
        return {"params": params, "step": state["step"] + 1}, jnp.sum(params["w1"])

    params, x = _mlp_arguments()
    state = {"params": params, "step": jnp.zeros((), jnp.int32)}
    problem = tl.Problem(tl.analyse(tl.from_jax(step, state, x, donate_argnums=0)), MESH, "cpu")
    plan = random_plan(problem, 3)
    sharded = plan.jit(step, donate_argnums=0)
    expected = jax.tree_util.tree_map(jnp.array, state)
    first, _ = sharded(jax.tree_util.tree_map(jnp.array, state), x)
    state, _ = sharded(first, x)
    gone = [leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(first)]
    placed = state["params"]["w1"].sharding == sharded.argument_shardings["state['params']['w1']"]
    for _ in range(3):
        state, _ = sharded(state, x)
    for _ in range(5):
        expected, _ = jax.jit(step)(expected, x)
    arguments, results = plan.named_shardings(sharded.mesh)
    put = jax.device_put(expected, arguments[0])
    same = jax.tree_util.tree_map(lambda a, b: a.sharding == b.sharding, put, state)
    return {
        "error": error_of(state, expected),
        "steps": int(state["step"]),
        "gone": gone,
        "placed": placed,
        "named": jax.tree_util.tree_leaves(same),
        "kinds": len({str(s.spec) for s in jax.tree_util.tree_leaves(results)}),
    }


def keys_and_numbers() -> dict[str, Any]:
    """Typed random keys and Python numbers as arguments and results."""

    def noisy(key: Any, x: Any, scale: float) -> Any:
        key, sub = jax.random.split(key)
        return key, x + scale * jax.random.normal(sub, x.shape)

    x = jnp.zeros((16, 8))
    problem = tl.Problem(tl.analyse(tl.from_jax(noisy, jax.random.key(0), x, 0.5)), MESH, "cpu")
    plan = tl.Plan.from_specs(problem, {"x": ("data", "model")})
    sharded = plan.jit(noisy)
    key, y = sharded(jax.random.key(7), x, 0.5)
    wanted_key, wanted = noisy(jax.random.key(7), x, 0.5)
    _, tripled = sharded(jax.random.key(7), x, 1.5)
    return {
        "error": error_of(y, wanted),
        "key": bool((jax.random.key_data(key) == jax.random.key_data(wanted_key)).all()),
        "is_key": bool(jnp.issubdtype(key.dtype, jax.dtypes.prng_key)),
        "number": error_of(tripled, 3 * wanted),
        "spec": tuple(y.sharding.spec),
    }


def flax_modules() -> dict[str, Any]:
    """An nnx module and its optimizer: changes by the step appear in the caller's objects."""
    import optax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)])
            self.norm = nnx.BatchNorm(32, rngs=rngs)
            self.scale = 1.0

        def __call__(self, x: Any) -> Any:
            return self.scale * self.layers[1](nnx.relu(self.norm(self.layers[0](x))))

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    def fresh() -> Any:
        net = Net(nnx.Rngs(0))
        return net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)

    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(32, n)), jnp.float32) for n in (16, 8))
    problem = tl.Problem(tl.analyse(tl.from_jax(step, *fresh(), x, y)), MESH, "cpu")
    sharded = random_plan(problem, 5, 12).jit(step)
    model, optimizer = fresh()
    mine = [float(sharded(model, optimizer, x, y)) for _ in range(4)]
    plain, plain_optimizer = fresh()
    theirs = [float(step(plain, plain_optimizer, x, y)) for _ in range(4)]
    kernel = model.layers[0].kernel.get_value()
    specs = {path: str(s.spec) for path, s in sharded.argument_shardings.items()}
    # The first bias is left out: before a normalisation its gradient is mere rounding, which Adam
    # makes large.
    weights = error_of(*([layer.kernel.get_value() for layer in m.layers] for m in (model, plain)))
    statistics = error_of(model.norm.var.get_value(), plain.norm.var.get_value())
    traced = len(sharded._traced)
    model.scale = plain.scale = 2.0  # the same program with another constant
    scaled = float(sharded(model, optimizer, x, y)), float(step(plain, plain_optimizer, x, y))
    return {
        "losses": (mine, theirs),
        "weights": weights,
        "statistics": statistics,
        "scaled": scaled,
        "kernel": str(kernel.sharding.spec),
        "planned": specs["model.layers[0].kernel"],
        "traced": (traced, len(sharded._traced)),
    }


def refusals() -> dict[str, str]:
    """Error messages for bad input."""
    (params, x), plan = _mlp_arguments(), _mlp_plan()
    said = {}

    def try_(name: str, call: Any) -> None:
        try:
            call()
        except ToastError as error:
            said[name] = str(error)
        except Exception as error:
            said[name] = f"unexpected {type(error).__name__}: {error}"

    other = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(2, 4), ("data", "model"))
    try_("shapes", lambda: plan.jit(_mlp)(params, x[:8]))
    try_("program", lambda: plan.jit(lambda params, x: _mlp(params, 2 * x))(params, x))
    try_("few", lambda: plan.jit(_mlp, devices=jax.devices()[:4]))
    try_("mesh", lambda: plan.jit(_mlp, mesh=other))
    try_("both", lambda: plan.jit(_mlp, mesh=other, devices=jax.devices()))
    try_("around", lambda: jax.jit(plan.jit(_mlp), device=jax.devices()[0])(params, x))
    return said

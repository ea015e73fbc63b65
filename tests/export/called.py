"""Programs for the tests of exports with static arguments, keywords and random keys.

They run on 8 virtual devices and return plain data.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import toast_lab as tl
from tests.apply.loops import differences, numbers
from tests.apply.programs import random_plan
from tests.export.programs import imported
from toast_lab.sharding.state import State, legal_actions

MESH = {"data": 4, "model": 2}
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
Call = tuple[tuple[Any, ...], dict[str, Any]]


def product(x: Any, n: int, w: Any, mode: str = "sum") -> Any:
    """Multiply by ``w`` ``n`` times; ``n`` and ``mode`` have to be static."""
    for _ in range(n):
        x = jnp.tanh(x @ w)
    return {"y": x, "total": x.sum() if mode == "sum" else x.mean()}


def by_keyword(x: Any, *, shape: tuple[int, int], w: Any, scale: Any = 1.0) -> Any:
    """A function with keyword-only arguments, of which ``shape`` has to be static."""
    return (x @ w).reshape(shape) * scale


class Holder:
    """An object with a jitted method."""

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def method(self, x: Any, n: int) -> Any:
        """Add up tanh(x) ``n`` times."""
        return sum([jnp.tanh(x)] * n, jnp.zeros_like(x))


def static_cases() -> dict[str, tuple[Callable[..., Any], Call, list[Call]]]:
    """By name: a function, the call that is planned, and other calls that mean the same."""
    first: Call = (X, 2, W), {}
    named: Call = (X, 2), {"w": W, "mode": "mean"}
    return {
        "argnums": (
            jax.jit(product, static_argnums=(1, 3)),
            first,
            [((X, 2), {"w": W}), ((X,), {"n": 2, "w": W})],
        ),
        "argnames": (
            jax.jit(product, static_argnames=("n", "mode")),
            named,
            [((X, 2, W, "mean"), {})],
        ),
        "negative": (jax.jit(product, static_argnums=(-1, -3)), ((X, 2, W, "sum"), {}), []),
        "keywords": (
            jax.jit(by_keyword, static_argnames="shape"),
            ((X,), {"shape": (16, 8), "w": W, "scale": 2.0}),
            [((), {"scale": 2.0, "w": W, "x": X, "shape": (16, 8)})],
        ),
        "partial": (
            functools.partial(jax.jit(product, static_argnums=(1, 3)), n=2, mode="mean"),
            ((X,), {"w": W}),
            [],
        ),
        "method": (Holder().method, ((X, 3), {}), [((X,), {"n": 3})]),
        "plain": (
            lambda x, flag, none, text: (jnp.tanh(x) * flag, text, none),
            ((X, 2.5, None, "text"), {}),
            [],
        ),
    }


def exported(
    fn: Callable[..., Any],
    planned: Call,
    others: list[Call],
    seed: int = 0,
    *,
    jitted: bool = True,
) -> dict[str, Any]:
    """Run a call by a plan's jit and by its exported file, and compare with the function itself.

    Exported files jit the function as JAX does: called by position, with results that are arrays
    (``jitted``).
    """
    args, keywords = planned
    model = tl.from_jax(fn, *args, **keywords)
    problem = tl.Problem(tl.analyse(model), MESH, "cpu")
    plan = random_plan(problem, seed, 3)
    written = plan.written(problem=problem, budget=tl.Budget(None, 300))
    module = imported(written.to_python())
    expected = fn(*args, **keywords)
    wrong: list[str] = []
    error = 0.0
    by_plan = plan.jit(fn)
    for a, k in [planned, *others]:
        results = {"jit": by_plan(*a, **k)}
        if jitted:
            in_order = inspect.signature(module.place).bind(*a, **k)
            results["python"] = module.shard(fn, *a, **k)(*in_order.args)
        for name, result in results.items():
            wrong += [f"{name}: {text}" for text in differences(result, expected)]
            pairs = zip(numbers(result), numbers(expected), strict=True)
            error = max([error, *(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs)])
    specs = plan.partition_specs()
    return {
        "wrong": wrong,
        "error": error,
        "sharded": sum(any(s) for s in plan.value_specs()),
        "patch": written.to_patch().text,
        "specs": len(jax.tree_util.tree_leaves(specs, is_leaf=_is_spec)),
        "arrays": model.program.n_arguments + len(model.program.outputs),
    }


def _is_spec(x: Any) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def static(case: str) -> dict[str, Any]:
    """Export and compare one of ``static_cases``."""
    return exported(*static_cases()[case], jitted=case != "plain")


# -- random keys
# ----------------------------------------------------------------------------------------


def argument(key: Any, x: Any) -> Any:
    """A key is an argument."""
    return x * jax.random.normal(key, x.shape)


def batch(keys: Any, x: Any) -> Any:
    """A batch of keys is an argument."""
    return jax.vmap(lambda k, r: r * jax.random.normal(k, r.shape))(keys, x)


def middle(key: Any, x: Any) -> Any:
    """A batch of keys is an intermediate value."""
    return batch(jax.random.split(key, 8), x)


def results(key: Any, x: Any) -> Any:
    """The results include single keys and batches of keys."""
    one, two = jax.random.split(key)
    many = jax.random.split(two, 8)
    return one, many, many.reshape(4, 2), jax.random.fold_in(one, 3), 2 * x


def carried(key: Any, x: Any) -> Any:
    """A key is in the carry of a scan."""

    def body(key: Any, row: Any) -> Any:
        key, sub = jax.random.split(key)
        return key, row * jax.random.uniform(sub, row.shape)

    return jax.lax.scan(body, key, x)


def dropout(params: Any, key: Any, x: Any) -> Any:
    """A training step with dropout, which also returns a new key."""

    def loss(params: Any) -> Any:
        h = jnp.tanh(x @ params["w"])
        kept = jax.random.bernoulli(key, 0.9, h.shape)
        return jnp.mean(jnp.where(kept, h / 0.9, 0.0) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return (
        jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients),
        jax.random.fold_in(key, 1),
        value,
    )


def key_case(case: str, implementation: str) -> tuple[Callable[..., Any], Call]:
    """The function of a case, and its call with a key of an implementation."""
    key = jax.random.key(0, impl=implementation)
    many, x = jax.random.split(key, 8), jnp.asarray(X)
    cases: dict[str, Any] = {
        "argument": (argument, key, x),
        "batch": (batch, many, x),
        "middle": (middle, key, x),
        "jitted": (jax.jit(middle), key, x),
        "results": (results, key, x),
        "carried": (carried, key, x),
        "dropout": (dropout, {"w": W}, key, x),
    }
    fn, *args = cases[case]
    return fn, (tuple(args), {})


def keys(case: str, implementation: str, seed: int, folder: str) -> dict[str, Any]:
    """Export and compare a plan of a function with typed random keys, and save and load it."""
    fn, call = key_case(case, implementation)
    compared = exported(fn, call, [], seed)
    args = call[0]
    model = tl.from_jax(fn, *args)
    problem = tl.Problem(tl.analyse(model), MESH, "cpu")
    plan = random_plan(problem, seed, 6)
    plan.save(f"{folder}/plan.json")
    placed = jax.device_put(args, plan.named_shardings()[0])
    return {
        **compared,
        "loaded": tl.Plan.load(f"{folder}/plan.json", problem).value_specs() == plan.value_specs(),
        "placed": len(jax.tree_util.tree_leaves(placed)),
        "everywhere": len(plan.constraints()),
        "cut": [f"{v}" for v, spec in enumerate(plan.value_specs()) if cut(model, v, spec)],
    }


def cut(model: tl.Model, value: int, spec: Any) -> bool:
    """Does a spec cut a dim of a value that holds the words of a key?"""
    program = model.program
    rows = program.hidden[program.shape_ptr[value] : program.shape_ptr[value + 1]]
    return any(axes and hidden for axes, hidden in zip(spec, rows, strict=True))


def searched(method: str) -> dict[str, Any]:
    """The values whose key words a search method's plan cuts; earlier versions did cut keys."""
    model = tl.from_jax(results, jax.random.split(jax.random.key(0), 1)[0], X)
    problem = tl.Problem(tl.analyse(model), {"a": 2, "b": 2}, "cpu")
    result = tl.search(problem, method=method, budget=tl.Budget(seconds=10))
    specs = result.plan.value_specs()
    return {
        "cut": [v for v, spec in enumerate(specs) if cut(model, v, spec)],
        "hidden": int(model.program.hidden.sum()),
    }


def legal(case: str, implementation: str) -> list[str]:
    """Values whose key words some legal action cuts, which none should."""
    fn, (args, _) = key_case(case, implementation)
    model = tl.from_jax(fn, *args)
    problem = tl.Problem(tl.analyse(model), {"a": 2, "b": 4}, "cpu")
    wrong = []
    for action in legal_actions(State(problem.space)):
        plan = tl.Plan.from_actions(problem, [action])
        plan.check()
        wrong += [
            f"{problem.space.text(action)} cuts {model.program.value_name[v]}"
            for v, spec in enumerate(plan.value_specs())
            if cut(model, v, spec)
        ]
    return wrong

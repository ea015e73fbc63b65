"""Functions that the tests of ``export`` run on 8 virtual devices.

Each runs in its own process and returns plain data.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import toast_lab as tl
from tests.apply.programs import error_of, random_plan
from toast_lab.export import trial
from toast_lab.models.registry import make
from toast_lab.runtime import hlo, inputs

MESH = {"data": 4, "model": 2}


def collectives(compiled: Any, mesh: dict[str, int]) -> dict[str, float]:
    """Counts of a compiled program's collectives by kind, axes and bytes."""
    signature = trial.signature_of(
        compiled.runtime_executable(), hlo.collectives(compiled.as_text(), mesh)
    )
    return {
        f"{kind} {axes} {size}": times
        for (kind, axes, size), times in signature.collectives.items()
    }


def imported(text: str, name: str = "exported") -> Any:
    """Import exported Python as a module."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def three_ways(
    name: str,
    sizes: dict[str, Any],
    actions: list[Any] | int,
    mesh: dict[str, int] = MESH,
    **options: Any,
) -> dict[str, Any]:
    """Execute one plan of a model in three ways, and compare the results.

    They are ``plan.jit``, its constraints under plain ``jax.jit``, and exported Python.
    """
    example = make(name, **sizes)
    model = tl.from_jax(
        example.fn,
        *example.args,
        donate_argnums=example.donate_argnums,
        dim_names=example.dim_names,
        name=name,
    )
    problem = tl.Problem(tl.analyse(model), mesh, "cpu")
    plan = (
        random_plan(problem, actions)
        if isinstance(actions, int)
        else tl.Plan.from_actions(problem, actions)
    )
    return {
        **compare_ways(example.fn, example.args, model, plan, example.donate_argnums, **options)
    }


def compare_ways(
    fn: Any, args: Any, model: Any, plan: Any, donated: Any = (), **options: Any
) -> dict[str, Any]:
    """As ``three_ways``, for a traced model and a plan; the values of arguments are made up."""
    sizes = dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True))
    constraints = plan.constraints(minimal=True, model=model, **options)
    tree = jax.tree_util.tree_structure(args)

    def fresh() -> Any:
        return tree.unflatten(
            [jnp.asarray(x) for x in inputs.draw(model.program, 0, non_negative=True)]
        )

    expected = jax.jit(fn)(*fresh())
    by_plan = plan.jit(fn, donate_argnums=donated)
    ins, outs = plan.named_shardings(by_plan.mesh)
    by_hand = jax.jit(
        constraints.apply(fn, by_plan.mesh),
        in_shardings=ins,
        out_shardings=outs,
        donate_argnums=donated,
        keep_unused=True,
    )
    exported = imported(plan.to_python(constraints, model)).shard(
        fn, by_plan.mesh, keep_unused=True
    )
    ways = {}
    for way, run in (("jit", by_plan), ("constraints", by_hand), ("python", exported)):
        given = fresh()
        compiled = run.lower(*given).compile()
        result = run(*given)
        ways[way] = {
            "error": error_of(result, expected),
            "same_tree": jax.tree_util.tree_structure(result)
            == jax.tree_util.tree_structure(expected),
            "collectives": collectives(compiled, sizes),
            "arguments": [str(s.spec) for s in jax.tree_util.tree_leaves(compiled.input_shardings)],
            "results": [str(x.sharding.spec) for x in jax.tree_util.tree_leaves(result)],
        }
    return {
        "ways": ways,
        "constraints": len(constraints),
        "exact": constraints.exact,
        "remaining": constraints.remaining,
        "remaining_bytes": constraints.remaining_bytes,
        "tried": constraints.outcome.tried,
        "complete": constraints.outcome.complete,
        "target_bytes": trial.difference_bytes(
            constraints.outcome.target, trial.Signature({}, 0.0, 0)
        ),
        "rows": [str(r) for r in constraints],
        "places": collections.Counter(len(r.values) for r in constraints),
    }


def patched(
    name: str, sizes: dict[str, Any], actions: list[Any], mesh: dict[str, int], **options: Any
) -> dict[str, Any]:
    """Apply a plan's patch to the model's source, and run that under plain ``jax.jit``."""
    from toast_lab.models import transformer

    example = make(name, **sizes)
    model = tl.from_jax(example.fn, *example.args, dim_names=example.dim_names, name=name)
    problem = tl.Problem(tl.analyse(model), mesh, "cpu")
    plan = tl.Plan.from_actions(problem, actions)
    constraints = plan.constraints(minimal=True, model=model, **options)
    patch = plan.to_patch(constraints, root=Path(transformer.__file__).parents[2])
    (source,) = patch.sources.values()
    changed = imported(source, "patched_transformer")
    plan_jit = plan.jit(example.fn)
    ins, outs = plan.named_shardings(plan_jit.mesh)
    tree = jax.tree_util.tree_structure(example.args)
    given = tree.unflatten([jnp.asarray(x) for x in inputs.draw(model.program, 0)])
    function = getattr(changed, example.fn.__name__)
    with plan_jit.mesh:  # gives bare PartitionSpecs a mesh
        run = jax.jit(function, in_shardings=ins, out_shardings=outs)
        compiled = run.lower(*given).compile()
        result = run(*given)
    sizes_of = dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True))
    return {
        "error": error_of(result, jax.jit(example.fn)(*given)),
        "collectives": collectives(compiled, sizes_of),
        "planned": collectives(plan_jit.lower(*given).compile(), sizes_of),
        "text": patch.text,
        "left_out": patch.left_out,
        "n": len(constraints),
    }


def drift(folder: str) -> dict[str, Any]:
    """Run the exported test of a plan by pytest, in three variants.

    As exported, with a different record, and with a model that has changed.
    """
    import subprocess

    model = tl.load("mlp")
    problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2}, "cpu")
    plan = tl.Plan.from_specs(problem, {"x": ("data", None), "w1": (None, "model")})
    plan.save(Path(folder) / "plan.json")
    text = plan.to_test("mlp", "plan.json")
    outcomes = {"text": text}
    for name, written in (
        ("same", text),
        ("record", text.replace('"count": 1.0', '"count": 2.0', 1)),
        ("model", text.replace("**{}", "**{'batch': 6}")),
    ):
        path = Path(folder) / f"test_{name}.py"
        path.write_text(written)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=folder,
            check=False,
            # It needs no plugins, and loading ours takes longer than its test
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        outcomes[name] = f"{done.returncode} {done.stdout}"
    return outcomes


def flax_steps(nested: bool) -> dict[str, Any]:
    """Shard an nnx module and its optimizer by exported Python, which changes both in place.

    If ``nested``, they are not separate arguments, but in a tuple in a dict, along with the number
    of the step.
    """
    import numpy as np
    import optax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)])

        def __call__(self, x: Any) -> Any:
            return self.layers[1](nnx.relu(self.layers[0](x)))

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    def nested_step(state: Any, x: Any, y: Any) -> Any:
        return step(*state["both"], x, y) + 0 * state["number"]

    def fresh() -> Any:
        net = Net(nnx.Rngs(0))
        both = net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
        return ({"both": both, "number": jnp.zeros(())},) if nested else both

    def modules(given: Any) -> Any:
        return given[0]["both"] if nested else given[:2]

    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(32, 16)), jnp.float32) for _ in range(2))
    fn = nested_step if nested else step
    model = tl.from_jax(fn, *fresh(), x, y)
    problem = tl.Problem(tl.analyse(model), MESH, "cpu")
    kernel = "state['both'][0].layers[0].kernel" if nested else "model.layers[0].kernel"
    plan = tl.Plan.from_specs(problem, {"x": ("data", None), kernel: (None, "model")})
    constraints = plan.constraints(minimal=True, model=model)
    run = imported(plan.to_python(constraints, model)).shard(fn)
    mine, plain = fresh(), fresh()
    placed = run.place(*mine, x, y)
    same = all(a is b for a, b in zip(modules(placed), modules(mine), strict=True))
    before = [tuple(x.sharding.spec) for x in jax.tree_util.tree_leaves(placed) if x.ndim > 1]
    losses = [float(run(*mine, *placed[-2:])) for _ in range(4)]
    theirs = [float(fn(*plain, x, y)) for _ in range(4)]
    mine, plain = modules(mine), modules(plain)
    kernel = mine[0].layers[0].kernel.get_value()
    return {
        "losses": losses,
        "plain": theirs,
        "kernel": tuple(kernel.sharding.spec),
        "exact": constraints.exact,
        "same": same,
        "placed": before,
        "weights": error_of(kernel, plain[0].layers[0].kernel.get_value()),
        "moment": tuple(jax.tree_util.tree_leaves(nnx.state(mine[1]))[0].sharding.spec),
    }


def deeper(
    sizes: dict[str, Any], layers: int, actions: list[Any], mesh: dict[str, int]
) -> dict[str, Any]:
    """Apply constraints found for a few layers to the same function with more layers."""
    shallow, deep = (
        make("transformer", **{**sizes, "layers": n}) for n in (sizes["layers"], layers)
    )
    plans = []
    for example in (shallow, deep):
        model = tl.from_jax(example.fn, *example.args, dim_names=example.dim_names)
        plans.append(
            (model, tl.Plan.from_actions(tl.Problem(tl.analyse(model), mesh, "cpu"), actions))
        )
    (model, plan), (_, deep_plan) = plans
    constraints = plan.constraints(minimal=True, model=model)
    by_plan = deep_plan.jit(deep.fn)
    ins, outs = deep_plan.named_shardings(by_plan.mesh)
    by_hand = jax.jit(
        constraints.apply(deep.fn, by_plan.mesh), in_shardings=ins, out_shardings=outs
    )
    given = deep.args
    counts = [collectives(f.lower(*given).compile(), mesh) for f in (by_plan, by_hand)]
    return {
        "planned": counts[0],
        "constrained": counts[1],
        "constraints": len(constraints),
        "exact": constraints.exact,
    }

"""Constructs of JAX, each planned, run, exported and compared in a process with 8 devices.

``CONSTRUCTS`` maps a name to a function that makes ``(fn, args)``. ``roads`` carries out a plan of
one on every road from the user's call to the program and back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import toast_lab as tl
from toast_lab.errors import InvalidPlan
from toast_lab.frontends.calls import type_of

AUTO = (jax.sharding.AxisType.Auto,) * 2
HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
MESH = {"data": 4, "model": 2}
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def cut(*spec: Any, memory: str | None = None) -> jax.NamedSharding:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=AUTO)
    return jax.NamedSharding(mesh, jax.P(*spec), memory_kind=memory)


def weights() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0))
    return {"a": jax.random.normal(keys[0], (64, 128)), "b": jax.random.normal(keys[1], (128, 64))}


def rows(count: int = 32, size: int = 64) -> Any:
    return jnp.asarray(np.random.default_rng(1).normal(size=(count, size)), jnp.float32)


def step(p: Any, x: Any) -> Any:
    return jax.tree.map(lambda a: a - 0.1, p), jnp.mean(jax.nn.relu(x @ p["a"]) @ p["b"])


def declared(donated: bool) -> Made:
    spec = {"a": cut(None, "model"), "b": cut("model")}
    donate = {"donate_argnums": 0} if donated else {}
    shardings = {"in_shardings": (spec, cut("data")), "out_shardings": (spec, cut())}
    return jax.jit(step, **shardings, **donate), (weights(), rows())


def prefix_of_pytrees() -> Made:
    fn = jax.jit(step, in_shardings=(cut("model"), cut("data")), out_shardings=(cut("model"), None))
    return fn, (weights(), rows())


def one_for_all_arguments() -> Made:
    return jax.jit(step, in_shardings=cut("data"), out_shardings=cut()), (weights(), rows())


def static_argument() -> Made:
    def scaled(p: Any, n: int, x: Any) -> Any:
        return jnp.sum(x @ p["a"] * n, axis=1)

    spec = {"a": cut(None, "model"), "b": cut("model")}
    fn = jax.jit(scaled, static_argnums=1, in_shardings=(spec, cut("data")))
    return fn, (weights(), 3, rows())


def static_keyword() -> Made:
    fn = jax.jit(lambda p, x, *, n: jnp.sum(x @ p["a"] * n, axis=1), static_argnames="n")
    return functools.partial(fn, n=3), (weights(), rows())


def jit_in_jit() -> Made:
    inner = jax.jit(
        lambda x, w: jax.nn.relu(x @ w),
        in_shardings=(cut("data"), cut(None, "model")),
        out_shardings=cut("data", "model"),
    )
    return jax.jit(lambda p, x: inner(x, p["a"]) @ p["b"]), (weights(), rows())


def constraint() -> Made:
    def fn(p: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ p["a"], cut("data", "model")) @ p["b"]

    return fn, (weights(), rows())


def matrices() -> Any:
    return 3 * jnp.eye(8) + jnp.asarray(np.random.default_rng(2).normal(size=(16, 8, 8)), "float32")


def linear_solve() -> Made:
    return lambda a, b: jnp.linalg.solve(a, b), (matrices(), jnp.ones((16, 8, 4)))


def inverse() -> Made:
    return jnp.linalg.inv, (matrices(),)


def conjugate_gradients() -> Made:
    def fn(a: Any, b: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda v: a.T @ (a @ v) + v, b, maxiter=5)[0]

    return fn, (rows(64) / 8, jnp.ones(64))


def custom_root() -> Made:
    def solve(f: Any, guess: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, y: y - f(y) / (2 * y), guess)

    def fn(x: Any) -> Any:
        tangent = lambda g, y: y / g(jnp.ones_like(y))  # noqa: E731
        return jax.lax.custom_root(lambda y: y * y - x, x, solve, tangent)

    return fn, (jnp.full((16, 8), 4.0),)


def approximate_top_k() -> Made:
    return lambda x: jax.lax.approx_max_k(x, 8), (rows(32, 1024),)


def softmax(x: Any, t: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.bfloat16) / t[:, None])


def weak_type() -> Made:
    return softmax, (rows(16, 32), jnp.full((16,), 0.8))


def python_number() -> Made:
    return lambda x, rate: (x.astype(jnp.bfloat16) * rate, rate * 2), (rows(16, 32), 0.5)


def mutable_array() -> Made:
    def fn(x: Any, w: Any) -> Any:
        total = jax.new_ref(jnp.zeros((16, 64)))
        total[...] = x @ w
        total[0] = total[1] + 1
        return total[...]

    return fn, (rows(16, 32), rows(32, 64))


def mutable_array_in_a_loop() -> Made:
    def fn(x: Any, w: Any) -> Any:
        total = jax.new_ref(jnp.zeros((16, 32)))

        def body(carry: Any, _: Any) -> Any:
            total[...] += carry
            return jnp.tanh(carry @ w), None

        carry, _ = jax.lax.scan(body, x, jnp.arange(3))
        return jax.freeze(total) + carry

    return fn, (rows(16, 32), rows(32, 32))


def random_key() -> Made:
    def fn(key: Any, x: Any) -> Any:
        return jax.random.split(key)[0], x * jax.random.bernoulli(key, 0.5, x.shape)

    return fn, (jax.random.key(0), rows())


def wide_arguments() -> Made:
    rng = np.random.default_rng(3)
    return lambda x, i: jnp.tanh(x) * i.sum(), (rng.normal(size=(16, 32)), np.arange(16))


def offloaded(p: Any, s: Any, x: Any) -> Any:
    s = jax.device_put(s, DEVICE)
    return p - s, jax.device_put(s + jnp.sum(x), HOST)


def host_argument() -> Made:
    return offloaded, (rows(64), jax.device_put(rows(64), HOST), rows())


def host_result() -> Made:
    return offloaded, (rows(64), rows(64), rows())


def host_shardings() -> Made:
    host = cut("data", memory="pinned_host")
    fn = jax.jit(
        offloaded, in_shardings=(cut("data"), host, cut()), out_shardings=(cut("data"), host)
    )
    return fn, (rows(64), jax.device_put(rows(64), host), rows())


CONSTRUCTS: dict[str, Callable[[], Made]] = {
    "shardings": lambda: declared(False),
    "shardings and donation": lambda: declared(True),
    "static argument": static_argument,
    "64-bit arguments": wide_arguments,
    **{
        function.__name__.replace("_", " "): function
        for function in (
            prefix_of_pytrees,
            one_for_all_arguments,
            static_keyword,
            jit_in_jit,
            constraint,
            linear_solve,
            inverse,
            conjugate_gradients,
            custom_root,
            approximate_top_k,
            weak_type,
            python_number,
            mutable_array,
            mutable_array_in_a_loop,
            random_key,
            host_argument,
            host_result,
            host_shardings,
        )
    },
}
WIDE = ("64-bit arguments", "python number", "shardings", "weak type")


def roads(name: str, wide: bool) -> dict[str, list[str]]:
    """For each road what differs from the user's own ``jax.jit``; ``wide``: with 64-bit types."""
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        fn, args = CONSTRUCTS[name]()
        model = tl.from_jax(fn, *args)
        problem = tl.Problem(tl.analyse(model), MESH, machine="cpu")
        plan = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=40)).plan
        expected = (fn if hasattr(fn, "lower") or name == "static keyword" else jax.jit(fn))(
            *copied(args)
        )
        differ = {"plan.jit": different(plan.jit(fn)(*copied(args)), expected)}
        written = plan.written(problem=problem, budget=tl.Budget(None, 300))
        text = written.to_python()
        scope: dict[str, Any] = {"__name__": "exported"}
        exec(compile(text, "exported.py", "exec"), scope)
        given = scope["place"](*copied(args))
        differ["to_python"] = different(scope["shard"](fn, *given)(*given), expected)
        differ["to_python"] += ["needs toast_lab"] if "import toast_lab" in text else []
        differ["to_patch"] = [] if isinstance(written.to_patch().text, str) else ["no text"]
        run = tl.run(model, plan, devices="cpu:8", repeats=1, warmup=0)
        differ["run"] = [] if run.agrees else [str(run)]
        compared = tl.compare(model, [plan], devices="cpu:8", repeats=1, rounds=1)
        differ["compare"] = [
            f"{row.status} {row.message} {row.certificate}"
            for row in compared.rows
            if row.certificate is None or not row.certificate.passed
        ]
    return differ


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies, which a call may donate."""
    return jax.tree.map(lambda leaf: leaf.copy() if hasattr(leaf, "copy") else leaf, args)


def different(results: Any, expected: Any) -> list[str]:
    """How results differ in structure, types, memory or numbers."""
    leaves, tree = jax.tree.flatten(results)
    expected_leaves, expected_tree = jax.tree.flatten(expected)
    if tree != expected_tree:
        return [f"{tree} instead of {expected_tree}"]
    texts = []
    for leaf, wanted in zip(leaves, expected_leaves, strict=True):
        facts, wanted_facts = (
            (jax.typeof(array), type_of(array), array.sharding.memory_kind)
            for array in (leaf, wanted)
        )
        if str(facts) != str(wanted_facts):
            texts.append(f"{facts} instead of {wanted_facts}")
        numbers, wanted_numbers = map(_numbers, (leaf, wanted))
        if not np.allclose(numbers, wanted_numbers, rtol=1e-2, atol=1e-3):
            texts.append(f"numbers differ by {np.max(np.abs(numbers - wanted_numbers))}")
    return texts


def _numbers(array: Any) -> np.ndarray:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).astype(np.float64)


# -- beside the table ------------------------------------------------------------------------------


def weakly_typed_calls() -> list[str]:
    """Plans of strong and weak types, called with both; results are of the planned type."""
    texts = []
    strong = (jax.ShapeDtypeStruct((16, 32), "float32"), jax.ShapeDtypeStruct((16,), "float32"))
    x, t = rows(16, 32), jnp.full((16,), 0.8)
    for planned, dtype in ((strong, "float32"), ((x, t), "bfloat16")):
        problem = tl.Problem(tl.analyse(tl.from_jax(softmax, *planned)), {"data": 8})
        run = tl.Plan.from_actions(problem, ["x_rows->data"]).jit(softmax)
        for given in (t, np.full((16,), 0.8, "float32")):
            result = run(x, given)
            gradient = jax.grad(functools.partial(_sum_of, run))(x, given)
            exact = softmax(x, given)
            if result.dtype != dtype or gradient.shape != x.shape:
                texts.append(f"{result.dtype} instead of {dtype}")
            if not np.allclose(_numbers(result), _numbers(exact), atol=1e-2):
                texts.append("numbers differ")
    return texts


def _sum_of(fn: Callable[..., Any], x: Any, t: Any) -> Any:
    return fn(x, t).astype("float32").sum()


def explicit_mode() -> dict[str, Any]:
    """``plan.jit`` in a script whose mesh has explicit axes."""
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=explicit)
    with jax.set_mesh(mesh):

        def layer(w: Any, x: Any) -> Any:
            product = jnp.einsum("bd,df->bf", x, w, out_sharding=jax.P("data", "model"))
            return jax.nn.relu(product)

        w = jax.device_put(rows(32, 64), jax.NamedSharding(mesh, jax.P(None, "model")))
        x = jax.device_put(rows(16, 32), jax.NamedSharding(mesh, jax.P("data")))
        analysis = tl.analyse(tl.from_jax(layer, w, x))
        plan = tl.Plan.from_actions(tl.Problem(analysis, MESH), ["b->data"])
        run, plain = plan.jit(layer), jax.jit(layer)
        gradients = [jax.grad(lambda w, f=f: jnp.sum(f(w, x) ** 2))(w) for f in (run, plain)]
        other = tl.Plan.from_actions(tl.Problem(analysis, {"data": 8}), ["b->data"])
        refused = ""
        try:
            other.jit(layer)
        except InvalidPlan as error:
            refused = str(error)
        elsewhere = other.jit(layer, devices=jax.devices())(w, x)
        return {
            "next": float(jnp.max(jnp.abs(jnp.sin(run(w, x)) - jnp.sin(plain(w, x))))),
            "in jit": float(jnp.max(jnp.abs(jax.jit(run)(w, x) - plain(w, x)))),
            "gradient": float(jnp.max(jnp.abs(gradients[0] - gradients[1]))),
            "elsewhere": float(np.max(np.abs(np.asarray(elsewhere) - np.asarray(plain(w, x))))),
            "refused": refused,
        }


def wrong_arguments() -> dict[str, str]:
    """Messages for calls with arguments of another type or memory than planned."""
    problem = tl.Problem(tl.analyse(tl.from_jax(offloaded, *host_argument()[1])), MESH)
    run = tl.Plan.from_actions(problem, ["p_rows->data"]).jit(offloaded)
    messages = {}
    for name, s in (("memory", rows(64)), ("type", rows(64).astype("bfloat16"))):
        try:
            run(rows(64), s, rows())
        except InvalidPlan as error:
            messages[name] = str(error)
    return messages

"""Programs with hand-written parts, as people write them: ``jax.shard_map`` on data=4, model=2.

Each function takes a mesh, abstract for tracing or of devices for execution, and gives the function
and its arguments, as shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

SIZES = {"data": 4, "model": 2}
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def abstract_mesh(**sizes: int) -> AbstractMesh:
    sizes = sizes or SIZES
    return AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def struct(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def data_parallel(mesh: Any) -> Program:
    """Each device has its rows of the batch; gradients are summed by hand."""

    def part(params: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jax.nn.relu(x @ params["in"])
            return ((hidden @ params["out"] - y) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.lax.pmean(value, "data"), jax.lax.pmean(gradient, "data")

    def step(params: Any, x: Any, y: Any) -> Any:
        value, gradient = jax.shard_map(
            part,
            mesh=mesh,
            in_specs=(P(), P("data"), P("data")),
            out_specs=(P(), P()),
            check_vma=False,
        )(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    params = {"in": struct(32, 64), "out": struct(64, 16)}
    return step, (params, struct(64, 32), struct(64, 16))


def vocabulary_loss(mesh: Any) -> Program:
    """A training step whose loss has the vocabulary split over ``model``."""

    def part(x: Any, table: Any, labels: Any) -> Any:
        logits = x @ table
        highest = jax.lax.pmax(jax.lax.stop_gradient(logits.max(-1)), "model")
        total = jax.lax.psum(jnp.exp(logits - highest[:, None]).sum(-1), "model")
        size = table.shape[1]
        place = labels - jax.lax.axis_index("model") * size
        mine = (place >= 0) & (place < size)
        picked = jnp.take_along_axis(logits, jnp.clip(place, 0, size - 1)[:, None], 1)[:, 0]
        return highest + jnp.log(total) - jax.lax.psum(jnp.where(mine, picked, 0.0), "model")

    loss_of = jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(P("data"), P(None, "model"), P("data")),
        out_specs=P("data"),
        check_vma=False,
    )

    def step(params: Any, x: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jax.nn.relu(x @ params["in"]) @ params["out"]
            return loss_of(hidden, params["table"], labels).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    params = {"in": struct(64, 128), "out": struct(128, 64), "table": struct(64, 256)}
    return step, (params, struct(32, 64), struct(32, dtype="int32"))


def ring_attention(mesh: Any) -> Program:
    """Keys and values go round the ring of ``data``; heads are split over ``model``."""
    size = SIZES["data"]

    def part(q: Any, k: Any, v: Any) -> Any:
        def turn(carried: Any, _: Any) -> Any:
            k, v, highest, total, out = carried
            scores = jnp.einsum("qhd,khd->hqk", q, k)
            new = jnp.maximum(highest, scores.max(-1))
            weights = jnp.exp(scores - new[..., None])
            shrink = jnp.exp(highest - new)
            total = total * shrink + weights.sum(-1)
            out = out * shrink[..., None] + jnp.einsum("hqk,khd->hqd", weights, v)
            ring = [(i, (i + 1) % size) for i in range(size)]
            k, v = (jax.lax.ppermute(moved, "data", ring) for moved in (k, v))
            return (k, v, new, total, out), None

        heads, rows, width = q.shape[1], q.shape[0], q.shape[2]
        start = (
            k,
            v,
            jnp.full((heads, rows), -1e30, q.dtype),
            jnp.zeros((heads, rows), q.dtype),
            jnp.zeros((heads, rows, width), q.dtype),
        )
        (_, _, _, total, out), _ = jax.lax.scan(turn, start, None, length=size)
        return jnp.swapaxes(out / total[..., None], 0, 1)

    attend = jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(P("data", "model"),) * 3,
        out_specs=P("data", "model"),
        check_vma=False,
    )

    def layer(x: Any, weights: Any) -> Any:
        q, k, v = (jnp.einsum("sm,mhd->shd", x, weights[name]) for name in "qkv")
        return x + jnp.einsum("shd,hdm->sm", attend(q, k, v), weights["o"])

    weights = {name: struct(32, 4, 8) for name in "qkv"} | {"o": struct(4, 8, 32)}
    return layer, (struct(64, 32), weights)


def recomputed_layers(mesh: Any) -> Program:
    """The gradient of scanned and recomputed layers, each with a product summed by hand."""

    def part(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ w, "model")

    product = jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(P("data", "model"), P("model", None)),
        out_specs=P("data", None),
        check_vma=False,
    )

    def loss(weights: Any, x: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return x + jnp.tanh(product(x, w))

        x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return (x**2).mean()

    return jax.value_and_grad(loss), (struct(3, 16, 16), struct(32, 16))


def exchanged_experts(mesh: Any) -> Program:
    """Tokens go to the devices of their experts and back, by two all_to_alls."""

    def part(tokens: Any, w: Any) -> Any:
        sent = jax.lax.all_to_all(tokens, "data", split_axis=0, concat_axis=1, tiled=True)
        done = jnp.einsum("etm,emh->eth", sent, w)
        return jax.lax.all_to_all(done, "data", split_axis=1, concat_axis=0, tiled=True)

    experts = jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(P(None, ("data", "model")), P("data")),
        out_specs=P(None, ("data", "model")),
        check_vma=False,
    )

    def layer(x: Any, gate: Any, w: Any) -> Any:
        weight = jax.nn.softmax(x @ gate)
        tokens = jnp.einsum("tm,te->etm", x, weight)
        return experts(tokens, w).sum(0)

    return layer, (struct(64, 16), struct(16, 8), struct(8, 16, 16))


PROGRAMS: dict[str, Callable[[Any], Program]] = {
    "data_parallel": data_parallel,
    "vocabulary_loss": vocabulary_loss,
    "ring_attention": ring_attention,
    "recomputed_layers": recomputed_layers,
    "exchanged_experts": exchanged_experts,
}


def with_free_axes(mesh: Any) -> Program:
    """A part over ``data`` alone, which leaves ``model`` to the compiler."""
    total = jax.shard_map(
        lambda x: jax.lax.psum(jnp.sin(x), "data"),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        axis_names={"data"},
    )
    return lambda x, w: total(x @ w), (struct(32, 16), struct(16, 64))


def axes_turned_round(mesh: Any) -> Program:
    """Rows over ``model`` first: another order than that of the mesh."""
    numbered = jax.shard_map(
        lambda x: x + jax.lax.axis_index("model").astype(x.dtype),
        mesh=mesh,
        in_specs=P(("model", "data")),
        out_specs=P(("model", "data")),
        check_vma=False,
    )
    return lambda x: jnp.cos(numbered(2 * x)), (struct(32, 16),)


FURTHER = {"with_free_axes": with_free_axes, "axes_turned_round": axes_turned_round}


def arrays(shapes: Any, seed: int = 0) -> Any:
    """Arrays of these shapes; integers are below 256."""
    random = np.random.default_rng(seed)

    def draw(shape: jax.ShapeDtypeStruct) -> Any:
        if np.issubdtype(shape.dtype, np.integer):
            return jnp.asarray(random.integers(0, 256, shape.shape), shape.dtype)
        return jnp.asarray(0.3 * random.normal(size=shape.shape), shape.dtype)

    return jax.tree.map(draw, shapes)


def largest_differences(name: str, plans: dict[str, Any]) -> dict[str, float]:
    """Largest relative difference of ``plan.jit`` from ``jax.jit`` of the user's function.

    Runs in a process with eight devices.
    """
    from toast_lab.plan_verbs import Plan

    mesh = jax.make_mesh(
        tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES)
    )
    fn, shapes = (PROGRAMS | FURTHER)[name](mesh)
    given = arrays(shapes)
    expected = jax.tree.leaves(jax.jit(fn)(*given))

    def difference(plan: Any) -> float:
        results = jax.tree.leaves(Plan.of(plan).jit(fn)(*given))
        return max(
            float(jnp.abs(result - other).max() / (jnp.abs(other).max() + 1e-9))
            for result, other in zip(results, expected, strict=True)
        )

    return {key: difference(plan) for key, plan in plans.items()}

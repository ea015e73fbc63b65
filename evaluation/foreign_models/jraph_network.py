"""``GraphNetwork`` of jraph: message passing by gather and segment sums, the gradient of a loss."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import jraph


def make(nodes: int = 64, edges: int = 128, width: int = 32, steps: int = 2) -> tuple[Any, Any]:
    """Loss and gradients of ``steps`` message-passing steps."""

    def mlp(*parts: Any) -> Any:
        return hk.nets.MLP([width, width], activate_final=True)(jnp.concatenate(parts, axis=-1))

    def network(graph: Any) -> Any:
        for _ in range(steps):
            graph = jraph.GraphNetwork(
                update_edge_fn=lambda e, s, r, _: mlp(e, s, r),
                update_node_fn=lambda n, s, r, _: mlp(n, s, r),
            )(graph)
        return graph.nodes

    transformed = hk.without_apply_rng(hk.transform(network))

    def step(params: Any, graph: Any, target: Any) -> Any:
        return jax.value_and_grad(lambda p: jnp.mean((transformed.apply(p, graph) - target) ** 2))(
            params
        )

    def shape(*dims: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(dims, dtype)

    graph = jraph.GraphsTuple(
        nodes=shape(nodes, width),
        edges=shape(edges, width),
        senders=shape(edges, dtype=jnp.int32),
        receivers=shape(edges, dtype=jnp.int32),
        globals=None,
        n_node=shape(1, dtype=jnp.int32),
        n_edge=shape(1, dtype=jnp.int32),
    )
    params = jax.eval_shape(transformed.init, jax.eval_shape(lambda: jax.random.PRNGKey(0)), graph)
    return step, (params, graph, shape(nodes, width))

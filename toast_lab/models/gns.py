"""A graph network simulator: encoder, message passing on nodes, edges and a global vector, decoder.

The network is that of Sanchez-Gonzalez et al. 2020 ("Learning to simulate complex physics with
graph networks") with the two targets of Godwin et al. 2022 ("Simple GNN regularisation for 3D
molecular property prediction"): a vector for each node (the denoising target) and a property of the
whole graph.  One step of message passing is

    edges'   = edges   + LayerNorm(MLP([edges, nodes[senders], nodes[receivers], globals]))
    nodes'   = nodes   + LayerNorm(MLP([nodes, sum of edges' by sender, and by receiver, globals]))
    globals' = globals + LayerNorm(MLP([sum of edges', sum of nodes', globals]))

with gathers for ``nodes[...]`` and scatter-adds for the sums by node.  Plain JAX, parameters in
nested dicts and lists, so that argument paths read like ``params['steps'][0]['edge']['w1']``.

How many parameters.  The paper says 875M, "24 message-passing steps over 3 linear layers (hidden
size: 1024; latent size: 2048)".  With latent L = 2H, H = 1024, an MLP on k*L inputs with n hidden
layers has about (2k + n - 1 + 2) H^2 weights.  Which reading gives 875M?

    edges and nodes (k = 3, 2), 3 linear layers in all (n = 2):  24 * 16 H^2 = 403M, no
    the same, 3 layers of the hidden size, then the output (n = 3):  24 * 18 H^2 = 453M, no
    nodes, edges and globals (k = 4, 4, 3), 3 linear layers in all:  24 * 31 H^2 = 780M, no
    the same, 3 layers of the hidden size, then the output:  24 * 34 H^2 = 856M

The last one is taken: with three encoders and two decoders of 4 H^2 each, biases, norms and 128
input features it comes to 877,704,196, 0.3% above the paper.  So the paper's "3 linear layers" does
not add up if the output layer is one of the three, nor without the global vector, which the paper
does not mention.

``make`` only builds shapes: no weight is ever allocated.  Reference: TOAST section 5.1 (GNS).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.array_shapes import Training, arrays_of, names_of, shapes_of
from toast_lab.models.model_sizes import GnsSizes
from toast_lab.models.registry import Example

if TYPE_CHECKING:
    from toast_lab.models.array_shapes import Weights


class Graph(NamedTuple):
    """Features of a graph, and each edge's ends.

    ``nodes: [N, F]``, ``edges: [E, F]``, ``globals: [F]``, ``senders`` and ``receivers: [E]``.
    """

    nodes: Any
    edges: Any
    globals: Any
    senders: Any
    receivers: Any


class Targets(NamedTuple):
    """What the decoders should give: ``nodes: [N, outputs]`` and ``globals: [1]``."""

    nodes: Any
    globals: Any


PARTS = ("edge", "node", "global")


def weights(sizes: GnsSizes) -> Weights:
    """Every weight with the names and sizes of its dims.

    The k-th hidden layer of a node processor is called ``node_hidden<k>``.
    """
    latent = ("latent", sizes.latent)
    dims_of: Weights = {}

    def mlp(*path: Any, inputs: tuple[str, int], outputs: tuple[str, int] = latent) -> None:
        prefix = path[-1] if path[0] == "steps" else f"{path[0]}_{path[-1]}"
        depths = range(1, sizes.hidden_layers + 1)
        hidden = [(f"{prefix}_hidden{depth}", sizes.hidden) for depth in depths]
        for layer_index, dims in enumerate(pairwise([inputs, *hidden, outputs]), 1):
            dims_of[*path, f"w{layer_index}"] = dims
            dims_of[*path, f"b{layer_index}"] = dims[1:]
        if path[0] != "decoder":
            dims_of[*path, "scale"] = dims_of[*path, "offset"] = (outputs,)

    for part in PARTS:
        mlp("encoder", part, inputs=(f"{part}_features", sizes.features))
    for step in range(sizes.steps):
        for part, given in zip(PARTS, (4, 4, 3), strict=True):
            mlp("steps", step, part, inputs=(f"{part}_inputs", given * sizes.latent))
    mlp("decoder", "node", inputs=latent, outputs=("outputs", sizes.outputs))
    mlp("decoder", "global", inputs=latent, outputs=("property", 1))
    return dims_of


def dim_names(sizes: GnsSizes) -> dict[str, tuple[str, ...]]:
    """Names of the dims by argument path."""
    return {
        "graph.nodes": ("nodes", "node_features"),
        "graph.edges": ("edges", "edge_features"),
        "graph.globals": ("global_features",),
        "graph.senders": ("edges",),
        "graph.receivers": ("edges",),
        "targets.nodes": ("nodes", "outputs"),
        "targets.globals": ("property",),
        **names_of(weights(sizes)),
    }


def expert_plans(sizes: GnsSizes) -> dict[str, tuple[tuple[str, str], ...]]:
    """The expert strategies of the paper: edge sharding, alone and with Megatron.

    Edge sharding cuts edges, senders and receivers; nodes and parameters stay whole.  Megatron: in
    the MLPs of the edge and node processors every other linear layer is cut along its outputs and
    the next one along its inputs. Reference: TOAST section 5.1.
    """
    edges = (("edges", "data"),)
    megatron = tuple(
        (f"{part}_hidden{depth}", "model")
        for part in ("edge", "node")
        for depth in range(1, sizes.hidden_layers + 1, 2)
    )
    return {"edge sharding": edges, "edge sharding + Megatron": edges + megatron}


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Linear layers with ReLUs between them, over the last dim of ``x``.

    LayerNorm follows where ``params`` has its scale.
    """
    layers = sum(key.startswith("w") for key in params)
    for layer_index in range(1, layers + 1):
        x = x @ params[f"w{layer_index}"] + params[f"b{layer_index}"]
        if layer_index < layers:
            x = jax.nn.relu(x)
    return layer_norm(x, params["scale"], params["offset"]) if "scale" in params else x


def layer_norm(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    """Normalise over the last dim."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * scale + offset


def message_passing(params: dict[str, Any], graph: Graph) -> Graph:
    """One step: new edges from their ends, new nodes from their edges, new globals from all."""
    n_nodes, n_edges = len(graph.nodes), len(graph.edges)

    def everywhere(rows: int) -> jax.Array:
        return jnp.broadcast_to(graph.globals, (rows, len(graph.globals)))

    inputs = jnp.concatenate(
        [
            graph.edges,
            graph.nodes[graph.senders],
            graph.nodes[graph.receivers],
            everywhere(n_edges),
        ],
        axis=-1,
    )
    edges = graph.edges + mlp(params["edge"], inputs)
    sent = jax.ops.segment_sum(edges, graph.senders, n_nodes)
    received = jax.ops.segment_sum(edges, graph.receivers, n_nodes)
    inputs = jnp.concatenate([graph.nodes, sent, received, everywhere(n_nodes)], axis=-1)
    nodes = graph.nodes + mlp(params["node"], inputs)
    inputs = jnp.concatenate([edges.sum(0), nodes.sum(0), graph.globals], axis=-1)
    change = mlp(params["global"], inputs)
    return graph._replace(nodes=nodes, edges=edges, globals=graph.globals + change)


def forward(params: dict[str, Any], graph: Graph) -> Targets:
    """Predicted vector of each node, ``[N, outputs]``, and property of the graph, ``[1]``."""
    encoder = params["encoder"]
    state = graph._replace(
        nodes=mlp(encoder["node"], graph.nodes),
        edges=mlp(encoder["edge"], graph.edges),
        globals=mlp(encoder["global"], graph.globals),
    )
    for step in params["steps"]:
        state = message_passing(step, state)
    return Targets(
        mlp(params["decoder"]["node"], state.nodes), mlp(params["decoder"]["global"], state.globals)
    )


def loss_fn(params: dict[str, Any], graph: Graph, targets: Targets) -> jax.Array:
    """Mean squared error of the nodes' vectors plus that of the graph's property."""
    predicted = forward(params, graph)
    return jnp.mean(jnp.square(predicted.nodes - targets.nodes)) + jnp.mean(
        jnp.square(predicted.globals - targets.globals)
    )


def train_step(
    params: dict[str, Any], opt_state: Any, graph: Graph, targets: Targets
) -> tuple[dict[str, Any], Any, jax.Array]:
    """One Adam step: ``(params, opt_state, loss)``."""
    loss, grads = jax.value_and_grad(loss_fn)(params, graph, targets)
    updates, opt_state = OPTIMISER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


OPTIMISER = optax.adam(1e-4)


def make(**given: Any) -> Example:
    """A graph network of any size; sizes as in ``GnsSizes``.

    Raises ValueError listing every impossible size.
    """
    sizes = GnsSizes(**given)
    sizes.check()
    shape_of = arrays_of(sizes.dtype)
    ends = jax.ShapeDtypeStruct((sizes.edges,), jnp.int32)
    graph = Graph(
        nodes=shape_of(sizes.nodes, sizes.features),
        edges=shape_of(sizes.edges, sizes.features),
        globals=shape_of(sizes.features),
        senders=ends,
        receivers=ends,
    )
    targets = Targets(nodes=shape_of(sizes.nodes, sizes.outputs), globals=shape_of(1))
    example = Training(forward, loss_fn, train_step, OPTIMISER).example(
        sizes.mode, shapes_of(weights(sizes), sizes.dtype), inputs=(graph,), targets=(targets,)
    )
    return example._replace(dim_names=dim_names(sizes), expert_plans=expert_plans(sizes))

"""A graph network simulator: encoder, message passing on nodes, edges and a global vector, decoder.

The network is that of Sanchez-Gonzalez et al. 2020 ("Learning to simulate complex physics with graph networks") with
the two targets of Godwin et al. 2022 ("Simple GNN regularisation for 3D molecular property prediction"): a
vector for each node (the denoising target) and a property of the whole graph.  One step of message passing is

    edges'   = edges   + LayerNorm(MLP([edges, nodes[senders], nodes[receivers], globals]))
    nodes'   = nodes   + LayerNorm(MLP([nodes, sum of edges' by sender, sum of edges' by receiver, globals]))
    globals' = globals + LayerNorm(MLP([sum of edges', sum of nodes', globals]))

with gathers for ``nodes[...]`` and scatter-adds for the sums by node.  Plain JAX, parameters in nested dicts and
lists, so that argument paths read like ``params['steps'][0]['edge']['w1']``.

How many parameters.  The paper says 875M, "24 message-passing steps over 3 linear layers (hidden size: 1024; latent
size: 2048)".  With latent L = 2H, H = 1024, an MLP on k*L inputs with n hidden layers has about
(2k + n - 1 + 2) H^2 weights.  Which reading gives 875M?

    edges and nodes only (k = 3, 2), 3 linear layers in all (n = 2)             24 * 16 H^2 = 403M, no
    edges and nodes only, 3 layers of the hidden size, then the output (n = 3)  24 * 18 H^2 = 453M, no
    nodes, edges and globals (k = 4, 4, 3), 3 linear layers in all (n = 2)      24 * 31 H^2 = 780M, no
    nodes, edges and globals, 3 layers of the hidden size, then the output      24 * 34 H^2 = 856M

The last one is taken: with three encoders and two decoders of 4 H^2 each, biases, norms and 128 input features it
comes to 877,704,196, 0.3% above the paper.  So the paper's "3 linear layers" does not add up if the output layer
is one of the three, nor without the global vector, which the paper does not mention.

``make`` only builds shapes: no weight is ever allocated.  Reference: TOAST section 5.1 (GNS).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.registry import Example, count_parameters

MODES = ("forward", "gradient", "train")


class Config(NamedTuple):
    """Sizes of one network and of the graph that it works on."""

    steps: int = 24
    nodes: int = 2048
    edges: int = 16384
    latent: int = 2048
    hidden: int = 1024
    hidden_layers: int = 3
    features: int = 128
    outputs: int = 3
    dtype: str = "float32"

    def check(self) -> None:
        """Raise ValueError naming every size that cannot work."""
        wrong = [f"{k}={v}" for k, v in self._asdict().items() if k != "dtype" and v < 1]
        if wrong:
            raise ValueError("gns: impossible sizes: " + "; ".join(wrong))


class Graph(NamedTuple):
    """``nodes: [N, F]``, ``edges: [E, F]``, ``globals: [F]`` and each edge's ends, ``senders``, ``receivers: [E]``."""

    nodes: Any
    edges: Any
    globals: Any
    senders: Any
    receivers: Any


class Targets(NamedTuple):
    """What the decoders should give: ``nodes: [N, outputs]`` and ``globals: [1]``."""

    nodes: Any
    globals: Any


def mlps(c: Config) -> dict[tuple[Any, ...], tuple[int, int, str, str]]:
    """Path -> (inputs, outputs, name of the input dim, name of the output dim) of every MLP."""
    found: dict[tuple[Any, ...], tuple[int, int, str, str]] = {}
    for part in ("edge", "node", "global"):
        found["encoder", part] = (c.features, c.latent, "features", "latent")
    for i in range(c.steps):
        for part, inputs in (("edge", 4), ("node", 4), ("global", 3)):
            found["steps", i, part] = (inputs * c.latent, c.latent, f"{part}_inputs", "latent")
    found["decoder", "node"] = (c.latent, c.outputs, "latent", "outputs")
    found["decoder", "global"] = (c.latent, 1, "latent", "property")
    return found


def param_shapes(c: Config) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of ``c``."""

    def s(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(c.dtype))

    def mlp(path: tuple[Any, ...]) -> dict[str, Any]:
        inputs, outputs = mlps(c)[path][:2]
        widths = [inputs] + [c.hidden] * c.hidden_layers + [outputs]
        made: dict[str, Any] = {}
        for i, (before, after) in enumerate(pairwise(widths), 1):
            made |= {f"w{i}": s(before, after), f"b{i}": s(after)}
        return made if path[0] == "decoder" else made | {"scale": s(outputs), "offset": s(outputs)}

    return {
        "encoder": {part: mlp(("encoder", part)) for part in ("edge", "node", "global")},
        "steps": [{part: mlp(("steps", i, part)) for part in ("edge", "node", "global")} for i in range(c.steps)],
        "decoder": {part: mlp(("decoder", part)) for part in ("node", "global")},
    }


def dim_names(c: Config) -> dict[str, tuple[str, ...]]:
    """Names of the dims by argument path; the k-th hidden layer of a node processor is called ``node_hidden<k>``."""
    names: dict[str, tuple[str, ...]] = {
        "graph.nodes": ("nodes", "node_features"),
        "graph.edges": ("edges", "edge_features"),
        "graph.globals": ("global_features",),
        "graph.senders": ("edges",),
        "graph.receivers": ("edges",),
        "targets.nodes": ("nodes", "outputs"),
        "targets.globals": ("property",),
    }
    for path, (_, _, inputs, outputs) in mlps(c).items():
        base = "params" + "".join(f"[{key!r}]" for key in path)
        part = path[-1]
        first = f"{part}_features" if path[0] == "encoder" else inputs
        kind = part if path[0] == "steps" else f"{path[0]}_{part}"
        widths = [first] + [f"{kind}_hidden{k}" for k in range(1, c.hidden_layers + 1)] + [outputs]
        for i, dims in enumerate(pairwise(widths), 1):
            names[f"{base}['w{i}']"] = dims
            names[f"{base}['b{i}']"] = dims[1:]
        if path[0] != "decoder":
            names[f"{base}['scale']"] = names[f"{base}['offset']"] = (outputs,)
    return names


def expert_plans(c: Config) -> dict[str, tuple[tuple[str, str], ...]]:
    """The expert strategies of the paper: edge sharding, alone and with Megatron-style sharding of the processors.

    Edge sharding cuts edges, senders and receivers; nodes and parameters stay whole.  Megatron: in the MLPs of the edge
    and node processors every other linear layer is cut along its outputs and the next one along its inputs.
    Reference: TOAST section 5.1.
    """
    edges = (("edges", "data"),)
    megatron = tuple(
        (f"{part}_hidden{k}", "model") for part in ("edge", "node") for k in range(1, c.hidden_layers + 1, 2)
    )
    return {"edge sharding": edges, "edge sharding + Megatron": edges + megatron}


def mlp(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Linear layers with ReLUs between them, then LayerNorm where ``p`` has one; works on the last dim of ``x``."""
    layers = sum(key.startswith("w") for key in p)
    for i in range(1, layers + 1):
        x = x @ p[f"w{i}"] + p[f"b{i}"]
        if i < layers:
            x = jax.nn.relu(x)
    return layer_norm(x, p["scale"], p["offset"]) if "scale" in p else x


def layer_norm(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    """Normalise over the last dim."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * scale + offset


def message_passing(p: dict[str, Any], g: Graph) -> Graph:
    """One step: new edges from their ends, new nodes from their edges, new globals from all."""
    n_nodes, n_edges = g.nodes.shape[0], g.edges.shape[0]

    def everywhere(n: int) -> jax.Array:
        return jnp.broadcast_to(g.globals, (n, g.globals.shape[0]))

    inputs = jnp.concatenate([g.edges, g.nodes[g.senders], g.nodes[g.receivers], everywhere(n_edges)], axis=-1)
    edges = g.edges + mlp(p["edge"], inputs)
    sent = jax.ops.segment_sum(edges, g.senders, n_nodes)
    received = jax.ops.segment_sum(edges, g.receivers, n_nodes)
    inputs = jnp.concatenate([g.nodes, sent, received, everywhere(n_nodes)], axis=-1)
    nodes = g.nodes + mlp(p["node"], inputs)
    inputs = jnp.concatenate([edges.sum(0), nodes.sum(0), g.globals], axis=-1)
    return Graph(nodes, edges, g.globals + mlp(p["global"], inputs), g.senders, g.receivers)


def forward(params: dict[str, Any], graph: Graph) -> Targets:
    """Predicted vector of each node, ``[N, outputs]``, and property of the graph, ``[1]``."""
    encoder = params["encoder"]
    g = Graph(
        mlp(encoder["node"], graph.nodes),
        mlp(encoder["edge"], graph.edges),
        mlp(encoder["global"], graph.globals),
        graph.senders,
        graph.receivers,
    )
    for step in params["steps"]:
        g = message_passing(step, g)
    return Targets(mlp(params["decoder"]["node"], g.nodes), mlp(params["decoder"]["global"], g.globals))


def loss_fn(params: dict[str, Any], graph: Graph, targets: Targets) -> jax.Array:
    """Mean squared error of the nodes' vectors plus that of the graph's property."""
    found = forward(params, graph)
    return jnp.mean(jnp.square(found.nodes - targets.nodes)) + jnp.mean(jnp.square(found.globals - targets.globals))


def train_step(
    params: dict[str, Any], opt_state: Any, graph: Graph, targets: Targets
) -> tuple[dict[str, Any], Any, jax.Array]:
    """One Adam step: ``(params, opt_state, loss)``."""
    loss, grads = jax.value_and_grad(loss_fn)(params, graph, targets)
    updates, opt_state = OPTIMISER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


OPTIMISER = optax.adam(1e-4)


def make(
    steps: int = 24,
    nodes: int = 2048,
    edges: int = 16384,
    latent: int = 2048,
    hidden: int = 1024,
    hidden_layers: int = 3,
    features: int = 128,
    outputs: int = 3,
    dtype: str = "float32",
    mode: str = "train",
) -> Example:
    """A graph network of any size, the paper's by default (which has 8192 to 65536 edges).

    ``mode`` is "forward", "gradient" or "train".  Raises ValueError listing every impossible size.
    """
    config = Config(steps, nodes, edges, latent, hidden, hidden_layers, features, outputs, dtype)
    config.check()

    def s(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    ends = jax.ShapeDtypeStruct((edges,), jnp.int32)
    params = param_shapes(config)
    graph = Graph(s(nodes, features), s(edges, features), s(features), ends, ends)
    targets = Targets(s(nodes, outputs), s(1))
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    args: tuple[Any, ...] = (params, graph)
    fn: Callable[..., Any] = forward
    donated: tuple[int, ...] = ()
    if mode == "gradient":
        fn, args = jax.value_and_grad(loss_fn), (*args, targets)
    elif mode == "train":
        state = jax.eval_shape(OPTIMISER.init, params)
        fn, args, donated = train_step, (params, state, graph, targets), (0, 1)
    return Example(fn, args, donated, dim_names(config), expert_plans(config), count_parameters(params))

"""The graph network simulator.

It computes what its docstring says, in the paper's size, and names its dims.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, model
from tests.models.execution import worst_errors
from toast_lab.errors import FrontendError
from toast_lab.frontends import load
from toast_lab.models import registry

SMALL: dict[str, Any] = {
    "steps": 2,
    "nodes": 16,
    "edges": 64,
    "latent": 32,
    "hidden": 16,
    "features": 8,
}
MESH = {"data": 2, "model": 4}


def random_like(shapes: Any, seed: int, *, nodes: int) -> Any:
    rng = np.random.default_rng(seed)

    def draw(s: jax.ShapeDtypeStruct) -> np.ndarray:
        if s.dtype == jnp.int32:
            return rng.integers(0, nodes, s.shape).astype(np.int32)
        return (
            rng.standard_normal(s.shape) * (s.shape[0] ** -0.5 if len(s.shape) > 1 else 1)
        ).astype(s.dtype)

    return jax.tree_util.tree_map(draw, shapes)


def plain_mlp(p: dict[str, np.ndarray], x: np.ndarray, layers: int) -> np.ndarray:
    for i in range(1, layers + 1):
        x = x @ p[f"w{i}"] + p[f"b{i}"]
        x = np.maximum(x, 0) if i < layers else x
    if "scale" in p:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * p[
            "scale"
        ] + p["offset"]
    return x


def test_one_edge_at_a_time_gives_the_same() -> None:
    """The network written again as loops over edges and nodes, in double precision."""
    example = registry.make("gns", **SMALL, mode="forward")
    params, graph = random_like(example.args, 0, nodes=SMALL["nodes"])
    found = jax.jit(example.fn)(params, graph)
    wide = jax.tree_util.tree_map(
        lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, params
    )
    nodes, edges, total = (
        plain_mlp(wide["encoder"][part], getattr(graph, field).astype(np.float64), 4)
        for part, field in (("node", "nodes"), ("edge", "edges"), ("global", "globals"))
    )
    ends = list(zip(graph.senders, graph.receivers, strict=True))
    for p in wide["steps"]:
        edges = np.stack(
            [
                edge + plain_mlp(p["edge"], np.concatenate([edge, nodes[s], nodes[r], total]), 4)
                for edge, (s, r) in zip(edges, ends, strict=True)
            ]
        )
        sent, received = np.zeros_like(nodes), np.zeros_like(nodes)
        for edge, (s, r) in zip(edges, ends, strict=True):
            sent[s] += edge
            received[r] += edge
        nodes = np.stack(
            [
                node + plain_mlp(p["node"], np.concatenate([node, sent[n], received[n], total]), 4)
                for n, node in enumerate(nodes)
            ]
        )
        total = total + plain_mlp(
            p["global"], np.concatenate([edges.sum(0), nodes.sum(0), total]), 4
        )
    np.testing.assert_allclose(
        found.nodes, plain_mlp(wide["decoder"]["node"], nodes, 4), rtol=2e-4, atol=2e-5
    )
    np.testing.assert_allclose(
        found.globals, plain_mlp(wide["decoder"]["global"], total, 4), rtol=2e-4, atol=2e-5
    )


def test_every_parameter_gets_a_gradient() -> None:
    example = registry.make("gns", **SMALL, mode="gradient")
    _, gradient = jax.jit(example.fn)(*random_like(example.args, 1, nodes=SMALL["nodes"]))
    still = [
        jax.tree_util.keystr(k)
        for k, g in jax.tree_util.tree_leaves_with_path(gradient)
        if not np.abs(g).max()
    ]
    assert still == []


def test_the_papers_size() -> None:
    """The count of the docstring, term by term, within half a percent of the paper's 875M."""
    example = registry.make("gns")
    square = 1024**2
    weights = 24 * 34 * square + 3 * 4 * square + 3 * 128 * 1024 + 2 * 4 * square + (3 + 1) * 1024
    vectors = (24 * 3 + 3) * (3 * 1024 + 2048 + 2 * 2048) + (3 * 1024 + 3) + (3 * 1024 + 1)
    assert example.parameter_count == weights + vectors
    assert abs(weights + vectors - 875e6) < 0.005 * 875e6
    assert {type(leaf) for leaf in jax.tree_util.tree_leaves(example.args)} == {
        jax.ShapeDtypeStruct
    }
    graph = example.args[2]
    assert graph.nodes.shape[0] == 2048
    assert 8192 <= graph.edges.shape[0] <= 65536


@pytest.mark.parametrize(("hidden_layers", "steps"), [(1, 1), (2, 3)])
def test_depth_and_steps(hidden_layers: int, steps: int) -> None:
    params = registry.make("gns", **{**SMALL, "hidden_layers": hidden_layers, "steps": steps}).args[
        0
    ]
    assert len(params["steps"]) == steps
    assert sum(k.startswith("w") for k in params["steps"][0]["edge"]) == hidden_layers + 1


@pytest.mark.parametrize("mode", registry.choices("gns")["mode"])
def test_modes(mode: str) -> None:
    found = model("gns", **SMALL, mode=mode)
    n_params = 2 * 3 * 10 + 3 * 10 + 2 * 8
    arguments = {"forward": n_params + 5, "gradient": n_params + 7, "train": 3 * n_params + 1 + 7}[
        mode
    ]
    results = {"forward": 2, "gradient": n_params + 1, "train": 3 * n_params + 1 + 1}[mode]
    assert found.program.n_arguments == arguments
    assert len(found.program.outputs) == results
    assert found.program.donated.sum() == (3 * n_params + 1 if mode == "train" else 0)
    assert found.program.missing_rules == ()


def test_colours_are_called_after_the_dims_and_indices_tie_nothing_together() -> None:
    analysis = analysed("gns", **SMALL)
    program = analysis.program
    of = {
        program.value_name[a]: tuple(analysis.dim_text(n) for n in program.def_names(a))
        for a in range(program.n_arguments)
    }
    assert of["graph.nodes"] == ("nodes", "node_features")
    assert of["graph.edges"] == ("edges", "edge_features")
    assert of["graph.senders"] == of["graph.receivers"] == ("edges",)
    assert of["params['steps'][1]['edge']['w2']"] == ("edge_hidden1_1", "edge_hidden2_1")
    assert of["params['steps'][1]['node']['w4']"] == ("node_hidden3_1", "latent")
    assert of["opt_state[0].mu['steps'][1]['node']['b4']"] == ("latent",)
    assert analysis.conflicts == ()


def test_steps_of_message_passing_are_mirrored() -> None:
    """Twice as many steps, the same actions."""
    names = [
        {
            g.name
            for g in analysed("gns", **{**SMALL, "steps": steps}).groups
            if g.shardable and g.n_names > 1
        }
        for steps in (2, 4)
    ]
    assert names[0] == names[1]
    group = next(
        g for g in analysed("gns", **{**SMALL, "steps": 4}).groups if g.name == "edge_hidden2"
    )
    assert len(group.colours) == 4


def test_all_impossible_sizes_are_listed() -> None:
    with pytest.raises(FrontendError, match="gns: impossible sizes: steps=0; latent=-2"):
        load("gns", steps=0, latent=-2)
    with pytest.raises(
        FrontendError, match="mode must be one of forward, gradient, train, not 'test'"
    ):
        load("gns", mode="test")


@pytest.mark.parametrize(
    "name", ["edge sharding + Megatron", pytest.param("edge sharding", marks=pytest.mark.slow)]
)
def test_expert_plans_change_nothing_in_the_result(name: str) -> None:
    """A training step from a fresh optimiser, executed on 8 virtual devices.

    Loss, moments and parameters are compared.
    """
    errors = worst_errors("gns", SMALL, name, MESH)
    assert max(errors.values()) < 1e-5, errors

"""Section 5.1: the experts' strategies are colour actions, for two of the paper's models.

The models are a graph network simulator and a U-Net.

No strategy is coded anywhere; each is a list of (colour, axis). The counts follow from the layers
of the models.
"""

from collections import Counter

import pytest

from tests.helpers import analysed, model, plan
from toast_lab.cost.problem import Problem, price

GNS = {"nodes": 16, "edges": 64, "latent": 32, "hidden": 16, "features": 8}
UNET = {"channels": 8, "heads": 4, "groups": 4, "batch": 8, "image": 16}
MESH = {"data": 2, "model": 4}


def priced(name, sizes, actions):
    analysis = analysed(name, **sizes)
    problem = Problem(analysis, MESH, "cpu")
    return analysis, price(problem, plan(problem, *actions))


def expert(name, sizes, which):
    return model(name, **sizes).expert_plans[which]


def counts(cost):
    return Counter((c.kind, c.axes) for c in cost.collectives)


# -- graph network ---------------------------------------------------------------------------------

gns_cases = pytest.mark.parametrize(
    ("steps", "hidden_layers"), [(1, 3), (2, 3), (4, 3), (2, 1), (2, 2)]
)


def edge_all_reduces(steps, hidden_layers):
    """Return the number of sums over the edges of all shards.

    Edges are never gathered, and nodes are whole for every lookup.
    """
    forward = 3  # edges by sender, edges by receiver, all edges
    backward = 3  # into the senders' nodes, the receivers' nodes and the global vector
    parameters = 2 * (hidden_layers + 1) + 2  # weights, biases and LayerNorm of the edges' MLP
    return steps * (forward + backward + parameters) + parameters  # and the encoder's


@pytest.mark.sampled(2)
@gns_cases
def test_edge_sharding_sums_what_reaches_the_nodes(steps, hidden_layers):
    sizes = {**GNS, "steps": steps, "hidden_layers": hidden_layers}
    analysis, cost = priced("gns", sizes, expert("gns", sizes, "edge sharding"))
    assert counts(cost) == {("all_reduce", ("data",)): edge_all_reduces(steps, hidden_layers)}
    program = analysis.program
    of_nodes = Counter(program.kind[c.op] for c in cost.collectives if c.local_bytes == 16 * 32 * 4)
    # Sums by sender and by receiver, and the gradients of the lookups
    assert of_nodes["scatter"] == 4 * steps


@gns_cases
def test_megatron_in_the_processors_adds_sums_over_the_other_axis(steps, hidden_layers):
    sizes = {**GNS, "steps": steps, "hidden_layers": hidden_layers}
    _, cost = priced("gns", sizes, expert("gns", sizes, "edge sharding + Megatron"))
    # Pairs of a layer cut along its outputs and a layer cut along its inputs
    pairs = (hidden_layers + 1) // 2
    # The last two layers of an encoder look like those of a processor, so they are mirrored where
    # those are cut; with a single hidden layer they differ, since its inputs do.
    encoders = 1 if hidden_layers == 3 else 0
    assert counts(cost) == {
        ("all_reduce", ("data",)): edge_all_reduces(steps, hidden_layers),
        ("all_reduce", ("model",)): 2 * 2 * (steps * pairs + encoders),
    }


def test_nodes_after_edges_on_one_axis_are_scattered_and_gathered():
    """Nodes can also be kept cut, which the paper's experts do not do.

    Sums into nodes are then scattered, and nodes are gathered for lookups.
    """
    sizes = {**GNS, "steps": 2}
    _, edges = priced("gns", sizes, [("edges", "data")])
    _, both = priced("gns", sizes, [("edges", "data"), ("nodes", "data")])
    collective_counts = counts(both)
    # Sums by node of each step, forward and backward
    assert collective_counts["reduce_scatter", ("data",)] == 4 * 2
    assert collective_counts["all_gather", ("data",)] >= 2  # the nodes before each step's lookups
    assert both.peak_bytes < edges.peak_bytes


def test_each_gns_strategy_takes_less_memory_than_the_one_before():
    sizes = {**GNS, "steps": 2}
    plans = model("gns", **sizes).expert_plans.values()
    peaks = [priced("gns", sizes, actions)[1].peak_bytes for actions in ((), *plans)]
    assert peaks == sorted(set(peaks), reverse=True)


# -- U-Net -----------------------------------------------------------------------------------------

unet_cases = pytest.mark.parametrize(
    "shape",
    [
        {"blocks": 1, "multipliers": (1, 2)},
        {"blocks": 2, "multipliers": (1, 2)},
        {"blocks": 3, "multipliers": (1, 2, 3)},
    ],
)


def parameters(analysis, *, along):
    """Return the parameters with (or without) a dim that FSDP cuts.

    These dims are channels of the residual stream and the time embedding.
    """
    program = analysis.program
    names = []
    for a in range(program.n_arguments):
        if program.value_name[a].startswith("params"):
            dims = [analysis.dim_text(n) for n in program.def_names(a)]
            if (
                any(d.startswith("channels") or d in ("time", "time_features") for d in dims)
                == along
            ):
                names.append(program.value_name[a])
    return names


@pytest.mark.sampled(1)
@unet_cases
def test_fsdp_gathers_every_kernel_forward_and_backward(shape):
    sizes = {**UNET, **shape}
    analysis, cost = priced("unet", sizes, expert("unet", sizes, "FSDP"))
    cut, whole = parameters(analysis, along=True), parameters(analysis, along=False)
    kernels = [
        p for p in cut if len(analysis.program.dims(analysis.program.value_name.index(p))) == 4
    ]
    assert counts(cost) == {
        # A kernel is used forward and, reversed, backward; the first one has no input that needs a
        # gradient.
        ("all_gather", ("data",)): len(cut) + len(kernels) - 1,
        ("reduce_scatter", ("data",)): len(cut),
        ("all_reduce", ("data",)): len(whole) + 1,  # and the loss
    }
    assert all(
        not p.endswith(("['conv']", "['conv1']", "['conv2']", "['shortcut']")) for p in whole
    )


@unet_cases
def test_megatron_sums_once_a_block_and_once_for_its_gradient(shape):
    """GroupNorm adds no collectives.

    Its groups are the major part of the channels, so each group stays on one device.
    """
    sizes = {**UNET, **shape}
    _, fsdp = priced("unet", sizes, expert("unet", sizes, "FSDP"))
    analysis, cost = priced("unet", sizes, expert("unet", sizes, "FSDP + Megatron"))
    levels = len(shape["multipliers"])
    blocks = levels * (2 * shape["blocks"] + 1)
    # A block: forward after conv2; backward into its input and into the time embedding. Attention:
    # forward after wo, backward into the input of wq, wk and wv. Time embedding: forward after w2.
    assert counts(cost) - counts(fsdp) == {("all_reduce", ("model",)): 3 * blocks + 4 + 1}
    assert counts(fsdp) - counts(cost) == {}
    from_norms = {analysis.program.kind[c.op] for c in cost.collectives if c.axes == ("model",)}
    assert from_norms == {"convolution", "dot_general"}


def test_each_unet_strategy_takes_less_memory_than_the_one_before():
    sizes = {**UNET, "blocks": 1, "multipliers": (1, 2)}
    plans = model("unet", **sizes).expert_plans.values()
    peaks = [priced("unet", sizes, actions)[1].peak_bytes for actions in ((), *plans)]
    assert peaks == sorted(set(peaks), reverse=True)


# -- the paper's sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "extra"),
    [("gns", {("all_reduce", ("model",)): 196}), ("unet", {("all_reduce", ("model",)): 68})],
)
def test_expert_plans_at_the_papers_size(name, extra):
    """The models of the paper's sizes are analysed and priced on 16 devices."""
    problem = Problem(analysed(name), {"data": 4, "model": 4})
    first, second = (
        price(problem, plan(problem, *actions)) for actions in model(name).expert_plans.values()
    )
    assert counts(second) - counts(first) == extra
    if name == "gns":
        assert counts(first) == {("all_reduce", ("data",)): edge_all_reduces(24, 3)}
    assert second.peak_bytes < first.peak_bytes

"""Section 5.1: known strategies are short lists of colour actions.

They are data parallelism, FSDP, Megatron and Megatron with sequence parallelism.

No strategy is coded anywhere; each is a list of (colour, axis). The counts follow from the
parameters of the Transformer: 9 in a layer (two norms, wq, wk, wv, wo, w_gate, w_up, w_down), the
embedding, the final norm. The embedding is tied, so its gradient is two partial sums, one from the
lookup (scatter) and one from the logits (dot).
"""

from collections import Counter

import pytest

from tests.helpers import SMALL, plan, small_transformer
from toast_lab.cost.problem import Problem, price

MESH = {"d": 2, "m": 4}
DATA = [("batch", "d")]
FSDP = [*DATA, ("d_model", "d")]
MODEL = [("hidden", "m"), ("heads", "m"), ("vocab", "m")]
SEQUENCE = [("sequence", "m", 1)]
layers_cases = pytest.mark.parametrize("layers", [1, 2, 4])


def n_parameters(layers):
    return 9 * layers + 2


def n_gradients(layers):
    return n_parameters(layers) + 1  # the tied embedding's comes in two parts


def priced(layers, actions):
    analysis = small_transformer(layers=layers, mode="train")
    problem = Problem(analysis, MESH)
    return analysis, price(problem, plan(problem, *actions))


def counts(cost):
    return Counter((c.kind, c.axes) for c in cost.collectives)


def parameters(analysis):
    return {
        path
        for path in analysis.program.value_name[: analysis.program.n_arguments]
        if path.startswith("params")
    }


@layers_cases
def test_batch_alone_is_data_parallelism(layers):
    _, cost = priced(layers, DATA)
    assert counts(cost) == {("all_reduce", ("d",)): n_gradients(layers) + 1}  # and the loss


@layers_cases
def test_then_d_model_on_the_same_axis_is_fsdp(layers):
    analysis, cost = priced(layers, FSDP)
    assert counts(cost) == {
        ("all_gather", ("d",)): n_parameters(layers),
        ("reduce_scatter", ("d",)): n_gradients(layers),
        ("all_reduce", ("d",)): 1,
    }
    gathered = [c.value for c in cost.collectives if c.kind == "all_gather"]
    weights = {path for path in parameters(analysis) if "norm" not in path}
    assert weights < set(gathered)
    # A norm's scale is used as 1 + scale, which is computed on the shard, then gathered, and no
    # larger than the scale
    scales = [analysis.program.value_name.index(v) for v in gathered if v not in weights]
    assert len(scales) == len(parameters(analysis)) - len(weights)
    assert {analysis.program.nbytes(v) for v in scales} == {4 * SMALL["d_model"]}
    (all_reduce,) = [c for c in cost.collectives if c.kind == "all_reduce"]
    assert all_reduce.local_bytes == 4  # the loss


def test_order_decides_who_gets_the_axis():
    """If d_model comes first, it takes the axis on every op that has it.

    Data parallelism is then left without the axis on these ops.
    """
    _, first = priced(1, FSDP)
    _, swapped = priced(1, [FSDP[1], FSDP[0]])
    assert counts(first) != counts(swapped)


@layers_cases
def test_hidden_heads_and_vocab_on_another_axis_are_megatron(layers):
    _, cost = priced(layers, [*DATA, *MODEL])
    # A layer: forward after wo and w_down; backward into x from wq, w_gate and w_up, and into the
    # single k and v head. The ends: lookup, softmax maximum, softmax sum, the label's logit,
    # backward into x from the logits.
    assert counts(cost) == {
        ("all_reduce", ("d",)): n_gradients(layers) + 1,
        ("all_reduce", ("m",)): 7 * layers + 5,
    }


@layers_cases
def test_megatron_leaves_fsdp_as_it_was(layers):
    _, cost = priced(layers, [*FSDP, *MODEL])
    assert counts(cost) == {
        ("all_gather", ("d",)): n_parameters(layers),
        ("reduce_scatter", ("d",)): n_gradients(layers),
        ("all_reduce", ("d",)): 1,
        ("all_reduce", ("m",)): 7 * layers + 5,
    }


@layers_cases
def test_sequence_after_megatron_turns_activation_all_reduces_into_reduce_scatter_and_all_gather(
    layers,
):
    _, without = priced(layers, [*FSDP, *MODEL])
    analysis, cost = priced(layers, [*FSDP, *MODEL, *SEQUENCE])
    collective_counts = counts(cost)
    # every activation all_reduce over m became a reduce_scatter ...
    assert (
        collective_counts["reduce_scatter", ("m",)]
        == 7 * layers + 5
        == counts(without)["all_reduce", ("m",)]
    )
    # ... and activations are gathered where another dim of an op is split over m
    assert collective_counts["all_gather", ("m",)] == 6 * layers + 6
    # gradients of parameters that are not split over m (norms, wk, wv) are now summed over sequence
    # shards
    not_split = 4 * layers + 1
    assert collective_counts["all_reduce", ("m",)] == not_split
    assert collective_counts["all_reduce", ("d", "m")] == 1  # the loss
    assert collective_counts["all_gather", ("d",)] == n_parameters(layers)
    assert collective_counts["reduce_scatter", ("d",)] == n_gradients(layers)
    assert sum(collective_counts.values()) == (7 * layers + 5) + (
        6 * layers + 6
    ) + not_split + 1 + n_parameters(layers) + n_gradients(layers)
    # no activation is summed whole any more: the all_reduces left carry parameters or a scalar
    activations = {
        analysis.program.nbytes(v)
        for v in range(analysis.program.n_values)
        if len(analysis.program.dims(v)) == 3
    }
    assert all(
        c.local_bytes < min(b for b in activations if b > 1 << 14)
        for c in cost.collectives
        if c.kind == "all_reduce"
    )


def test_each_strategy_takes_less_memory_than_the_one_before():
    peaks = [priced(2, actions)[1].peak_bytes for actions in ([], DATA, FSDP, [*FSDP, *MODEL])]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)

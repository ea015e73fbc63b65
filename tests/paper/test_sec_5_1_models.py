"""Section 5.1: the paper's models at the paper's sizes.

Checks their parameter counts and their expert plans.

The collectives of the plans follow from the layers. T2B has 18 with 9 parameters each, besides the
embedding and the final norm; T7B has 28. ``test_sec_5_1_strategies_from_colours`` has the counting.
"""

import functools
import math
import re
from collections import Counter

import jax
import pytest

from tests.helpers import SMALL, analysed, plan
from tests.helpers import model as cached
from toast_lab.cost.problem import Problem, price
from toast_lab.models import gemma, itx, registry

MESH = {"data": 2, "seq": 2, "model": 4}
LAYERS = {"t2b": 18, "t7b": 28}
MESH_2D = {"data": 4, "model": 4}


@functools.cache
def problem_of(name, mode="train"):
    return Problem(analysed(name, mode=mode), MESH_2D if name == "itx" else MESH)


@functools.cache
def priced(name, expert, mode="train"):
    problem = problem_of(name, mode)
    return price(problem, plan(problem, *cached(name, mode=mode).expert_plans[expert]))


def counts(cost):
    return Counter((c.kind, c.axes) for c in cost.collectives)


# -- parameters ------------------------------------------------------------------------------------


def parts(name):
    """Return the parameter counts, row by row of the table in the model's docstring."""
    params = registry.make(name).args[0]
    size = {k: math.prod(v.shape) for k, v in params["layers"][0].items()}
    feed_forward = [size[k] for k in ("w_gate", "w_up", "w_down") if k in size] or [
        size["w_in"],
        size["w_out"],
    ]
    layer = [
        size["wq"] + size["wo"],
        size["wk"] + size["wv"],
        sum(feed_forward),
        size["attn_norm"] + size["mlp_norm"],
    ]
    assert sum(layer) == sum(size.values())
    return [math.prod(params["embed"].shape), *layer, sum(layer) * len(params["layers"])]


@pytest.mark.parametrize(("name", "module"), [("t2b", gemma), ("t7b", gemma), ("itx", itx)])
def test_the_docstring_adds_up_to_what_is_there(name, module):
    sums = re.findall(r"(\d+(?: x [\d,]+)+) *=? +([\d,]+)", module.__doc__)
    stated = {left: int(right.replace(",", "")) for left, right in sums}
    assert len(stated) >= 6
    for left, right in stated.items():
        assert math.prod(int(n.replace(",", "")) for n in left.split(" x ")) == right, left
    assert set(parts(name)) <= set(stated.values())
    params = registry.make(name).args[0]
    count = sum(math.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(params))
    assert (
        count
        == registry.FACTS[name].parameter_count
        == sum(parts(name)[i] for i in (0, 5)) + 2048 * (1.5 if name == "t7b" else 1)
    )
    assert f"{count:,}" in module.__doc__


@pytest.mark.parametrize(("name", "about"), [("t2b", 2.0e9), ("t7b", 7.75e9), ("itx", 5.0e9)])
def test_the_layers_have_about_as_many_parameters_as_the_paper_says(name, about):
    assert parts(name)[-1] == pytest.approx(about, rel=0.02)


def test_the_papers_sizes_are_the_defaults():
    table = {  # d_model, layers, hidden (gate and up together), heads, key size, vocabulary
        "t2b": (2048, 18, 32768, 8, 256, 256128),
        "t7b": (3072, 28, 49152, 16, 256, 256128),
    }
    for name, row in table.items():
        s = registry.sizes(name)
        assert (
            s["d_model"],
            s["layers"],
            2 * s["hidden"],
            s["heads"],
            s["key_size"],
            s["vocab"],
        ) == row
    s = registry.sizes("itx")
    wanted = {
        "vocab": 50257,
        "sequence": 1024,
        "prompt": 1024,
        "heads": 32,
        "layers": 32,
        "hidden": 4096,
    }
    assert {k: s[k] for k in wanted} == wanted
    assert s["d_model"] == 2048


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LAYERS)
def test_a_model_says_its_parameters_beside_the_papers(name):
    facts = registry.FACTS[name]
    assert str(cached(name, mode="train")).endswith(
        f"{facts.parameter_count:,} parameters (paper: {facts.paper_parameters})"
    )
    small = cached(name, layers=1, mode="forward")
    assert small.parameter_count < facts.parameter_count
    assert "paper" not in str(small), "the paper says nothing of other sizes"


# -- expert plans ----------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("expert", registry.TRANSFORMER_PLANS)
def test_every_plan_of_the_transformers_saves_time_and_memory(name, expert):
    cost = priced(name, expert)
    time_s, peak_bytes = problem_of(name).baseline
    assert cost.time_s < time_s
    assert cost.peak_bytes < peak_bytes
    used = {axis for c in cost.collectives for axis in c.axes}
    assert used == {axis for _, axis, *_ in cached(name, mode="train").expert_plans[expert]}, (
        "every axis is in use"
    )


@pytest.mark.parametrize("name", LAYERS)
def test_collectives_of_the_transformers_plans(name):
    layers = LAYERS[name]
    parameters, gradients = 9 * layers + 2, 9 * layers + 3
    summed = 7 * layers + 5  # activations and their gradients that Megatron sums
    data = {("all_reduce", ("data",)): gradients + 1}
    fsdp = {
        ("all_gather", ("data",)): parameters,
        ("reduce_scatter", ("data",)): gradients,
        ("all_reduce", ("data",)): 1,
    }
    megatron = {("all_reduce", ("model",)): summed}
    assert counts(priced(name, "data")) == data
    assert counts(priced(name, "fsdp")) == fsdp
    assert counts(priced(name, "megatron")) == megatron
    assert counts(priced(name, "data+megatron")) == data | megatron
    assert counts(priced(name, "fsdp+megatron")) == fsdp | megatron
    # keys and values are gathered, their gradients scattered; gradients of parameters are summed,
    # and the loss over both axes
    sequence = fsdp | {
        ("all_gather", ("seq",)): 2 * layers,
        ("reduce_scatter", ("seq",)): 2 * layers,
        ("all_reduce", ("seq",)): gradients,
        ("all_reduce", ("data", "seq")): 1,
    }
    del sequence["all_reduce", ("data",)]
    assert counts(priced(name, "fsdp+sequence")) == sequence
    assert counts(priced(name, "fsdp+sequence+megatron")) == sequence | megatron


@pytest.mark.parametrize(("name", "whole", "gathers"), [("t2b", 4, 6), ("t7b", 2, 4)])
def test_sequence_parallelism_on_megatrons_axis(name, whole, gathers):
    """The single key and value head of T2B cannot be cut by heads.

    So their weights stay whole, as norms do.
    """
    layers = LAYERS[name]
    for start in ("", "data+", "fsdp+"):
        collective_counts = counts(priced(name, f"{start}megatron+sp"))
        assert collective_counts["reduce_scatter", ("model",)] == 7 * layers + 5, (
            "no activation is summed whole any more"
        )
        assert collective_counts["all_gather", ("model",)] == gathers * layers + 6
        sums = sum(
            n
            for (kind, axes), n in collective_counts.items()
            if kind == "all_reduce" and "model" in axes
        )
        # Gradients of whole parameters, with the final norm, and the loss
        assert sums == whole * layers + 2
        less = priced(name, f"{start}megatron")
        assert priced(name, f"{start}megatron+sp").peak_bytes < less.peak_bytes
        assert priced(name, f"{start}megatron+sp").time_s < less.time_s


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("mode", ["forward", "gradient", "train"])
@pytest.mark.parametrize("remat", [False, True])
def test_sequence_parallelism_gathers_keys_and_values_in_every_variant(kv_heads, mode, remat):
    sizes = {**SMALL, "layers": 1, "kv_heads": kv_heads, "mode": mode, "remat": remat}
    problem = Problem(analysed("transformer", **sizes), {"data": 2, "seq": 2})
    given = cached("transformer", **sizes).expert_plans["fsdp+sequence"]
    moved = {}
    for bits in range(4 if remat and mode != "forward" else 2):
        actions = [
            (colour, axis, bits) if colour == "sequence" else (colour, axis)
            for colour, axis, *_ in given
        ]
        collective_counts = counts(price(problem, plan(problem, *actions)))
        moved[bits] = sum(n for (_, axes), n in collective_counts.items() if axes == ("seq",))
    assert min(moved, key=moved.__getitem__) == given[-1][-1]
    assert len(set(moved.values())) == len(moved)


@pytest.mark.parametrize("mode", registry.choices("itx")["mode"])
def test_plans_of_the_inference_transformer(mode):
    cost_of = {name: priced("itx", name, mode) for name in registry.FACTS["itx"].expert_plans}
    layers = 32
    assert counts(cost_of["data"]) == {}, "no example needs another"
    for name in ("megatron", "data+megatron"):
        assert counts(cost_of[name]) == {("all_reduce", ("model",)): 2 * layers}, (
            "after attention and feed-forward layer"
        )
    for name in ("multi-query+megatron", "data+multi-query+megatron"):
        # in a layer: two norms, queries, keys, values, feed-forward layer; and the final norm, the
        # logits
        assert counts(cost_of[name]) == {
            ("reduce_scatter", ("model",)): 6 * layers + 2,
            # in a layer: two norms, mixed values, feed-forward layer; and the lookup, the final
            # norm
            ("all_gather", ("model",)): 4 * layers + 2,
        }
    peak = {name: cost.peak_bytes for name, cost in cost_of.items()}
    assert (
        peak["data+multi-query+megatron"]
        < peak["data+megatron"]
        < min(peak["data"], peak["megatron"])
    )
    best = "data+multi-query+megatron" if mode == "decode" else "data+megatron"
    assert min(cost_of, key=lambda name: cost_of[name].time_s) == best


def test_multi_query_sharding_moves_no_cache_and_no_weight():
    cost = priced("itx", "data+multi-query+megatron", "decode")
    program = analysed("itx", mode="decode").program
    arguments = set(program.value_name[: program.n_arguments])
    assert not arguments & {c.value for c in cost.collectives}
    cache = program.nbytes(program.value_name.index("cache[0]['k']"))
    assert max(c.local_bytes for c in cost.collectives) < cache / 16
    problem = problem_of("itx", "decode")
    specs = plan(
        problem, *cached("itx", mode="decode").expert_plans["data+multi-query+megatron"]
    ).argument_specs()
    assert specs["cache[0]['k']"] == (("data", "model"), (), ())
    assert specs["params['layers'][0]['wq']"] == (("model",), (), ())
    assert specs["params['layers'][0]['w_in']"] == ((), ("model",))

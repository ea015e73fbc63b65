"""Section 3.5: the number of resolutions does not grow with the number of layers.

The paper counts one set for each forward and one for each backward layer, hence 4 resolutions.
With its own definition of boxes the saved softmax values join both into one set, hence 2 here;
``phases="separate"`` keeps them apart.
"""

import re
from collections import Counter

import pytest

from tests.helpers import analysed, model, small_transformer
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.space import Action, build_space

LAYERS = (1, 2, 4, 8)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["forward", "gradient", "train"])
def test_one_set_per_layer_all_tied(mode):
    counts, classes, conflicts = [], [], []
    for layers in LAYERS:
        analysis = small_transformer(layers=layers, mode=mode)
        counts.append(len(analysis.compatibility_sets))
        classes.append(analysis.n_resolutions)
        conflicts.append({len(s.conflicts) for s in analysis.compatibility_sets})
    assert counts == list(LAYERS)
    assert classes == [2, 2, 2, 2]
    assert all(len(sizes) == 1 for sizes in conflicts)


def test_the_finer_reading_does_not_grow_either():
    resolutions = [
        small_transformer(layers=n, mode="train", phases="separate").n_resolutions for n in LAYERS
    ]
    assert len(set(resolutions)) == 1
    assert resolutions[0] > 2


@pytest.mark.parametrize("layers", LAYERS)
def test_actions_do_not_grow_with_layers(layers):
    """Colours of repeated layers are mirrored (section 4.4).

    So users see one "hidden", not one for each layer.
    """
    analysis = small_transformer(layers=layers, mode="train")
    names = [g.name for g in analysis.groups if g.shardable and g.n_names >= 10]
    assert names == ["vocab", "d_model", "hidden", "key", "heads", "value", "batch", "sequence"]
    assert len(analysis.groups[analysis.group_index("hidden")].colours) == layers
    assert len(analysis.groups[analysis.group_index("heads")].colours) == layers


def test_without_the_constant_rule_one_mask_would_tie_all_layers():
    """With the rule, no two layers share a sequence conflict set."""
    analysis = small_transformer(layers=4, mode="forward")
    ops = [
        {int(analysis.names.op[n]) for k in s.conflicts for n in analysis.pairs[k]}
        for s in analysis.compatibility_sets
    ]
    assert len(ops) == 4, "one of each layer"
    for i, first in enumerate(ops):
        for second in ops[i + 1 :]:
            assert first
            assert first.isdisjoint(second)


# -- actions ---------------------------------------------------------------------------------------


def actions(analysis):
    """Return the texts of all moves on one axis, sorted."""
    space = build_space(analysis, Mesh(("a",), (2,)))
    return sorted(
        space.text(Action(int(group), int(bits), 0))
        for group, bits in zip(space.group, space.bits, strict=True)
    )


ACTIONS = [
    "batch->a",
    "d_model->a",
    "heads->a",
    "hidden->a",
    "key->a",
    "sequence@0->a",
    "sequence@1->a",
    "value->a",
    "vocab->a",
]


@pytest.mark.parametrize("mode", ["forward", "gradient", "train"])
@pytest.mark.parametrize("layers", [2, 4])
def test_distinct_actions_are_the_same_at_every_depth(mode, layers):
    """This holds for all actions, also for those that touch only a few names."""
    assert actions(small_transformer(layers=layers, mode=mode)) == ACTIONS


@pytest.mark.parametrize("name", ["t2b", "t7b"])
def test_distinct_actions_at_paper_size(name):
    whole = analysed(name, mode="train")
    assert len(whole.groups[whole.group_index("hidden")].colours) == {"t2b": 18, "t7b": 28}[name]
    assert actions(whole) == ACTIONS
    for layers in (2, 4):
        assert actions(analysed(name, layers=layers, mode="train")) == ACTIONS


@pytest.mark.parametrize("layers", [2, 4])
def test_recomputed_layers_add_one_resolution_whatever_the_depth(layers):
    """With remat, a layer's forward pass and its recomputation are resolved separately.

    The recomputation is in the backward pass.
    """
    action_texts = actions(small_transformer(layers=layers, mode="train", remat=True))
    assert action_texts == sorted(
        [text for text in ACTIONS if "sequence" not in text]
        + [f"sequence@{bits}->a" for bits in ("00", "01", "10", "11")]
    )


@pytest.mark.parametrize("mode", ["forward", "gradient", "train"])
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("remat", [False, True])
def test_scanned_layers_offer_the_actions_of_unrolled_ones(mode, layers, remat):
    """A scan has the same colours with the same resolutions, and one action more.

    That action keeps stacked parameters cut by layers.
    """
    unrolled = actions(small_transformer(layers=layers, mode=mode, remat=remat))
    scanned = small_transformer(layers=layers, mode=mode, remat=remat, scan=True)
    assert actions(scanned) == sorted([*unrolled, "layers->a"])
    stacked = scanned.program.value_name.index("params['layers']['wq']")
    names = [scanned.name_text[n].partition("#")[0] for n in scanned.program.def_names(stacked)]
    assert [re.sub(r"_\d+$", "", name) for name in names] == ["layers", "d_model", "heads", "key"]


def test_the_layers_of_a_scan_are_no_dim_of_its_loops():
    scanned = small_transformer(layers=4, mode="train", scan=True)
    program = scanned.program
    kinds = [
        program.kind[scanned.names.op[name]]
        for c in scanned.groups[scanned.group_index("layers")].colours
        for name in scanned.colours[c].names
        if scanned.names.shardable[name]
    ]
    assert kinds.count("argument") == 3 * 9  # a layer's parameters and their moments
    assert "while.enter" not in kinds
    assert "dynamic_slice" not in kinds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("plan", ["fsdp", "megatron", "fsdp+megatron+sp"])
def test_a_scanned_network_sends_what_the_unrolled_one_sends(plan, kv_heads):
    """Both have the same collectives, each counted as often as it runs.

    Both use remat, since no loop keeps a gathered weight for another loop.
    """
    sent = []
    for scan in (False, True):
        loaded = model(
            "transformer",
            layers=3,
            d_model=64,
            hidden=128,
            heads=4,
            kv_heads=kv_heads,
            key_size=16,
            vocab=256,
            batch=8,
            sequence=32,
            mode="train",
            remat=True,
            scan=scan,
        )
        problem = Problem(analyse(loaded), {"data": 2, "model": 4})
        cost = price(problem, Plan.from_actions(problem, loaded.expert_plans[plan]))
        times = Counter()
        for row in cost.collectives:
            times[row.kind, row.axes] += int(loaded.program.trips[row.op])
        sent.append(times)
    assert sum(sent[0].values()) > 20
    assert sent[0] == sent[1]

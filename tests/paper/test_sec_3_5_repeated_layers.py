"""Section 3.5: the number of resolutions does not grow with the number of layers.

The paper counts one set for each forward and one for each backward layer, hence 4 resolutions.  With its own definition
of boxes the saved softmax values join both into one set, hence 2 here; ``phases="separate"`` keeps them apart.
"""

import pytest

from tests.helpers import small_transformer

LAYERS = (1, 2, 4, 8)


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
    resolutions = [small_transformer(layers=n, mode="train", phases="separate").n_resolutions for n in LAYERS]
    assert len(set(resolutions)) == 1
    assert resolutions[0] > 2


@pytest.mark.parametrize("layers", LAYERS)
def test_actions_do_not_grow_with_layers(layers):
    """Section 4.4: colours of repeated layers are mirrored, so a user sees one "hidden", not one per layer."""
    analysis = small_transformer(layers=layers, mode="train")
    names = [g.name for g in analysis.groups if g.shardable and g.n_names >= 10]
    assert names == ["vocab", "d_model", "hidden", "key", "heads", "value", "batch", "sequence"]
    assert len(analysis.groups[analysis.group_index("hidden")].colours) == layers
    assert len(analysis.groups[analysis.group_index("heads")].colours) == layers


def test_without_the_constant_rule_one_mask_would_tie_all_layers():
    """Guards the reason for the rule: no two layers share a sequence conflict set."""
    analysis = small_transformer(layers=4, mode="forward")
    ops = [
        {int(analysis.dims.op[n]) for k in s.conflicts for n in analysis.pairs[k]} for s in analysis.compatibility_sets
    ]
    for i, first in enumerate(ops):
        for second in ops[i + 1 :]:
            assert first.isdisjoint(second)

"""Finding the repeats of a sequence: inner turns may be left out, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toast_lab.cost.repeats import inner_turns

LAYER = [5, 1, 2, 3, 4, 1, 2, 9, 8, 7, 6, 1]


def test_between_the_first_and_the_last_layer_all_is_inner() -> None:
    labels = np.asarray([30, 31, 32, *LAYER * 6, 33, 34])
    inner = np.flatnonzero(inner_turns(labels))
    assert inner.tolist() == list(range(3 + len(LAYER), 3 + 5 * len(LAYER)))


def test_layers_of_two_kinds_are_two_stretches() -> None:
    backward = [label + 50 for label in reversed(LAYER)]
    labels = np.asarray([*LAYER * 4, 99, *backward * 4])
    assert inner_turns(labels).sum() == 2 * 2 * len(LAYER)


@pytest.mark.parametrize("labels", [[], [1], [1, 2], list(range(50)), [*LAYER, *LAYER]])
def test_without_three_turns_nothing_is_inner(labels: list[int]) -> None:
    assert not inner_turns(np.asarray(labels, int)).any()


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 5)), max_size=5))
def test_sums_at_inner_entries_lie_between_those_that_are_kept(
    stretches: list[tuple[int, int, int]],
) -> None:
    """Whatever each label adds, the largest running sum is reached at an entry that is kept."""
    rng = np.random.default_rng(len(stretches))
    parts = [
        np.concatenate([np.tile(rng.integers(0, 6, period), turns), rng.integers(0, 6, odd)])
        for period, turns, odd in stretches
    ]
    labels = np.concatenate([np.zeros(0, int), *parts])
    kept = ~inner_turns(labels)
    for _ in range(5):
        sums = np.cumsum(rng.integers(-9, 10, 6)[labels])
        assert sums.max(initial=0, where=kept) == sums.max(initial=0)

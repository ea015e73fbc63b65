"""Repeated lines are folded, and every line is in exactly one block."""

from __future__ import annotations

import random

import pytest

from toast_lab.views.folded_lines import LEAST_HIDDEN, FoldedBlock, folded


def unfolded(keys: str) -> str:
    """The lines that the folded blocks of ``keys`` stand for."""
    return "".join(
        keys[block.start : block.start + block.length] * block.times for block in folded(keys)
    )


@pytest.mark.parametrize(
    ("keys", "blocks"),
    [
        ("", []),
        ("abc", [(0, 3, 1)]),
        ("xabcabcabcy", [(0, 1, 1), (1, 3, 3), (10, 1, 1)]),
        ("aaaaaa", [(0, 1, 6)]),
        # Two repeats of two lines hide too little
        ("xabab", [(0, 5, 1)]),
        # The fold that hides most is taken: the layer, not the repeats inside it
        ("ababcdababcd", [(0, 6, 2)]),
    ],
)
def test_blocks(keys: str, blocks: list[tuple[int, int, int]]) -> None:
    assert folded(keys) == [FoldedBlock(*block) for block in blocks]


def test_unfolding_gives_the_lines_back() -> None:
    rng = random.Random(0)
    for _ in range(200):
        layer = "".join(rng.choices("abc", k=rng.randint(1, 6)))
        edges = ["".join(rng.choices("abcxyz", k=rng.randint(0, 5))) for _ in range(2)]
        keys = edges[0] + layer * rng.randint(1, 5) + edges[1]
        assert unfolded(keys) == keys
        blocks = folded(keys)
        assert sum(block.length * block.times for block in blocks) == len(keys)
        hidden = [block.length * (block.times - 1) for block in blocks if block.times > 1]
        assert all(lines >= LEAST_HIDDEN for lines in hidden)

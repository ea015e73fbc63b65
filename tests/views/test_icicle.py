"""Blocks of the search tree, and the table of the same actions."""

from __future__ import annotations

import time

import numpy as np
import pytest

from toast_lab.views import icicle as view
from toast_lab.views.icicle_layout import icicle
from toast_lab.views.text_width import fitted, text_px

#                     root  a  b  c  aa ab ba
PARENT = np.array([-1, 0, 0, 0, 1, 1, 2])
VISITS = np.array([100, 30, 60, 5, 10, 15, 60])


def rows(*args, **kwargs):
    blocks = icicle(PARENT, VISITS, *args, **kwargs)
    return [
        (int(p), int(f), int(d), round(float(a), 3), round(float(b), 3))
        for p, f, d, a, b in zip(*blocks[:5], strict=True)
    ]


def test_width_is_visits_and_the_most_visited_come_first() -> None:
    assert rows() == [
        (0, 0, 0, 0.0, 1.0),
        (2, 0, 1, 0.0, 0.6),
        (1, 0, 1, 0.6, 0.9),
        (3, 0, 1, 0.9, 0.95),
        (6, 0, 2, 0.0, 0.6),
        (5, 0, 2, 0.6, 0.75),
        (4, 0, 2, 0.75, 0.85),
    ]


def test_what_is_left_over_is_one_block_with_its_number() -> None:
    assert rows(widest=1) == [
        (0, 0, 0, 0.0, 1.0),
        (2, 0, 1, 0.0, 0.6),
        (0, 2, 1, 0.6, 0.95),
        (6, 0, 2, 0.0, 0.6),
    ]
    assert (0, 2, 1, 0.6, 0.95) not in rows(widest=1, opened=[0])
    assert rows(widest=1, opened=[0])[2] == (1, 0, 1, 0.6, 0.9)
    assert rows(widest=2)[3] == (3, 0, 1, 0.9, 0.95), "a fold of one child is that child"
    assert rows(widest=2, least=0.2)[3] == (0, 1, 1, 0.9, 0.95), "unless nobody would see it"


def test_any_place_can_be_the_root() -> None:
    assert rows(root=1) == [(1, 0, 0, 0.0, 1.0), (5, 0, 1, 0.0, 0.5), (4, 0, 1, 0.5, 0.833)]
    assert rows(root=6) == [(6, 0, 0, 0.0, 1.0)]
    assert len(rows(levels=1)) == 4


def test_a_point_finds_its_block() -> None:
    blocks = icicle(PARENT, VISITS)
    place = [
        None if (i := blocks.at(x, y)) is None else int(blocks.place[i])
        for x, y in ((0.5, 0.5), (0.7, 1.5), (0.8, 2.1), (0.99, 1.5), (0.5, 5))
    ]
    assert place == [0, 1, 4, None, None]


def test_blocks_never_overlap_and_stay_within_their_parent() -> None:
    rng = np.random.default_rng(0)
    parent = np.array([-1, *(int(rng.integers(0, max(1, i // 3))) for i in range(1, 20000))])
    visits = rng.integers(0, 5, 20000).astype(np.int64)
    for i in range(19999, 0, -1):
        visits[parent[i]] += visits[i]
    began = time.perf_counter()
    blocks = icicle(parent, visits)
    print(f"{time.perf_counter() - began:.4f} s, {len(blocks.place)} blocks")
    assert len(blocks.place) < 1500
    for level in range(1, 7):
        level_blocks = np.flatnonzero(blocks.level == level)
        level_blocks = level_blocks[np.argsort(blocks.left[level_blocks])]
        assert (blocks.left[level_blocks][1:] >= blocks.right[level_blocks][:-1] - 1e-9).all()
        over = {
            int(blocks.place[i]): i
            for i in np.flatnonzero((blocks.level == level - 1) & (blocks.folded == 0))
        }
        for i in level_blocks:
            above = over[int(blocks.place[i]) if blocks.folded[i] else int(parent[blocks.place[i]])]
            assert blocks.left[i] >= blocks.left[above] - 1e-9
            assert blocks.right[i] <= blocks.right[above] + 1e-9


def test_text_fits_and_the_scale_is_not_spoilt_by_one_bad_block() -> None:
    assert fitted("batch->data", 200) == "batch->data"
    assert fitted("batch->data", 20) == ""
    for text, size_px in (("S@1->model", 11), ("W@0->model, M", 10.5), ("iiiiiiiiii", 12)):
        for pixels in range(20, 140, 7):
            assert text_px(fitted(text, pixels, size_px), size_px) <= pixels
    assert view.tint_range(np.array([0.1] * 5 + [0.2] * 5 + [np.nan, 900.0])) == (
        0.1,
        pytest.approx(0.2),
    )
    low, high = view.tint_range(np.array([0.5]))
    assert low < high


def test_a_scene_is_drawn_and_a_tap_tells_its_block() -> None:
    tapped: list[int] = []
    plot = view.IciclePlot(tapped.append)
    blocks = icicle(PARENT, VISITS, widest=1)
    labels = ["unsharded", "b", view.fold_label(2), "ba"]
    plot.show(view.IcicleScene(blocks, labels, np.array([0.5, 0.5, np.nan, 0.9]), 2, "best_score"))
    data = plot.source.data
    assert list(data["action"]) == labels
    assert list(data["width"]) == [1.0, 3.0, 1.0, 1.0]
    assert list(data["shown"]) == ["0.5000", "0.5000", "click to unfold", "0.9000"]

    class At:
        x, y = 0.7, 1.2

    plot._tapped(At)
    assert tapped == [2]

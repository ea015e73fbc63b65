"""Which places of a search tree are drawn as blocks, and where.

Width is visits, depth runs down.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

OPENED = 8  #: times as many children of a place whose fold was opened


class Icicle(NamedTuple):
    """Blocks as columns; the root is the first one, with left 0 and right 1."""

    place: np.ndarray  #: the place, or for a fold the place whose children are folded
    folded: np.ndarray  #: children that this block stands for; 0: it is a place
    level: np.ndarray  #: 0 for the root
    left: np.ndarray
    right: np.ndarray
    visits: np.ndarray

    def at(self, x: float, y: float) -> int | None:
        """The block at ``x``, with level 0 from y = 0 to 1 and so on; None: beside all of them."""
        hit = np.flatnonzero((self.left <= x) & (x < self.right) & (self.level == np.floor(y)))
        return int(hit[0]) if len(hit) else None


def icicle(
    parent: np.ndarray,
    visits: np.ndarray,
    root: int = 0,
    levels: int = 6,
    widest: int = 8,
    least: float = 0.004,
    opened: Collection[int] = (),
) -> Icicle:
    """Lay out the tree below ``root``, level by level.

    Args:
        parent: [P] place above, -1 for the root of all.
        visits: [P] those of a place are at least the sum of its children's.
        root: the block as wide as the picture.
        levels: drawn below the root.
        widest: children drawn of each place, the most visited first; the others are folded into one
            block.
        least: part of the picture's width below which a child is folded, too.
        opened: places of which ``OPENED`` times as many children are drawn.
    """
    whole = max(float(visits[root]), 1.0)
    none = np.zeros(1, np.int64)
    parts = [(np.array([root]), none, none, np.zeros(1), visits[[root]])]
    shown, left = np.array([root]), np.zeros(1)
    slot = np.full(len(parent), -1)
    generous = np.zeros(len(parent), bool)
    generous[list(opened)] = True
    for level in range(1, levels + 1):
        slot[shown] = np.arange(len(shown))
        below = np.flatnonzero((visits > 0) & (parent >= 0))
        above = slot[parent[below]]  # as a place in ``shown``
        below, above = below[above >= 0], above[above >= 0]
        slot[shown] = -1
        if not len(below):
            break
        order = np.lexsort((-visits[below], above))
        below, above = below[order], above[order]
        count = visits[below]
        size = np.bincount(above, minlength=len(shown))
        first = np.cumsum(size) - size
        more = np.where(generous[shown], OPENED, 1)
        drawn = (np.arange(len(below)) - first[above] < (widest * more)[above]) & (
            count >= (least * whole / more)[above]
        )
        # A fold of one child says no more than the child, unless that is too narrow to be seen.
        fold = np.bincount(above, ~drawn, minlength=len(shown)).astype(int)
        drawn |= (fold[above] == 1) & (count >= least * whole)
        fold = np.bincount(above, ~drawn, minlength=len(shown)).astype(int)
        before = np.cumsum(count) - count
        begin = left[above] + (before - before[np.minimum(first, len(below) - 1)][above]) / whole
        kept, folds = below[drawn], np.flatnonzero(fold)
        together = np.bincount(above, np.where(drawn, count, 0), minlength=len(shown))
        hidden = np.bincount(above, np.where(drawn, 0, count), minlength=len(shown))
        parts += [
            (kept, np.zeros(len(kept), int), np.full(len(kept), level), begin[drawn], count[drawn]),
            (
                shown[folds],
                fold[folds],
                np.full(len(folds), level),
                (left + together / whole)[folds],
                hidden[folds],
            ),
        ]
        shown, left = kept, begin[drawn]
    place, folded, level_of, start, n = (np.concatenate([p[i] for p in parts]) for i in range(5))
    return Icicle(place, folded, level_of, start, start + n / whole, n.astype(np.int64))

"""Choose the places of a search tree that are drawn as blocks, and lay them out.

The width of a block is its visits; depth runs down.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

#: how many times as many children are drawn of a place whose fold was opened
OPENED = 8


class Icicle(NamedTuple):
    """Blocks as columns; the root is the first one, with left 0 and right 1."""

    #: the place, or for a fold the place whose children are folded
    place: np.ndarray
    #: number of children that a fold stands for; 0: the block is a place
    folded: np.ndarray
    #: 0 for the root
    level: np.ndarray
    left: np.ndarray
    right: np.ndarray
    visits: np.ndarray

    def at(self, x: float, y: float) -> int | None:
        """Index of the block at ``x``, with level 0 from y = 0 to 1 and so on; None: no block."""
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
        parent: [P] the place above each place, -1 for the root of the whole tree.
        visits: [P] visits of each place, at least the sum of its children's visits.
        root: the place whose block is as wide as the picture.
        levels: number of levels drawn below the root.
        widest: most children drawn of each place, the most visited ones; the others are folded into
            one block.
        least: share of the picture's width below which a child is folded, too.
        opened: places of which ``OPENED`` times as many children are drawn.
    """
    all_visits = max(float(visits[root]), 1.0)
    no_folds = np.zeros(1, np.int64)
    column_parts = [(np.array([root]), no_folds, no_folds, np.zeros(1), visits[[root]])]
    shown_places, left_edges = np.array([root]), np.zeros(1)
    position_of = np.full(len(parent), -1)
    generous = np.zeros(len(parent), bool)
    generous[list(opened)] = True
    for level in range(1, levels + 1):
        position_of[shown_places] = np.arange(len(shown_places))
        children = np.flatnonzero((visits > 0) & (parent >= 0))
        # as an index into ``shown_places``
        parents = position_of[parent[children]]
        children, parents = children[parents >= 0], parents[parents >= 0]
        position_of[shown_places] = -1
        if not len(children):
            break
        by_visits = np.lexsort((-visits[children], parents))
        children, parents = children[by_visits], parents[by_visits]
        child_visits = visits[children]
        child_counts = np.bincount(parents, minlength=len(shown_places))
        first_child = np.cumsum(child_counts) - child_counts
        widening = np.where(generous[shown_places], OPENED, 1)
        is_drawn = (
            np.arange(len(children)) - first_child[parents] < (widest * widening)[parents]
        ) & (child_visits >= (least * all_visits / widening)[parents])
        # A fold of one child says no more than the child, unless that is too narrow to be seen.
        folded_children = np.bincount(parents, ~is_drawn, minlength=len(shown_places)).astype(int)
        is_drawn |= (folded_children[parents] == 1) & (child_visits >= least * all_visits)
        folded_children = np.bincount(parents, ~is_drawn, minlength=len(shown_places)).astype(int)
        before = np.cumsum(child_visits) - child_visits
        left_edge = (
            left_edges[parents]
            + (before - before[np.minimum(first_child, len(children) - 1)][parents]) / all_visits
        )
        drawn_children, folding = children[is_drawn], np.flatnonzero(folded_children)
        drawn_visits = np.bincount(
            parents, np.where(is_drawn, child_visits, 0), minlength=len(shown_places)
        )
        hidden_visits = np.bincount(
            parents, np.where(is_drawn, 0, child_visits), minlength=len(shown_places)
        )
        column_parts += [
            (
                drawn_children,
                np.zeros(len(drawn_children), int),
                np.full(len(drawn_children), level),
                left_edge[is_drawn],
                child_visits[is_drawn],
            ),
            (
                shown_places[folding],
                folded_children[folding],
                np.full(len(folding), level),
                (left_edges + drawn_visits / all_visits)[folding],
                hidden_visits[folding],
            ),
        ]
        shown_places, left_edges = drawn_children, left_edge[is_drawn]
    place, folded, level_of, start, visit_count = (
        np.concatenate([part[column] for part in column_parts]) for column in range(5)
    )
    return Icicle(
        place=place,
        folded=folded,
        level=level_of,
        left=start,
        right=start + visit_count / all_visits,
        visits=visit_count.astype(np.int64),
    )

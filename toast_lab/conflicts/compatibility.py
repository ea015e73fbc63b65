"""Compatibility sets: conflicts that one bit resolves together.

Two conflicts, (N, O) on a definition and (L, R) on a use of it with N -> L and O -> R, form a
*box*. If no path crosses the box (N ~> R or O ~> L) they are compatible: resolving them differently
would only buy an all_to_all. The sets are the closure over boxes. Union-find with parity keeps the
two sides apart, so that "side 0" and "side 1" mean the same resolution for all conflicts of a set;
a box that contradicts the sides already fixed is refused and recorded.

Reference: TOAST section 3.4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.dimension_graph import ConflictPlace, has_path
from toast_lab.nda.names import Names
from toast_lab.ragged import Ragged

JOINED = "joined"
CROSSED = "crossed by a path"
CONTRADICTS = "contradicts the sides"
OTHER_PHASE = "other phase"


class Box(NamedTuple):
    """Two conflicts on one value, ``outer`` on its definition and ``inner`` on a use.

    ``outcome`` tells whether they were joined, or why not.
    """

    outer: int
    inner: int
    value: int
    use: int
    outcome: str


class Sets(NamedTuple):
    """Compatibility sets over ``K`` conflicts."""

    set_of: np.ndarray  #: [K] set of each conflict, numbered by first conflict
    flipped: np.ndarray  #: [K] bool: side 0 of the set is the conflict's second (larger) name
    boxes: list[Box]


class _ParityUnion:
    def __init__(self, count: int) -> None:
        self.parent = list(range(count))
        self.parity = [0] * count  # towards the parent

    def find(self, i: int) -> tuple[int, int]:
        parity = 0
        path = []
        while self.parent[i] != i:
            path.append(i)
            i = self.parent[i]
        for node in reversed(path):
            parity ^= self.parity[node]
            self.parent[node], self.parity[node] = i, parity
        return i, parity

    def join(self, first: int, second: int, parity: int) -> bool:
        root_a, first_parity = self.find(first)
        root_b, second_parity = self.find(second)
        if root_a == root_b:
            return (first_parity ^ second_parity) == parity
        low, high = min(root_a, root_b), max(root_a, root_b)
        self.parent[high], self.parity[high] = low, first_parity ^ second_parity ^ parity
        return True


def compatibility_sets(
    names: Names, conflicts: dict[tuple[int, int], list[ConflictPlace]], *, phases: str = "joined"
) -> Sets:
    """Group conflicts into compatibility sets.

    ``phases="separate"`` refuses boxes between a forward value and its use in a backward pass
    (known from the name stack), so that forward and backward have a set each, as the paper counts.
    """
    program = names.program
    index = {pair: conflict for conflict, pair in enumerate(conflicts)}
    on_definition = [
        (conflict, place)
        for pair, conflict in index.items()
        for place in conflicts[pair]
        if place.use < 0
    ]
    uses_of = Ragged.by_key(program.use_value, program.n_values)
    backward = ["transpose(" in stack for stack in program.name_stack]
    union = _ParityUnion(len(index))
    boxes = []
    stamp, mark = np.zeros(names.n, np.int64), 0
    graph = _MapGraph(names.ptr.copy(), names.successor.copy(), names.op.copy())
    for outer, place in on_definition:
        definition_names = program.def_names(place.value)
        first, second = definition_names[place.first_dim], definition_names[place.second_dim]
        for use in uses_of.row(place.value).tolist():
            use_names = program.use_names(use)
            left, right = use_names[place.first_dim], use_names[place.second_dim]
            inner = index.get((min(left, right), max(left, right)))
            if inner is None:
                continue
            mark += 2
            definer, user = program.value_op[place.value], program.use_op[use]
            if phases == "separate" and backward[definer] != backward[user]:
                outcome = OTHER_PHASE
            elif has_path(*graph, first, right, stamp, mark) or has_path(
                *graph, second, left, stamp, mark + 1
            ):
                outcome = CROSSED
            else:
                order_differs = (first > second) != (left > right)
                outcome = JOINED if union.join(outer, inner, int(order_differs)) else CONTRADICTS
            boxes.append(Box(outer, inner, place.value, use=use, outcome=outcome))
    roots = [union.find(conflict) for conflict in range(len(index))]
    set_number: dict[int, int] = {}
    set_of = np.asarray(
        [set_number.setdefault(root, len(set_number)) for root, _ in roots], dtype=np.int32
    )
    return Sets(set_of, np.asarray([parity for _, parity in roots], dtype=bool), boxes)


class _MapGraph(NamedTuple):
    """M in writable arrays, the type that kernels are compiled for."""

    ptr: np.ndarray
    successor: np.ndarray
    op: np.ndarray

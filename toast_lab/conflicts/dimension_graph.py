"""The dimension graph: colours as weakly connected components of M, and conflicts between names.

Reference: TOAST sections 3.2 and 3.3.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import Program
from toast_lab.kernels import compiled
from toast_lab.nda.names import Names
from toast_lab.packs import Int32Array, Int64Array
from toast_lab.ragged import row_numbers


def colour_names(names: Names) -> np.ndarray:
    """Colour of each name, [N] int32, numbered by first appearance in the program."""
    smallest = _smallest_connected(names.n, names.source, names.target)
    _, colour = np.unique(smallest, return_inverse=True)
    return colour.astype(np.int32)


def _smallest_connected(count: int, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[N] smallest node of the component of each node, with edges taken in both directions.

    SciPy has this, but loading it takes longer than an analysis.
    """
    smallest = np.arange(count)
    while True:
        left, right = smallest[source], smallest[target]
        if (left == right).all():
            return smallest
        # Trees are hooked onto smaller ones, then every node onto the root of its tree.
        np.minimum.at(smallest, np.maximum(left, right), np.minimum(left, right))
        while (smallest != (grandparent := smallest[smallest])).any():
            smallest = grandparent


class ConflictPlace(NamedTuple):
    """Where two names of one colour meet: the definition of ``value`` (use -1) or one use of it."""

    value: int
    use: int
    first_dim: int
    second_dim: int

    def op(self, program: Program) -> int:
        """The op that defines the value, or that uses it."""
        return int(program.value_op[self.value] if self.use < 0 else program.use_op[self.use])


def find_conflicts(names: Names, colour: np.ndarray) -> dict[tuple[int, int], list[ConflictPlace]]:
    """Pairs of different names of one colour on one definition or one use, with their places.

    Names of size 1 never conflict. Pairs are in program order, each with the smaller name first.
    """
    program = names.program
    places: dict[tuple[int, int], list[ConflictPlace]] = {}

    def scan(row: list[int], value: int, use: int) -> None:
        for (i, first), (j, second) in itertools.combinations(enumerate(row), 2):
            if (
                first != second
                and colour[first] == colour[second]
                and min(names.size[first], names.size[second]) > 1
            ):
                pair = min(first, second), max(first, second)
                places.setdefault(pair, []).append(ConflictPlace(value, use, i, j))

    repeats_colour = _repeats_a_colour(program.shape_ptr, program.def_dim_factor, names, colour)
    for value in np.flatnonzero(repeats_colour & ~program.value_is_constant).tolist():
        scan(program.def_names(value), value, -1)
    repeats_colour = _repeats_a_colour(program.use_dim_ptr, program.use_dim_factor, names, colour)
    for use in np.flatnonzero(repeats_colour).tolist():
        scan(program.use_names(use), int(program.use_value[use]), use)
    return dict(sorted(places.items()))


def _repeats_a_colour(
    ptr: np.ndarray, names_of_dims: np.ndarray, names: Names, colour: np.ndarray
) -> np.ndarray:
    """[rows] bool: do two dims of the row have one colour? Names of size 1 do not count."""
    row = row_numbers(ptr)
    large = names.size[names_of_dims] > 1
    colour_count = int(colour.max(initial=0)) + 1
    key = np.sort(row[large] * colour_count + colour[names_of_dims[large]])
    repeats = np.zeros(len(ptr) - 1, dtype=bool)
    repeats[key[1:][key[1:] == key[:-1]] // colour_count] = True
    return repeats


@compiled
def has_path(
    ptr: Int64Array,
    successor: Int32Array,
    op: Int32Array,
    start: int,
    goal: int,
    stamp: Int64Array,
    mark: int,
) -> bool:
    """Is there a directed path in M from name ``start`` to name ``goal``?

    ``stamp`` is a scratch array of size N, ``mark`` a number that it does not hold yet. Ops are in
    program order, so names of ops after the goal's need no visit.
    """
    stack = np.empty(stamp.shape[0], np.int32)
    depth = 1
    stack[0] = start
    stamp[start] = mark
    while depth:
        depth -= 1
        node = stack[depth]
        for edge in range(ptr[node], ptr[node + 1]):
            next_node = successor[edge]
            if next_node == goal:
                return True
            if stamp[next_node] != mark and op[next_node] < op[goal]:
                stamp[next_node] = mark
                stack[depth] = next_node
                depth += 1
    return False

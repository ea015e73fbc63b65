"""The search state and how an action changes it.

The state of a program with ``O`` ops and ``V`` values on ``A`` mesh axes is ``op_factor[O, A]``,
the factor along which each op is split on each axis (-1: none), and ``value_dim[V, A]``, the dim of
each value that each axis cuts (-1: none). They are separate on purpose: an op may have lost a
colour while its result keeps it. Earlier actions win an axis on an op or a value.

Ops that every sequence of actions treats alike, above all those of repeated layers, form one class
(see ``alike``), and so do values. A state holds one row for each class, ``ops[K, A]`` and
``values[L, A]``; the properties ``op_factor`` and ``value_dim`` expand them to the whole program.

The state key is a 64-bit Zobrist hash of the rows, so two orders of actions that lead to one
sharding meet in one node of the search. Whatever pins fix is part of every state (``Space.start``)
and does not enter the key: the key of the state that a search starts from is 0.

Reference: TOAST sections 4.2 and 4.3.
"""

from __future__ import annotations

import functools

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import Int8Matrix, Int32Array, Int32Matrix, Int64Array, UInt64Array
from toast_lab.sharding.divides import divides
from toast_lab.sharding.moves import Moves
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action, Space


@helper
def mix(number: np.uint64) -> np.uint64:
    """splitmix64 finaliser."""
    mixed = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@helper
def _op_hash(factor: int, axis: int) -> np.uint64:
    return mix(np.uint64(factor) * np.uint64(64) + np.uint64(axis))


@helper
def _value_hash(value: int, dim: int, axis: int) -> np.uint64:
    return mix(
        (np.uint64(value) * np.uint64(64) + np.uint64(dim)) * np.uint64(8)
        + np.uint64(axis)
        + np.uint64(1 << 62)
    )


@compiled
def _take_rows(
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    first_name: Int32Array,
    op_label: Int32Array,
    op_first: Int64Array,
    value_label: Int32Array,
    value_first: Int64Array,
    ops: Int32Matrix,
    values: Int8Matrix,
    key: UInt64Array,
) -> bool:
    """Fill the rows of the classes and the key from the rows of all ops and values.

    Gives False if the members of a class differ.
    """
    n_axes = ops.shape[1]
    for op in range(op_factor.shape[0]):
        first_member = op_first[op_label[op]]
        for axis in range(n_axes):
            factor, first_factor = op_factor[op, axis], op_factor[first_member, axis]
            if (factor < 0) != (first_factor < 0) or (
                factor >= 0 and factor - first_name[op] != first_factor - first_name[first_member]
            ):
                return False
    for value in range(value_dim.shape[0]):
        first_member = value_first[value_label[value]]
        for axis in range(n_axes):
            if value_dim[value, axis] != value_dim[first_member, axis]:
                return False
    for axis in range(n_axes):
        for row in range(ops.shape[0]):
            ops[row, axis] = op_factor[op_first[row], axis]
        for row in range(values.shape[0]):
            values[row, axis] = value_dim[value_first[row], axis]
    _hash_rows(ops, values, key)
    return True


@compiled
def apply_move(
    moves: Moves,
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    key: UInt64Array,
    move: int,
    axis: int,
    dry: bool,
) -> int:
    """Take one action in place; ``key[0]`` is updated.

    Gives the number of rows changed (``dry``: changes nothing, and gives 1 if any row would
    change). ``op_factor[K, A]`` and ``value_dim[L, A]`` have one row for each class of ``moves``.
    """
    axis_size = moves.axis_size
    changed = 0
    for row in range(moves.op_span[axis, move, 0], moves.op_span[axis, move, 1]):
        op = moves.op[row]
        if op_factor[op, axis] >= 0:
            continue
        factor = moves.move_factor[row]
        if not divides(moves.factor_size[factor], op_factor, op, factor, axis, axis_size):
            continue
        if dry:
            return 1
        changed += 1
        op_factor[op, axis] = factor
        key[0] ^= _op_hash(factor, axis)
    for row in range(moves.value_span[axis, move, 0], moves.value_span[axis, move, 1]):
        value = moves.value[row]
        if value_dim[value, axis] >= 0:
            continue
        dim = moves.move_dim[row]
        if not divides(moves.move_dim_size[row], value_dim, value, dim, axis, axis_size):
            continue
        if dry:
            return 1
        changed += 1
        value_dim[value, axis] = dim
        key[0] ^= _value_hash(value, dim, axis)
    return changed


class State:
    """A mutable sharding state; ``copy()`` before branching."""

    __slots__ = ("_key", "ops", "priced", "space", "values")

    def __init__(self, space: Space) -> None:
        ops, values = space.start
        self.space = space
        self.ops = ops.copy()  #: [K, A] name of the class's first op
        self.values = values.copy()  #: [L, A] dim
        #: a pricer's intermediate results for this state or an earlier one; never changed in place
        self.priced: object = None
        self._key = np.zeros(1, dtype=np.uint64)

    @classmethod
    def from_arrays(
        cls, space: Space, op_factor: np.ndarray, value_dim: np.ndarray
    ) -> State | None:
        """The state with these ``op_factor[O, A]`` and ``value_dim[V, A]``.

        Gives None if they treat members of one class differently.
        """
        state, alike = cls(space), space.alike
        state._key[0] = start_key(space)
        is_consistent = _take_rows(
            op_factor,
            value_dim,
            space.first_name,
            alike.ops.label,
            alike.ops.first,
            alike.values.label,
            alike.values.first,
            state.ops,
            state.values,
            state._key,
        )
        return state if is_consistent else None

    @property
    def key(self) -> int:
        """64-bit hash of the sharding without its pinned entries.

        It is 0 for the state that a search starts from.
        """
        return int(self._key[0])

    @property
    def plan_key(self) -> int:
        """64-bit hash of the whole sharding, pinned entries included."""
        return int(self._key[0]) ^ int(start_key(self.space))

    @property
    def op_factor(self) -> np.ndarray:
        """[O, A] name along which each op is split on each axis, -1: none.

        Every access makes a new array.
        """
        return self.space.alike.over_ops(self.space.analysis.program, self.ops)

    @property
    def value_dim(self) -> np.ndarray:
        """[V, A] dim of each value that each axis cuts, -1: none.

        Every access makes a new array.
        """
        return self.values[self.space.alike.values.label]

    @property
    def sharding(self) -> Sharding:
        """The sharding of the whole program, in new arrays."""
        return Sharding(self.op_factor, self.value_dim)

    def copy(self) -> State:
        """An independent copy."""
        copy = State.__new__(State)
        copy.space, copy.priced = self.space, self.priced
        copy.ops, copy.values, copy._key = self.ops.copy(), self.values.copy(), self._key.copy()
        return copy

    def apply(self, action: Action, *, dry: bool = False) -> int:
        """Take ``action``.

        Gives the number of classes of ops and values that it changed (with ``dry``: changes
        nothing, and gives 1 if any class would change).
        """
        return self.apply_row(self.space.move_of(action), action.axis, dry=dry)

    def apply_row(self, move: int, axis: int, *, dry: bool = False) -> int:
        """Like ``apply``, for a move given by its row in the space."""
        moves = self.space.moves
        return int(apply_move(moves, self.ops, self.values, self._key, move, axis, dry))


def start_key(space: Space) -> np.uint64:
    """Hash of the entries that every state starts with; 0 without pins."""
    return np.uint64(0) if space.fixed is None else _pinned_key(space)


@functools.lru_cache(maxsize=8)
def _pinned_key(space: Space) -> np.uint64:
    ops, values = space.start
    key = np.zeros(1, np.uint64)
    _hash_rows(ops, values, key)
    return np.uint64(key[0])


@compiled
def _hash_rows(ops: Int32Matrix, values: Int8Matrix, key: UInt64Array) -> None:
    for axis in range(ops.shape[1]):
        for op in range(ops.shape[0]):
            if ops[op, axis] >= 0:
                key[0] ^= _op_hash(ops[op, axis], axis)
        for value in range(values.shape[0]):
            if values[value, axis] >= 0:
                key[0] ^= _value_hash(value, values[value, axis], axis)


@compiled
def legal_pairs(
    moves: Moves, op_factor: Int32Matrix, value_dim: Int8Matrix, min_names: int
) -> np.ndarray:
    """[n, 2] (move, axis) pairs that would change the state; the kernel of ``legal_rows``.

    Moves with fewer than ``min_names`` names are left out.
    """
    n_moves, n_axes = moves.n_names.shape[0], moves.axis_size.shape[0]
    pairs = np.empty((n_moves * n_axes, 2), np.int64)
    key = np.zeros(1, np.uint64)
    count = 0
    for move in range(n_moves):
        if moves.n_names[move] < min_names:
            continue
        for axis in range(n_axes):
            if moves.axis_size[axis] > 1 and apply_move(
                moves, op_factor, value_dim, key, move, axis, True
            ):
                pairs[count, 0], pairs[count, 1] = move, axis
                count += 1
    return pairs[:count]


def legal_rows(state: State, min_names: int = 0) -> np.ndarray:
    """[n, 2] (move, axis) pairs that would change the state.

    Groups of fewer than ``min_names`` names are left out.
    """
    return legal_pairs(state.space.moves, state.ops, state.values, min_names)


def legal_actions(state: State, min_names: int = 0) -> list[Action]:
    """Actions that would change the state, on groups of at least ``min_names`` names."""
    space = state.space
    return [space.action(move, axis) for move, axis in legal_rows(state, min_names).tolist()]

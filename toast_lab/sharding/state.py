"""The search state and how an action changes it.

State of a program with ``O`` ops and ``V`` values on ``A`` mesh axes: ``op_factor[O, A]`` is the
factor along which the op is split on that axis (-1: none), ``value_dim[V, A]`` the dim of the
value on that axis (-1: none).  An op may have lost a colour while its result keeps it; the two are
separate on purpose.  Earlier actions win an axis on an op or a value.

Ops that no sequence of actions tells apart, those of repeated layers above all, are in one class
(see ``alike``), and so are values.  A state holds one row for each class, ``ops[K, A]`` and
``values[L, A]``; ``op_factor`` and ``value_dim`` spread them over the whole program.

The state key is a 64-bit Zobrist hash of the rows, so two orders that end in one sharding are one
node of the search.  What pins fix is there from the start (``Space.start``) and does not count: the
key of the state that a search starts from is 0.  Reference: TOAST sections 4.2 and 4.3.
"""

from __future__ import annotations

import functools

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    Int8Array,
    Int8Matrix,
    Int32Array,
    Int32Matrix,
    Int64Array,
    Int64Cube,
    UInt64Array,
)
from toast_lab.sharding.space import Action, Space


@helper
def _mix(x: np.uint64) -> np.uint64:
    """splitmix64 finaliser."""
    z = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@helper
def _op_hash(name: int, axis: int) -> np.uint64:
    return _mix(np.uint64(name) * np.uint64(64) + np.uint64(axis))


@helper
def _value_hash(value: int, dim: int, axis: int) -> np.uint64:
    return _mix(
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
    """Fill the rows of the classes and the key from those of all ops and values.

    Gives False if those of a class differ.
    """
    n_axes = ops.shape[1]
    for op in range(op_factor.shape[0]):
        first = op_first[op_label[op]]
        for a in range(n_axes):
            here, there = op_factor[op, a], op_factor[first, a]
            if (here < 0) != (there < 0) or (
                here >= 0 and here - first_name[op] != there - first_name[first]
            ):
                return False
    for value in range(value_dim.shape[0]):
        first = value_first[value_label[value]]
        for a in range(n_axes):
            if value_dim[value, a] != value_dim[first, a]:
                return False
    for a in range(n_axes):
        for k in range(ops.shape[0]):
            ops[k, a] = op_factor[op_first[k], a]
        for v in range(values.shape[0]):
            values[v, a] = value_dim[value_first[v], a]
    _hash_rows(ops, values, key)
    return True


@compiled
def apply_move(
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    key: UInt64Array,
    axis: int,
    axis_size: Int64Array,
    move: int,
    op_span: Int64Cube,
    ops: Int32Array,
    op_names: Int32Array,
    name_size: Int64Array,
    value_span: Int64Cube,
    values: Int32Array,
    value_dims: Int8Array,
    value_sizes: Int64Array,
    dry: bool,
) -> int:
    """Take one action in place; ``key[0]`` is updated.

    Gives the number of rows changed (dry: 1 if any would).

    ``op_factor[K, A]`` and ``value_dim[L, A]`` are those of the classes; the other arrays are those
    of ``Spans``.
    """
    n_axes = axis_size.shape[0]
    changed = 0
    for i in range(op_span[axis, move, 0], op_span[axis, move, 1]):
        op = ops[i]
        if op_factor[op, axis] >= 0:
            continue
        name = op_names[i]
        ways = axis_size[axis]
        for b in range(n_axes):
            if op_factor[op, b] == name:
                ways *= axis_size[b]
        if name_size[name] % ways != 0:
            continue
        changed += 1
        if not dry:
            op_factor[op, axis] = name
            key[0] ^= _op_hash(name, axis)
        elif changed > 0:
            return 1
    for i in range(value_span[axis, move, 0], value_span[axis, move, 1]):
        value = values[i]
        if value_dim[value, axis] >= 0:
            continue
        dim = value_dims[i]
        ways = axis_size[axis]
        for b in range(n_axes):
            if value_dim[value, b] == dim:
                ways *= axis_size[b]
        if value_sizes[i] % ways != 0:
            continue
        changed += 1
        if not dry:
            value_dim[value, axis] = dim
            key[0] ^= _value_hash(value, dim, axis)
        elif changed > 0:
            return 1
    return changed


class State:
    """A mutable sharding state; ``copy()`` before branching."""

    __slots__ = ("_axis_size", "_key", "ops", "priced", "space", "values")

    def __init__(self, space: Space) -> None:
        ops, values = space.start
        self.space = space
        self.ops = ops.copy()  #: [K, A] name of the class's first op
        self.values = values.copy()  #: [L, A] dim
        #: what a pricer worked out for this state or one before it; never changed in place
        self.priced: object = None
        self._key = np.zeros(1, dtype=np.uint64)
        self._axis_size = space.mesh.array()

    @classmethod
    def from_arrays(
        cls, space: Space, op_factor: np.ndarray, value_dim: np.ndarray
    ) -> State | None:
        """The state that has these ``op_factor[O, A]`` and ``value_dim[V, A]``.

        It is None if they tell alike ones apart.
        """
        state, alike = cls(space), space.alike
        state._key[0] = start_key(space)
        same = _take_rows(
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
        return state if same else None

    @property
    def key(self) -> int:
        """64-bit hash of the sharding.

        Only what goes beyond the state that a search starts from counts.
        """
        return int(self._key[0])

    @property
    def plan_key(self) -> int:
        """64-bit hash of the whole sharding, pinned or not."""
        return int(self._key[0]) ^ int(start_key(self.space))

    @property
    def op_factor(self) -> np.ndarray:
        """[O, A] name along which each op is split on each axis, -1: none.

        A new array at every call.
        """
        return self.space.alike.over_ops(self.space.analysis.program, self.ops)

    @property
    def value_dim(self) -> np.ndarray:
        """[V, A] dim of each value on each axis, -1: none.  A new array at every call."""
        return self.values[self.space.alike.values.label]

    def copy(self) -> State:
        """An independent copy."""
        new = State.__new__(State)
        new.space, new._axis_size, new.priced = self.space, self._axis_size, self.priced
        new.ops, new.values, new._key = self.ops.copy(), self.values.copy(), self._key.copy()
        return new

    def apply(self, action: Action, *, dry: bool = False) -> int:
        """Take ``action``.

        Gives how many classes of ops and values it changed (with ``dry``: 1 if any would).
        """
        return self.apply_row(self.space.move_of(action), action.axis, dry=dry)

    def apply_row(self, move: int, axis: int, *, dry: bool = False) -> int:
        """``apply`` by row of the space."""
        m = self.space.spans
        return int(
            apply_move(
                self.ops,
                self.values,
                self._key,
                axis,
                self._axis_size,
                move,
                m.op_span,
                m.op,
                m.move_factor,
                self.space.name_size,
                m.value_span,
                m.value,
                m.move_dim,
                m.move_dim_size,
                dry,
            )
        )


def start_key(space: Space) -> np.uint64:
    """Hash of all that a state has from the start; 0 without pins."""
    return np.uint64(0) if space.pins is None else _pinned_key(space)


@functools.lru_cache(maxsize=8)
def _pinned_key(space: Space) -> np.uint64:
    ops, values = space.start
    key = np.zeros(1, np.uint64)
    _hash_rows(ops, values, key)
    return np.uint64(key[0])


@compiled
def _hash_rows(ops: Int32Matrix, values: Int8Matrix, key: UInt64Array) -> None:
    for a in range(ops.shape[1]):
        for k in range(ops.shape[0]):
            if ops[k, a] >= 0:
                key[0] ^= _op_hash(ops[k, a], a)
        for v in range(values.shape[0]):
            if values[v, a] >= 0:
                key[0] ^= _value_hash(v, values[v, a], a)


@compiled
def legal_pairs(
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    axis_size: Int64Array,
    op_span: Int64Cube,
    ops: Int32Array,
    op_names: Int32Array,
    name_size: Int64Array,
    value_span: Int64Cube,
    values: Int32Array,
    value_dims: Int8Array,
    value_sizes: Int64Array,
    n_names: Int32Array,
    min_names: int,
) -> np.ndarray:
    """[n, 2] (move, axis) pairs that would change the state.

    Moves with fewer than ``min_names`` names are left out.
    """
    n_moves, n_axes = op_span.shape[1], axis_size.shape[0]
    out = np.empty((n_moves * n_axes, 2), np.int64)
    key = np.zeros(1, np.uint64)
    n = 0
    for m in range(n_moves):
        if n_names[m] < min_names:
            continue
        for a in range(n_axes):
            if axis_size[a] > 1 and apply_move(
                op_factor,
                value_dim,
                key,
                a,
                axis_size,
                m,
                op_span,
                ops,
                op_names,
                name_size,
                value_span,
                values,
                value_dims,
                value_sizes,
                True,
            ):
                out[n, 0], out[n, 1] = m, a
                n += 1
    return out[:n]


def legal_rows(state: State, min_names: int = 0) -> np.ndarray:
    """[n, 2] (move, axis) pairs that would change the state.

    Groups of fewer than ``min_names`` names are left out.
    """
    m, space = state.space.spans, state.space
    return legal_pairs(
        state.ops,
        state.values,
        state._axis_size,
        m.op_span,
        m.op,
        m.move_factor,
        space.name_size,
        m.value_span,
        m.value,
        m.move_dim,
        m.move_dim_size,
        space.n_names,
        min_names,
    )


def legal_actions(state: State, min_names: int = 0) -> list[Action]:
    """Actions that would change the state, on groups of at least ``min_names`` names."""
    space = state.space
    return [
        Action(int(space.group[m]), int(space.bits[m]), int(a))
        for m, a in legal_rows(state, min_names)
    ]

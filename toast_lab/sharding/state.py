"""The search state and how an action changes it.

State of a program with ``O`` ops and ``V`` values on ``A`` mesh axes:
``op_axis[O, A]`` is the name along which the op is split on that axis (-1: none), ``value_axis[V, A]`` the dim of
the value on that axis (-1: none).  An op may have lost a colour while its result keeps it; the two are
separate on purpose.  Earlier actions win an axis on an op or a value.

The state key is a 64-bit Zobrist hash of these two arrays, so two orders that end in one sharding are one
node of the search.  Reference: TOAST sections 4.2 and 4.3.
"""

from __future__ import annotations

import numba
import numpy as np

from toast_lab.sharding.space import Action, Space


@numba.njit(cache=True, nogil=True, inline="always")
def _mix(x: np.uint64) -> np.uint64:
    """splitmix64 finaliser."""
    z = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def apply_move(
    op_axis: np.ndarray,
    value_axis: np.ndarray,
    key: np.ndarray,
    axis: int,
    axis_size: np.ndarray,
    ops: np.ndarray,
    op_names: np.ndarray,
    name_size: np.ndarray,
    values: np.ndarray,
    value_dims: np.ndarray,
    value_sizes: np.ndarray,
    dry: bool,
) -> int:
    """Take one action in place; ``key[0]`` is updated.  Gives the number of entries changed (dry: would change)."""
    n_axes = axis_size.shape[0]
    changed = 0
    for i in range(ops.shape[0]):
        op = ops[i]
        if op_axis[op, axis] >= 0:
            continue
        name = op_names[i]
        ways = axis_size[axis]
        for b in range(n_axes):
            if op_axis[op, b] == name:
                ways *= axis_size[b]
        if name_size[name] % ways != 0:
            continue
        changed += 1
        if not dry:
            op_axis[op, axis] = name
            key[0] ^= _mix(np.uint64(name) * np.uint64(64) + np.uint64(axis))
        elif changed > 0:
            return 1
    for i in range(values.shape[0]):
        value = values[i]
        if value_axis[value, axis] >= 0:
            continue
        dim = value_dims[i]
        ways = axis_size[axis]
        for b in range(n_axes):
            if value_axis[value, b] == dim:
                ways *= axis_size[b]
        if value_sizes[i] % ways != 0:
            continue
        changed += 1
        if not dry:
            value_axis[value, axis] = dim
            key[0] ^= _mix(
                (np.uint64(value) * np.uint64(64) + np.uint64(dim)) * np.uint64(8)
                + np.uint64(axis)
                + np.uint64(1 << 62)
            )
        elif changed > 0:
            return 1
    return changed


class State:
    """A mutable sharding state; ``copy()`` before branching."""

    def __init__(self, space: Space) -> None:
        program = space.analysis.program
        n_axes = len(space.mesh.axes)
        self.space = space
        self.op_axis = np.full((program.n_ops, n_axes), -1, dtype=np.int32)
        self.value_axis = np.full((program.n_values, n_axes), -1, dtype=np.int8)
        self._key = np.zeros(1, dtype=np.uint64)
        self._axis_size = space.mesh.array()

    @property
    def key(self) -> int:
        """64-bit hash of the sharding."""
        return int(self._key[0])

    def copy(self) -> State:
        """An independent copy."""
        new = State.__new__(State)
        new.space, new._axis_size = self.space, self._axis_size
        new.op_axis, new.value_axis, new._key = self.op_axis.copy(), self.value_axis.copy(), self._key.copy()
        return new

    def apply(self, action: Action, *, dry: bool = False) -> int:
        """Take ``action``; gives how many ops and values it changed (with ``dry``: 1 if any would change)."""
        return self.apply_row(self.space.move_of(action), action.axis, dry=dry)

    def apply_row(self, move: int, axis: int, *, dry: bool = False) -> int:
        """``apply`` by row of the space."""
        s = self.space
        ops = slice(s.op_ptr[move], s.op_ptr[move + 1])
        values = slice(s.value_ptr[move], s.value_ptr[move + 1])
        return int(
            apply_move(
                self.op_axis, self.value_axis, self._key, axis, self._axis_size,
                s.op[ops], s.op_name[ops], s.analysis.dims.size,
                s.value[values], s.value_dim[values], s.value_dim_size[values], dry,
            )
        )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def legal_mask(
    op_axis: np.ndarray,
    value_axis: np.ndarray,
    axis_size: np.ndarray,
    op_ptr: np.ndarray,
    ops: np.ndarray,
    op_names: np.ndarray,
    name_size: np.ndarray,
    value_ptr: np.ndarray,
    values: np.ndarray,
    value_dims: np.ndarray,
    value_sizes: np.ndarray,
    wanted: np.ndarray,
) -> np.ndarray:
    """[M, A] bool: would this move on this axis change the state?  Only rows in ``wanted`` are looked at."""
    n_moves, n_axes = op_ptr.shape[0] - 1, axis_size.shape[0]
    out = np.zeros((n_moves, n_axes), np.bool_)
    key = np.zeros(1, np.uint64)
    for m in range(n_moves):
        if not wanted[m]:
            continue
        o, v = slice(op_ptr[m], op_ptr[m + 1]), slice(value_ptr[m], value_ptr[m + 1])
        for a in range(n_axes):
            if axis_size[a] > 1:
                out[m, a] = (
                    apply_move(
                        op_axis, value_axis, key, a, axis_size, ops[o], op_names[o], name_size,
                        values[v], value_dims[v], value_sizes[v], True,
                    ) > 0
                )  # fmt: skip
    return out


def legal_rows(state: State, min_names: int = 0) -> np.ndarray:
    """[n, 2] (move, axis) pairs that would change the state, on groups of at least ``min_names`` names."""
    s = state.space
    mask = legal_mask(
        state.op_axis, state.value_axis, state._axis_size, s.op_ptr, s.op, s.op_name, s.analysis.dims.size,
        s.value_ptr, s.value, s.value_dim, s.value_dim_size, s.n_names >= min_names,
    )  # fmt: skip
    return np.argwhere(mask)


def legal_actions(state: State, min_names: int = 0) -> list[Action]:
    """Actions that would change the state, on groups of at least ``min_names`` names."""
    space = state.space
    return [Action(int(space.group[m]), int(space.bits[m]), int(a)) for m, a in legal_rows(state, min_names)]

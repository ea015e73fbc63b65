"""The moves of an action space as kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.packs import (
    Int8Array,
    Int8Matrix,
    Int32Array,
    Int32Matrix,
    Int64Array,
    Int64Cube,
    packed,
)
from toast_lab.ragged import row_starts
from toast_lab.sharding.alike import Effects


@packed
class Moves(NamedTuple):
    """The effect of each of ``M`` moves on each of ``A`` axes, on one op or value of each class."""

    axis_size: Int64Array  #: [A]
    op_span: Int64Cube  #: [A, M, 2] first row and end in ``op`` and ``move_factor``
    op: Int32Array  #: class of ops that the move splits ...
    move_factor: Int32Array  #: ... along this factor of its first op
    factor_size: Int64Array  #: [F]
    value_span: Int64Cube  #: [A, M, 2] first row and end in ``value`` and the two arrays below
    value: Int32Array  #: class of values that the move shards ...
    move_dim: Int8Array  #: ... along this dim
    move_dim_size: Int64Array  #: size of that dim
    n_names: Int32Array  #: [M] names of the move's group with size above 1
    start_ops: Int32Matrix  #: [K, A] the state that every search starts from, by classes of ops ...
    start_values: Int8Matrix  #: [L, A] ... and of values


def by_axis(effects: Effects, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries of ``effects`` axis by axis, without those in which the axis is not allowed.

    Gives ([A, M, 2] first row and end of each move, [rows] the entry). If every axis is allowed in
    every entry, all axes share the same rows.
    """
    all_entries = np.arange(len(effects.axes))
    if (effects.axes == 2**n_axes - 1).all():
        span = np.stack([effects.ptr[:-1], effects.ptr[1:]], axis=1).astype(np.int64)
        return np.tile(span, (n_axes, 1, 1)), all_entries
    spans, entries = np.empty((n_axes, len(effects.ptr) - 1, 2), np.int64), []
    first_row = 0
    for axis in range(n_axes):
        allowed = (effects.axes >> axis) & 1 == 1
        starts = first_row + row_starts(allowed)[effects.ptr]
        spans[axis, :, 0], spans[axis, :, 1] = starts[:-1], starts[1:]
        entries.append(all_entries[allowed])
        first_row += len(entries[-1])
    return spans, np.concatenate(entries)

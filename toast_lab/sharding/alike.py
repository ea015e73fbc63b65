"""Ops and values that every sequence of actions treats alike.

Actions are mirrored over repeated layers, so the ops of one layer are split exactly as their twins
in the next.  Two ops are alike if every move would split both along the same one of their factors,
of the same size and role; two values if every move would shard both along the same dim, of the same
size.  Whether a move takes effect on one of them depends on nothing else, hence their states stay
equal for ever, and a search need keep one state for each class.  Where pins (see ``pins``) treat
two of them differently, they are not alike.

Reference: TOAST sections 4.2 and 4.4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.hashing import Classes, classes
from toast_lab.ir.program import Program


class Alike(NamedTuple):
    """Classes of ops (``K``) and values (``L``), and what moves do to them.

    For each of ``M`` moves, that is what it does to the first of each class.
    """

    ops: Classes
    values: Classes
    op_ptr: np.ndarray  #: [M+1] row starts into op / move_factor
    op: np.ndarray  #: class that the move would split ...
    move_factor: np.ndarray  #: ... along this name of its first op
    value_ptr: np.ndarray  #: [M+1]
    value: np.ndarray  #: class that the move would shard ...
    move_dim: np.ndarray  #: ... along this dim
    move_dim_size: np.ndarray
    #: uint8, one for each row of ``op``: bit a is set if it may be split so on axis a
    op_axes: np.ndarray
    value_axes: np.ndarray  #: the same of ``value``

    def over_ops(self, program: Program, rows: np.ndarray) -> np.ndarray:
        """[O, A] name of each op on each axis, -1 for none.

        ``rows`` are [K, A] names of the classes' first ops.
        """
        label, first, start = self.ops.label, self.ops.first, program.factor_ptr
        # From the names of the first op to its own
        moved = (start[:-1] - start[first[label]]).astype(np.int32)
        found = rows[label]
        return np.where(found >= 0, found + moved[:, None], np.int32(-1))


class Spans(NamedTuple):
    """What each of ``M`` moves does on each of ``A`` axes, as the kernels read it."""

    op_span: np.ndarray  #: [A, M, 2] first row and end in op / move_factor
    op: np.ndarray
    move_factor: np.ndarray
    value_span: np.ndarray  #: [A, M, 2]
    value: np.ndarray
    move_dim: np.ndarray
    move_dim_size: np.ndarray


def spans(alike: Alike, n_axes: int) -> Spans:
    """The rows of ``alike`` by axis, without what is ruled out there.

    They are those of ``alike`` themselves where every axis has all of them.
    """
    op_span, op_row = _spans(alike.op_ptr, alike.op_axes, n_axes)
    value_span, value_row = _spans(alike.value_ptr, alike.value_axes, n_axes)
    return Spans(
        op_span,
        alike.op[op_row],
        alike.move_factor[op_row],
        value_span,
        alike.value[value_row],
        alike.move_dim[value_row],
        alike.move_dim_size[value_row],
    )


def _spans(ptr: np.ndarray, axes: np.ndarray, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(len(axes))
    if (axes == 2**n_axes - 1).all():
        one = np.stack([ptr[:-1], ptr[1:]], axis=1).astype(np.int64)
        return np.tile(one, (n_axes, 1, 1)), every
    found, rows = np.empty((n_axes, len(ptr) - 1, 2), np.int64), []
    begin = 0
    for a in range(n_axes):
        kept = (axes >> a) & 1 == 1
        starts = begin + np.concatenate([[0], np.cumsum(kept)])[ptr]
        found[a, :, 0], found[a, :, 1] = starts[:-1], starts[1:]
        rows.append(every[kept])
        begin += len(rows[-1])
    return found, np.concatenate(rows)


def find_alike(
    program: Program,
    op_ptr: np.ndarray,
    op: np.ndarray,
    move_factor: np.ndarray,
    value_ptr: np.ndarray,
    value: np.ndarray,
    move_dim: np.ndarray,
    move_dim_size: np.ndarray,
    op_axes: np.ndarray,
    value_axes: np.ndarray,
    fixed: tuple[np.ndarray, np.ndarray] | None = None,
) -> Alike:
    """Sort ops and values into classes; the arrays are those of ``Space``.

    ``fixed``: ([O, A] names, [V, A] dims) that every state has, -1: none; of alike ones they are
    the same.
    """
    move = np.repeat(np.arange(len(op_ptr) - 1), np.diff(op_ptr))
    local = move_factor - program.factor_ptr[op]
    what = classes(
        len(op),
        move,
        local,
        program.factor_size[move_factor],
        program.factor_class[move_factor],
        op_axes,
    )
    here: list[np.ndarray] = []
    there: list[np.ndarray] = []
    if fixed is not None:
        here = list(np.where(fixed[0] >= 0, fixed[0] - program.factor_ptr[:-1, None], -1).T)
        there = list(fixed[1].T)
    ops = classes(program.n_ops, _grouped(op, what.label, program.n_ops), *here)
    move = np.repeat(np.arange(len(value_ptr) - 1), np.diff(value_ptr))
    what = classes(len(value), move, move_dim, move_dim_size, value_axes)
    values = classes(program.n_values, _grouped(value, what.label, program.n_values), *there)
    return by_classes(
        ops,
        values,
        op_ptr,
        op,
        move_factor,
        value_ptr,
        value,
        move_dim,
        move_dim_size,
        op_axes,
        value_axes,
    )


def by_classes(
    ops: Classes,
    values: Classes,
    op_ptr: np.ndarray,
    op: np.ndarray,
    move_factor: np.ndarray,
    value_ptr: np.ndarray,
    value: np.ndarray,
    move_dim: np.ndarray,
    move_dim_size: np.ndarray,
    op_axes: np.ndarray,
    value_axes: np.ndarray,
) -> Alike:
    """What each move does to the first of each class; the other arrays are those of ``Space``."""
    first = ops.first[ops.label[op]] == op
    value_first = values.first[values.label[value]] == value
    return Alike(
        ops,
        values,
        _kept_ptr(op_ptr, first),
        ops.label[op[first]],
        move_factor[first],
        _kept_ptr(value_ptr, value_first),
        values.label[value[value_first]],
        move_dim[value_first],
        move_dim_size[value_first],
        op_axes[first],
        value_axes[value_first],
    )


def _grouped(thing: np.ndarray, what: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ragged rows: what happens to each thing, in the order of the moves."""
    order = np.argsort(thing, kind="stable")
    return np.concatenate([[0], np.cumsum(np.bincount(thing, minlength=n))]), what[order]


def _kept_ptr(ptr: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(kept)])[ptr].astype(np.int32)

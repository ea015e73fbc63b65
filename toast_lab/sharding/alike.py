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
from toast_lab.ragged import Ragged, row_numbers, row_starts


class Effects(NamedTuple):
    """What each of ``M`` moves would do to ops, or to values: an entry for each that it touches."""

    ptr: np.ndarray  #: [M+1] int32 row starts into the other arrays
    target: np.ndarray  #: int32 op or value, or the class of it
    cut: np.ndarray  #: factor (int32) or dim (int8) of it that the move would split
    size: np.ndarray  #: int64 size of that
    axes: np.ndarray  #: uint8: bit a is set if axis a may be used there

    @property
    def move(self) -> np.ndarray:
        """[entries] the move that each entry belongs to."""
        return row_numbers(self.ptr)

    def rows(self, move: int) -> slice:
        """The entries of one move."""
        return slice(int(self.ptr[move]), int(self.ptr[move + 1]))

    def on_classes(self, kinds: Classes) -> Effects:
        """What moves would do to the first op or value of each class; targets are classes."""
        first = kinds.first[kinds.label[self.target]] == self.target
        return Effects(
            ptr=row_starts(first)[self.ptr].astype(np.int32),
            target=kinds.label[self.target[first]],
            cut=self.cut[first],
            size=self.size[first],
            axes=self.axes[first],
        )


class Alike(NamedTuple):
    """Classes of ops (``K``) and values (``L``), and what moves do to the first of each class."""

    ops: Classes
    values: Classes
    op_effects: Effects
    value_effects: Effects

    def over_ops(self, program: Program, rows: np.ndarray) -> np.ndarray:
        """[O, A] name of each op on each axis, -1 for none.

        ``rows`` are [K, A] names of the classes' first ops.
        """
        label, first, start = self.ops.label, self.ops.first, program.factor_ptr
        # From the names of the first op to its own
        moved = (start[:-1] - start[first[label]]).astype(np.int32)
        own_rows = rows[label]
        return np.where(own_rows >= 0, own_rows + moved[:, None], np.int32(-1))


def find_alike(
    program: Program,
    op_effects: Effects,
    value_effects: Effects,
    fixed: tuple[np.ndarray, np.ndarray] | None = None,
) -> Alike:
    """Sort ops and values into classes.

    Args:
        program: that moves are of.
        op_effects: what moves do to ops.
        value_effects: what moves do to values.
        fixed: ([O, A] names, [V, A] dims) that every state has, -1: none; of alike ones they are
            the same.
    """
    fixed_factors: list[np.ndarray] = []
    fixed_dims: list[np.ndarray] = []
    if fixed is not None:
        names, dims = fixed
        fixed_factors = list(np.where(names >= 0, names - program.factor_ptr[:-1, None], -1).T)
        fixed_dims = list(dims.T)
    touched = classes(
        len(op_effects.target),
        op_effects.move,
        op_effects.cut - program.factor_ptr[op_effects.target],
        op_effects.size,
        program.factor_class[op_effects.cut],
        op_effects.axes,
    )
    ops = classes(
        program.n_ops, _by_target(op_effects, touched.label, program.n_ops), *fixed_factors
    )
    touched = classes(
        len(value_effects.target),
        value_effects.move,
        value_effects.cut,
        value_effects.size,
        value_effects.axes,
    )
    values = classes(
        program.n_values, _by_target(value_effects, touched.label, program.n_values), *fixed_dims
    )
    return by_classes(ops, values, op_effects, value_effects)


def by_classes(ops: Classes, values: Classes, op_effects: Effects, value_effects: Effects) -> Alike:
    """Classes of ops and values, with what each move does to the first of each class."""
    return Alike(ops, values, op_effects.on_classes(ops), value_effects.on_classes(values))


def _by_target(effects: Effects, label: np.ndarray, count: int) -> Ragged:
    """What happens to each op or value, in the order of the moves."""
    entries = Ragged.by_key(effects.target, count)
    return Ragged(entries.ptr, label[entries.flat])

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

    def whole(
        self, program: Program, ops: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """([O, A] names, [V, A] dims) over the whole program, as a plan has them.

        ``ops`` are [K, A] names of the classes' first ops, ``values`` [L, A] dims.
        """
        return self.over_ops(program, ops), values[self.values.label]

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
    fixed_factors: np.ndarray,
    fixed_dims: np.ndarray,
) -> Alike:
    """Sort ops and values into classes.

    Args:
        program: that moves are of.
        op_effects: what moves do to ops.
        value_effects: what moves do to values.
        fixed_factors: [O, A] names that every state has, -1: none; of alike ops they are the same.
        fixed_dims: [V, A] dims that every state has, likewise.
    """
    starts = program.factor_ptr[:-1]
    cut = op_effects.cut
    ops = _treated_alike(
        op_effects,
        np.where(fixed_factors >= 0, fixed_factors - starts[:, None], -1),
        cut - starts[op_effects.target],
        program.factor_class[cut],
    )
    values = _treated_alike(value_effects, fixed_dims, value_effects.cut)
    return by_classes(ops, values, op_effects, value_effects)


def by_classes(ops: Classes, values: Classes, op_effects: Effects, value_effects: Effects) -> Alike:
    """Classes of ops and values, with what each move does to the first of each class."""
    return Alike(ops, values, op_effects.on_classes(ops), value_effects.on_classes(values))


def _treated_alike(effects: Effects, fixed: np.ndarray, *kinds: np.ndarray) -> Classes:
    """Classes of ops, or of values, to which every move does the same.

    Args:
        effects: of all moves.
        fixed: what each op or value has from the start, a row for each.
        kinds: what else tells one entry of ``effects`` from another.
    """
    touched = classes(len(effects.target), effects.move, effects.size, effects.axes, *kinds)
    entries = Ragged.by_key(effects.target, len(fixed))
    return classes(len(fixed), Ragged(entries.ptr, touched.label[entries.flat]), *fixed.T)

"""Ops and values that every sequence of actions treats alike.

Actions are mirrored over repeated layers, so the ops of one layer are split exactly as their twins
in the next. Two ops are alike if every move would split both along the same one of their factors,
with the same size and class; two values are alike if every move would shard both along the same
dim, with the same size. Whether a move takes effect on an op or a value depends on nothing else, so
the states of alike ones are always equal, and a search needs only one state for each class. Ops or
values that pins (see ``pins``) treat differently are not alike.

Reference: TOAST sections 4.2 and 4.4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.hashing import Classes, classes
from toast_lab.ir.program import Program
from toast_lab.ragged import Ragged, row_numbers, row_starts


class Effects(NamedTuple):
    """The effects of ``M`` moves on ops, or on values: an entry for each one that a move splits."""

    ptr: np.ndarray  #: [M+1] int32 row starts into the other arrays
    target: np.ndarray  #: int32 op or value, or its class
    cut: np.ndarray  #: factor (int32) or dim (int8) of the target that the move would split
    size: np.ndarray  #: int64 size of that factor or dim
    axes: np.ndarray  #: uint8 bit mask of the axes that may be used for this entry

    @property
    def move(self) -> np.ndarray:
        """[entries] the move that each entry belongs to."""
        return row_numbers(self.ptr)

    def rows(self, move: int) -> slice:
        """The entries of one move."""
        return slice(int(self.ptr[move]), int(self.ptr[move + 1]))

    def on_classes(self, kinds: Classes) -> Effects:
        """The effects on the first op or value of each class; targets become classes."""
        is_first = kinds.first[kinds.label[self.target]] == self.target
        return Effects(
            ptr=row_starts(is_first)[self.ptr].astype(np.int32),
            target=kinds.label[self.target[is_first]],
            cut=self.cut[is_first],
            size=self.size[is_first],
            axes=self.axes[is_first],
        )


class Alike(NamedTuple):
    """Classes of ops (``K``) and values (``L``), with the effects on the first of each class."""

    ops: Classes
    values: Classes
    op_effects: Effects
    value_effects: Effects

    def whole(
        self, program: Program, ops: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Expand the rows of classes to the whole program, as ([O, A] names, [V, A] dims).

        ``ops`` are [K, A] names of the classes' first ops, ``values`` [L, A] dims.
        """
        return self.over_ops(program, ops), values[self.values.label]

    def over_ops(self, program: Program, rows: np.ndarray) -> np.ndarray:
        """[O, A] name of each op on each axis, -1 for none.

        ``rows`` are [K, A] names of the classes' first ops.
        """
        label, first, start = self.ops.label, self.ops.first, program.factor_ptr
        # Offset from the names of the class's first op to those of each op
        offset = (start[:-1] - start[first[label]]).astype(np.int32)
        first_op_rows = rows[label]
        return np.where(first_op_rows >= 0, first_op_rows + offset[:, None], np.int32(-1))


def find_alike(
    program: Program,
    op_effects: Effects,
    value_effects: Effects,
    fixed_factors: np.ndarray,
    fixed_dims: np.ndarray,
) -> Alike:
    """Sort the ops and values of a program into classes of alike ones.

    Args:
        program: the program.
        op_effects: effects of moves on ops.
        value_effects: effects of moves on values.
        fixed_factors: [O, A] names that pins fix in every state, -1: none; alike ops have the same.
        fixed_dims: [V, A] dims that pins fix in every state, -1: none; alike values have the same.
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
    """Add the effects on the first op or value of each class to given classes."""
    return Alike(ops, values, op_effects.on_classes(ops), value_effects.on_classes(values))


def _treated_alike(effects: Effects, fixed: np.ndarray, *kinds: np.ndarray) -> Classes:
    """Classes of ops, or of values, on which every move has the same effect.

    Args:
        effects: of all moves.
        fixed: the pinned entries, one row for each op or value.
        kinds: further columns, one number for each entry of ``effects``, that have to agree.
    """
    entry_classes = classes(len(effects.target), effects.move, effects.size, effects.axes, *kinds)
    entries = Ragged.by_key(effects.target, len(fixed))
    return classes(len(fixed), Ragged(entries.ptr, entry_classes.label[entries.flat]), *fixed.T)

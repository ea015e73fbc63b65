"""``Sharding``: how a plan splits every op and value, as the two arrays that kernels read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.hashing import digest
from toast_lab.ir.program import Program


class Sharding(NamedTuple):
    """How ``O`` ops and ``V`` values of a program are split over ``A`` mesh axes."""

    op_factor: np.ndarray  #: [O, A] int32, factor along which the op is split on the axis, -1: none
    value_dim: np.ndarray  #: [V, A] int8, dim of the value that the axis cuts, -1: none

    @classmethod
    def whole(cls, program: Program, n_axes: int) -> Sharding:
        """The sharding that splits nothing."""
        return cls(
            np.full((program.n_ops, n_axes), -1, np.int32),
            np.full((program.n_values, n_axes), -1, np.int8),
        )

    def same_as(self, other: Sharding) -> bool:
        """Are the arrays of both equal?"""
        return all(map(np.array_equal, self, other))

    def copy(self) -> Sharding:
        """A copy in new, writeable arrays."""
        return Sharding(self.op_factor.copy(), self.value_dim.copy())

    def frozen(self) -> Sharding:
        """Make the arrays read-only and return the sharding itself."""
        self.op_factor.flags.writeable = self.value_dim.flags.writeable = False
        return self

    def key(self) -> int:
        """64-bit hash of the arrays."""
        return int.from_bytes(digest(self.op_factor, self.value_dim), "little")

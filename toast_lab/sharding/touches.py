"""Where values meet the ops that have the factors, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import Program
from toast_lab.ragged import Ragged


class TouchArrays(NamedTuple):
    """The places where values meet ops (``program.owner``) of a program.

    ``O`` ops, ``V`` values, ``U`` uses. First come the uses, then the definitions: touch ``U + v``
    defines value ``v``.
    """

    op: np.ndarray  #: [U+V] int32
    by_op: Ragged  #: touches of each op, in order
    value: np.ndarray  #: [U+V] int32
    #: [U+V] int32 row starts into ``dim_factor``, one row for each dim of the value
    dim: np.ndarray
    dim_factor: np.ndarray  #: int32 factor of the op that the dim has at the touch


def touches_of(program: Program) -> TouchArrays:
    """The touches of a program."""
    op = program.owner[np.concatenate([program.use_op, program.value_op])].astype(np.int32)
    starts = [program.use_dim_ptr[:-1], program.use_dim_ptr[-1] + program.shape_ptr[:-1]]
    factors = [program.use_dim_factor, program.def_dim_factor]
    return TouchArrays(
        op=op,
        by_op=Ragged.by_key(op, program.n_ops),
        value=np.concatenate([program.use_value, np.arange(program.n_values)]).astype(np.int32),
        dim=np.concatenate(starts).astype(np.int32),
        dim_factor=np.concatenate(factors).astype(np.int32),
    )

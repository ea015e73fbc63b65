"""Where values meet the ops that have the factors, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import Program
from toast_lab.packs import Int32Array, packed
from toast_lab.ragged import Ragged


@packed
class Touches(NamedTuple):
    """The places where values meet ops (``program.owner``) of a program.

    ``O`` ops, ``V`` values, ``U`` uses. First come the uses, then the definitions: touch ``U + v``
    defines value ``v``.
    """

    n_uses: int  #: U
    ptr: Int32Array  #: [O+1] row starts into ``touch``
    touch: Int32Array  #: [U+V] touches of each op, in order
    op: Int32Array  #: [U+V]
    value: Int32Array  #: [U+V]
    dim_ptr: Int32Array  #: [U+V] row starts into ``dim_factor``, one row for each dim of the value
    dim_factor: Int32Array  #: factor of the op that the dim has at the touch


def touches_of(program: Program) -> Touches:
    """The touches of a program."""
    op = program.owner[np.concatenate([program.use_op, program.value_op])].astype(np.int32)
    by_op = Ragged.by_key(op, program.n_ops)
    starts = [program.use_dim_ptr[:-1], program.use_dim_ptr[-1] + program.shape_ptr[:-1]]
    factors = [program.use_dim_factor, program.def_dim_factor]
    return Touches(
        n_uses=program.n_uses,
        ptr=by_op.ptr.astype(np.int32),
        touch=by_op.flat.astype(np.int32),
        op=op,
        value=np.concatenate([program.use_value, np.arange(program.n_values)]).astype(np.int32),
        dim_ptr=np.concatenate(starts).astype(np.int32),
        dim_factor=np.concatenate(factors).astype(np.int32),
    )

"""How much of a matrix unit a product keeps busy once it is cut.

Local sizes are rounded up to tiles.

A systolic array of ``t`` by ``t`` cells holds a tile of one operand, ``t`` of the contracted dim by
``t`` of a free dim, while rows of the other pass through eight at a time.  A shard of 32 columns
keeps a quarter of 128 busy: cutting further then buys no time.

Source: Norrie et al., The Design Process for Google's Training Chips: TPUv2 and TPUv3, IEEE Micro
41(2), 2021 (arrays of 128 by 128, eight sublanes).  Which operand stays is the compiler's choice,
taken to be the better one.  Reference: TOAST section 4.5 counts FLOPs only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p
from toast_lab.kernels import compiled, helper

BATCH, FREE, CONTRACTED = range(3)
ROLE_BITS = 2
SUBLANES = 8.0


class Products(NamedTuple):
    """Sizes of the matrix products of a program; 1 and 0 for all other ops."""

    rows: np.ndarray  #: [O] float64 product of the free dims of the first operand
    columns: np.ndarray  #: [O] float64 of the second operand
    depth: np.ndarray  #: [O] float64 of the contracted dims
    left: np.ndarray  #: [O] int64 role of each dim of the first operand, ROLE_BITS bits each
    right: np.ndarray  #: [O] int64 of the second operand


def products(program: p.Program) -> Products:
    """Read them off the factors of each dot_general."""
    op_count = program.n_ops
    shapes = Products(
        rows=np.ones(op_count),
        columns=np.ones(op_count),
        depth=np.ones(op_count),
        left=np.zeros(op_count, np.int64),
        right=np.zeros(op_count, np.int64),
    )
    for op in np.flatnonzero(program.op_class == p.DOT).tolist():
        if len(program.uses(op)) != 2 or len(program.results(op)) != 1:
            continue
        left, right = (program.use_names(use) for use in program.uses(op))
        result = set(program.def_names(program.results(op)[0]))
        for own, other, sizes, roles in (
            (left, set(right), shapes.rows, shapes.left),
            (right, set(left), shapes.columns, shapes.right),
        ):
            packed = 0
            for dim, name in enumerate(own):
                size = float(program.factor_size[name])
                role = FREE
                if name in other:
                    role = BATCH if name in result else CONTRACTED
                packed |= role << (ROLE_BITS * dim)
                if role == FREE:
                    sizes[op] *= size
                elif role == CONTRACTED and own is left:
                    shapes.depth[op] *= size
            roles[op] = packed
    return shapes


@compiled
def busy(rows: float, columns: float, depth: float, tile: float) -> float:
    """Share of the matrix unit that works, for local sizes; 1 where ``tile`` is 0."""
    if tile <= 0.0:
        return 1.0
    one = _filled(rows, SUBLANES) * _filled(columns, tile)
    other = _filled(columns, SUBLANES) * _filled(rows, tile)
    return max(one, other) * _filled(depth, tile)


@helper
def _filled(size: float, tile: float) -> float:
    return size / (np.ceil(size / tile) * tile) if size > 0.0 else 1.0

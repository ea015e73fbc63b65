"""The divisibility rule: the axes on one factor or dim together divide its size."""

from __future__ import annotations

import numpy as np

from toast_lab.kernels import helper


@helper
def divides(
    size: int, cuts: np.ndarray, row: int, cut: int, axis: int, axis_size: np.ndarray
) -> bool:
    """Can ``axis`` split a factor or dim in addition to the axes that split it already?

    Args:
        size: of the factor or dim.
        cuts: [rows, A] factor or dim that each axis splits, -1: none.
        row: of the op or value in ``cuts``.
        cut: the factor or dim.
        axis: to add; the entry of ``cuts`` for it is ignored.
        axis_size: [A].
    """
    ways = axis_size[axis]
    for other in range(axis_size.shape[0]):
        if other != axis and cuts[row, other] == cut:
            ways *= axis_size[other]
    return size > 1 and size % ways == 0

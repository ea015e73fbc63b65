"""How much more memory a TPU takes for a tensor whose dims do not fill its tiles.

``docs/machines.md`` explains the tiles ("Memory on TPUs"). There are also tiles of one, two or four
rows: coordinates [16384, 3] lie in four rows of 16,384. Which two dims lie along lanes and rows is
the compiler's choice. We take the two that lose least, which is what libtpu mostly does: it keeps
the order of a program where another one gains little.

Read off libtpu 0.0.42 (layouts in the final HLO of ``vit``, ``gns``, ``llama``, ``moe`` and
``gpt2`` for v5e and v6e).
"""

from __future__ import annotations

import numpy as np

from toast_lab.cost.matrix_tiles import LANES, SUBLANES
from toast_lab.kernels import compiled, helper
from toast_lab.packs import Float64Array, Int64Array
from toast_lab.sharding.steps import local_size


@compiled
def tile_padding(
    sizes: Float64Array, begin: int, end: int, layout: int, axis_size: Int64Array
) -> float:
    """Factor by which a device's part of a tensor is larger in memory than its numbers.

    Args:
        sizes: sizes of the dims of all tensors.
        begin: index of this tensor's first dim in ``sizes``.
        end: index behind its last one.
        layout: packed layout in which the tensor is cut.
        axis_size: [A] devices along each axis of the mesh.
    """
    if end - begin < 2:
        return 1.0
    least = np.inf
    for lane in range(begin, end):
        lane_size = local_size(sizes[lane], lane - begin, layout, axis_size)
        lane_loss = np.ceil(lane_size / LANES) * LANES / lane_size
        if lane_loss >= least:
            continue
        for row in range(begin, end):
            if row != lane:
                row_size = local_size(sizes[row], row - begin, layout, axis_size)
                least = min(least, lane_loss * _row_loss(row_size))
    return least


@helper
def _row_loss(rows: float) -> float:
    """Factor on the room that rows take in tiles of one, two, four or eight rows."""
    tile = 1.0
    while tile < SUBLANES and tile < rows:
        tile *= 2.0
    return np.ceil(rows / tile) * tile / rows

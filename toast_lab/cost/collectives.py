"""Time of a collective on one mesh axis: latency plus bytes over bandwidth, for the better of two algorithms.

With n devices on the axis, B local bytes and link rate w:

* all_gather to B output bytes, reduce_scatter from B input bytes: ring, (n-1) hops and B (n-1)/n bytes; on a
  switch also recursive doubling, the same bytes in log2 n hops;
* all_reduce of B bytes: a reduce_scatter and an all_gather; or a tree, 2 log2 n hops of B bytes each;
* all_to_all of B bytes: every device sends B (n-1)/n; on a bidirectional ring the middle link carries n/8 times
  B, hence the factor max(1, n/4) / 2 against a switch;
* permute: one hop, B bytes.

Several axes are taken one after the other.  Reference: Thakur, Rabenseifner, Gropp, Optimization of collective
communication operations in MPICH, 2005.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from toast_lab.sharding.steps import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER


@numba.njit(cache=True, nogil=True)
def axis_time_s(kind: int, n: int, local_bytes: float, rate: float, latency: float, switched: bool) -> float:
    """Seconds of one collective over one axis of ``n`` devices; ``local_bytes`` is the larger side."""
    if n <= 1:
        return 0.0
    share = local_bytes * (n - 1) / n / rate
    hops = math.ceil(math.log2(n)) if switched else n - 1
    if kind == ALL_GATHER or kind == REDUCE_SCATTER:
        return hops * latency + share
    if kind == ALL_REDUCE:
        levels = math.ceil(math.log2(n))
        return min(2 * hops * latency + 2 * share, 2 * levels * (latency + local_bytes / rate))
    if kind == ALL_TO_ALL:
        return hops * latency + share * (1.0 if switched else max(1.0, n / 4.0))
    if kind == PERMUTE:
        return latency + local_bytes / rate
    return 0.0


@numba.njit(cache=True, nogil=True)
def collective_time_s(
    kind: int,
    mask: int,
    in_bytes: float,
    axis_size: np.ndarray,
    rate: np.ndarray,
    latency: np.ndarray,
    switched: np.ndarray,
) -> float:
    """Seconds of one collective over the axes in ``mask``, which starts from ``in_bytes`` a device.

    ``rate`` (bytes/s), ``latency`` (s) and ``switched`` have one entry for each mesh axis.
    """
    time_s, here = 0.0, in_bytes
    for a in range(axis_size.shape[0]):
        if (mask >> a) & 1:
            if kind == ALL_GATHER:
                here *= axis_size[a]
            time_s += axis_time_s(kind, axis_size[a], here, rate[a], latency[a], switched[a])
            if kind == REDUCE_SCATTER:  # leaves less for the next axis
                here /= axis_size[a]
    return time_s

"""Time of a collective: latency plus bytes over bandwidth, for the best of several algorithms.

One axis of n devices, B bytes on the larger side, links of w bytes/s (on a ring both directions
together):

==============  ===================================  =============================================
collective      torus (h hops to the farthest        switch (h = log2 n rounds)
                device)
==============  ===================================  =============================================
all_gather,     both directions at once:             Bruck / recursive doubling:
reduce_scatter  h hops, B (n-1)/n                    h rounds, B (n-1)/n
all_reduce      the two above, or gather everything  the two above, or recursive doubling of all:
                and add up: h hops, B (n-1)          h rounds (2 more unless n = 2^k) of B each
all_to_all      shortest ways, all at once: h hops,  n-1 exchanges, B (n-1)/n; or Bruck: h rounds
                the busiest link carries             of B/2 each
                floor(n^2/4)/n B (n/4 B for even n)
permute         everybody sends to the farthest:     one hop, B
                h hops, twice the all_to_all's
                load; no less than B over one link
==============  ===================================  =============================================

A torus dim that does not wrap around is a line: half the rate (``topology.py`` says so in
``rate``), n-1 hops.

**Fitted terms.**  Where a level of a switch has them (``Link.collectives``), they replace rate and
latency: with x the bytes that each device sends (B (n-1)/n; twice that for an all_reduce; B for a
permute) a collective takes ``start + device (n-1) + root sqrt(x) + x (byte + over_n / n)``:

* ``start``: starting the kernels; ``device``: one more device to pass by on the ring;
* ``root``: a message cut into pieces that follow each other through h links, each with a cost a of
  its own, takes h a + x/w + 2 sqrt(h a x/w) with pieces of the best size: rates are reached slowly;
* ``byte``: the rate of large messages; ``over_n``: what the smallest groups miss of it.

Over several levels each has its own; an axis that straddles takes the longer of what the terms of
the inner level say of all its devices and of what rate and latency say: the inner links carry no
less for having the network behind them.

Several axes at once, the best of

* one after the other, an all_gather over the slowest axis first while there is least to send, a
  reduce_scatter over it last (swapping two neighbours in any other order never makes it slower), an
  all_reduce as a reduce_scatter and an all_gather or as all_reduces in turn;
* torus axes that do not share links, simultaneously: the data is cut into pieces that visit the
  axes in different orders, so that all links are busy.  Over a set S of axes no less than B (n_S -
  1)/N must come in (n_S: devices of S, N: of all), whatever the order, and with chunks fine enough
  the largest of these bounds is reached (the loads that orders can give to axes form the base
  polytope of a submodular function): max over S of B (n_S - 1)/N / w(S).  As many rounds as axes,
  each as long as the farthest ways of any axis.  An all_to_all goes through all axes in turn, so
  its time is the slowest axis's alone;
* axes of one switch, or all the axes that one torus dim is shared by: as one axis.

References: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in
MPICH, 2005; Chan, Heimlich, Purkayastha, van de Geijn, Collective communication: theory, practice,
and experience, 2007 (lower bounds, bidirectional rings, meshes); Bruck et al., Efficient algorithms
for all-to-all communications in multiport message-passing systems, 1997; Sack, Gropp, Collective
algorithms for multiported torus networks, 2015 (pieces in different orders); Edmonds, Submodular
functions, matroids, and certain polyhedra, 1970.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.machines.topology import (
    FITTED,
    GROUP,
    GROUP_HOPS,
    GROUP_PERMUTED,
    GROUP_RATE,
    GROUP_SPREAD,
    HOPS,
    N_TERMS,
    PERMUTED,
    SPREAD,
    STRADDLES,
    TERMS,
    WAYS,
    AxisLinks,
)
from toast_lab.packs import BoolArray, Float64Array, Float64Matrix, Int64Array
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
)

#: Columns of ``_entries``.
_N, _RATE, _LATENCY, _HOPS, _SPREAD, _PERMUTED, _GROUP, _AXIS = range(8)
_BY_NAME = {
    "all_gather": ALL_GATHER,
    "all_reduce": ALL_REDUCE,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
    "collective_permute": PERMUTE,
}


@helper
def axis_time_s(
    kind: int,
    devices: float,
    local_bytes: float,
    rate: float,
    latency: float,
    switched: bool,
    hops: float,
    spread: float,
    permuted: float,
) -> float:
    """Seconds of one collective over one axis of so many devices.

    ``local_bytes`` is the larger side; ``rate`` in bytes/s, ``latency`` in s a hop; ``hops``,
    ``spread`` and ``permuted`` as in ``topology.HOPS`` and below.
    """
    if devices <= 1:
        return 0.0
    share = local_bytes * (devices - 1) / devices / rate
    if kind == ALL_GATHER or kind == REDUCE_SCATTER:
        return hops * latency + share
    if kind == ALL_REDUCE:
        if switched:
            rounds = hops if 2.0 ** round(math.log2(devices)) == devices else hops + 2
            whole = rounds * (latency + local_bytes * max(1.0, spread) / rate)
        else:
            whole = hops * latency + local_bytes * (devices - 1) / rate
        return min(2 * (hops * latency + share), whole)
    if kind == ALL_TO_ALL:
        direct = local_bytes * spread / rate
        if switched:
            return min(
                (devices - 1) * latency + direct,
                hops * (latency + max(0.5 * local_bytes / rate, direct / hops)),
            )
        return hops * latency + direct
    if kind == PERMUTE:
        return (1.0 if switched else hops) * latency + local_bytes * permuted / rate
    return 0.0


@helper
def _fitted_time_s(
    kind: int, devices: float, local_bytes: float, shape: np.ndarray, plain_s: float
) -> float:
    """Seconds by the fitted terms of an axis, one row of ``shape``; ``plain_s`` where it has none.

    An axis that straddles takes the longer of both: terms of the inner level for all its devices,
    and rate and latency of all levels.
    """
    first = TERMS + N_TERMS * (kind - REDUCE_SCATTER)
    if shape[FITTED] == 0.0 or shape[first] < 0.0 or devices <= 1:
        return plain_s
    sent_bytes = local_bytes
    if kind != PERMUTE:
        sent_bytes *= (devices - 1) / devices
    if kind == ALL_REDUCE:
        sent_bytes *= 2
    fitted_s = (
        shape[first]
        + shape[first + 1] * sent_bytes
        + shape[first + 2] * (devices - 1)
        + shape[first + 3] * math.sqrt(sent_bytes)
        + shape[first + 4] * sent_bytes / devices
    )
    return max(fitted_s, plain_s) if shape[FITTED] == STRADDLES else fitted_s


@compiled
def collective_time_s(
    kind: int,
    mask: int,
    in_bytes: float,
    axis_size: Int64Array,
    rate: Float64Array,
    latency: Float64Array,
    switched: BoolArray,
    shape: Float64Matrix,
) -> float:
    """Seconds of one collective over the axes in ``mask``, which starts from ``in_bytes`` a device.

    ``rate`` (bytes/s), ``latency`` (s) and ``switched`` have one entry for each mesh axis,
    ``shape`` [A, N_COLUMNS] one row (its columns: ``topology.HOPS`` and below).
    """
    count, last, total = 0, 0, 1.0
    for axis in range(axis_size.shape[0]):
        if (mask >> axis) & 1 and axis_size[axis] > 1:
            count += 1
            last = axis
            total *= axis_size[axis]
    if count == 0:
        return 0.0
    larger_bytes = in_bytes * total if kind == ALL_GATHER else in_bytes
    if count == 1:
        plain_s = axis_time_s(
            kind,
            total,
            larger_bytes,
            rate[last],
            latency[last],
            switched[last],
            shape[last, HOPS],
            shape[last, SPREAD],
            shape[last, PERMUTED],
        )
        return _fitted_time_s(kind, total, larger_bytes, shape[last], plain_s)
    entries = np.empty((count, 8))
    on_switch = np.empty(count, np.bool_)
    count = _entries(mask, axis_size, rate, latency, switched, shape, entries, on_switch)
    if count == 1:
        return _row_time_s(kind, larger_bytes, entries[0], on_switch[0], shape)
    return _several(kind, larger_bytes, total, entries[:count], on_switch[:count], shape)


def named_time_s(
    kind: str, axes: Sequence[str], larger_bytes: float, *, mesh: Mesh, links: AxisLinks
) -> float | None:
    """Seconds of one collective as compilers name it; None for kinds without a formula.

    Args:
        kind: "all_gather", "collective_permute".
        axes: that it runs over.
        larger_bytes: the larger of what one device holds before and after.
        mesh: whose axes these are.
        links: under these axes.
    """
    if kind not in _BY_NAME:
        return None
    starts = larger_bytes / mesh.ways(axes) if kind == "all_gather" else float(larger_bytes)
    return collective_time_s(
        _BY_NAME[kind],
        sum(1 << mesh.axes.index(axis) for axis in axes),
        starts,
        mesh.array(),
        links.bytes_per_s,
        links.latency_s,
        links.switched,
        links.shape,
    )


@helper
def _entries(
    mask: int,
    axis_size: np.ndarray,
    rate: np.ndarray,
    latency: np.ndarray,
    switched: np.ndarray,
    shape: np.ndarray,
    entries: np.ndarray,
    on_switch: np.ndarray,
) -> int:
    """Fill a row for each axis of ``mask``, or for a group of axes that act as one.

    The slowest row comes first.
    """
    count, done = 0, 0
    for axis in range(axis_size.shape[0]):
        if not (mask >> axis) & 1 or axis_size[axis] <= 1 or (done >> axis) & 1:
            continue
        together, members = 1.0, 0
        for other in range(axis_size.shape[0]):
            if (
                (mask >> other) & 1
                and axis_size[other] > 1
                and shape[other, GROUP] == shape[axis, GROUP]
            ):
                together *= axis_size[other]
                members |= 1 << other
        row = entries[count]
        on_switch[count] = switched[axis]
        row[_LATENCY], row[_GROUP] = latency[axis], shape[axis, GROUP]
        row[_N], row[_RATE], row[_HOPS] = axis_size[axis], rate[axis], shape[axis, HOPS]
        row[_SPREAD], row[_PERMUTED] = shape[axis, SPREAD], shape[axis, PERMUTED]
        row[_AXIS] = axis
        if together > axis_size[axis]:
            if switched[axis]:
                done |= members
                row[_N], row[_HOPS], row[_SPREAD] = (
                    together,
                    math.ceil(math.log2(together)),
                    1 - 1 / together,
                )
            elif together == shape[axis, WAYS]:
                done |= members
                row[_N], row[_RATE], row[_HOPS] = (
                    together,
                    shape[axis, GROUP_RATE],
                    shape[axis, GROUP_HOPS],
                )
                row[_SPREAD], row[_PERMUTED] = (
                    shape[axis, GROUP_SPREAD],
                    shape[axis, GROUP_PERMUTED],
                )
        i = count
        while i > 0 and entries[i, _RATE] < entries[i - 1, _RATE]:
            for column in range(8):
                entries[i, column], entries[i - 1, column] = (
                    entries[i - 1, column],
                    entries[i, column],
                )
            on_switch[i], on_switch[i - 1] = on_switch[i - 1], on_switch[i]
            i -= 1
        count += 1
    return count


@helper
def _row_time_s(
    kind: int, local_bytes: float, row: np.ndarray, switched: bool, shape: np.ndarray
) -> float:
    plain_s = axis_time_s(
        kind,
        row[_N],
        local_bytes,
        row[_RATE],
        row[_LATENCY],
        switched,
        row[_HOPS],
        row[_SPREAD],
        row[_PERMUTED],
    )
    return _fitted_time_s(kind, row[_N], local_bytes, shape[int(row[_AXIS])], plain_s)


@helper
def _several(
    kind: int,
    larger_bytes: float,
    total: float,
    rows: np.ndarray,
    switched: np.ndarray,
    shape: np.ndarray,
) -> float:
    """Seconds over all ``rows`` (slowest first).

    ``larger_bytes``: local bytes of the larger side.  ``total``: devices.
    """
    count = rows.shape[0]
    apart = True  # torus axes without common links
    for i in range(count):
        apart &= not switched[i]
        for j in range(i):
            apart &= rows[i, _GROUP] != rows[j, _GROUP]
    if kind == PERMUTE or kind == ALL_TO_ALL:
        in_turn, latency_s, busiest = 0.0, 0.0, 0.0
        column = _PERMUTED if kind == PERMUTE else _SPREAD
        for i in range(count):
            in_turn += _row_time_s(kind, larger_bytes, rows[i], switched[i], shape)
            latency_s += rows[i, _HOPS] * rows[i, _LATENCY]
            busiest = max(busiest, larger_bytes * rows[i, column] / rows[i, _RATE])
        return min(in_turn, latency_s + busiest) if apart else in_turn
    gather_s, scatter_s, each, gathered, latency_s = 0.0, 0.0, 0.0, larger_bytes / total, 0.0
    for i in range(count):
        gathered *= rows[i, _N]
        gather_s += _row_time_s(ALL_GATHER, gathered, rows[i], switched[i], shape)
        scatter_s += _row_time_s(REDUCE_SCATTER, gathered, rows[i], switched[i], shape)
        each += _row_time_s(ALL_REDUCE, larger_bytes, rows[i], switched[i], shape)
        latency_s = max(latency_s, rows[i, _HOPS] * rows[i, _LATENCY])
    if apart:
        at_once = count * latency_s + larger_bytes * _simultaneous_s(total, rows)
        gather_s, scatter_s = min(gather_s, at_once), min(scatter_s, at_once)
    if kind == ALL_REDUCE:
        return min(scatter_s + gather_s, each)
    return gather_s if kind == ALL_GATHER else scatter_s


@helper
def _simultaneous_s(total: float, rows: np.ndarray) -> float:
    """Seconds per byte of an all_gather's result when pieces take the axes in different orders."""
    worst = 0.0
    for subset in range(1, 1 << rows.shape[0]):
        ways, rate = 1.0, 0.0
        for i in range(rows.shape[0]):
            if (subset >> i) & 1:
                ways *= rows[i, _N]
                rate += rows[i, _RATE]
        worst = max(worst, (ways - 1) / total / rate)
    return worst

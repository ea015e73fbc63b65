"""Time of a collective: latency plus bytes over bandwidth, for the best of several algorithms.

For one axis of n devices, with B bytes on the larger side (operand or result) and links of w
bytes/s (on a ring both directions together):

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
permute         all send to the farthest device:     one hop, B
                h hops, twice the all_to_all's
                load; at least B over one link
==============  ===================================  =============================================

A torus dim that does not wrap around is a line: half the rate (``topology.py`` has halved it in
``rate``), n-1 hops.

**Fitted terms.** Where a level of a switch has them (``Link.collectives``), they replace rate and
latency, by the formula in ``docs/machines.md`` ("Collectives of GPUs").

Each level has terms of its own. An axis that straddles takes the longer of two times: by the terms
of the inner level for all its devices, and by rate and latency. The inner links do not carry less
because there is a network outside.

Over several axes at once, the best of

* one axis after the other: an all_gather starts with the slowest axis, while there is least to
  send, and a reduce_scatter ends with it (from any other order, swapping two neighbours never makes
  it slower); an all_reduce is a reduce_scatter and an all_gather, or all_reduces in turn;
* all axes simultaneously, for torus axes that do not share links: the data is cut into pieces that
  visit the axes in different orders, so that all links are busy. Over a set S of axes at least B
  (n_S - 1)/N must come in, whatever the order (n_S: devices of S, N: of all axes), and with pieces
  small enough the largest of these bounds is reached (the loads that orders can give to axes form
  the base polytope of a submodular function): max over S of B (n_S - 1)/N / w(S). There are as many
  rounds as axes, each as long as the most distant devices of any axis need. An all_to_all goes
  through all axes in turn, so its time is that of the slowest axis alone;
* as one axis, for the axes of one switch, or for all axes that share one torus dim.

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

from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.machines.topology import (
    FITTED,
    GROUP,
    GROUP_HOPS,
    GROUP_PERMUTED,
    GROUP_RATE,
    GROUP_SPREAD,
    HOPS,
    LATENCY,
    N_TERMS,
    PERMUTED,
    RATE,
    SIZE,
    SPREAD,
    STRADDLES,
    SWITCHED,
    TERMS,
    WAYS,
    AxisLinks,
)
from toast_lab.packs import Float64Matrix
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
)

#: Rows of several axes have the columns of ``topology.HOPS`` up to this one, which has the axis.
_AXIS = FITTED

_BY_NAME = {
    "all_gather": ALL_GATHER,
    "all_reduce": ALL_REDUCE,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
    "collective_permute": PERMUTE,
}


@helper
def _plain_time_s(kind: int, local_bytes: float, row: np.ndarray) -> float:
    """Seconds of one collective over the links of a row, by rate and latency.

    ``local_bytes`` is the larger of operand and result; the columns are those at ``topology.HOPS``.
    """
    devices, rate, latency, hops = row[SIZE], row[RATE], row[LATENCY], row[HOPS]
    switched = row[SWITCHED] > 0.0
    if devices <= 1:
        return 0.0
    share_s = local_bytes * (devices - 1) / devices / rate
    if kind == ALL_GATHER or kind == REDUCE_SCATTER:
        return hops * latency + share_s
    if kind == ALL_REDUCE:
        if switched:
            rounds = hops if 2.0 ** round(math.log2(devices)) == devices else hops + 2
            whole_s = rounds * (latency + local_bytes * max(1.0, row[SPREAD]) / rate)
        else:
            whole_s = hops * latency + local_bytes * (devices - 1) / rate
        return min(2 * (hops * latency + share_s), whole_s)
    if kind == ALL_TO_ALL:
        direct_s = local_bytes * row[SPREAD] / rate
        if switched:
            return min(
                (devices - 1) * latency + direct_s,
                hops * (latency + max(0.5 * local_bytes / rate, direct_s / hops)),
            )
        return hops * latency + direct_s
    if kind == PERMUTE:
        return (1.0 if switched else hops) * latency + local_bytes * row[PERMUTED] / rate
    return 0.0


@helper
def _axis_time_s(kind: int, local_bytes: float, row: np.ndarray, shape: np.ndarray) -> float:
    """Seconds over a row, by the fitted terms in the row of its axis in ``shape`` if it has any.

    An axis that straddles takes the longer of both times: by the terms of the inner level for all
    its devices, and by rate and latency of all levels.
    """
    plain_s, devices = _plain_time_s(kind, local_bytes, row), row[SIZE]
    first_term = TERMS + N_TERMS * (kind - REDUCE_SCATTER)
    if shape[FITTED] == 0.0 or shape[first_term] < 0.0 or devices <= 1:
        return plain_s
    sent_bytes = local_bytes
    if kind != PERMUTE:
        sent_bytes *= (devices - 1) / devices
    if kind == ALL_REDUCE:
        sent_bytes *= 2
    fitted_s = (
        shape[first_term]
        + shape[first_term + 1] * sent_bytes
        + shape[first_term + 2] * (devices - 1)
        + shape[first_term + 3] * math.sqrt(sent_bytes)
        + shape[first_term + 4] * sent_bytes / devices
    )
    return max(fitted_s, plain_s) if shape[FITTED] == STRADDLES else fitted_s


@compiled
def collective_time_s(kind: int, mask: int, in_bytes: float, shape: Float64Matrix) -> float:
    """Seconds of one collective over the axes in ``mask``, whose operand has ``in_bytes`` a device.

    ``shape`` is that of ``AxisLinks``.
    """
    count, last_axis, total = 0, 0, 1.0
    for axis in range(shape.shape[0]):
        if (mask >> axis) & 1 and shape[axis, SIZE] > 1:
            count += 1
            last_axis = axis
            total *= shape[axis, SIZE]
    if count == 0:
        return 0.0
    larger_bytes = in_bytes * total if kind == ALL_GATHER else in_bytes
    if count == 1:
        return _axis_time_s(kind, larger_bytes, shape[last_axis], shape[last_axis])
    entries = np.empty((count, _AXIS + 1))
    count = _entries(mask, shape, entries)
    if count == 1:
        return _axis_time_s(kind, larger_bytes, entries[0], shape[int(entries[0, _AXIS])])
    return _several(kind, larger_bytes, total, entries[:count], shape)


def named_time_s(
    kind: str, axes: Sequence[str], larger_bytes: float, *, mesh: Mesh, links: AxisLinks
) -> float | None:
    """Seconds of a collective under its compiler's name; None for kinds without a formula.

    Args:
        kind: "all_gather", "collective_permute".
        axes: the mesh axes that it runs over.
        larger_bytes: the larger of operand and result on one device.
        mesh: the mesh of these axes.
        links: the links under the axes of the mesh.
    """
    if kind not in _BY_NAME:
        return None
    in_bytes = larger_bytes / mesh.ways(axes) if kind == "all_gather" else float(larger_bytes)
    mask = sum(1 << mesh.axes.index(axis) for axis in axes)
    return collective_time_s(_BY_NAME[kind], mask, in_bytes, links.shape)


@helper
def _entries(mask: int, shape: np.ndarray, entries: np.ndarray) -> int:
    """Fill a row of ``entries`` for each axis of ``mask``, or for a group that acts as one axis.

    Rows are in ascending order of their rates. Gives the number of rows.
    """
    count, done_mask = 0, 0
    for axis in range(shape.shape[0]):
        if not (mask >> axis) & 1 or shape[axis, SIZE] <= 1 or (done_mask >> axis) & 1:
            continue
        group_devices, group_mask = 1.0, 0
        for other in range(shape.shape[0]):
            if (
                (mask >> other) & 1
                and shape[other, SIZE] > 1
                and shape[other, GROUP] == shape[axis, GROUP]
            ):
                group_devices *= shape[other, SIZE]
                group_mask |= 1 << other
        row = entries[count]
        copy_row(row[:_AXIS], shape[axis, :_AXIS])
        row[_AXIS] = axis
        if group_devices > shape[axis, SIZE]:
            if shape[axis, SWITCHED] > 0.0:
                done_mask |= group_mask
                row[SIZE], row[SPREAD] = group_devices, 1 - 1 / group_devices
                row[HOPS] = math.ceil(math.log2(group_devices))
            elif group_devices == shape[axis, WAYS]:
                done_mask |= group_mask
                row[SIZE], row[RATE] = group_devices, shape[axis, GROUP_RATE]
                row[HOPS], row[SPREAD] = shape[axis, GROUP_HOPS], shape[axis, GROUP_SPREAD]
                row[PERMUTED] = shape[axis, GROUP_PERMUTED]
        i = count
        while i > 0 and entries[i, RATE] < entries[i - 1, RATE]:
            for column in range(entries.shape[1]):
                entries[i, column], entries[i - 1, column] = (
                    entries[i - 1, column],
                    entries[i, column],
                )
            i -= 1
        count += 1
    return count


@helper
def _several(
    kind: int, larger_bytes: float, total: float, rows: np.ndarray, shape: np.ndarray
) -> float:
    """Seconds over the axes of all ``rows``, slowest first.

    ``larger_bytes`` is the larger of operand and result on one device, ``total`` the number of
    devices.
    """
    count = rows.shape[0]
    apart = True  # are these torus axes without common links?
    for i in range(count):
        apart &= rows[i, SWITCHED] == 0.0
        for j in range(i):
            apart &= rows[i, GROUP] != rows[j, GROUP]
    if kind == PERMUTE or kind == ALL_TO_ALL:
        in_turn_s, latency_s, busiest_s = 0.0, 0.0, 0.0
        column = PERMUTED if kind == PERMUTE else SPREAD
        for i in range(count):
            terms = shape[int(rows[i, _AXIS])]
            in_turn_s += _axis_time_s(kind, larger_bytes, rows[i], terms)
            latency_s += rows[i, HOPS] * rows[i, LATENCY]
            busiest_s = max(busiest_s, larger_bytes * rows[i, column] / rows[i, RATE])
        return min(in_turn_s, latency_s + busiest_s) if apart else in_turn_s
    gather_s, scatter_s, reduce_s, gathered, latency_s = 0.0, 0.0, 0.0, larger_bytes / total, 0.0
    for i in range(count):
        terms = shape[int(rows[i, _AXIS])]
        gathered *= rows[i, SIZE]
        gather_s += _axis_time_s(ALL_GATHER, gathered, rows[i], terms)
        scatter_s += _axis_time_s(REDUCE_SCATTER, gathered, rows[i], terms)
        reduce_s += _axis_time_s(ALL_REDUCE, larger_bytes, rows[i], terms)
        latency_s = max(latency_s, rows[i, HOPS] * rows[i, LATENCY])
    if apart:
        at_once_s = count * latency_s + larger_bytes * _simultaneous_s(total, rows)
        gather_s, scatter_s = min(gather_s, at_once_s), min(scatter_s, at_once_s)
    if kind == ALL_REDUCE:
        return min(scatter_s + gather_s, reduce_s)
    return gather_s if kind == ALL_GATHER else scatter_s


@helper
def _simultaneous_s(total: float, rows: np.ndarray) -> float:
    """Seconds per byte of an all_gather's result if pieces visit the axes in different orders."""
    largest_bound = 0.0
    for subset in range(1, 1 << rows.shape[0]):
        ways, rate = 1.0, 0.0
        for i in range(rows.shape[0]):
            if (subset >> i) & 1:
                ways *= rows[i, SIZE]
                rate += rows[i, RATE]
        largest_bound = max(largest_bound, (ways - 1) / total / rate)
    return largest_bound

"""Predicted seconds of compiled collectives, by the evaluator's own formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toast_lab.cost.problem import Problem
from toast_lab.machines.collectives import collective_time_s
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
)

if TYPE_CHECKING:
    from toast_lab.export.trial import Signature

_KINDS = {
    "all_gather": ALL_GATHER,
    "all_reduce": ALL_REDUCE,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
    "collective_permute": PERMUTE,
}


def collectives_time_s(signature: Signature, problem: Problem) -> float:
    """Seconds of all collectives; those over unknown axes are priced as over all axes."""
    links, mesh = problem.links, problem.mesh
    total = 0.0
    for (kind, axes, size), times in signature.collectives.items():
        if kind not in _KINDS:
            continue
        over = mesh.axes if axes is None else axes
        mask = sum(1 << mesh.axes.index(axis) for axis in over)
        starts = size / mesh.ways(over) if kind == "all_gather" else float(size)
        total += times * collective_time_s(
            _KINDS[kind],
            mask,
            starts,
            mesh.array(),
            links.bytes_per_s,
            links.latency_s,
            links.switched,
            links.shape,
        )
    return total

"""Predicted seconds of compiled collectives, by the formulas of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toast_lab.cost.problem import Problem
from toast_lab.machines.collectives import named_time_s

if TYPE_CHECKING:
    from toast_lab.export.trial import Signature


def collectives_time_s(signature: Signature, problem: Problem) -> float:
    """Seconds of all collectives; those over unknown axes are priced as over all axes."""
    links, mesh = problem.links, problem.mesh
    total_s = 0.0
    for (kind, axes, size), times in signature.collectives.items():
        priced_axes = mesh.axes if axes is None else axes
        time_s = named_time_s(kind, priced_axes, size, mesh=mesh, links=links)
        total_s += times * (time_s or 0.0)
    return total_s

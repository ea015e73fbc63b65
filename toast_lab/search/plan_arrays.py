"""Shardings that a trace hands on: are they plans of a problem, and with which actions?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.search import trace_check
from toast_lab.sharding import validity
from toast_lab.sharding.plan import pinned_texts
from toast_lab.sharding.sharding import Sharding


def with_pinned(problem: Problem, actions: tuple[str, ...]) -> tuple[str, ...]:
    """Actions of a plan after those that the problem has pinned."""
    return (*pinned_texts(problem.space), *actions)


def array_offenders(
    problem: Problem, prefix: str, op_factor: np.ndarray, value_dim: np.ndarray
) -> Iterator[str]:
    """Why arrays are not a plan of a problem: shapes, names and dims out of range, pins.

    Args:
        problem: that the plan should be of.
        prefix: what the arrays are called by in a trace, such as "best.".
        op_factor: should be [O, A].
        value_dim: should be [V, A].
    """
    program, n_axes = problem.analysis.program, len(problem.mesh.axes)
    # By the names that they have in saved traces
    rows = (
        ("op_axis", op_factor, program.n_ops, "ops"),
        ("value_axis", value_dim, program.n_values, "values"),
    )
    wrong = []
    for name, array, row_count, noun in rows:
        if array.shape != (row_count, n_axes):
            wrong.append(
                f"{prefix}{name} has shape {array.shape}, the program has {row_count} {noun} "
                f"and the mesh {n_axes} axes"
            )
        elif bad := trace_check.outside(array, -1, np.iinfo(array.dtype).max):
            wrong.append(f"{prefix}{name} is out of range, {bad}")
    if wrong:
        yield from wrong
        return
    both = f"{prefix}op_axis and {prefix}value_axis"
    for text in validity.offenders(program, problem.mesh, Sharding(op_factor, value_dim)):
        yield f"{both}: {text}"
    if problem.pins is not None and (broken := problem.pins.broken(op_factor, value_dim)):
        listed = "; ".join(map(str, broken[:5]))
        yield f"{both} do not keep to what is pinned: {listed}"

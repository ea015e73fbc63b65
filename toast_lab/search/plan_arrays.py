"""Checks of the shardings in a trace: are they plans of a problem?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.search import trace_check
from toast_lab.sharding import validity
from toast_lab.sharding.plan import pinned_texts
from toast_lab.sharding.sharding import Sharding


def with_pinned(problem: Problem, actions: tuple[str, ...]) -> tuple[str, ...]:
    """The actions of a plan, preceded by the pinned actions of the problem."""
    return (*pinned_texts(problem.space), *actions)


def array_offenders(
    problem: Problem, prefix: str, op_factor: np.ndarray, value_dim: np.ndarray
) -> Iterator[str]:
    """Reasons why two arrays are no plan of a problem, a sentence each.

    Shapes, the ranges of names and dims, validity and pins are checked.

    Args:
        problem: the problem that the plan should be of.
        prefix: prefix of the arrays' names in a trace, such as "best.".
        op_factor: should be [O, A].
        value_dim: should be [V, A].
    """
    program, n_axes = problem.analysis.program, len(problem.mesh.axes)
    # Saved traces use the older names.
    rows = (
        ("op_axis", op_factor, program.n_ops, "ops"),
        ("value_axis", value_dim, program.n_values, "values"),
    )
    offences = []
    for name, array, row_count, noun in rows:
        if array.shape != (row_count, n_axes):
            offences.append(
                f"{prefix}{name} has shape {array.shape}, but the program has {row_count} {noun} "
                f"and the mesh {n_axes} axes"
            )
        elif offence := trace_check.outside(array, -1, np.iinfo(array.dtype).max):
            offences.append(f"{prefix}{name} is out of range, {offence}")
    if offences:
        yield from offences
        return
    both_names = f"{prefix}op_axis and {prefix}value_axis"
    for text in validity.offenders(program, problem.mesh, Sharding(op_factor, value_dim)):
        yield f"{both_names}: {text}"
    if problem.pins is not None and (broken := problem.pins.broken(op_factor, value_dim)):
        listed = "; ".join(map(str, broken[:5]))
        yield f"{both_names} break pins: {listed}"

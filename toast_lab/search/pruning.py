"""Which actions a search considers.

Reference: TOAST section 4.2, where actions on fewer than 10 names are discarded.
"""

from __future__ import annotations

from toast_lab.cost.problem import Problem

SMALLEST_GROUP = 10  #: names; of programs of fewer than ``FULL_SIZE`` names fewer
FULL_SIZE = 500


def pruning_threshold(problem: Problem) -> int:
    """Fewest names that a colour group must have to be acted on."""
    total = int((problem.analysis.names.size > 1).sum())
    return min(SMALLEST_GROUP, max(1, SMALLEST_GROUP * total // FULL_SIZE))


def smallest_group(problem: Problem, min_names: int | None) -> int:
    """The option ``min_names`` of a method, with its default filled in."""
    return pruning_threshold(problem) if min_names is None else min_names

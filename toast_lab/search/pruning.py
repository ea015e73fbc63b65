"""The size threshold below which a search does not consider an action.

Reference: TOAST section 4.2, where actions on fewer than 10 names are discarded.
"""

from __future__ import annotations

from toast_lab.cost.problem import Problem

SMALLEST_GROUP = 10  #: fewest names to act on; fewer in programs below ``FULL_SIZE`` names
FULL_SIZE = 500  #: names of size above 1


def pruning_threshold(problem: Problem) -> int:
    """Fewest names that a colour group must have to be acted on."""
    total = int((problem.analysis.names.size > 1).sum())
    return min(SMALLEST_GROUP, max(1, SMALLEST_GROUP * total // FULL_SIZE))


def smallest_group(problem: Problem, min_names: int | None) -> int:
    """The option ``min_names`` of a method, with its default filled in."""
    return pruning_threshold(problem) if min_names is None else min_names

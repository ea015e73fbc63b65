"""Prices learned from verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_prices import compiled_prices


def learn(problem: Problem, verdicts: Sequence[Verdict[Any]]) -> Problem | None:
    """The problem with a price list learned from a compiler's times for the parts of plans.

    Gives None if the verdicts contain nothing that prices can hold: attached devices give only the
    time of a whole step, and some compilers give no times, or those of another machine.

    Args:
        problem: with the current prices, which the new list replaces.
        verdicts: all verdicts so far, the latest last.
    """
    judged = []
    for verdict in verdicts:
        compiled = verdict.judgement.evidence
        if isinstance(compiled, Compiled) and verdict.time_s is not None:
            judged.append((verdict.plan, compiled))
    if not judged:
        return None
    try:
        return problem.with_prices(compiled_prices(problem, judged))
    except (InvalidPlan, InvalidProblem):
        return None

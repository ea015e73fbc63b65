"""What verdicts say, as prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_prices import compiled_prices


def learn(problem: Problem, verdicts: Sequence[Verdict[Any]]) -> Problem | None:
    """The problem with what a compiler said of the parts of plans as its price list.

    None: the verdicts say nothing that prices can hold: of attached devices only the time of a
    whole step is known, and some compilers tell no times, or those of another machine.

    Args:
        problem: with the prices so far, which the new list replaces.
        verdicts: all so far, the latest last.
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

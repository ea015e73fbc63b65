"""What verdicts teach: prices of steps, and corrections of plans like those that were judged.

A compiler's times of the parts of a plan become prices of these steps, in all plans that have them
(``learn``). What is left, and the time of a whole step on attached devices, corrects the prices of
plans that split nearly all ops as a judged one does (``Corrections``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_prices import compiled_prices
from toast_lab.sharding.plan import ShardingPlan

#: share of ops that are split differently from which on a verdict says nothing about a plan
REACH = 0.1
#: added to that share if one of the two was judged as written, and the other is a whole plan
_OTHER_KIND = 0.02


def learn(problem: Problem, verdicts: Sequence[Verdict[Any]]) -> Problem | None:
    """The problem with a price list learned from a compiler's times for the parts of plans.

    Where plans share a step that took different times, that of the quickest plan holds: prices have
    to be right near the best one, and its own price is then its time by the clock.

    Gives None if the verdicts contain nothing that prices can hold: attached devices give only the
    time of a whole step, and some compilers give no times, or those of another machine.

    Args:
        problem: with the current prices, which the new list replaces.
        verdicts: all verdicts so far.
    """
    judged = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.rank, reverse=True):
        compiled = verdict.judgement.evidence
        if isinstance(compiled, Compiled) and verdict.time_s is not None:
            judged.append((verdict.plan, compiled))
    if not judged:
        return None
    try:
        return problem.with_prices(compiled_prices(problem, judged))
    except (InvalidPlan, InvalidProblem):
        return None


class _Judged(NamedTuple):
    op_factor: np.ndarray
    is_written: bool
    ratio: float  #: the clock's time over the present price


class Corrections:
    """Corrects prices of plans by the verdicts on plans nearly like them."""

    def __init__(self, problem: Problem, verdicts: Sequence[Verdict[Any]]) -> None:
        self.judged = [
            _Judged(
                verdict.plan.op_factor,
                verdict.written is not None,
                verdict.time_s / price(problem, verdict.plan).time_s,
            )
            for verdict in verdicts
            if verdict.time_s is not None and verdict.ratio is not None
        ]

    def __call__(self, plan: ShardingPlan, priced_s: float, is_written: bool) -> float:
        """The time in seconds that is expected of a plan with this price.

        The verdict on the nearest judged plan counts, in full for a plan that splits all ops alike,
        and not at all for one that splits ``REACH`` of them differently.
        """
        distance, ratio = min(
            (
                (
                    float((plan.op_factor != judged.op_factor).any(axis=1).mean())
                    + _OTHER_KIND * (judged.is_written != is_written),
                    judged.ratio,
                )
                for judged in self.judged
            ),
            default=(REACH, 1.0),
        )
        return priced_s * (1.0 + (ratio - 1.0) * max(0.0, 1.0 - distance / REACH))

"""What verdicts say, as prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Problem


def learn(problem: Problem, verdicts: Sequence[Verdict[Any]]) -> Problem | None:
    """The problem with what a judge says of the parts of plans in its prices.

    None: the verdicts say nothing that prices can hold.
    """
    del problem, verdicts
    return None

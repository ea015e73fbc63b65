"""Price lists of the steps of some plans, for tests of what is told apart by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab.cost.price_codes import step_codes
from toast_lab.cost.price_list import COMPILED, PriceEntry
from toast_lab.cost.problem import Problem


class PricedStep(NamedTuple):
    """A step of a plan with its price by rule."""

    op: int
    code: int
    kind: int
    use: int  #: that it moves a value to, -1 if none
    time_s: float

    def entry(self, factor: float) -> PriceEntry:
        """As a compiler would tell it that takes ``factor`` times as long."""
        return PriceEntry(self.op, self.code, self.time_s * factor, COMPILED)


def priced_steps(problem: Problem, plan: tuple[np.ndarray, np.ndarray]) -> Iterator[PricedStep]:
    """The steps of a plan (factors of ops, layouts of values)."""
    totals = problem.prices.totals(*plan)
    steps, count = totals.steps, totals.n_steps
    codes = np.empty(count, np.int64)
    step_codes(problem.prices.inputs, steps, count, codes)
    columns = (steps.op, codes, steps.kind, steps.use, totals.each.time_s)
    for row in zip(*(column[:count].tolist() for column in columns), strict=True):
        yield PricedStep(*row)

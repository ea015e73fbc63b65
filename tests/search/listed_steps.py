"""The steps of plans as price list entries, for tests of which steps a list tells apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab.cost.price_codes import step_codes
from toast_lab.cost.price_list import COMPILED, PriceEntry
from toast_lab.cost.problem import Problem


class PricedStep(NamedTuple):
    """A step of a plan, with the price that the rules give it."""

    op: int
    code: int
    kind: int
    use: int  #: the use that a value is moved to, -1 for none
    time_s: float

    def entry(self, factor: float) -> PriceEntry:
        """Return the entry of a compiler that measures ``factor`` times this step's price."""
        return PriceEntry(self.op, self.code, self.time_s * factor, COMPILED)


def priced_steps(problem: Problem, plan: tuple[np.ndarray, np.ndarray]) -> Iterator[PricedStep]:
    """Yield the steps of a plan, given as factors of ops and layouts of values."""
    totals = problem.prices.totals(*plan)
    steps, count = totals.steps, totals.n_steps
    codes = np.empty(count, np.int64)
    step_codes(problem.prices.inputs, steps, count, codes)
    columns = (steps.op, codes, steps.kind, steps.use, totals.each.time_s)
    for row in zip(*(column[:count].tolist() for column in columns), strict=True):
        yield PricedStep(*row)

"""The prices of all shardings of one search, each priced once however it was reached."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from toast_lab.cost.problem import Pricer, Problem, Quick
from toast_lab.hashing import digest
from toast_lab.sharding.state import State

#: The key of a state, or the digest of a plan's arrays.
Key = int | bytes


class Ledger:
    """Prices of distinct shardings, and their number.

    Attributes:
        problem: the problem whose shardings are priced.
        pricer: the pricer of the problem.
        priced_by_method: number of distinct states that the method priced itself, not the ledger.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.pricer: Pricer = problem.pricer()
        self.priced_by_method = 0
        self._prices: dict[Key, Quick] = {}

    @property
    def evaluations(self) -> int:
        """Distinct states priced so far."""
        return len(self._prices) + self.priced_by_method

    def price(self, state: State) -> Quick:
        """The price of a state; looked up if it was priced before."""
        quick = self._prices.get(state.key)
        if quick is None:
            quick = self._prices[state.key] = self.pricer.quick(state)
        return quick

    def price_arrays(self, op_factor: np.ndarray, value_dim: np.ndarray) -> Quick:
        """The price of a plan given as the arrays of ``Recorder.record_plan``, not as actions."""
        key = digest(op_factor, value_dim)
        quick = self._prices.get(key)
        if quick is None:
            totals = self.pricer.totals(op_factor, value_dim)
            quick = self._prices[key] = self.pricer.judged(totals.time_s, totals.peak_bytes)
        return quick

    def keys(self) -> Set[Key]:
        """The keys of the shardings priced so far."""
        return frozenset(self._prices)

    def forget_all_but(self, keys: Set[Key]) -> int:
        """Forget all prices but those of ``keys``; gives the number of shardings forgotten."""
        forgotten_keys = self._prices.keys() - keys
        for key in forgotten_keys:
            del self._prices[key]
        return len(forgotten_keys)


def rank(quick: Quick, length: int) -> tuple[float, float, float]:
    """A key that sorts plans, the best first.

    A plan that fits comes before any that does not, then the lower C(s), then fewer actions.
    """
    return (0.0 if quick.fits else 1.0, quick.score, length)

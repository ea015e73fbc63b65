"""The prices of single choices of a program, each made once.

A choice is how a row of ops is split (its strategy, an entry of its menu) or the layout in which a
value is kept. A term is a price of a strategy, or of a pair of a strategy and a layout. Strategies
that want, or leave, a value in the same layout have the same label and share the prices of moves.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from toast_lab.cost.moving_prices import Bringing, bringing_times, brought_facts
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.search.terms.op_prices import (
    compute_times,
    op_pricer_for,
    reading_times,
    result_labels,
    result_times,
    use_costs,
    want_labels,
    whole_time,
)


class PricedTerms:
    """Prices of the strategies and layouts of a folded program.

    Args:
        folded: the program, folded to rows of ops and values.
        menus: for each row of ops [S, A] int32 the name of its first op on each axis, -1: none.
        ahead_of: most time that a gather may be hidden behind earlier products, over that in which
            the unsplit op computes.
    """

    def __init__(self, folded: PriceInputs, menus: list[np.ndarray], ahead_of: float) -> None:
        self.folded, self.menus = folded, menus
        rates = folded.rates._replace(ahead_of=ahead_of)
        self.op_pricer = op_pricer_for(folded._replace(rates=rates), len(menus))
        self._moves: dict[tuple[Bringing, bytes, bytes], np.ndarray] = {}

    @functools.cached_property
    def wants(self) -> list[np.ndarray]:
        """W of [S] the packed layout in which each strategy of its row wants a value."""
        owners = enumerate(self.folded.tables.use_owner.tolist())
        return [want_labels(self.op_pricer, want, self.menus[owner]) for want, owner in owners]

    def left(self, value: int) -> np.ndarray:
        """[S] layout in which each strategy leaves a value, partial axes in the bits above."""
        return result_labels(self.op_pricer, value, self._of(value))

    def computing_s(self, op: int) -> np.ndarray:
        """[S] seconds of an op, operands and results as its strategy wants and leaves them."""
        return compute_times(self.op_pricer, op, self.menus[self.folded.tables.op_row[op]])

    def reading_s(self, op: int) -> np.ndarray:
        """[S, uses] seconds that an op takes longer if it reads a copy for one use."""
        return reading_times(self.op_pricer, op, self.menus[self.folded.tables.op_row[op]])

    def leaving(
        self, op: int, value: int, kept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prices of keeping a result, for each strategy and layout: see ``result_times``."""
        return result_times(self.op_pricer, op, value, self._of(value), kept)

    def bringing_s(self, op: int, use: int, wanted: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """[W, T] seconds to bring a value from each layout kept to each one that a use wants."""
        inputs = self.op_pricer.inputs
        listed, rates = inputs.listed, inputs.rates
        if listed.begin[op] < listed.end[op]:  # an op with entries in a list has its own prices
            return use_costs(self.op_pricer, op, use, wanted, kept)[0]
        ahead, hidden_s = rates.gathered_ahead > 0.0 and bool(inputs.facts.use.ahead[use]), math.inf
        if ahead and rates.ahead_of < math.inf:
            hidden_s = rates.ahead_of * whole_time(self.op_pricer, op)
        facts = brought_facts.py_func(inputs.facts, inputs.tables, op, use)
        key = (Bringing(facts, ahead, hidden_s), wanted.tobytes(), kept.tobytes())
        if key not in self._moves:
            self._moves[key] = bringing_times(
                key[0],
                rates,
                listed,
                inputs.axis_size,
                self.op_pricer.steps,
                each=self.op_pricer.each,
                wanted=wanted,
                kept=kept,
            )
        return self._moves[key]

    def copy_bytes(self, op: int, use: int, wanted: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """[W, T] bytes of the copy for a use, 0 where it reads the value itself."""
        return use_costs(self.op_pricer, op, use, wanted, kept)[1]

    def _of(self, value: int) -> np.ndarray:
        return self.menus[self.folded.tables.value_owner[value]]

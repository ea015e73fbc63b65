"""What a search is told besides its seed: written down when it runs, told again when it replays.

A method may ask for the time left, or for the best solution that an integer program has after some
seconds. The answers depend on the machine and on the moment, and they steer the search. So every
such question goes through ``Recorder.told``, which writes the answer down. A replay gets the
answers that the search got, whatever the clock says, and so takes the same way; it is faster, since
no integer program is solved again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from toast_lab.errors import InvalidProblem
from toast_lab.search.saved_search import SavedSearch, facts_of
from toast_lab.search.trace import Trace

PRICE_TOLERANCE = 1e-6  #: relative tolerance for the same price, on another processor


class SearchReplay:
    """The replay of a saved search, up to the point where it had ended.

    Attributes:
        saved: the search.
        trace: what the replay has done so far.
    """

    def __init__(self, saved: SavedSearch, trace: Trace) -> None:
        self.saved, self.trace = saved, trace
        facts = saved.facts
        self._rows = [*facts["improvements"], facts["simulations"]]
        self._seconds = [*facts["improved_s"], facts["elapsed_s"]]

    @property
    def elapsed_s(self) -> float:
        """The time of the search at which it had come as far, between two improvements about."""
        return float(np.interp(self.trace.row.n, self._rows, self._seconds))

    def is_over(self, evaluations: int) -> bool:
        """Has the replay come to where the search had ended?

        Raises:
            InvalidProblem: the replay went another way than the search.
        """
        n_rows, facts = self.trace.row.n, self.saved.facts
        if n_rows > facts["simulations"]:
            raise self.astray(f"{n_rows} simulations")
        if (
            len(self.trace.told) < len(self.saved.told)
            or n_rows < facts["simulations"]
            or evaluations < facts["evaluations"]
        ):
            return False
        self._compare(evaluations)
        return True

    def next_told(self) -> Any:
        """The next answer that the search was told. Raises InvalidProblem if there is none."""
        if len(self.trace.told) >= len(self.saved.told):
            raise self.astray("a question that was not asked")
        return self.saved.told[len(self.trace.told)]

    def astray(self, difference: str) -> InvalidProblem:
        """The error that tells that the replay went another way than the search."""
        return InvalidProblem(
            f"this search cannot be resumed: after {self.trace.row.n} of "
            f"{self.saved.facts['simulations']} simulations its replay went another way and found "
            f"{difference}. Prices, a machine file or the method have changed since, or the method "
            f"depends on more than its seed. {self.saved.remedy}"
        )

    def _compare(self, evaluations: int) -> None:
        """Raise InvalidProblem if the replay came to other plans or prices than the search."""
        facts, replayed = self.saved.facts, facts_of(self.trace)
        if evaluations != facts["evaluations"]:
            raise self.astray(f"{evaluations} distinct shardings, not {facts['evaluations']}")
        if replayed["improvements"] != facts["improvements"]:
            raise self.astray(
                f"{len(replayed['improvements'])} improvements, not those "
                f"{len(facts['improvements'])} of before"
            )
        for name in ("best_time_s", "best_peak_bytes"):
            if abs(replayed[name] - facts[name]) > PRICE_TOLERANCE * abs(facts[name]):
                raise self.astray(f"{name} {replayed[name]:g}, not {facts[name]:g}")

"""``lower_bound``: a C(s) that no plan of a problem is below, and hence how good a plan is.

    bound = tl.bound(problem, seconds=30)
    bound.score, bound.gap(result.cost)    # the bound; how far the plan's C(s) is above it

The bound rises while there is time, and holds whenever it is stopped. ``relaxation.py`` says for
which plans it holds.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from toast_lab import checks
from toast_lab.cost.problem import Cost, Problem
from toast_lab.isolate import Cancelled
from toast_lab.prepare import prepare
from toast_lab.search.gap.dual_ascent import Ascent
from toast_lab.search.gap.memory_terms import MemoryTerms
from toast_lab.search.gap.relaxation import Relaxation
from toast_lab.search.gap.relaxed_terms import relax

#: Allows for sums that are rounded in another order than the evaluator's.
_ROUNDING = 1.0 - 1e-9
_SETTLED = 1e-6  # least rise, as a share of the bound, that counts as one
_PATIENCE = 60  # sweeps without a rise after which the bound has settled
_BETWEEN_PRICES = 8  # sweeps between new prices of memory
_PRICE_ROUNDS = 400  # most changes of the prices of memory
REPORT_EVERY_S = 0.2


class BoundPoint(NamedTuple):
    """The bound that was proven at one time."""

    elapsed_s: float
    score: float


@dataclasses.dataclass(frozen=True, eq=False)
class LowerBound:
    """A C(s) that no plan of a problem is below.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> bound = tl.bound(problem, seconds=10.0)
        >>> result = tl.search(problem, budget=tl.Budget(None, 200))
        >>> 0 < bound.score <= result.cost.score
        True
    """

    problem: Problem = dataclasses.field(repr=False)
    #: No plan has a C(s) below this (``fitting``: no plan that fits).
    score: float
    #: Does it hold only for plans that fit?
    fitting: bool
    #: True: more time would hardly raise it.
    settled: bool
    sweeps: int
    elapsed_s: float
    curve: tuple[BoundPoint, ...] = dataclasses.field(default=(), repr=False)

    @property
    def time_s(self) -> float:
        """The bound as a time: seconds that no plan (that fits) is below."""
        return self.score * self.problem.baseline[0]

    def gap(self, cost: Cost | float, fits: bool = True) -> float | None:
        """How far a plan may be above the best one: C(s) / bound - 1, at least 0.

        None if unknown: the bound is 0, or it holds only for plans that fit and the plan does not
        fit.

        Args:
            cost: the cost of the plan, or its C(s).
            fits: does the plan fit? Used if only its C(s) is given.
        """
        score, fits = (cost.score, cost.fits) if isinstance(cost, Cost) else (cost, fits)
        if self.fitting and not fits:
            return None
        return max(0.0, score / self.score - 1.0) if self.score > 0 else None

    def __str__(self) -> str:
        plans = "plan that fits" if self.fitting else "plan"
        outlook = "" if self.settled else "; more time may raise it"
        return (
            f"no {plans} has a C(s) below {self.score:.6g} ({self.time_s * 1e3:.3f} ms), proven in "
            f"{self.elapsed_s:.1f} s and {self.sweeps} sweeps{outlook}"
        )


def lower_bound(
    problem: Problem,
    seconds: float = 60.0,
    *,
    cost: Cost | None = None,
    on_progress: Callable[[BoundPoint], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> LowerBound:
    """Prove a C(s) that no plan of a problem is below.

    Args:
        problem: program, mesh, machine, prices and pins.
        seconds: time limit; the proof ends sooner if the bound stops rising.
        cost: cost of the best plan known. If that plan fits, the bound covers only plans that fit
            and may be higher. The proof ends once the bound reaches the plan's score.
        on_progress: called a few times a second with the bound so far.
        cancel: polled; True ends the proof and keeps the bound so far.

    Raises:
        InvalidProblem: ``seconds`` is negative.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> result = tl.search(problem, budget=tl.Budget(None, 200))
        >>> bound = tl.bound(problem, seconds=10.0, cost=result.cost)
        >>> bound.score <= result.cost.score
        True
    """
    seconds = checks.number("seconds", seconds, 0.0)
    prepare("price", "bound", cancel=cancel)
    return _Proof(problem, seconds, cost, on_progress, cancel=cancel).run()


class _TimeIsOver(Exception):
    """The time is over, or the proof was cancelled."""


class _Proof:
    """One run of ``lower_bound``."""

    def __init__(
        self,
        problem: Problem,
        seconds: float,
        cost: Cost | None,
        on_progress: Callable[[BoundPoint], None] | None,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.problem, self.seconds = problem, seconds
        self.on_progress, self.cancel = on_progress, cancel
        self.began = time.monotonic()
        self.base_s, self.base_bytes = problem.baseline
        self.fitting = cost is not None and cost.fits
        self.known = math.inf if cost is None else cost.score
        self.score, self.sweeps = 0.0, 0
        self.curve: list[BoundPoint] = []
        self._reported_at = -math.inf

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def check(self) -> None:
        if self.elapsed_s > self.seconds or (self.cancel is not None and self.cancel()):
            raise _TimeIsOver

    def run(self) -> LowerBound:
        settled = False
        if self.base_s > 0.0:
            try:
                # If the program is too large, only the prices for which there is time are made.
                relaxation = relax(
                    self.problem, self.check, lambda: self.elapsed_s > 0.4 * self.seconds
                )
                settled = self._climb(relaxation) and relaxation.whole
            except (_TimeIsOver, Cancelled):
                settled = False
        return LowerBound(
            problem=self.problem,
            score=self.score,
            fitting=self.fitting,
            settled=settled,
            sweeps=self.sweeps,
            elapsed_s=self.elapsed_s,
            curve=tuple(self.curve),
        )

    def _climb(self, relaxation: Relaxation) -> bool:
        """Raise the bound until it settles, reaches the known plan, or the time is over."""
        ascent = Ascent(relaxation)
        memory = MemoryTerms(self.problem, relaxation)
        taken_off_s = 0.0
        # The most that all prices of memory together may come to, in seconds for each byte
        most_byte_s = (
            math.inf
            if self.fitting
            else self.problem.memory_weight * self.base_s / max(self.base_bytes, 1.0)
        )
        priced = memory.matters and most_byte_s > 0.0
        try:
            self._sweeps(ascent, taken_off_s, _PATIENCE, most=10**9)
            for _ in range(_PRICE_ROUNDS if priced else 0):
                if self.reached:
                    break
                choice = ascent.choice()
                before = dict(memory.byte_s)
                target = min(self.known, 1.05 * self.score)
                gap_s = max(0.25 * (target - self.score), 1e-4 * self.score) * self.base_s
                memory.move(choice, gap_s, most_byte_s)
                if memory.byte_s == before:
                    break
                extra_s, taken_off_s = memory.extra_s()
                ascent.add(extra_s)
                self._sweeps(ascent, taken_off_s, _BETWEEN_PRICES, most=_BETWEEN_PRICES)
            if priced:
                self._sweeps(ascent, taken_off_s, _PATIENCE, most=10**9)
        except _TimeIsOver:
            self._keep(ascent, taken_off_s)
            raise
        return True

    @property
    def reached(self) -> bool:
        """Is the best plan known proven to be optimal?"""
        return self.score >= self.known * (1.0 - 1e-6)

    def _sweeps(self, ascent: Ascent, taken_off_s: float, patience: int, most: int) -> None:
        """Sweep until ``patience`` sweeps in a row have not raised the bound, or ``most`` times."""
        last_bound_s, since_rise = -math.inf, 0
        for sweep in range(most):
            self.check()
            ascent.sweep()
            self.sweeps += 1
            since_rise += 1
            bound_s = ascent.bound_s - taken_off_s
            if bound_s - last_bound_s > _SETTLED * abs(bound_s):
                last_bound_s, since_rise = bound_s, 0
            if sweep % 8 == 0 or since_rise >= patience:
                self._keep(ascent, taken_off_s)
            if since_rise >= patience or self.reached:
                break
        self._keep(ascent, taken_off_s)

    def _keep(self, ascent: Ascent, taken_off_s: float) -> None:
        """Keep the present bound if it is higher than the one kept."""
        if ascent.bound_s - taken_off_s <= self.score * self.base_s:
            return
        score = (ascent.stated_anew() - taken_off_s) / self.base_s * _ROUNDING
        if score > self.score:
            self.score = float(score)
            point = BoundPoint(self.elapsed_s, self.score)
            self.curve.append(point)
            if self.on_progress is not None and (
                point.elapsed_s - self._reported_at >= REPORT_EVERY_S
            ):
                self._reported_at = point.elapsed_s
                self.on_progress(point)

"""The limits of a search: its budget, its clock, and the status that says why it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import time
from collections.abc import Callable, Iterator

from toast_lab import checks
from toast_lab.errors import InvalidProblem
from toast_lab.isolate import Cancelled
from toast_lab.prepare import prepare
from toast_lab.search.ledger import Ledger


class Status(enum.Enum):
    """How a search ended; the value is a sentence for users.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> result = tl.search(problem, "exhaustive", budget=tl.Budget(30))
        >>> result.status is tl.Status.COMPLETE
        True
        >>> [status.name for status in tl.Status]
        ['CONVERGED', 'COMPLETE', 'BUDGET', 'CANCELLED', 'NO_ACTIONS', 'DONE', 'CRASHED']
    """

    CONVERGED = "Further trajectories brought no improvement, so the search stopped early."
    COMPLETE = (
        "Every distinct sharding was priced or ruled out by a bound: the plan is the optimum."
    )
    BUDGET = "The budget was used up; the plan is the best found so far."
    CANCELLED = "The search was stopped; the plan is the best found so far."
    NO_ACTIONS = (
        "No action changes anything on this mesh (it divides no dim), so the program stays "
        "unsharded."
    )
    DONE = "Everything given was priced."
    CRASHED = "The process of the search died; the plan is the best that it had reported."


class Stop(Exception):
    """Raised inside a search when its budget is used up or it was cancelled."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.value)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a search; the one reached first ends it.

    None: no such limit; 0: only the unsharded program is priced. Seconds count searching only: the
    clock starts when kernels are ready (``toast_lab.prepare``), and stops while the search is
    paused or a progress listener is running.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> budget = tl.Budget(seconds=None, evaluations=200)  # the same plan on every machine
        >>> result = tl.search(problem, budget=budget)
        >>> result.evaluations <= 200
        True
    """

    seconds: float | None = 30.0
    evaluations: int | None = None

    def __post_init__(self) -> None:
        offences = {"seconds": "", "evaluations": ""}
        if self.seconds is not None:
            offences["seconds"] = checks.number_offence(self.seconds, 0.0, checks.MOST_SECONDS)
        if self.evaluations is not None:
            offences["evaluations"] = checks.whole_offence(self.evaluations, 0, 2**62)
        if offenders := [f"{key} {offence}" for key, offence in offences.items() if offence]:
            raise InvalidProblem(f"budget: {'; '.join(offenders)} (None: no such limit)")
        if self.seconds is None and self.evaluations is None:
            raise InvalidProblem("budget: give seconds or evaluations, or the search never ends")

    def part(self, share: float) -> Budget:
        """A share of both limits, rounded down."""
        return Budget(
            seconds=None if self.seconds is None else share * self.seconds,
            evaluations=None if self.evaluations is None else int(share * self.evaluations),
        )

    @classmethod
    def checked(cls, given: object) -> Budget:
        """The budget given, or the default budget for None.

        Raises:
            InvalidProblem: ``given`` is something else, such as a number.
        """
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        seconds = f"{given:g}" if isinstance(given, int | float) else "30"
        raise InvalidProblem(
            f"budget must be a Budget, got {given!r:.60}; for {seconds} seconds give "
            f"budget=tl.Budget(seconds={seconds})"
        )


class SearchClock:
    """Counts seconds of searching, including those before a resumption and excluding pauses."""

    def __init__(self) -> None:
        self.start(0.0)

    def start(self, before_s: float) -> None:
        """Go on counting from ``before_s``."""
        self.before_s = before_s
        self._started = time.monotonic()
        self._paused_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of searching so far."""
        return self.before_s + time.monotonic() - self._started - self._paused_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the ``with`` block, for work that is not searching."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused_s += time.monotonic() - began


class Limits:
    """The budget and the cancellation of one search run, measured by its clock and ledger."""

    def __init__(
        self,
        budget: Budget,
        clock: SearchClock,
        ledger: Ledger,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.budget, self.clock, self.ledger, self.cancel = budget, clock, ledger, cancel
        self.evaluations_before = 0  #: distinct states priced before a resumption
        self._is_one_step = False

    def left(self) -> tuple[float, float]:
        """(seconds, evaluations) that the budget still has, infinite where it has no such limit."""
        seconds, evaluations = math.inf, math.inf
        if self.budget.seconds is not None:
            seconds = self.budget.seconds - (self.clock.elapsed_s - self.clock.before_s)
        if self.budget.evaluations is not None and not self._is_one_step:
            evaluations = (
                self.budget.evaluations - self.ledger.evaluations + self.evaluations_before
            )
        return seconds, evaluations

    def start(self, elapsed_s: float) -> None:
        """Begin to count the budget, after ``elapsed_s`` seconds of searching."""
        self.clock.start(elapsed_s)
        self.evaluations_before = self.ledger.evaluations

    def check_cancelled(self) -> None:
        """Raise Stop if the search was cancelled."""
        if self.cancel is not None and self.cancel():
            raise Stop(Status.CANCELLED)

    def check(self) -> None:
        """Raise Stop if the search must end now."""
        self.check_cancelled()
        if min(self.left()) <= 0:
            raise Stop(Status.BUDGET)

    @contextlib.contextmanager
    def one_step(self) -> Iterator[None]:
        """Ignore the limit on evaluations inside the ``with`` block, so that a step is finished."""
        self._is_one_step = True
        try:
            yield
        finally:
            self._is_one_step = False

    def prepare(self, *needs: str) -> None:
        """Load further kernels (see ``toast_lab.prepare``) with the clock stopped."""
        with self.clock.paused():
            try:
                prepare(*needs, cancel=self.cancel)
            except Cancelled:
                # ``Stop`` keeps the best plan found so far.
                raise Stop(Status.CANCELLED) from None

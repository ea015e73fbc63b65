"""Integer programs solved in a child process while the search goes on.

HiGHS needs one core and nothing of the search. The search checks between its steps whether HiGHS
has finished.
"""

from __future__ import annotations

import time

from toast_lab.errors import RunFailed
from toast_lab.isolate import ChildWorker
from toast_lab.search.alpa import integer_program as ip
from toast_lab.search.alpa.solver import SOLVE_FUNCTION, Solver, Steps

_SHARE = 0.95  # share of the time left; the rest is for pricing the result
_LATER_S = 10.0  # time after its own limit at which a child that still runs is stopped


class BackgroundSolver:
    """Solves the programs of a solver, axis by axis and then whole, beside the search.

    No other code may use the solver meanwhile. ``look`` records the plans.

    Args:
        solver: a solver that has begun (``Solver.begin``).

    Attributes:
        is_on_axes: are programs over single axes being solved?
    """

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.is_on_axes = True
        self._steps = self._all_steps()
        self._worker: ChildWorker | None = None
        self._until = 0.0  # deadline of the child, on the clock of time.monotonic()
        self._go_on(None)

    @property
    def under_way(self) -> bool:
        """Is a program being solved?"""
        return self._worker is not None

    def look(self) -> None:
        """Take the result if it is ready, and start to solve the next program if there is one."""
        worker = self._worker
        if worker is None:
            return
        is_over = worker.is_over
        if not is_over and time.monotonic() < self._until:
            return
        outcome: ip.IntegerSolution | None = None
        try:
            outcome = worker.result(0.0)
        except RunFailed:
            self.solver.effort.crashed |= is_over  # else it was merely late
        finally:
            self.stop()
        self._go_on(outcome)

    def stop(self) -> None:
        """Stop the child, if one runs."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _all_steps(self) -> Steps[None]:
        yield from self.solver.axes_steps()
        self.is_on_axes = False
        yield from self.solver.whole_steps()

    def _go_on(self, outcome: ip.IntegerSolution | None) -> None:
        """Start to solve the next program, if there is one and time for it."""
        effort, clock = self.solver.effort, self.solver.recorder.clock
        while self._worker is None and not effort.crashed:
            try:
                program = self._steps.send(outcome)
            except StopIteration:
                return
            outcome = None
            limit_s = min(effort.solve_seconds, _SHARE * (effort.until_s - clock.elapsed_s))
            if limit_s <= 0.0 or len(program.cost) > effort.largest:
                continue
            self._until = time.monotonic() + limit_s + _LATER_S
            self._worker = ChildWorker(
                SOLVE_FUNCTION,
                program,
                limit_s,
                gap=effort.mip_gap,
                nodes=effort.nodes,
                activity="solving an integer program in the background",
            )

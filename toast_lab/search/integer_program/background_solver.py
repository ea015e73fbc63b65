"""Integer programs solved in a child process while the search goes on.

HiGHS needs one core and nothing of the search. The search checks between its steps whether HiGHS
has finished. It is told the answer together with the number of looks that it took, so that a replay
takes the answer at the same step.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from toast_lab.errors import RunFailed
from toast_lab.isolate import ChildWorker
from toast_lab.search.integer_program import integer_program as ip
from toast_lab.search.integer_program.solver import CRASHED, SOLVE_FUNCTION, Solver, Steps

_SHARE = 0.95  # share of the time left; the rest is for pricing the result
_AGAIN = "again"  # told if a search is resumed that had ended before there was an answer
_LATER_S = 10.0  # time after its own limit at which a child that still runs is stopped


class BackgroundSolver:
    """Solves the programs of a solver, axis by axis and then whole, beside the search.

    No other code may use the solver meanwhile. ``look`` records the plans.

    Args:
        solver: a solver that has begun (``Solver.begin``).

    Attributes:
        is_on_axes: are programs over single axes being solved?
        is_interrupted: did the search end before there was an answer, and has it been resumed? The
            programs are then to be solved anew, in the time that there is now.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.is_on_axes, self.is_interrupted = True, False
        self._steps = self._all_steps()
        self._worker: ChildWorker | None = None
        self._until = 0.0  # deadline of the child, on the clock of time.monotonic()
        self._looks = 0
        self._layout: ip.Layout | None = None  #: of the program that is being solved
        self._slot = 0  # of the answer to it, among all that the search is told
        self._coming: list[Any] | None = None  # that answer, if a replay knows it already
        self._go_on(None)

    @property
    def under_way(self) -> bool:
        """Is a program being solved?"""
        return self._layout is not None

    def look(self) -> None:
        """Take the result if it is ready, and start to solve the next program if there is one."""
        recorder, layout = self.solver.recorder, self._layout
        if layout is None:
            return
        self._looks += 1
        if self._coming is not None:
            looks, told = self._coming
            if self._looks < looks:
                return
        elif recorder.replays():
            return  # the search that is replayed had no answer before it ended
        else:
            if not self._is_ready():
                return
            told = self._ask(layout)
            recorder.trace.told[self._slot] = [self._looks, told]
        self._layout = None
        if told == _AGAIN:
            self.is_interrupted = True
            return
        self.solver.effort.crashed |= told == CRASHED
        self._go_on(ip.answer(layout, None if told == CRASHED else told))

    def _is_ready(self) -> bool:
        """Is there something to tell?"""
        worker = self._worker
        return worker is None or worker.is_over or time.monotonic() >= self._until

    def _ask(self, layout: ip.Layout) -> list[Any] | str | None:
        """What HiGHS found, ``CRASHED``, or ``_AGAIN``; None: it was late."""
        if self._worker is None:
            return _AGAIN
        is_over = self._worker.is_over
        try:
            return ip.told(layout, self._worker.result(0.0))
        except RunFailed:
            return CRASHED if is_over else None
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the child, if one runs."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _all_steps(self) -> Steps[None]:
        yield from self.solver.axes_steps()
        self.is_on_axes = False
        yield from self.solver.whole_steps()

    def _go_on(self, answer: ip.Answer | None) -> None:
        """Start to solve the next program, if there is one and time for it."""
        effort, recorder = self.solver.effort, self.solver.recorder
        while self._layout is None and not effort.crashed:
            try:
                program, layout = self._steps.send(answer)
            except StopIteration:
                return
            answer = None
            limit_s = min(effort.solve_seconds, _SHARE * (effort.until_s - recorder.time_s()))
            if limit_s <= 0.0 or len(program.cost) > effort.largest:
                continue
            self._layout, self._looks, self._slot = layout, 0, len(recorder.trace.told)
            is_valid = functools.partial(_is_answer, layout)
            self._coming = recorder.told(lambda: None, is_valid)
            if self._coming is None and not recorder.replays():
                self._until = time.monotonic() + limit_s + _LATER_S
                self._worker = ChildWorker(
                    SOLVE_FUNCTION,
                    program,
                    limit_s,
                    gap=effort.mip_gap,
                    nodes=effort.nodes,
                    activity="solving an integer program in the background",
                )


def _is_answer(layout: ip.Layout, told: Any) -> bool:
    """Can this be [number of looks, what was told then], or None if nothing was told?"""
    if told is None:
        return True
    return (
        isinstance(told, list)
        and len(told) == 2
        and isinstance(told[0], int)
        and (told[1] in (CRASHED, _AGAIN) or ip.is_answer(layout, told[1]))
    )

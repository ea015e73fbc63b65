"""Integer programs in ``mcts``: over the whole program, and from the plan of a start.

A program with few moves can be solved as a whole in seconds, first by colours and then with the
parts of a layer told apart. That is tried once, early (``solve_whole``): chains of ops that have to
change together take a tree search and refinement longest, and in a graph network with some hundred
of them the search never gets to the end of one. If solving takes long, as it does when the parts of
a Transformer's layer are told apart, it runs beside the search (``begin_beside``), which takes over
its plans.

The last step of a start is to solve from its best plan (``improve``). Refinement changes one
neighbourhood at a time, and stops when several distant ones would have to change together. An
integer program over the sharding on one mesh axis, with the other axes as the plan has them,
changes them all. After each axis in turn, one program leaves all axes free, if it is small enough
to be solved in the time left. The objective is a sum of prices of single ops and moves, not C(s);
the result is priced as a plan and taken if it is better.

The integer programs are those of the baseline ``alpa`` (``solver``), which begins at plans of a
single colour; the plans that it finds from there, we mostly find from better ones. The paper has no
such step.
"""

from __future__ import annotations

import numpy as np

from toast_lab.search.integer_program.background_solver import BackgroundSolver
from toast_lab.search.integer_program.solver import (
    MAX_COLUMNS,
    MAX_LOCAL_COLUMNS,
    NODES,
    Effort,
    Solver,
)
from toast_lab.search.integer_program.strategies import ClusteredProgram, price_choices
from toast_lab.search.recorder import Recorder

_STRATEGIES, _GAP, _SOLVE_S, _MEMORY_ROUNDS = 128, 1e-3, 60.0, 4
_GRAINS = ("colours", "roles")
_WHOLE_ROUNDS = 1  # rounds of rows for memory in a program over all axes, before any refinement
# Columns of the largest program if the budget counts evaluations instead of time: a minimum, and
# the number for each evaluation.
_COUNTED, _COUNTED_EACH = 8_000, 2
START_SHARE = 0.7  #: largest share of the time left that one start's integer programs take
#: largest share of the time left that the whole program takes in each grain, before any refinement
WHOLE_PROGRAM_SHARES = {"colours": 0.4, "roles": 0.92}
_MUCH = 0.01  # share of C(s) that the coarser grain has to gain for the finer one to be tried
_GROWTH = 1.1  # time of an integer program grows at least with this power of its columns

Arrays = tuple[np.ndarray, np.ndarray]  #: [O, A] op_factor and [V, A] value_dim of a plan


class _Late(Exception):
    """The time for the work is over."""


class Polish:
    """Solves integer programs from plans; keeps the prices of choices, which are slow to make."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.evaluations: int | None = None  # limit of the budget that is in force
        self.effort = Effort(_GAP, _SOLVE_S, None, None)
        self.solvers: dict[str, Solver | None] = {}
        #: seconds that the last program over all axes took, divided by its ``_relative_work``
        self.rate = 0.0
        #: is a program of the finer grain worth solving beside the search?
        self.beside_is_due = False
        self.beside: BackgroundSolver | None = None

    def improve(self, arrays: Arrays, rank: tuple[float, ...]) -> Arrays:
        """The best plan found from the given one, or the given one.

        Plans are recorded when they are found. ``rank``: rank of the given plan, see
        ``Recorder.rank``.
        """
        recorder = self.recorder
        self._look_at_budget()
        until_s = recorder.until_s(START_SHARE)
        for turn, grain in enumerate(_GRAINS):
            now_s = recorder.time_s()
            share_end_s = now_s + (until_s - now_s) / (len(_GRAINS) - turn)
            solver = self._solver(grain, share_end_s)
            if solver is None or self.effort.crashed or self._is_on_axes(grain):
                continue
            self.effort.until_s = share_end_s
            self.effort.largest = self._largest
            solver.begin(arrays, "by an integer program from this start")
            left_s = share_end_s - recorder.time_s()
            is_large = (
                self.evaluations is None and self.rate * _relative_work(solver) > 0.5 * left_s
            )
            if solver.optimum is None:
                solver.solve_axes(share=1.0 if is_large else 0.5)
            if solver.optimum is not None or not (is_large or self._is_beside(grain)):
                solver.solve_whole()
            if solver.best_rank[:2] < rank[:2]:
                arrays, rank = solver.best_arrays, solver.best_rank
        return arrays

    def solve_whole(self, arrays: Arrays, rank: tuple[float, ...]) -> Arrays:
        """The best plan that programs over all axes find, or the given one.

        A large program of the finer grain is solved beside the search (``beside_is_due``). A
        smaller one is tried here if the coarser grain gained much that changes of single clusters
        did not: over all axes if the time suffices, judged by the time of the coarser one, else
        axis by axis.

        Plans are recorded when they are found. ``rank``: rank of the given plan, see
        ``Recorder.rank``.
        """
        coarse, fine = _GRAINS
        self._look_at_budget()
        outcome = self._solve_grain(coarse, arrays, rank)
        if outcome is None:
            return arrays
        arrays, rank, gained_much = outcome
        # A budget of evaluations rules this out: the result of a program beside the search depends
        # on the speed of the machine.
        if self.evaluations is None:
            solver = self._solver(fine, self.recorder.until_s(WHOLE_PROGRAM_SHARES[fine]))
            self.beside_is_due = (
                solver is not None and MAX_LOCAL_COLUMNS < solver.n_columns <= MAX_COLUMNS
            )
        if gained_much and not self.beside_is_due:
            outcome = self._solve_grain(fine, arrays, rank)
        return arrays if outcome is None else outcome[0]

    def _solve_grain(
        self, grain: str, arrays: Arrays, rank: tuple[float, ...]
    ) -> tuple[Arrays, tuple[float, ...], bool] | None:
        """Solve a grain over all axes, or axis by axis if the time does not suffice.

        Returns:
            (the best plan, its rank, was the gain larger than ``_MUCH``?); None if nothing was
            tried.
        """
        recorder = self.recorder
        until_s = recorder.until_s(WHOLE_PROGRAM_SHARES[grain])
        solver = self._solver(grain, until_s)
        if solver is None or self.effort.crashed:
            return None
        self.effort.until_s = until_s
        # The same limit for every number of evaluations, so that a search resumed with a larger
        # budget agrees with one that had it from the start.
        self.effort.largest = MAX_COLUMNS if self.evaluations is None else _COUNTED
        if grain == _GRAINS[0] and solver.n_columns > self.effort.largest:
            return None
        solver.begin(arrays, "by an integer program")
        relative_work, began_s = _relative_work(solver), recorder.time_s()
        fit_before, score_before = solver.best_rank[:2]
        if began_s + self.rate * relative_work < until_s:
            solver.solve_whole(rounds=_WHOLE_ROUNDS)
        else:
            solver.solve_axes()
        self.rate = (recorder.time_s() - began_s) / relative_work
        if solver.best_rank[:2] >= rank[:2]:
            return arrays, rank, False
        rank = solver.best_rank
        is_much = rank[:2] < (fit_before, (1.0 - _MUCH) * score_before)
        return solver.best_arrays, rank, is_much

    def _look_at_budget(self) -> None:
        """Take over the limit on evaluations, which a search that is resumed may change."""
        self.evaluations = self.recorder.most_evaluations()
        self.effort.nodes = None if self.evaluations is None else NODES

    def begin_beside(self) -> None:
        """Start to solve the finer grain beside the search, from the best plan so far."""
        self.beside_is_due = False
        recorder, grain = self.recorder, _GRAINS[-1]
        solver = self._solver(grain, recorder.until_s(WHOLE_PROGRAM_SHARES[grain]))
        if solver is None:
            return
        own_solver = Solver(
            recorder=recorder,
            choices=solver.choices,
            grain=grain,
            effort=Effort(_GAP, _SOLVE_S, None, None, until_s=recorder.until_s()),
            rounds=_MEMORY_ROUNDS,
        )
        plan = recorder.incumbent.plan()
        own_solver.begin((plan.op_factor, plan.value_dim), "by an integer program beside")
        self.beside = BackgroundSolver(own_solver)

    def _is_beside(self, grain: str) -> bool:
        """Are, or were, the programs of a grain solved beside the search?"""
        return self.beside is not None and grain == self.beside.solver.grain

    def _is_on_axes(self, grain: str) -> bool:
        """Are programs over single axes of a grain being solved beside the search?"""
        beside = self.beside
        return (
            beside is not None and beside.under_way and beside.is_on_axes and self._is_beside(grain)
        )

    @property
    def _largest(self) -> int:
        """Number of columns of the largest program that is solved from a plan."""
        if self.evaluations is None:
            return MAX_COLUMNS
        return min(MAX_COLUMNS, max(_COUNTED, _COUNTED_EACH * self.evaluations))

    def _solver(self, grain: str, until_s: float) -> Solver | None:
        """The solver of a grain; None if its prices took too long to compute, now or before."""
        recorder = self.recorder

        def check() -> None:
            recorder.check()
            if recorder.clock.elapsed_s > until_s:
                raise _Late

        choices: ClusteredProgram | None = None

        def is_late() -> bool:
            nonlocal choices
            try:
                choices = price_choices(recorder.problem, grain, _STRATEGIES, check)
            except _Late:
                return True
            return False

        if grain not in self.solvers:
            self.solvers[grain] = None
            if not recorder.told(is_late):
                # A replay is told that they were priced in time, and prices them without haste.
                choices = choices or price_choices(
                    recorder.problem, grain, _STRATEGIES, recorder.check
                )
                if not choices.has_no_choice:
                    self.solvers[grain] = Solver(
                        recorder=recorder,
                        choices=choices,
                        grain=grain,
                        effort=self.effort,
                        rounds=_MEMORY_ROUNDS,
                    )
        return self.solvers[grain]


def _relative_work(solver: Solver) -> float:
    """A number that the time of a program over all axes is assumed to be proportional to."""
    return float(solver.n_columns) ** _GROWTH

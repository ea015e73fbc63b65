"""A baseline in the manner of Alpa: an integer program over the strategies of every op.

The program chooses one strategy for every cluster of ops (on each mesh axis the name that is split,
all axes at once) and one layout for every cluster of values. An op costs its compute time under its
strategy; if an op and a value disagree, the move between the two layouts costs its time as well, at
the prices of our evaluator. HiGHS finds the choice of least time. The resulting plan is priced; if
its memory is over the limit at some op, a row for that op is added and the program is solved again.

On one page: ``price_choices`` (prices) -> ``_starts`` (one colour split throughout, improved one
cluster at a time) -> ``Solver.solve_axes`` (each mesh axis free in turn, the others fixed) ->
``Solver.solve_whole`` (all axes free) -> the same on a finer grain, in which each role of ops in
all layers has a strategy of its own, from the best plan so far -> if the finest grain is not solved
to its optimum: ``Solver.polish`` (a part of the clusters free at a time), then
``Solver.solve_whole_again`` (all axes free) in the time that is left.

If the budget counts evaluations, the result must be the same on every machine and the work must
follow the budget: HiGHS is limited by nodes, and the columns of all programs together by
``_COLUMNS_EACH`` for every evaluation.

The published form differs in three ways: it cuts the model into pipeline stages with a dynamic
program on top of this one; it takes compute times as about equal for all strategies, and
collectives from measurements or constants; and it lets every op choose separately, in repeated
layers too, after merging elementwise ops into an operand, where we choose by role (see
``terms.grain_rows``). This form adds a roofline for every op, meshes of any number of axes,
copies shared between uses, a memory limit that is kept, and the evaluator's prices throughout. Both
minimise a sum of prices of ops and edges, so no bound of C(s) follows from the optimum.

Reference: Alpa, OSDI 2022, section 4; TOAST section 5 compares with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.search.grains import grains_of
from toast_lab.search.integer_program.solver import NODES, Choice, Effort, Solver
from toast_lab.search.integer_program.strategies import ClusteredProgram, price_choices
from toast_lab.search.limits import Status
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.state import State, legal_actions

if TYPE_CHECKING:
    from toast_lab.search.method_options import AlpaOptions

_COLUMNS_EACH = 25  # columns for every evaluation, if the budget counts evaluations


def run(recorder: Recorder, seed: int, options: AlpaOptions) -> Status:
    """Solve from coarse to fine grains, until all are solved or the budget is used up.

    Args:
        recorder: prices, records and stops the search.
        seed: seed of the order in which parts of a program are solved that is too large as a whole.
        options: see ``methods.Alpa``.
    """
    grains = grains_of(options.grains)
    recorder.check()
    counts_evaluations = recorder.most_evaluations() is not None
    columns = _COLUMNS_EACH * recorder.evaluations_left() if counts_evaluations else None
    effort = Effort(
        options.mip_gap, options.solve_seconds, NODES if counts_evaluations else None, columns
    )
    best: tuple[np.ndarray, np.ndarray] | None = None  # arrays of the best plan
    unfinished: list[Solver] = []
    for turn, grain in enumerate(grains):
        recorder.round += 1
        choices = price_choices(recorder.problem, grain, options.max_strategies, recorder.check)
        if choices.has_no_choice:
            return Status.NO_ACTIONS
        # Each grain may take an equal share of the time that is left.
        effort.until_s = recorder.until_s(1.0 / (len(grains) - turn))
        solver = Solver(
            recorder=recorder,
            choices=choices,
            grain=grain,
            effort=effort,
            rounds=options.memory_rounds,
        )
        for choice, label in (
            [(choices.choice_of(*best), "plan so far")] if best else _starts(recorder, choices)
        ):
            solver.price_start(choice, label)
        if not solver.run():
            unfinished.append(solver)
        best = solver.best_arrays
    effort.until_s = recorder.until_s()
    rng = np.random.default_rng(seed)
    if (
        unfinished and unfinished[-1].grain == grains[-1]
    ):  # else the finest grain is solved, which covers the others
        for turn_number, solver in enumerate([*unfinished, *unfinished]):
            # First small parts, then all at once: a grain may have run out of its share of the time
            # while later grains did not use theirs.
            recorder.round += 1
            solver.go_on_from(best)
            if turn_number < len(unfinished):
                solver.polish(rng)
            else:
                solver.solve_whole_again()
            best = solver.best_arrays
    return Status.CRASHED if effort.crashed else Status.CONVERGED


def _starts(recorder: Recorder, choices: ClusteredProgram) -> Iterator[tuple[Choice, str]]:
    """The unsharded choice, and the best three splits of one colour, on one axis or several."""
    space = recorder.problem.space
    candidates: list[tuple[tuple[float, ...], State, str]] = []

    def add(state: State, texts: list[str]) -> None:
        rank = recorder.rank(recorder.price(state), len(texts))
        candidates.append((rank, state.copy(), " ".join(texts)))

    root = State(space)
    yield (
        choices.choice_of(root.op_factor, root.value_dim),
        "unsharded" if space.fixed is None else "pins alone",
    )
    for action in legal_actions(root):
        recorder.check()
        state, texts = root.copy(), [space.text(action)]
        state.apply(action)
        add(state, texts)
        for axis in range(len(space.mesh.axes)):
            next_action = action._replace(axis=axis)
            if axis > action.axis and state.apply(next_action):
                texts.append(space.text(next_action))
        if len(texts) > 1:
            add(state, texts)
    for _, state, text in sorted(candidates, key=lambda candidate: candidate[0])[:3]:
        yield choices.choice_of(state.op_factor, state.value_dim), text

"""The rival of AlpaOptions's kind: an integer program over the strategies of every op.

One strategy is chosen for every cluster of ops (on each mesh axis the name that is split, all axes
at once) and one layout for every cluster of values.  An op costs its compute time under its
strategy; where an op and a value disagree the move between the two layouts is to pay, at the prices
of our evaluator.  HiGHS finds the choice of least time.  The plan is then priced: where memory is
over the limit a row for that op is added and the program solved again.

On one page: ``price_choices`` (prices) -> ``_starts`` (one colour split throughout, improved one
cluster at a time) -> ``Solver.solve`` with all mesh axes but one as they are, each axis in turn ->
with all axes free -> the same on a finer grain, where ops of one role in every layer choose for
themselves, going on from the plan found -> what was too large or ended by the time again with all
that is left -> ``Solver.polish`` with a part of the clusters free at a time.

Where the budget counts evaluations, the result is to be the same on every machine and the work to
follow the budget: HiGHS is limited by nodes, and the columns of all programs together by
``_COLUMNS_EACH`` for every evaluation.

What the published form does that this does not: it cuts the model into pipeline stages with a
dynamic program over this one; it takes compute times to be about equal for all strategies and
collectives from measurements or constants. It lets every op choose for itself, repeated layers too,
after merging elementwise ops into an operand; we do so by role, see ``strategies.cluster``.  What
this has and the published form does not: a roofline for every op, meshes of any number of axes,
copies that are shared between uses, a memory limit that is kept, and the evaluator's prices
throughout. Like it, what is minimised is a sum of prices of ops and edges, so that no bound on C(s)
follows from its optimum.

Reference: AlpaOptions, OSDI 2022, section 4; TOAST section 5 compares with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.search.alpa.solver import NODES, Choice, Effort, Solver
from toast_lab.search.alpa.strategies import ClusteredProgram, price_choices
from toast_lab.search.grains import grains_of
from toast_lab.search.limits import Status
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.state import State, legal_actions

if TYPE_CHECKING:
    from toast_lab.search.method_options import AlpaOptions

_COLUMNS_EACH = 25  # columns for every evaluation where the budget counts those


def run(recorder: Recorder, seed: int, options: AlpaOptions) -> Status:
    """Solve from the coarse to the fine, until it is solved or the budget is used up.

    Args:
        recorder: prices, records and stops the search.
        seed: of the order in which parts of a program too large to be solved as a whole are solved.
        options: see ``methods.Alpa``.
    """
    passes = grains_of(options.grains)
    recorder.check()
    counted = recorder.limits.budget.evaluations is not None
    columns = _COLUMNS_EACH * recorder.left()[1] if counted else None
    effort = Effort(options.mip_gap, options.solve_seconds, NODES if counted else None, columns)
    best: tuple[np.ndarray, np.ndarray] | None = None  # arrays of the best plan
    unfinished: list[Solver] = []
    for turn, grain in enumerate(passes):
        recorder.round += 1
        choices = price_choices(recorder.problem, grain, options.max_strategies, recorder.check)
        if choices.none:
            return Status.NO_ACTIONS
        # Each grain may take an equal part of the time that is left.
        effort.until_s = recorder.clock.elapsed_s + recorder.left()[0] / (len(passes) - turn)
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
            solver.try_start(choice, label)
        if not solver.run():
            unfinished.append(solver)
        best = solver.best_arrays
    effort.until_s = recorder.clock.elapsed_s + recorder.left()[0]
    rng = np.random.default_rng(seed)
    if (
        unfinished and unfinished[-1].grain == passes[-1]
    ):  # else the finest is solved, and with it all
        for turn_number, solver in enumerate([*unfinished, *unfinished]):
            # First small parts, and then all at once: what a grain had may have ended before the
            # others needed theirs.
            recorder.round += 1
            solver.go_on_from(best)
            if turn_number < len(unfinished):
                solver.polish(rng)
            else:
                solver.again()
            best = solver.best_arrays
    return Status.CRASHED if effort.crashed else Status.CONVERGED


def _starts(recorder: Recorder, choices: ClusteredProgram) -> Iterator[tuple[Choice, str]]:
    """The best three ways to split one colour throughout, on one mesh axis or on several."""
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
            more = action._replace(axis=axis)
            if axis > action.axis and state.apply(more):
                texts.append(space.text(more))
        if len(texts) > 1:
            add(state, texts)
    for _, state, text in sorted(candidates, key=lambda candidate: candidate[0])[:3]:
        yield choices.choice_of(state.op_factor, state.value_dim), text

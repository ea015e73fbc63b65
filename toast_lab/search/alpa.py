"""The rival of Alpa's kind: an integer program over the strategies of every op.

One strategy is chosen for every cluster of ops (on each mesh axis the name that is split, all axes at once) and one
layout for every cluster of values.  An op costs its compute time under its strategy; where an op and a value disagree
the move between the two layouts is to pay, at the prices of our evaluator.  HiGHS finds the choice of least time.  The
plan is then priced: where memory is over the limit a row for that op is added and the program solved again.

On one page: ``price_choices`` (prices) -> ``_starts`` (one colour split throughout, improved one cluster at a time) ->
``_Solver.solve`` with all mesh axes but one as they are, each axis in turn -> with all axes free -> the same on a finer
grain, where ops of one role in every layer choose for themselves, going on from the plan found -> what was too large
or ended by the time again with all that is left -> ``_Solver.polish`` with a part of the clusters free at a time.

Where the budget counts evaluations, the result is to be the same on every machine and the work to follow the budget:
HiGHS is limited by nodes, and the columns of all programs together by ``_COLUMNS_EACH`` for every evaluation.

What the published form does that this does not: it cuts the model into pipeline stages with a dynamic program over
this one; it takes compute times to be about equal for all strategies and collectives from measurements or constants.
It lets every op choose for itself, repeated layers too, after merging elementwise ops into an operand; we do so by
role, see ``strategies.cluster``.  What this has and the published form does not: a roofline for every op, meshes of any
number of axes, copies that are shared between uses, a memory limit that is kept, and the evaluator's prices throughout.
Like it, what is minimised is a sum of prices of ops and edges, so that no bound on C(s) follows from its optimum.

Reference: Alpa, OSDI 2022, section 4; TOAST section 5 compares with it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from toast_lab.cost.problem import Problem, Quick, Totals
from toast_lab.errors import InvalidProblem, RunFailed, did_you_mean
from toast_lab.isolate import Cancelled, run_in_child
from toast_lab.search import integer_program as ip
from toast_lab.search.contract import Recorder, Status, Stop
from toast_lab.search.descent import Descent
from toast_lab.search.memory_rows import MemoryRows, crowded
from toast_lab.search.strategies import GRAINS, Choices, price_choices, spread
from toast_lab.sharding.state import State, legal_actions

_CHILD = "toast_lab.search.integer_program:solve"
_SMALL = 20_000  # columns; programs up to here are first tried in this process, as a child takes a while to start
_SMALL_SECONDS = 0.5  # for so long, as that cannot be cancelled
_LARGE = 300_000  # columns; beyond, HiGHS finds nothing in minutes
_COLUMNS_EACH = 25  # columns for every evaluation where the budget counts those
_NODES = 20  # of branch and bound, where the budget counts evaluations
_PART = 8_000  # columns of a part of the program that is solved alone
_QUIET = 12  # such parts in a row that bring nothing, after which the search has converged
_MOST_ROWS = 32  # for memory, the latest
_PATIENCE = 3  # rounds of memory rows without a better plan
_TIE = 1e-4  # part of the unsharded time that all ties together may come to

Choice = tuple[np.ndarray, np.ndarray]  #: [K] and [L] number of the choice of each op cluster and each value cluster
Part = tuple[list[np.ndarray], list[np.ndarray]]  #: numbers of the choices that each op and value cluster may make


def run(
    recorder: Recorder,
    seed: int,
    *,
    grains: str = "colours,roles",
    max_strategies: int = 128,
    mip_gap: float = 1e-3,
    solve_seconds: float = 60.0,
    memory_rounds: int = 8,
) -> Status:
    """Solve the integer program, from the coarse to the fine, until it is solved or the budget is used up.

    Args:
        recorder: prices, records and stops the search.
        seed: of the order in which parts of a program too large to be solved as a whole are solved.
        grains: how finely ops are told apart, one pass each, see ``strategies.cluster``.
        max_strategies: strategies of an op and layouts of a value that are looked at; beyond that the quickest ops and
            the most split values.
        mip_gap: relative gap at which HiGHS may stop.
        solve_seconds: most that one call of HiGHS may take; where the budget counts evaluations,
            nodes and columns are limited too.
        memory_rounds: how often rows for memory are added before the best plan so far is taken.
    """
    passes = [g.strip() for g in grains.split(",")]
    unknown = [g for g in passes if g not in GRAINS]
    wrong = [f"no grain is called {g!r}{did_you_mean(g, GRAINS)}; grains: {', '.join(GRAINS)}" for g in unknown]
    least = {"max_strategies": (max_strategies, 2), "memory_rounds": (memory_rounds, 0)}
    wrong += [f"{name}={value} must be at least {low}" for name, (value, low) in least.items() if value < low]
    if not mip_gap >= 0 or not solve_seconds > 0:
        wrong.append(f"mip_gap={mip_gap} must not be negative and solve_seconds={solve_seconds} must be above 0")
    if wrong:
        raise InvalidProblem(f"alpa: {'; '.join(wrong)}")
    recorder.check()
    counted = recorder.budget.evaluations is not None
    columns = _COLUMNS_EACH * recorder.left()[1] if counted else None
    effort = _Effort(mip_gap, solve_seconds, _NODES if counted else None, columns)
    best: tuple[np.ndarray, np.ndarray] | None = None  # arrays of the best plan
    unfinished: list[_Solver] = []
    for turn, grain in enumerate(passes):
        recorder.round += 1
        choices = price_choices(recorder.problem, grain, max_strategies, recorder.check)
        if max(map(len, (*choices.compute_s, *choices.layout)), default=1) == 1:
            return Status.NO_ACTIONS
        # Each grain may take an equal part of the time that is left.
        effort.until_s = recorder.elapsed_s + recorder.left()[0] / (len(passes) - turn)
        solver = _Solver(recorder, choices, grain, effort, memory_rounds)
        for choice, label in [(choices.choice_of(*best), "plan so far")] if best else _starts(recorder, choices):
            solver.try_(choice, f"{grain}: {label}")
            solver.try_(solver.descent.improve(*choice, recorder.check), f"{grain}: {label}, descent")
        if not solver.run():
            unfinished.append(solver)
        best = solver.best_arrays
    effort.until_s = recorder.elapsed_s + recorder.left()[0]
    rng = np.random.default_rng(seed)
    if unfinished and unfinished[-1].grain == passes[-1]:  # else the finest is solved, and with it all
        for number, solver in enumerate([*unfinished, *unfinished]):
            # First small parts, and then all at once: what a grain had may have ended before the others needed theirs.
            recorder.round += 1
            solver.go_on_from(best)
            if number < len(unfinished):
                solver.polish(rng)
            else:
                solver.again()
            best = solver.best_arrays
    return Status.CRASHED if effort.crashed else Status.CONVERGED


@dataclasses.dataclass
class _Effort:
    """What HiGHS may take, one call and all together."""

    mip_gap: float
    solve_seconds: float
    nodes: int | None  #: None: as many as it takes
    columns: float | None  #: that all programs together may still have; None: no limit
    until_s: float = np.inf  #: of the search, when this grain's part of the time ends
    crashed: bool = False


def _starts(recorder: Recorder, choices: Choices) -> Iterator[tuple[Choice, str]]:
    """The best three ways to split one colour throughout, on one mesh axis or on as many as divide it."""
    space = recorder.problem.space
    found: list[tuple[tuple[float, ...], int, State, str]] = []
    root = State(space)
    yield choices.choice_of(root.op_axis, root.value_axis), "unsharded"
    for action in legal_actions(root):
        recorder.check()
        state, texts = root.copy(), [space.text(action)]
        state.apply(action)
        found.append((recorder.rank(recorder.price(state), 1), len(found), state.copy(), texts[0]))
        for axis in range(len(space.mesh.axes)):
            more = action._replace(axis=axis)
            if axis > action.axis and state.apply(more):
                texts.append(space.text(more))
        if len(texts) > 1:
            found.append((recorder.rank(recorder.price(state), len(texts)), len(found), state, " ".join(texts)))
    for _, _, state, text in sorted(found, key=lambda f: f[:2])[:3]:
        yield choices.choice_of(state.op_axis, state.value_axis), text


class _Solver:
    """One grain: prices choices as plans, keeps the best, and solves for better ones."""

    def __init__(
        self,
        recorder: Recorder,
        choices: Choices,
        grain: str,
        effort: _Effort,
        rounds: int,
    ) -> None:
        self.recorder, self.choices, self.grain, self.effort, self.rounds = recorder, choices, grain, effort, rounds
        self.axes = [a for a, size in enumerate(recorder.problem.mesh.sizes) if size > 1]
        self.given_s = 0.0  # most that HiGHS was given for the whole program
        problem = recorder.problem
        self.limit_bytes = problem.memory_limit_bytes
        self.tie = _ties(problem, choices)
        self.descent = Descent(choices, self.tie)
        self.memory = MemoryRows(problem, choices)
        self.held: list[ip.Bytes] = []  # rows for memory so far
        self.best: Choice | None = None
        self.best_rank: tuple[float, ...] = ()
        self.best_fits = False
        # What a limit's worth of bytes above the limit costs: the penalty of C(s), and never less than it saves.
        base_s, base_peak = problem.baseline
        self.penalty_s = problem.memory_weight * self.limit_bytes / base_peak * base_s if base_peak > 0 else 0.0
        self.firm_s = max(self.penalty_s, 10.0 * base_s)
        self.over_s = self.firm_s

    @property
    def best_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """``(op_axis, value_axis)`` of the best plan of this grain."""
        assert self.best is not None
        return spread(self.recorder.problem, self.choices, *self.best)

    def try_(self, choice: Choice, label: str) -> Quick:
        """Price a choice as a plan."""
        self.recorder.check()
        quick = self.recorder.record_plan(*spread(self.recorder.problem, self.choices, *choice), [label])
        rank = self.recorder.rank(quick, 1)
        if self.best is None or rank < self.best_rank:
            self.best, self.best_rank, self.best_fits = choice, rank, quick.fits
        return quick

    def run(self) -> bool:
        """Axis by axis until nothing gets better, then all at once.  Was the last program solved to its optimum?"""
        share_s, half_s = self.effort.until_s, (self.effort.until_s + self.recorder.elapsed_s) / 2
        late_s = max(share_s, self.recorder.elapsed_s + 0.75 * self.recorder.left()[0])
        for _ in range(3 if len(self.axes) > 1 else 0):
            before = self.best_rank
            for axis in self.axes:
                # What does not fit is of little use: nothing finer is looked at before.
                self.effort.until_s = half_s if self.best_fits else late_s
                self._stage(self._along([axis]), f"{self.recorder.problem.mesh.axes[axis]} free")
            if self.best_rank == before:
                break
        self.effort.until_s = share_s
        self.given_s = self._limit_s()
        return self._stage(self._along(self.axes), "all axes free")

    def go_on_from(self, arrays: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Take a plan found at another grain, if this grain has it and it is better."""
        if arrays is not None and any((a != b).any() for a, b in zip(arrays, self.best_arrays, strict=True)):
            self.try_(self.choices.choice_of(*arrays), f"{self.grain}: plan so far")

    def again(self) -> bool:
        """Solve the whole program once more, if there is much more time for it than there was."""
        if self.effort.crashed or self.effort.columns is not None or self._limit_s() < 1.5 * self.given_s:
            return False
        return self._stage(self._along(self.axes), "all axes free, again")

    def polish(self, rng: np.random.Generator) -> None:
        """Solve the program with a part of the clusters free at a time, until that brings nothing."""
        heads = [k for k, time_s in enumerate(self.choices.compute_s) if len(time_s) > 1 and self.descent.links[k]]
        quiet = 0 if heads else _QUIET
        while quiet < _QUIET and not self.effort.crashed:
            self.recorder.check()
            if self._limit_s() <= 0:
                return
            before = self.best_rank
            part = self._near(heads[rng.integers(len(heads))])
            self._stage(part, f"{sum(len(k) > 1 for k in part[0])} clusters of ops free")
            quiet = quiet + 1 if self.best_rank == before else 0
            if self.effort.columns is not None and self.effort.columns < _PART:
                return

    def _stage(self, part: Part, label: str) -> bool:
        """Solve a part of the choices; add rows for memory until it fits.  Was the program solved to its optimum?"""
        seen: set[bytes] = set()
        turned = False
        better = 0  # turn that brought the last improvement
        left_out = self.choices.menus.left_out
        for turn in range(self.rounds + 1):
            before = self.best_rank
            solved = self._solve(part)
            if solved is None:
                return False
            choice, found = solved
            text = f"{self.grain}: {label}, gap {found.gap:.1e}" + (f", memory row {turn}" if turn else "")
            quick = self.try_(choice, text + (f", {left_out} choices left out" if left_out else ""))
            key = choice[0].tobytes() + choice[1].tobytes()
            better = turn if self.best_rank < before else better
            if quick.fits:
                break
            if key in seen or turn - better >= _PATIENCE:
                # Either to fit is out of reach, and C(s) is the measure, or it was not asked for firmly enough.
                if turned or self.best_fits or self.penalty_s == self.firm_s:
                    break
                self.over_s = self.penalty_s if self.over_s == self.firm_s else self.firm_s
                turned, better = True, turn
                seen.clear()
            seen.add(key)
            self._bound_memory(choice)
        return found.optimal

    def _along(self, free: Sequence[int]) -> Part:
        """Numbers of the choices that are as in the best plan on every axis that is not free."""
        assert self.best is not None
        fixed = [a for a in range(len(self.recorder.problem.mesh.axes)) if a not in free]

        def same(menus: list[np.ndarray], chosen: np.ndarray) -> list[np.ndarray]:
            return [
                np.flatnonzero((m[:, fixed] == m[c, fixed]).all(axis=1)) for m, c in zip(menus, chosen, strict=True)
            ]

        return same(self.choices.menus.ops, self.best[0]), same(self.choices.menus.values, self.best[1])

    def _near(self, op: int) -> Part:
        """All choices of the clusters around an op cluster, as many as make a small program; of others as in the plan.

        The nearer in moves the sooner a cluster is free.
        """
        assert self.best is not None
        widths = [*map(len, self.choices.compute_s), *map(len, self.choices.layout)]
        n_ops, links = len(self.choices.compute_s), self.descent.links
        free, edge, columns = {op}, [op], widths[op]
        for node in edge:  # grows while it is gone through
            for other in links[node]:
                more = widths[other] * (1 + sum(widths[n] for n in links[other] if n in free))
                if other not in free and columns + more <= _PART:
                    free.add(other)
                    edge.append(other)
                    columns += more
        kept = [
            np.arange(width) if node in free else np.asarray([chosen])
            for node, (width, chosen) in enumerate(zip(widths, np.concatenate(self.best).tolist(), strict=True))
        ]
        return kept[:n_ops], kept[n_ops:]

    def _solve(self, part: Part) -> tuple[Choice, ip.Solved] | None:
        """The best choice among a part of them, None if none was found in time."""
        self.recorder.check()
        assert self.best is not None
        choices = self.choices.only(*part)
        known_s = self.descent.objective_s(*self.best) if self.best_fits and not self.held else None
        program, layout = ip.assemble(
            choices, [t[k] for t, k in zip(self.tie, part[1], strict=True)],
            bytes_rows=[_cut(row, self.choices, choices, part[1]) for row in self.held],
            limit_bytes=self.limit_bytes, over_s=self.over_s, known_s=known_s, check=self.recorder.check,
        )  # fmt: skip
        found = self._highs(program)
        if found is None or found.x is None:
            return None
        ops, values = ip.chosen(layout, found.x)
        picked = [np.asarray([int(k[i]) for k, i in zip(keep, chosen, strict=True)], np.int64)
                  for keep, chosen in zip(part, (ops, values), strict=True)]  # fmt: skip
        return (picked[0], picked[1]), found

    def _limit_s(self) -> float:
        """Most that one call of HiGHS may take now."""
        return min(self.effort.solve_seconds, 0.8 * (self.effort.until_s - self.recorder.elapsed_s))

    def _highs(self, program: ip.IntegerProgram) -> ip.Solved | None:
        recorder, effort, n = self.recorder, self.effort, len(program.cost)
        recorder.check()
        limit_s, left_s = self._limit_s(), recorder.left()[0]
        if limit_s <= 0 or n > min(_LARGE, np.inf if effort.columns is None else effort.columns):
            return None
        if effort.columns is not None:
            effort.columns -= n
        if n <= _SMALL:
            found = ip.solve(program, min(limit_s, _SMALL_SECONDS), effort.mip_gap, effort.nodes)
            if not found.out_of_time or limit_s <= _SMALL_SECONDS:
                return found
        try:
            return run_in_child(
                _CHILD, program, limit_s, effort.mip_gap, effort.nodes,
                time_limit_s=min(limit_s + 10.0, left_s), cancel=recorder.cancel, what="solving alpa's integer program",
            )  # fmt: skip
        except Cancelled:
            raise Stop(Status.CANCELLED) from None
        except RunFailed as failure:
            recorder.check()  # its time was up
            effort.crashed = effort.crashed or "no result within" not in str(failure)
            return None

    def _bound_memory(self, choice: Choice) -> None:
        """Bound memory at the ops where the plan of a choice has too much of it."""
        problem = self.recorder.problem
        priced: Totals = self.recorder.pricer.totals(*spread(problem, self.choices, *choice))
        for at in crowded(priced.live[:-1], self.limit_bytes):
            self.recorder.check()
            self.held.append(self.memory.bytes_at(at, priced, *choice, self.recorder.check))
        del self.held[:-_MOST_ROWS]


def _cut(row: ip.Bytes, whole: Choices, part: Choices, values: list[np.ndarray]) -> ip.Bytes:
    """A row for a part of the choices."""

    @functools.cache
    def place(g: int) -> tuple[np.ndarray, np.ndarray]:
        kept = np.searchsorted(whole.groups[g].distinct, part.groups[g].distinct)
        return np.ix_(kept, values[whole.groups[g].value])  # type: ignore[return-value]

    return row._replace(
        values={k: size[values[k]] for k, size in row.values.items()},
        groups={g: size[place(g)] for g, size in row.groups.items()},
        shared={key: size[place(key[0])] for key, size in row.shared.items()},
    )


def _ties(problem: Problem, choices: Choices) -> list[np.ndarray]:
    """L of [T] seconds, so little that no time is given for them: of layouts that cost the same the smaller is kept."""
    t, f, m = choices.clusters.folded.tables, choices.clusters.folded.facts, choices.clusters.folded.memory
    held = np.zeros(len(choices.layout))
    np.add.at(held, t.value_row[m.buffer_value], f.value.bytes[m.buffer_value])
    each = _TIE * problem.baseline[0] / max(float(held.sum()), 1.0) / float(np.prod(problem.mesh.array()))
    axis_size = problem.mesh.array()
    return [
        held[k] * each / np.where(menu >= 0, axis_size, 1).prod(axis=1)
        for k, menu in enumerate(choices.menus.values)
    ]  # fmt: skip

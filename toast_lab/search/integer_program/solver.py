"""One grain of the integer program: price choices, keep the best, solve for better ones.

``alpa`` consists of this; ``mcts`` solves from the plans that it found (``polish``).

If the budget counts evaluations, the result must be the same on every machine, so HiGHS is limited
by nodes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.cost.program_prices import Totals
from toast_lab.errors import RunFailed
from toast_lab.isolate import Cancelled, run_in_child
from toast_lab.search.integer_program import integer_program as ip
from toast_lab.search.integer_program.descent import Descent
from toast_lab.search.integer_program.memory_rows import MemoryRows, crowded
from toast_lab.search.integer_program.strategies import ClusteredProgram, rows_at, spread
from toast_lab.search.limits import Status, Stop
from toast_lab.search.recorder import Recorder
from toast_lab.search.terms.menus import unpacked_layouts
from toast_lab.sharding import steps

SOLVE_FUNCTION = "toast_lab.search.integer_program.integer_program:solve"
# Most columns of a program that is first tried in this process, since a child is slow to start.
MAX_LOCAL_COLUMNS = 20_000
_SMALL_SECONDS = 0.5  # time limit in this process, where HiGHS cannot be cancelled
MAX_COLUMNS = 300_000  #: columns above which HiGHS finds nothing in minutes
_PART = 8_000  # most columns of a part of the program that is solved alone
_QUIET = 12  # parts in a row without improvement after which the search has converged
_MOST_ROWS = 32  # most rows for memory; the latest are kept
_PATIENCE = 3  # rounds of memory rows without a better plan after which the mode changes or ends
_PROVEN = 5e-7  # gap of an integer program below which its solution is the optimum
_TIE = 1e-4  # most that all ties together may come to, as a share of the unsharded time
NODES = 20  #: nodes of branch and bound, if the budget counts evaluations

Choice = tuple[
    np.ndarray, np.ndarray
]  #: [K] index of each op cluster's choice, [L] index of each value cluster's choice
Part = tuple[
    list[np.ndarray], list[np.ndarray]
]  #: indices of the choices that each op cluster and each value cluster may take
T = TypeVar("T")
#: Yields programs to solve, receives the answer to each (None: not solved), and returns a T.
Steps = Generator[tuple[ip.IntegerProgram, ip.Layout], ip.Answer | None, T]
CRASHED = "crashed"  #: told instead of an answer if HiGHS crashed


@dataclasses.dataclass
class Effort:
    """Limits of HiGHS, of one call and of all calls together."""

    mip_gap: float
    solve_seconds: float
    nodes: int | None  #: nodes of branch and bound; None: no limit
    columns: float | None  #: columns that all further programs may have together; None: no limit
    until_s: float = np.inf  #: when this grain's share of the time ends, on the search's clock
    largest: int = MAX_COLUMNS  #: columns of the largest program that is tried
    crashed: bool = False  #: has HiGHS crashed?


class Solver:
    """One grain: prices choices as plans, keeps the best, and solves for better ones."""

    def __init__(
        self,
        recorder: Recorder,
        choices: ClusteredProgram,
        grain: str,
        effort: Effort,
        rounds: int,
    ) -> None:
        self.recorder = recorder
        self.choices = choices
        self.grain = grain
        self.effort = effort
        self.rounds = rounds
        self.axes = [axis for axis, size in enumerate(recorder.problem.mesh.sizes) if size > 1]
        self.given_s = 0.0  # time limit of HiGHS when it last solved the whole program
        problem = recorder.problem
        self.limit_bytes = problem.memory_limit_bytes
        self.tie = _ties(problem, choices)
        self.descent = Descent(choices, self.tie)
        self.memory = MemoryRows(problem, choices)
        self.held: list[ip.Bytes] = []  # rows for memory in force
        self.best: Choice | None = None
        self.best_rank: tuple[float, ...] = ()
        self.best_fits = False
        #: The optimum of the whole program without rows for memory, which no start changes.
        self.optimum: Choice | None = None
        # Seconds for exceeding the memory limit by its own size: by the penalty of C(s)
        # (``penalty_s``), or firmly (``firm_s``), which is more than it could save.
        base_s, base_peak = problem.baseline
        self.penalty_s = (
            problem.memory_weight * self.limit_bytes / base_peak * base_s if base_peak > 0 else 0.0
        )
        self.firm_s = max(self.penalty_s, 10.0 * base_s)
        self.over_s = self.firm_s

    @property
    def n_columns(self) -> int:
        """About the number of columns of the whole program; nearly all of them are of moves."""
        used = {term.group for term in self.choices.terms}
        groups = map(self.choices.groups.__getitem__, used)
        return sum(len(group.distinct) * len(self.choices.layout[group.value]) for group in groups)

    @property
    def best_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """``(op_factor, value_dim)`` of the best plan of this grain."""
        assert self.best is not None
        return spread(self.recorder.problem, self.choices, *self.best)

    def price_choice(self, choice: Choice, label: str) -> Quick:
        """Price a choice as a plan."""
        self.recorder.check()
        quick = self.recorder.record_plan(
            *spread(self.recorder.problem, self.choices, *choice), [label]
        )
        rank = self.recorder.rank(quick, 1)
        if self.best is None or rank < self.best_rank:
            self.best, self.best_rank, self.best_fits = choice, rank, quick.fits
        return quick

    def begin(self, arrays: tuple[np.ndarray, np.ndarray], label: str) -> None:
        """Forget the best plan and all rows for memory; begin at the choices nearest to a plan."""
        self.best, self.held, self.over_s = None, [], self.firm_s
        self.price_start(self._nearest(arrays), label)

    def price_start(self, choice: Choice, label: str) -> None:
        """Price a choice as a plan, and the choice that descent reaches from it."""
        self.price_choice(choice, f"{self.grain}: {label}")
        improved = self.descent.improve(*choice, self.recorder.check)
        self.price_choice(improved, f"{self.grain}: {label}, descent")

    def run(self) -> bool:
        """Solve axis by axis until no plan is better, then all axes at once.

        Returns whether the last program was solved to its optimum.
        """
        self.solve_axes()
        return self.solve_whole()

    def solve_axes(self, share: float = 0.5) -> None:
        """Solve for each axis in turn, with the others as they are, until no plan is better.

        ``share``: largest share of this grain's time; the rest is for the whole program.
        """
        self._solve_each(self.axes_steps(share))

    def axes_steps(self, share: float = 0.5) -> Steps[None]:
        """``solve_axes`` for callers that solve programs themselves (``background_solver``)."""
        grain_until_s, now_s = self.effort.until_s, self.recorder.time_s()
        axes_until_s = now_s + share * (grain_until_s - now_s)
        late_until_s = max(grain_until_s, self.recorder.until_s(0.75))
        solved: dict[int, tuple[float, ...]] = {}  # axis -> best rank when it was last solved
        for _ in range(3 if len(self.axes) > 1 else 0):
            for axis in self.axes:
                if solved.get(axis) == self.best_rank:
                    continue
                # A plan that fits comes first: until there is one, take time of the finer grains.
                self.effort.until_s = axes_until_s if self.best_fits else late_until_s
                label = f"{self.recorder.problem.mesh.axes[axis]} free"
                yield from self._steps(self._along([axis]), label)
                solved[axis] = self.best_rank
        self.effort.until_s = grain_until_s

    def solve_whole(self, rounds: int | None = None) -> bool:
        """Solve for all axes at once; returns whether the last program was solved to its optimum.

        Args:
            rounds: most rounds of rows for memory; None: as many as for parts of the program.
        """
        return self._solve_each(self.whole_steps(rounds))

    def whole_steps(self, rounds: int | None = None) -> Steps[bool]:
        """``solve_whole`` for callers that solve programs themselves (``background_solver``)."""
        self.given_s = self._limit_s(self.recorder.time_s())
        if self.optimum is not None:
            self.price_choice(self.optimum, f"{self.grain}: all axes free, optimal")
            return True
        whole = self._along(self.axes)
        return (yield from self._steps(whole, "all axes free", rounds, whole=True))

    def go_on_from(self, arrays: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Price the choices nearest to a plan of another grain, unless it is this grain's best."""
        if arrays is not None and any(
            (new != known).any() for new, known in zip(arrays, self.best_arrays, strict=True)
        ):
            self.price_choice(self._nearest(arrays), f"{self.grain}: plan so far")

    def _nearest(self, arrays: tuple[np.ndarray, np.ndarray]) -> Choice:
        """The choices nearest to a plan, with its values as lowering keeps them.

        A value kept in a layout that no use wants costs a plan nothing, since lowering takes such
        moves back; in a sum of moves it would cost time.
        """
        op_factor, value_dim = arrays
        tables = steps.tables(self.recorder.problem.analysis.program)
        kept = steps.kept_layouts(tables, op_factor, value_dim)
        return self.choices.choice_of(op_factor, unpacked_layouts(kept, value_dim.shape[1]))

    def solve_whole_again(self) -> bool:
        """Solve the whole program again, if there is now at least 1.5 times the time it had.

        Returns whether it was solved to its optimum.
        """
        if (
            self.effort.crashed
            or self.effort.columns is not None
            or self._limit_s(self.recorder.time_s()) < 1.5 * self.given_s
        ):
            return False
        return self._solve_each(self._steps(self._along(self.axes), "all axes free, again"))

    def polish(self, rng: np.random.Generator) -> None:
        """Solve with a part of the clusters free at a time, until ``_QUIET`` parts gain nothing."""
        heads = [
            cluster
            for cluster, time_s in enumerate(self.choices.compute_s)
            if len(time_s) > 1 and self.descent.links[cluster]
        ]
        quiet = 0 if heads else _QUIET
        while quiet < _QUIET and not self.effort.crashed:
            self.recorder.check()
            if self._limit_s(self.recorder.time_s()) <= 0:
                return
            before = self.best_rank
            part = self._near(heads[rng.integers(len(heads))])
            label = f"{sum(len(cluster) > 1 for cluster in part[0])} clusters of ops free"
            self._solve_each(self._steps(part, label))
            quiet = quiet + 1 if self.best_rank == before else 0
            if self.effort.columns is not None and self.effort.columns < _PART:
                return

    def _solve_each(self, steps: Steps[T]) -> T:
        """Run the steps, solving each program when it comes."""
        try:
            program = next(steps)
            while True:
                program = steps.send(self._highs(*program))
        except StopIteration as over:
            return over.value

    def _steps(
        self, part: Part, label: str, rounds: int | None = None, *, whole: bool = False
    ) -> Steps[bool]:
        """Solve a part of the choices; add rows for memory until the plan fits.

        Returns whether the program was solved to its optimum. ``whole``: the part is all of it.
        """
        seen: set[bytes] = set()
        has_switched = False
        better_turn = 0  # turn that brought the last improvement
        left_out = self.choices.menus.left_out
        for turn in range((self.rounds if rounds is None else rounds) + 1):
            before = self.best_rank
            solved = yield from self._solve(part)
            if solved is None:
                return False
            choice, outcome = solved
            proof = "optimal" if outcome.gap < _PROVEN else f"gap {outcome.gap:.1e}"
            text = f"{self.grain}: {label}, {proof}" + (f", memory row {turn}" if turn else "")
            quick = self.price_choice(
                choice, text + (f", {left_out} choices left out" if left_out else "")
            )
            key = choice[0].tobytes() + choice[1].tobytes()
            better_turn = turn if self.best_rank < before else better_turn
            if quick.fits:
                if whole and outcome.optimal and not self.held:
                    self.optimum = choice
                break
            if key in seen or turn - better_turn >= _PATIENCE:
                # Either no plan can fit, and the penalty of C(s) is the right price of memory, or
                # memory was not priced firmly enough. Try the other price, once.
                if has_switched or self.best_fits or self.penalty_s == self.firm_s:
                    break
                self.over_s = self.penalty_s if self.over_s == self.firm_s else self.firm_s
                has_switched, better_turn = True, turn
                seen.clear()
            seen.add(key)
            self._bound_memory(choice)
        return outcome.optimal

    def _along(self, free: Sequence[int]) -> Part:
        """The choices that agree with the best plan on every axis that is not free."""
        assert self.best is not None
        fixed = [axis for axis in range(len(self.recorder.problem.mesh.axes)) if axis not in free]

        def same(menus: list[np.ndarray], chosen: np.ndarray) -> list[np.ndarray]:
            return [
                np.flatnonzero((menu[:, fixed] == menu[choice, fixed]).all(axis=1))
                for menu, choice in zip(menus, chosen, strict=True)
            ]

        return same(self.choices.menus.ops, self.best[0]), same(
            self.choices.menus.values, self.best[1]
        )

    def _near(self, op: int) -> Part:
        """All choices of the clusters around an op cluster, as many as make a small program.

        Clusters become free in the order of their distance, counted in moves. All others keep the
        choice of the best plan.
        """
        assert self.best is not None
        widths = [*map(len, self.choices.compute_s), *map(len, self.choices.layout)]
        n_ops, links = len(self.choices.compute_s), self.descent.links
        free, queue, columns = {op}, [op], widths[op]
        for node in queue:  # the queue grows during the loop
            for neighbour in links[node]:
                more_columns = widths[neighbour] * (
                    1 + sum(widths[linked] for linked in links[neighbour] if linked in free)
                )
                if neighbour not in free and columns + more_columns <= _PART:
                    free.add(neighbour)
                    queue.append(neighbour)
                    columns += more_columns
        kept = [
            np.arange(width) if node in free else np.asarray([chosen])
            for node, (width, chosen) in enumerate(
                zip(widths, np.concatenate(self.best).tolist(), strict=True)
            )
        ]
        return kept[:n_ops], kept[n_ops:]

    def _solve(self, part: Part) -> Steps[tuple[Choice, ip.Answer] | None]:
        """The best choice within a part, with its solution; None if none was found in time."""
        self.recorder.check()
        assert self.best is not None
        choices = self.choices.restricted_to(*part)
        over_bytes = max(
            (self.memory.bytes_of(row, *self.best) - self.limit_bytes for row in self.held),
            default=0.0,
        )
        known_s = self.descent.objective_s(*self.best)
        known_s += self.over_s * max(0.0, over_bytes / self.limit_bytes)
        program, layout = ip.assemble(
            choices,
            rows_at(self.tie, part[1]),
            bytes_rows=[_cut(row, self.choices, choices, part[1]) for row in self.held],
            limit_bytes=self.limit_bytes,
            over_s=self.over_s,
            known_s=known_s,
            check=self.recorder.check,
        )
        answer = yield program, layout
        if answer is None:
            return None
        choice = (
            np.asarray(rows_at(part[0], answer.ops), np.int64),
            np.asarray(rows_at(part[1], answer.values), np.int64),
        )
        return choice, answer

    def _limit_s(self, now_s: float) -> float:
        """Time limit of one call of HiGHS at ``now_s``."""
        return min(self.effort.solve_seconds, 0.8 * (self.effort.until_s - now_s))

    def _highs(self, program: ip.IntegerProgram, layout: ip.Layout) -> ip.Answer | None:
        effort, n_columns = self.effort, len(program.cost)
        self.recorder.check()
        if n_columns > min(effort.largest, np.inf if effort.columns is None else effort.columns):
            return None
        if effort.columns is not None:
            effort.columns -= n_columns

        def ask() -> list[Any] | str | None:
            try:
                outcome = self._outcome(program)
            except RunFailed as failure:
                self.recorder.check()  # raises if the budget is used up
                return None if "no result within" in str(failure) else CRASHED
            return None if outcome is None else ip.told(layout, outcome)

        told = self.recorder.told(
            ask, lambda answer: answer == CRASHED or ip.is_answer(layout, answer)
        )
        effort.crashed |= told == CRASHED
        return ip.answer(layout, None if told == CRASHED else told)

    def _outcome(self, program: ip.IntegerProgram) -> ip.IntegerSolution | None:
        """The solution of HiGHS; None if there is no time for one. Raises RunFailed."""
        recorder, effort = self.recorder, self.effort
        limit_s, left_s = self._limit_s(recorder.clock.elapsed_s), recorder.limits.left()[0]
        if limit_s <= 0:
            return None
        if len(program.cost) <= MAX_LOCAL_COLUMNS:
            outcome = ip.solve(program, min(limit_s, _SMALL_SECONDS), effort.mip_gap, effort.nodes)
            if not outcome.out_of_time or limit_s <= _SMALL_SECONDS:
                return outcome
        try:
            return run_in_child(
                SOLVE_FUNCTION,
                program,
                limit_s,
                gap=effort.mip_gap,
                nodes=effort.nodes,
                time_limit_s=min(limit_s + 10.0, left_s),
                cancel=recorder.limits.cancel,
                activity="solving alpa's integer program",
            )
        except Cancelled:
            raise Stop(Status.CANCELLED) from None

    def _bound_memory(self, choice: Choice) -> None:
        """Add rows for memory at the ops where the plan of a choice is over the limit."""
        problem = self.recorder.problem
        priced: Totals = self.recorder.ledger.pricer.totals(*spread(problem, self.choices, *choice))
        for op in crowded(priced.lives.live[:-1], self.limit_bytes):
            self.recorder.check()
            self.held.append(self.memory.bytes_at(op, priced, *choice, self.recorder.check))
        del self.held[:-_MOST_ROWS]


def _cut(
    row: ip.Bytes, whole: ClusteredProgram, part: ClusteredProgram, values: list[np.ndarray]
) -> ip.Bytes:
    """A row for memory, restricted to a part of the choices."""

    @functools.cache
    def cells(group: int) -> tuple[np.ndarray, np.ndarray]:
        kept = np.searchsorted(whole.groups[group].distinct, part.groups[group].distinct)
        return np.ix_(kept, values[whole.groups[group].value])  # type: ignore[return-value]

    return row._replace(
        values={cluster: size[values[cluster]] for cluster, size in row.values.items()},
        groups={group: size[cells(group)] for group, size in row.groups.items()},
        shared={key: size[cells(key[0])] for key, size in row.shared.items()},
    )


def _ties(problem: Problem, choices: ClusteredProgram) -> list[np.ndarray]:
    """L of [T] seconds that break ties between layouts of equal cost, and are otherwise negligible.

    They favour the layout that takes less memory.
    """
    tables = choices.clusters.folded.tables
    facts = choices.clusters.folded.facts
    memory = choices.clusters.folded.memory
    held_bytes = np.zeros(len(choices.layout))
    np.add.at(
        held_bytes, tables.value_row[memory.buffers.value], facts.value.bytes[memory.buffers.value]
    )
    byte_s = (
        _TIE
        * problem.baseline[0]
        / max(float(held_bytes.sum()), 1.0)
        / float(np.prod(problem.mesh.array()))
    )
    axis_size = problem.mesh.array()
    return [
        held_bytes[cluster] * byte_s / np.where(menu >= 0, axis_size, 1).prod(axis=1)
        for cluster, menu in enumerate(choices.menus.values)
    ]

"""One grain of the integer program: price choices, keep the best, solve for better ones.

Shared by ``alpa``, whose whole method it is, and by ``mcts``, which solves from the plans that it
found (``polish``).

Where the budget counts evaluations, the result is to be the same on every machine: HiGHS is limited
by nodes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Sequence
from typing import TypeVar

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.cost.program_prices import Totals
from toast_lab.errors import RunFailed
from toast_lab.isolate import Cancelled, run_in_child
from toast_lab.search.alpa import integer_program as ip
from toast_lab.search.alpa.descent import Descent
from toast_lab.search.alpa.memory_rows import MemoryRows, crowded
from toast_lab.search.alpa.strategies import ClusteredProgram, rows_at, spread
from toast_lab.search.limits import Status, Stop
from toast_lab.search.menus import unpacked_layouts
from toast_lab.search.recorder import Recorder
from toast_lab.sharding import steps

CHILD = "toast_lab.search.alpa.integer_program:solve"
# columns; programs up to here are first tried in this process, as a child takes a while to start
SMALL = 20_000
_SMALL_SECONDS = 0.5  # for so long, as that cannot be cancelled
LARGE = 300_000  #: columns; beyond, HiGHS finds nothing in minutes
_PART = 8_000  # columns of a part of the program that is solved alone
_QUIET = 12  # such parts in a row that bring nothing, after which the search has converged
_MOST_ROWS = 32  # for memory, the latest
_PATIENCE = 3  # rounds of memory rows without a better plan
_PROVEN = 5e-7  # gap of an integer program below which its solution is the optimum
_TIE = 1e-4  # part of the unsharded time that all ties together may come to
NODES = 20  #: of branch and bound, where the budget counts evaluations

Choice = tuple[
    np.ndarray, np.ndarray
]  #: [K] and [L] number of the choice of each op cluster and each value cluster
Part = tuple[
    list[np.ndarray], list[np.ndarray]
]  #: numbers of the choices that each op and value cluster may make
T = TypeVar("T")
#: Gives programs to be solved, takes what HiGHS made of each (None: nothing), and ends with a T.
Steps = Generator[ip.IntegerProgram, ip.IntegerSolution | None, T]


@dataclasses.dataclass
class Effort:
    """What HiGHS may take, one call and all together."""

    mip_gap: float
    solve_seconds: float
    nodes: int | None  #: None: as many as it takes
    columns: float | None  #: that all programs together may still have; None: no limit
    until_s: float = np.inf  #: of the search, when this grain's part of the time ends
    largest: int = LARGE  #: columns of the largest program that is tried
    crashed: bool = False


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
        #: Of the whole program without rows for memory: the same wherever a search begins.
        self.optimum: Choice | None = None
        # What a limit's worth of bytes above the limit costs: the penalty of C(s), and never less
        # than it saves.
        base_s, base_peak = problem.baseline
        self.penalty_s = (
            problem.memory_weight * self.limit_bytes / base_peak * base_s if base_peak > 0 else 0.0
        )
        self.firm_s = max(self.penalty_s, 10.0 * base_s)
        self.over_s = self.firm_s

    @property
    def n_columns(self) -> int:
        """About how many columns the whole program has: those of moves are nearly all of them."""
        used = {term.group for term in self.choices.terms}
        groups = map(self.choices.groups.__getitem__, used)
        return sum(len(group.distinct) * len(self.choices.layout[group.value]) for group in groups)

    @property
    def best_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """``(op_factor, value_dim)`` of the best plan of this grain."""
        assert self.best is not None
        return spread(self.recorder.problem, self.choices, *self.best)

    def try_(self, choice: Choice, label: str) -> Quick:
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
        """Forget what was found before, and begin at the choices nearest to a plan."""
        self.best, self.held, self.over_s = None, [], self.firm_s
        self.try_start(self._nearest(arrays), label)

    def try_start(self, choice: Choice, label: str) -> None:
        """Price a choice as a plan, and what descent makes of it."""
        self.try_(choice, f"{self.grain}: {label}")
        improved = self.descent.improve(*choice, self.recorder.check)
        self.try_(improved, f"{self.grain}: {label}, descent")

    def run(self) -> bool:
        """Solve axis by axis until nothing gets better, then all axes at once.

        Gives whether the last program was solved to its optimum.
        """
        self.solve_axes()
        return self.solve_whole()

    def solve_axes(self, share: float = 0.5) -> None:
        """Solve for each axis in turn, with the others as they are, until nothing gets better.

        ``share``: of the time that this grain has, at most; the rest is for the whole program.
        """
        self._solve_each(self.axes_steps(share))

    def axes_steps(self, share: float = 0.5) -> Steps[None]:
        """``solve_axes`` for whoever has the programs solved elsewhere (``background_solver``)."""
        share_s, now_s = self.effort.until_s, self.recorder.clock.elapsed_s
        axes_s = now_s + share * (share_s - now_s)
        late_s = max(share_s, self.recorder.clock.elapsed_s + 0.75 * self.recorder.left()[0])
        solved: dict[int, tuple[float, ...]] = {}  # axis -> the best when it was solved last
        for _ in range(3 if len(self.axes) > 1 else 0):
            for axis in self.axes:
                if solved.get(axis) == self.best_rank:
                    continue
                # A plan that does not fit is of little use: finer grains wait until one does.
                self.effort.until_s = axes_s if self.best_fits else late_s
                label = f"{self.recorder.problem.mesh.axes[axis]} free"
                yield from self._steps(self._along([axis]), label)
                solved[axis] = self.best_rank
        self.effort.until_s = share_s

    def solve_whole(self, rounds: int | None = None) -> bool:
        """Solve for all axes at once; gives whether the last program was solved to its optimum.

        Args:
            rounds: of rows for memory at most; None: as many as for parts of the program.
        """
        return self._solve_each(self.whole_steps(rounds))

    def whole_steps(self, rounds: int | None = None) -> Steps[bool]:
        """``solve_whole`` for whoever has the programs solved elsewhere (``background_solver``)."""
        self.given_s = self._limit_s()
        if self.optimum is not None:
            self.try_(self.optimum, f"{self.grain}: all axes free, optimal")
            return True
        whole = self._along(self.axes)
        return (yield from self._steps(whole, "all axes free", rounds, whole=True))

    def go_on_from(self, arrays: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Take a plan found at another grain, if this grain has it and it is better."""
        if arrays is not None and any(
            (new != known).any() for new, known in zip(arrays, self.best_arrays, strict=True)
        ):
            self.try_(self._nearest(arrays), f"{self.grain}: plan so far")

    def _nearest(self, arrays: tuple[np.ndarray, np.ndarray]) -> Choice:
        """The choices nearest to a plan, its values as lowering keeps them.

        What is kept in a layout that no use wants costs a plan nothing, since lowering takes such
        moves back, but it does in a sum of moves.
        """
        op_factor, value_dim = arrays
        tables = steps.tables(self.recorder.problem.analysis.program)
        kept = steps.kept_layouts(tables, op_factor, value_dim)
        return self.choices.choice_of(op_factor, unpacked_layouts(kept, value_dim.shape[1]))

    def again(self) -> bool:
        """Solve the whole program once more, if there is much more time for it than there was."""
        if (
            self.effort.crashed
            or self.effort.columns is not None
            or self._limit_s() < 1.5 * self.given_s
        ):
            return False
        return self._solve_each(self._steps(self._along(self.axes), "all axes free, again"))

    def polish(self, rng: np.random.Generator) -> None:
        """Solve with a part of the clusters free at a time, until that brings nothing."""
        heads = [
            cluster
            for cluster, time_s in enumerate(self.choices.compute_s)
            if len(time_s) > 1 and self.descent.links[cluster]
        ]
        quiet = 0 if heads else _QUIET
        while quiet < _QUIET and not self.effort.crashed:
            self.recorder.check()
            if self._limit_s() <= 0:
                return
            before = self.best_rank
            part = self._near(heads[rng.integers(len(heads))])
            label = f"{sum(len(cluster) > 1 for cluster in part[0])} clusters of ops free"
            self._solve_each(self._steps(part, label))
            quiet = quiet + 1 if self.best_rank == before else 0
            if self.effort.columns is not None and self.effort.columns < _PART:
                return

    def _solve_each(self, steps: Steps[T]) -> T:
        """Go through steps, solving each program as it comes."""
        try:
            program = next(steps)
            while True:
                program = steps.send(self._highs(program))
        except StopIteration as over:
            return over.value

    def _steps(
        self, part: Part, label: str, rounds: int | None = None, *, whole: bool = False
    ) -> Steps[bool]:
        """Solve a part of the choices; add rows for memory until it fits.

        Gives whether the program was solved to its optimum.  ``whole``: the part is all of it.
        """
        seen: set[bytes] = set()
        turned = False
        better = 0  # turn that brought the last improvement
        left_out = self.choices.menus.left_out
        for turn in range((self.rounds if rounds is None else rounds) + 1):
            before = self.best_rank
            solved = yield from self._solve(part)
            if solved is None:
                return False
            choice, outcome = solved
            proof = "optimal" if outcome.gap < _PROVEN else f"gap {outcome.gap:.1e}"
            text = f"{self.grain}: {label}, {proof}" + (f", memory row {turn}" if turn else "")
            quick = self.try_(choice, text + (f", {left_out} choices left out" if left_out else ""))
            key = choice[0].tobytes() + choice[1].tobytes()
            better = turn if self.best_rank < before else better
            if quick.fits:
                if whole and outcome.optimal and not self.held:
                    self.optimum = choice
                break
            if key in seen or turn - better >= _PATIENCE:
                # Either to fit is out of reach, and C(s) is the measure, or it was not asked for
                # firmly enough.
                if turned or self.best_fits or self.penalty_s == self.firm_s:
                    break
                self.over_s = self.penalty_s if self.over_s == self.firm_s else self.firm_s
                turned, better = True, turn
                seen.clear()
            seen.add(key)
            self._bound_memory(choice)
        return outcome.optimal

    def _along(self, free: Sequence[int]) -> Part:
        """Numbers of the choices that are as in the best plan on every axis that is not free."""
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

        The other clusters keep the choice of the plan.

        The nearer in moves the sooner a cluster is free.
        """
        assert self.best is not None
        widths = [*map(len, self.choices.compute_s), *map(len, self.choices.layout)]
        n_ops, links = len(self.choices.compute_s), self.descent.links
        free, edge, columns = {op}, [op], widths[op]
        for node in edge:  # grows while it is gone through
            for other in links[node]:
                more = widths[other] * (
                    1 + sum(widths[neighbour] for neighbour in links[other] if neighbour in free)
                )
                if other not in free and columns + more <= _PART:
                    free.add(other)
                    edge.append(other)
                    columns += more
        kept = [
            np.arange(width) if node in free else np.asarray([chosen])
            for node, (width, chosen) in enumerate(
                zip(widths, np.concatenate(self.best).tolist(), strict=True)
            )
        ]
        return kept[:n_ops], kept[n_ops:]

    def _solve(self, part: Part) -> Steps[tuple[Choice, ip.IntegerSolution] | None]:
        """The best choice among a part of them, None if none was found in time."""
        self.recorder.check()
        assert self.best is not None
        choices = self.choices.only(*part)
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
        outcome = yield program
        if outcome is None or outcome.x is None:
            return None
        ops, values = ip.chosen(layout, outcome.x)
        choice = (
            np.asarray(rows_at(part[0], ops), np.int64),
            np.asarray(rows_at(part[1], values), np.int64),
        )
        return choice, outcome

    def _limit_s(self) -> float:
        """Most that one call of HiGHS may take now."""
        return min(
            self.effort.solve_seconds, 0.8 * (self.effort.until_s - self.recorder.clock.elapsed_s)
        )

    def _highs(self, program: ip.IntegerProgram) -> ip.IntegerSolution | None:
        recorder, effort, n_columns = self.recorder, self.effort, len(program.cost)
        recorder.check()
        limit_s, left_s = self._limit_s(), recorder.left()[0]
        if limit_s <= 0 or n_columns > min(
            effort.largest, np.inf if effort.columns is None else effort.columns
        ):
            return None
        if effort.columns is not None:
            effort.columns -= n_columns
        if n_columns <= SMALL:
            outcome = ip.solve(program, min(limit_s, _SMALL_SECONDS), effort.mip_gap, effort.nodes)
            if not outcome.out_of_time or limit_s <= _SMALL_SECONDS:
                return outcome
        try:
            return run_in_child(
                CHILD,
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
        except RunFailed as failure:
            recorder.check()  # its time was up
            effort.crashed = effort.crashed or "no result within" not in str(failure)
            return None

    def _bound_memory(self, choice: Choice) -> None:
        """Bound memory at the ops where the plan of a choice has too much of it."""
        problem = self.recorder.problem
        priced: Totals = self.recorder.ledger.pricer.totals(*spread(problem, self.choices, *choice))
        for at in crowded(priced.lives.live[:-1], self.limit_bytes):
            self.recorder.check()
            self.held.append(self.memory.bytes_at(at, priced, *choice, self.recorder.check))
        del self.held[:-_MOST_ROWS]


def _cut(
    row: ip.Bytes, whole: ClusteredProgram, part: ClusteredProgram, values: list[np.ndarray]
) -> ip.Bytes:
    """A row for a part of the choices."""

    @functools.cache
    def place(number: int) -> tuple[np.ndarray, np.ndarray]:
        kept = np.searchsorted(whole.groups[number].distinct, part.groups[number].distinct)
        return np.ix_(kept, values[whole.groups[number].value])  # type: ignore[return-value]

    return row._replace(
        values={cluster: size[values[cluster]] for cluster, size in row.values.items()},
        groups={number: size[place(number)] for number, size in row.groups.items()},
        shared={key: size[place(key[0])] for key, size in row.shared.items()},
    )


def _ties(problem: Problem, choices: ClusteredProgram) -> list[np.ndarray]:
    """L of [T] seconds, too little to matter but where layouts cost the same.

    Of those the smaller is kept.
    """
    tables = choices.clusters.folded.tables
    facts = choices.clusters.folded.facts
    memory = choices.clusters.folded.memory
    held = np.zeros(len(choices.layout))
    np.add.at(held, tables.value_row[memory.buffer_value], facts.value.bytes[memory.buffer_value])
    each = (
        _TIE
        * problem.baseline[0]
        / max(float(held.sum()), 1.0)
        / float(np.prod(problem.mesh.array()))
    )
    axis_size = problem.mesh.array()
    return [
        held[cluster] * each / np.where(menu >= 0, axis_size, 1).prod(axis=1)
        for cluster, menu in enumerate(choices.menus.values)
    ]

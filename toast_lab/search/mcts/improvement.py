"""Improvement of the best plans of a start: refined (``refine``), then solved (``polish``).

Before the first refinement the whole program is solved with integer programs if that takes seconds;
if it takes longer, they run beside the search (``polish``).

Improvement goes step by step and may be interrupted between any two steps. The search begins its
next start when ``under_way`` becomes False.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from toast_lab.cost.price_inputs import PriceInputs, Prices
from toast_lab.cost.problem import Quick
from toast_lab.cost.reprice import Snapshot, make_scratch
from toast_lab.search.mcts import polish, refine, rollout
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.state import State

#: largest share of the time left that the refinement of one start takes; it cools down within it
REFINE_SHARE = 0.5
ARCHIVE_SIZE = 8  #: number of best states of earlier starts that refinement copies parts from


class Improvement:
    """Refinement and integer programs of one search.

    Args:
        recorder: records the plans.
        pricing: pricing of the search's rows; the pricing of the finer rows is made from it.
        pool: threads beside the calling one.
        threads: number of threads, the calling one included.
        seed: seed of the random choices.
        steps: changes priced for each row that may be changed; 0: nothing is improved.
        solve: go on from the best refined plan with integer programs.

    Attributes:
        solving: are integer programs due, which begin at the last plan of the archive?
    """

    def __init__(
        self,
        recorder: Recorder,
        pricing: rollout.Pricing,
        pool: ThreadPoolExecutor,
        threads: int,
        seed: int,
        steps: int,
        *,
        solve: bool,
    ) -> None:
        self.recorder = recorder
        self.pricing = pricing
        self.pool = pool
        self.threads = threads
        self.space, self.seed, self.steps = recorder.problem.space, seed, steps
        self._fine: refine.FineRows | None = None
        self.archive: list[refine.Rows] = []  # the best of each start so far
        self.chains: refine.Chains | None = None
        self.origins: list[tuple[State, tuple[str, ...]]] = []
        self.segment = 0
        self.began_s, self.most_s = 0.0, math.inf  # begin and time limit of this refinement
        self.finished_evaluations = 0  # states priced by finished refinements and integer programs
        self.polish = polish.Polish(recorder) if solve else None
        self.solving = False
        #: the plan of the whole program's integer programs, until a start begins at it
        self.arrived: refine.Rows | None = None

    @property
    def under_way(self) -> bool:
        """Is there a start whose plans are being improved?"""
        return self.solving or self.chains is not None

    @property
    def whole_is_due(self) -> bool:
        """Has the whole program still to be solved? Its plan is the first in the archive."""
        return self.polish is not None and self.steps > 0 and not self.archive

    def solve_whole(self, elite: np.ndarray) -> None:
        """Solve the whole program, beginning at the best state so far (given as actions)."""
        assert self.polish is not None
        state, _ = self._reached(elite)
        rows = refine.rows_of(self.fine, state)
        self.arrived = self._solved(rows, self.polish.solve_whole)
        self.archive.append(self.arrived)

    @property
    def is_solving_beside(self) -> bool:
        """Is the whole program being solved beside the search, or about to be?"""
        polisher = self.polish
        return polisher is not None and (
            polisher.beside_is_due or (polisher.beside is not None and polisher.beside.under_way)
        )

    @property
    def is_expecting(self) -> bool:
        """Is a plan of the whole program left for a start to begin at, or may one still come?"""
        return self.is_solving_beside or self.arrived is not None

    @property
    def free_threads(self) -> int:
        """Threads that have a core of their own: one fewer while a program is solved beside."""
        return max(1, self.threads - self.is_solving_beside)

    def look_beside(self) -> None:
        """Take over new plans of the integer programs beside the search; begin these if due."""
        polisher = self.polish
        if polisher is None:
            return
        best = self.recorder.best_rank[:2]
        with self._counting():
            if polisher.beside_is_due:
                polisher.begin_beside()
            elif polisher.beside is not None:
                polisher.beside.look()
                if polisher.beside.is_interrupted:
                    polisher.begin_beside()
        if polisher.beside is not None and self.recorder.best_rank[:2] < best:
            self._take_up(polisher.beside.solver.best_arrays)

    def _take_up(self, arrays: polish.Arrays) -> None:
        """Use a plan that is the best so far: in the present refinement, or in the next start."""
        rows = self._rows_of(*arrays)
        if rows is None:
            return
        if self.chains is None:
            self.archive = [*self.archive, rows][-ARCHIVE_SIZE:]
            self.arrived = rows
            return
        price = self.fine.repricer.price(*rows, None)[:2]
        refine.take_in(self.chains, rows, price, self._scores())

    def end(self) -> None:
        """Stop the integer programs that run beside the search."""
        if self.polish is not None and self.polish.beside is not None:
            self.polish.beside.stop()

    @property
    def priced(self) -> int:
        """Number of states priced so far."""
        return self.finished_evaluations + (
            0 if self.chains is None else int(self.chains.priced.sum())
        )

    @property
    def fine(self) -> refine.FineRows:
        """The finer rows that refinement changes, made on first use."""
        if self._fine is None:
            self._fine = fine = refine.make_fine(self.recorder.problem)
            _, _, _, snapshot = fine.repricer.price(*refine.rows_of(fine, State(self.space)), None)
            inputs = fine.repricer.inputs
            self.fine_pricing = self.pricing._replace(inputs=inputs, root=snapshot)
            self.workers = make_workers(inputs, snapshot, self.threads)
        return self._fine

    def begin(self, elites: Sequence[np.ndarray], start: int) -> None:
        """Begin to refine a start's best states (given as actions), if any row can be changed."""
        arrived, self.arrived = self.arrived, None
        if not self.steps or not len(self.fine.neighbourhood.free):
            return
        elites = elites[: refine.CHAINS // 2]
        # The later actions of a good plan keep it from changing: half of the chains begin from its
        # first quarter of actions.
        self._set_origins([*elites, *(elite[: (len(elite) + 3) // 4] for elite in elites)])
        rows = [refine.rows_of(self.fine, state) for state, _ in self.origins]
        origin = np.arange(len(rows))
        if arrived is not None:
            # Half of the chains begin at the plan of the whole program.
            rows = [row for elite_rows in rows for row in (elite_rows, arrived)]
            origin = np.repeat(origin, 2)
        prices = [self.fine.repricer.price(*state_rows, None)[:2] for state_rows in rows]
        self.chains = refine.start(rows, prices, self.archive, self.seed * 1000 + start)
        self.chains.origin[:] = origin[self.chains.origin]
        self.segment = 0
        self._set_time()

    def go_on(self) -> None:
        """Do one step: a batch of refinement, or all integer programs."""
        if self.solving:
            self._solve()
        else:
            self._refine()

    def _set_origins(self, codes: list[np.ndarray]) -> None:
        self.origins, self.origin_codes = [*map(self._reached, codes)], codes

    def _reached(self, codes: np.ndarray) -> tuple[State, tuple[str, ...]]:
        """The state that encoded actions lead to, and their texts."""
        state, texts = State(self.space), []
        for code in codes.tolist():
            state.apply_row(*divmod(code, len(self.space.mesh.axes)))
            texts.append(self.recorder.trace.vocabulary[code])
        return state, tuple(texts)

    def _set_time(self) -> None:
        """Give this refinement ``REFINE_SHARE`` of the time that is left from now on."""
        self.began_s = self.recorder.time_s()
        self.most_s = max(self.recorder.until_s(REFINE_SHARE) - self.began_s, 1e-9)

    def _done(self) -> float:
        """The share of this refinement that is done, by its steps or by its time."""
        segments = max(
            1, self.steps * len(self.fine.neighbourhood.free) // (refine.CHAINS * refine.STEPS)
        )
        if math.isinf(self.most_s):
            return self.segment / segments
        return max(self.segment / segments, (self.recorder.time_s() - self.began_s) / self.most_s)

    def _refine(self) -> None:
        chains, near, recorder = self.chains, self.fine.neighbourhood, self.recorder
        assert chains is not None
        best_before = chains.best.copy()
        done_before = self._done()
        heat = refine.warmth(min(done_before, 1.0))
        moves, pricing = self.space.moves, self.fine_pricing

        def anneal(worker: rollout.RolloutScratch, begin: int, end: int) -> None:
            refine.anneal(near, moves, pricing, worker, chains, begin, end, refine.STEPS, heat)

        threads = min(self.free_threads, refine.CHAINS)
        share_out(self.pool, self.workers[:threads], refine.CHAINS, anneal)
        self.segment += 1
        quicks = [self._quick(*price) for price in chains.best.tolist()]
        for chain in range(refine.CHAINS):
            if (chains.best[chain] != best_before[chain]).any() and recorder.rank(quicks[chain], 0)[
                :2
            ] < recorder.best_rank[:2]:
                self._take(chain, quicks[chain])
        done = self._done()
        if done >= 1.0:
            ranks = [recorder.rank(quick, 0) for quick in quicks]
            best = ranks.index(min(ranks))
            self.archive = [
                *self.archive,
                (chains.best_ops[best].copy(), chains.best_values[best].copy()),
            ][-ARCHIVE_SIZE:]
            self.finished_evaluations += int(chains.priced.sum())
            self.chains = None
            self.solving = self.polish is not None
            return
        if int(done * refine.MIXES) > int(done_before * refine.MIXES):
            refine.mix(chains)
        if int(done * refine.EXCHANGES) > int(done_before * refine.EXCHANGES):
            refine.exchange(chains, self._scores())

    def _scores(self) -> np.ndarray:
        """[K] scores of the best state of each chain; far above all others if it does not fit."""
        assert self.chains is not None
        quicks = [self._quick(*price) for price in self.chains.best.tolist()]
        return np.array([quick.score + (0.0 if quick.fits else 1e6) for quick in quicks])

    def _take(self, chain: int, quick: Quick) -> None:
        """Record the best state of a chain, which is the best plan so far."""
        assert self.chains is not None
        chains, fine, program = self.chains, self.fine, self.space.analysis.program
        origin, texts = self.origins[int(chains.origin[chain])]
        ops, values = refine.rows_of(fine, origin)
        places = int(
            (chains.best_ops[chain] != ops).any(axis=1).sum()
            + (chains.best_values[chain] != values).any(axis=1).sum()
        )
        labels = (*texts, f"refined in {places} places" if places > 1 else "refined in 1 place")
        self.recorder.record_plan(
            *fine.alike.whole(program, chains.best_ops[chain], chains.best_values[chain]),
            labels,
            (0,),
            quick,
        )

    def _solve(self) -> None:
        """Go on from the best refined plan with integer programs."""
        assert self.polish is not None
        self.archive[-1] = self._solved(self.archive[-1], self.polish.improve)
        self.solving = False

    def _solved(
        self, rows: refine.Rows, solve: Callable[[polish.Arrays, tuple[float, ...]], polish.Arrays]
    ) -> refine.Rows:
        """The plan that integer programs find from a plan."""
        recorder, fine, program = self.recorder, self.fine, self.space.analysis.program
        rank = recorder.rank(self._quick(*fine.repricer.price(*rows, None)[:2]), 0)
        # One step, like a batch: the budget of evaluations does not end it half way.
        with self._counting(), recorder.limits.one_step():
            ops, values = solve(fine.alike.whole(program, *rows), rank)
        return self._rows_of(ops, values) or rows

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the states priced inside the ``with`` block, and forget their prices.

        Adds them to ``finished_evaluations``.
        """
        ledger = self.recorder.ledger
        priced_before = ledger.keys()
        try:
            yield
        finally:
            self.finished_evaluations += ledger.forget_all_but(priced_before)

    def _rows_of(self, ops: np.ndarray, values: np.ndarray) -> refine.Rows | None:
        """The finer rows of a plan; None if it splits ops or values of one row differently."""
        alike = self.fine.alike
        rows = ops[alike.ops.first], values[alike.values.first]
        whole = alike.whole(self.space.analysis.program, *rows)
        is_same = np.array_equal(whole[0], ops) and np.array_equal(whole[1], values)
        return rows if is_same else None

    def _quick(self, time_s: float, peak_bytes: float) -> Quick:
        return self.recorder.ledger.pricer.judged(time_s, peak_bytes)


def make_workers(
    inputs: PriceInputs, snapshot: Snapshot, count: int
) -> list[rollout.RolloutScratch]:
    """Working memory for ``count`` threads, each for states of the snapshot's size."""
    return [
        rollout.RolloutScratch(make_scratch(inputs), _like(snapshot), _like(snapshot))
        for _ in range(count)
    ]


def share_out(
    pool: ThreadPoolExecutor,
    workers: Sequence[rollout.RolloutScratch],
    count: int,
    work: Callable[[rollout.RolloutScratch, int, int], None],
) -> None:
    """Divide ``count`` jobs among workers; the first worker runs in the calling thread.

    ``work`` takes a worker, its first job and the end of its jobs.
    """
    bounds = [count * index // len(workers) for index in range(len(workers) + 1)]
    first_part, *other_parts = zip(workers, bounds, bounds[1:], strict=False)
    futures = [pool.submit(work, *part) for part in other_parts]
    work(*first_part)
    for future in futures:
        future.result()


def _like(snapshot: Snapshot) -> Snapshot:
    """Memory for a snapshot of another state of the same size."""
    arrays = (array.copy() for array in snapshot[:3])
    return Snapshot._make([*arrays, Prices._make(array.copy() for array in snapshot.prices)])

"""What becomes of the best plans of a start: refined (``refine``), then solved (``polish``).

Before the first of them the whole program is solved, where that takes seconds; where it takes
longer, that is done beside (``polish``).

Step by step: the search goes on to its next start when ``under_way`` says that this one has been
improved, and may be interrupted between any two steps.
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

#: most of the time left that the refinement of one start takes: it cools down within it
REFINE_SHARE = 0.5
ARCHIVE = 8  #: best states of earlier starts that refinement takes parts over from


class Improvement:
    """Refinement and integer programs of one search.

    Args:
        recorder: records what is found.
        pricing: of the search's own rows; that of the finer ones is made of it.
        pool: threads beside the calling one.
        threads: the calling one included.
        seed: of the random choices.
        steps: changes priced for each row that may be changed; 0: nothing is improved.
        solve: go on from the best refined plan with integer programs.

    Attributes:
        solving: the plan that stands last in the archive is to be solved from.
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
        self._fine: refine.Fine | None = None
        self.archive: list[refine.Rows] = []  # the best of each start so far
        self.chains: refine.Chains | None = None
        self.origins: list[tuple[State, tuple[str, ...]]] = []
        self.segment = 0
        self.began_s, self.most_s = 0.0, math.inf  # of this start's refinement
        self.over = 0  # states priced by refinements and integer programs that are over
        self.polish = polish.Polish(recorder) if solve else None
        self.solving = False
        #: what the whole program came to, if no start has begun there yet
        self.arrived: refine.Rows | None = None

    @property
    def under_way(self) -> bool:
        """Is there a start whose plans are being improved?"""
        return self.solving or self.chains is not None

    @property
    def whole_is_due(self) -> bool:
        """Has the whole program still to be solved?  Whatever comes of it is in the archive."""
        return self.polish is not None and self.steps > 0 and not self.archive

    def solve_whole(self, elite: np.ndarray) -> None:
        """Solve the whole program, beginning at the best state so far (as action numbers)."""
        assert self.polish is not None
        state, _ = self._reached(elite)
        rows = refine.rows_of(self.fine, state)
        self.arrived = self._solved(rows, self.polish.solve_whole)
        self.archive.append(self.arrived)

    @property
    def is_solving_beside(self) -> bool:
        """Is the whole program being solved beside, or about to be?"""
        own = self.polish
        return own is not None and (
            own.beside_is_due or (own.beside is not None and own.beside.under_way)
        )

    @property
    def is_expecting(self) -> bool:
        """Is there, or may there be, a plan from beside that no start has begun with?"""
        return self.is_solving_beside or self.arrived is not None

    @property
    def free_threads(self) -> int:
        """Threads that have a core while a program is solved beside."""
        return max(1, self.threads - self.is_solving_beside)

    def look_beside(self) -> None:
        """Take up what a program that is solved beside has come to; begin with it if it is due."""
        own = self.polish
        if own is None:
            return
        best = self.recorder.best_rank[:2]
        with self._counting():
            if own.beside_is_due:
                own.begin_beside()
            elif own.beside is not None:
                own.beside.look()
        if own.beside is not None and self.recorder.best_rank[:2] < best:
            self._take_up(own.beside.solver.best_arrays)

    def _take_up(self, arrays: polish.Arrays) -> None:
        """Go on from a plan that is the best so far: in this start, or in the next one."""
        rows = self._rows_of(*arrays)
        if rows is None:
            return
        if self.chains is None:
            self.archive = [*self.archive, rows][-ARCHIVE:]
            self.arrived = rows
            return
        price = self.fine.repricer.price(*rows, None)[:2]
        refine.take_in(self.chains, rows, price, self._scores())

    def end(self) -> None:
        """End what runs beside."""
        if self.polish is not None and self.polish.beside is not None:
            # If it is not over, a search that is resumed begins with it again.
            self.polish.beside_is_due |= self.polish.beside.under_way
            self.polish.beside.stop()

    @property
    def priced(self) -> int:
        """States priced so far."""
        return self.over + (0 if self.chains is None else int(self.chains.priced.sum()))

    @property
    def fine(self) -> refine.Fine:
        """What refinement works on, made when it is first needed."""
        if self._fine is None:
            self._fine = fine = refine.make_fine(self.recorder.problem)
            _, _, _, snapshot = fine.repricer.price(*refine.rows_of(fine, State(self.space)), None)
            inputs = fine.repricer.inputs
            self.fine_pricing = self.pricing._replace(inputs=inputs, root=snapshot)
            self.workers = make_workers(inputs, snapshot, self.threads)
        return self._fine

    def begin(self, elites: Sequence[np.ndarray], start: int) -> None:
        """Begin with a start's best states (as action numbers), if anything can be changed."""
        arrived, self.arrived = self.arrived, None
        if not self.steps or not len(self.fine.near.free):
            return
        elites = elites[: refine.CHAINS // 2]
        # The later actions of a good plan hold it where it is: half of the chains begin without
        # them.
        self._set_origins([*elites, *(elite[: (len(elite) + 3) // 4] for elite in elites)])
        rows = [refine.rows_of(self.fine, state) for state, _ in self.origins]
        origin = np.arange(len(rows))
        if arrived is not None:
            # Half of the chains begin where the whole program was solved.
            rows = [row for own in rows for row in (own, arrived)]
            origin = np.repeat(origin, 2)
        prices = [self.fine.repricer.price(*state_rows, None)[:2] for state_rows in rows]
        self.chains = refine.start(rows, prices, self.archive, self.seed * 1000 + start)
        self.chains.origin[:] = origin[self.chains.origin]
        self.segment = 0
        self._set_time()

    def go_on(self) -> None:
        """One step: a batch of refinement, or all integer programs."""
        if self.solving:
            self._solve()
        else:
            self._refine()

    def _set_origins(self, codes: list[np.ndarray]) -> None:
        self.origins, self.origin_codes = [*map(self._reached, codes)], codes

    def _reached(self, codes: np.ndarray) -> tuple[State, tuple[str, ...]]:
        """The state that actions (as numbers) lead to, and their texts."""
        state, texts = State(self.space), []
        for code in codes.tolist():
            state.apply_row(*divmod(code, len(self.space.mesh.axes)))
            texts.append(self.recorder.trace.vocabulary[code])
        return state, tuple(texts)

    def _set_time(self) -> None:
        """Refinement has a part of the time that is left from now on."""
        self.began_s = self.recorder.clock.elapsed_s
        self.most_s = max(REFINE_SHARE * self.recorder.left()[0], 1e-9)

    def _done(self) -> float:
        """The part of this start's refinement that is done, by its steps or by its time."""
        total = max(1, self.steps * len(self.fine.near.free) // (refine.CHAINS * refine.STEPS))
        spent_s = self.recorder.clock.elapsed_s - self.began_s
        return max(self.segment / total, spent_s / self.most_s)

    def _refine(self) -> None:
        chains, near, recorder = self.chains, self.fine.near, self.recorder
        assert chains is not None
        before = chains.best.copy()
        done = self._done()
        heat = refine.warmth(min(done, 1.0))
        moves, pricing = self.space.moves, self.fine_pricing

        def anneal(worker: rollout.RolloutScratch, begin: int, end: int) -> None:
            refine.anneal(near, moves, pricing, worker, chains, begin, end, refine.STEPS, heat)

        threads = min(self.free_threads, refine.CHAINS)
        share_out(self.pool, self.workers[:threads], refine.CHAINS, anneal)
        self.segment += 1
        quicks = [self._quick(*price) for price in chains.best.tolist()]
        for chain in range(refine.CHAINS):
            if (chains.best[chain] != before[chain]).any() and recorder.rank(quicks[chain], 0)[
                :2
            ] < recorder.best_rank[:2]:
                self._take(chain, quicks[chain])
        now_done = self._done()
        if now_done >= 1.0:
            ranks = [recorder.rank(quick, 0) for quick in quicks]
            best = ranks.index(min(ranks))
            self.archive = [
                *self.archive,
                (chains.best_ops[best].copy(), chains.best_values[best].copy()),
            ][-ARCHIVE:]
            self.over += int(chains.priced.sum())
            self.chains = None
            self.solving = self.polish is not None
            return
        if int(now_done * refine.MIXES) > int(done * refine.MIXES):
            refine.mix(chains)
        if int(now_done * refine.EXCHANGES) > int(done * refine.EXCHANGES):
            refine.exchange(chains, self._scores())

    def _scores(self) -> np.ndarray:
        """[K] scores of the best of each chain; those that do not fit are above all others."""
        assert self.chains is not None
        quicks = [self._quick(*price) for price in self.chains.best.tolist()]
        return np.array([quick.score + (0.0 if quick.fits else 1e6) for quick in quicks])

    def _take(self, chain: int, quick: Quick) -> None:
        """The best state of a chain is the best so far."""
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
        """What integer programs make of a plan."""
        recorder, fine, program = self.recorder, self.fine, self.space.analysis.program
        rank = recorder.rank(self._quick(*fine.repricer.price(*rows, None)[:2]), 0)
        # One step, as a batch is: the evaluations that it takes do not end it half way, where it
        # could not go on.
        with self._counting(), recorder.limits.one_step():
            ops, values = solve(fine.alike.whole(program, *rows), rank)
        return self._rows_of(ops, values) or rows

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Count what is priced within as over, and forget its prices."""
        ledger = self.recorder.ledger
        priced_before = ledger.keys()
        try:
            yield
        finally:
            self.over += ledger.forget_all_but(priced_before)

    def _rows_of(self, ops: np.ndarray, values: np.ndarray) -> refine.Rows | None:
        """The rows of a plan; None if it tells apart what these rows do not."""
        alike = self.fine.alike
        rows = ops[alike.ops.first], values[alike.values.first]
        spread = alike.whole(self.space.analysis.program, *rows)
        kept = np.array_equal(spread[0], ops) and np.array_equal(spread[1], values)
        return rows if kept else None

    def _quick(self, time_s: float, peak_bytes: float) -> Quick:
        return self.recorder.ledger.pricer.judged(time_s, peak_bytes)

    # -- interrupted and resumed -------------------------------------------------------------------
    def recall(self, memory: dict[str, np.ndarray]) -> None:
        """Take up what ``kept`` left."""
        self.segment, self.over, chains, solving, beside_is_due, arrived = (
            int(number) for number in memory["refine"]
        )
        self.solving = bool(solving)
        count = len(memory["archive.ops"])
        self.archive = [
            (memory["archive.ops"][i], memory["archive.values"][i]) for i in range(count)
        ]
        self.arrived = self.archive[-1] if arrived else None
        if self.polish is not None:
            self.polish.beside_is_due = bool(beside_is_due)
        if chains:
            self._set_time()
            self.chains = refine.Chains(
                **{name: memory[f"chain.{name}"].copy() for name in refine.Chains._fields}
            )
            ends = memory["origin.end"]
            self._set_origins(np.split(memory["origin.code"], ends[:-1]))

    def kept(self) -> dict[str, np.ndarray]:
        """What a resumed search needs to go on."""
        arrays: dict[str, np.ndarray] = {
            "archive.ops": np.zeros((0, 0, 0)),
            "archive.values": np.zeros((0, 0, 0)),
        }
        if self.archive:
            arrays["archive.ops"] = np.stack([ops for ops, _ in self.archive])
            arrays["archive.values"] = np.stack([values for _, values in self.archive])
        beside_is_due = self.polish is not None and self.polish.beside_is_due
        flags = (self.chains is not None, self.solving, beside_is_due, self.arrived is not None)
        arrays["refine"] = np.array([self.segment, self.over, *flags])
        if self.chains is not None:
            arrays |= {f"chain.{name}": array for name, array in self.chains._asdict().items()}
            arrays["origin.code"] = np.concatenate(self.origin_codes)
            arrays["origin.end"] = np.cumsum([len(codes) for codes in self.origin_codes])
        return arrays


def make_workers(
    inputs: PriceInputs, snapshot: Snapshot, count: int
) -> list[rollout.RolloutScratch]:
    """Memory for threads that price states of the size of a snapshot's."""
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
    """Let each worker do a part of ``count`` jobs, the first one in the calling thread.

    ``work`` takes the worker and the first job and the end of its part.
    """
    bounds = [count * part // len(workers) for part in range(len(workers) + 1)]
    own, *others = zip(workers, bounds, bounds[1:], strict=False)
    running = [pool.submit(work, *part) for part in others]
    work(*own)
    for future in running:
        future.result()


def _like(snapshot: Snapshot) -> Snapshot:
    """Memory for a snapshot of another state."""
    arrays = (array.copy() for array in snapshot[:3])
    return Snapshot._make([*arrays, Prices._make(array.copy() for array in snapshot.prices)])

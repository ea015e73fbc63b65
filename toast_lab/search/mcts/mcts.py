"""Monte-Carlo tree search over colours, conflict resolutions and mesh axes, on all cores.

A node is a state, identified by its key, so action sequences that end in one sharding share it. A
trajectory walks down by upper confidence bounds, adds one state, prices it, rolls out a few actions
from it and prices the end as well; every state on the way also has a *stop* choice, worth the
state's own price. The reward is -log C(s) less a little for every action, which favours short
trajectories and credits the actions that mattered.

Trajectories are made in batches of ``BATCH``: all walks of a batch are chosen, then priced by all
threads at once, then written back (``tree``). The result depends on the seed alone, not on the
number of threads, but for what integer programs and the pace of refinement owe to the clock
(``Recorder.told``).

Batches make up rounds. After ``patience`` rounds in a row without improvement the search starts
again at the root: it keeps prices and closed subtrees but forgets which plans were good. When more
than ``restarts`` such starts in a row bring nothing, the search stops early. A subtree is closed
and not walked again once all of its states are priced, so small spaces are enumerated completely.

Where we differ from the paper, and why:

* The paper applies the best trajectory after each round and goes on from there; we keep one tree
  over all rounds, so that nothing learnt is thrown away and no early choice is final.
* The rewards of an action elsewhere in the tree guide its first visits and the rollouts: most
  actions are as good in one place as in another, and a node has too many to try each one blindly.
* A share of the trajectories varies the best ones so far: an action is left out, replaced, moved
  or inserted, or two mesh axes are exchanged. The order of two actions decides which of them gets
  an axis, and sequences that differ in such a detail are far apart in the tree. A plan with the
  batch on the small axis and the height on the large one is dozens of actions away from the plan
  with the axes exchanged, and all plans between them are worse.
* The paper stops when a round brings no improvement; we start again a few times first. A plan of
  many actions that belong together (two dozen in a graph network) has only worse neighbours, and
  one start in three ends in such a plan.
* After the first round integer programs choose for the whole program at once, if it is small enough
  (``polish``); a large one is solved on a core of its own while the search goes on.
* The best plans of each start are refined: changed in one part of the program at a time
  (``refine``). From the best of them, integer programs then choose on one axis for the whole
  program (``polish``).
* Rewards are compared by their distance from the best one, on four scales in turn, since C(s) spans
  decades while the plans worth distinguishing differ by a percent.
* A state that does not fit loses a fixed reward on top of its penalty in C(s), so that a small gain
  in time is not worth being slightly over the limit.

Actions on fewer than 10 names are pruned as in the paper; the limit is scaled down for programs of
fewer than 500 names. Reference: TOAST sections 4.1 to 4.3. Start reading at ``run``.
"""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from toast_lab.isolate import n_cores
from toast_lab.packs import zeros
from toast_lab.search.incumbent import price_of
from toast_lab.search.limits import Status
from toast_lab.search.mcts import backup, rollout, selection
from toast_lab.search.mcts import tree as tr
from toast_lab.search.mcts.improvement import Improvement, make_workers, share_out
from toast_lab.search.pruning import smallest_group
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.state import State, legal_rows

if TYPE_CHECKING:
    from toast_lab.search.method_options import MctsOptions

BATCH = 32
WORTH_SHARING_S = 0.0005  #: a batch whose pricing takes less is priced faster by one thread


def run(recorder: Recorder, seed: int, options: MctsOptions) -> Status:
    """Search until the budget ends, a few starts in a row bring nothing, or all states were priced.

    Args:
        recorder: prices, records and stops the search.
        seed: seed of the random choices.
        options: see ``methods.Mcts``.
    """
    space = recorder.problem.space
    min_names = smallest_group(recorder.problem, options.min_names)
    actions = legal_rows(State(space), min_names)
    if not len(actions):
        return Status.NO_ACTIONS
    settings = tr.SteeringSettings(
        seed=np.uint64(seed),
        depth=options.depth,
        exploration=options.exploration,
        length_penalty=options.length_penalty,
        prior_visits=options.prior_visits,
        vary=options.vary,
        boldness=options.boldness,
        min_names=min_names,
        usable=actions[:, 0] * len(space.mesh.axes) + actions[:, 1],
    )
    round_size = options.trajectories or max(512, 64 * len(actions))
    threads = options.threads or n_cores()
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        search = _Search(
            recorder=recorder,
            settings=settings,
            pool=pool,
            threads=threads,
            refine_steps=options.refine,
            solve=options.solve,
        )
        try:
            while search.fruitless <= options.restarts or search.improvement.is_expecting:
                search.fruitless = min(search.fruitless, options.restarts + 1)
                recorder.check()
                search.look_beside()
                if search.closed:
                    return Status.COMPLETE
                if search.improvement.under_way:
                    search.improve()
                elif search.in_round < round_size:
                    search.batch()
                else:
                    if search.improvement.whole_is_due:
                        search.solve_whole()
                    search.end_round(options.patience)
            return Status.CONVERGED
        finally:
            search.improvement.end()


class _Search:
    """The state of one search, and its steps: a batch, the end of a round, an improvement."""

    def __init__(
        self,
        recorder: Recorder,
        settings: tr.SteeringSettings,
        pool: ThreadPoolExecutor,
        threads: int,
        refine_steps: int = 0,
        solve: bool = False,
    ) -> None:
        self.recorder, self.settings, self.pool, self.threads = recorder, settings, pool, threads
        problem, pricer = recorder.problem, recorder.ledger.pricer
        self.space = problem.space
        root = State(self.space)
        repricer = pricer.repricer
        time_s, peak_bytes, _, snapshot = repricer.price(root.ops, root.values, None)
        base_time_s, base_peak_bytes = problem.baseline
        self.pricing = rollout.Pricing(
            inputs=repricer.inputs,
            base_time_s=base_time_s,
            base_peak_bytes=base_peak_bytes,
            limit_bytes=problem.memory_limit_bytes,
            memory_weight=float(problem.memory_weight),
            root=snapshot,
        )
        self.workers = make_workers(repricer.inputs, snapshot, threads)
        self.jobs = _jobs(BATCH, root, settings.depth)
        self.n_codes = self.space.n_moves * len(self.space.mesh.axes)
        self.took_s = 0.0
        self._plant(time_s, peak_bytes)
        self.round, self.stale, self.in_round, self.fruitless = 1, 0, 0, 0
        self.before = float(self.tree["elite_reward"][0])
        self.best_before = recorder.best_rank[:2]
        self.improvement = Improvement(
            recorder=recorder,
            pricing=self.pricing,
            pool=pool,
            threads=threads,
            seed=int(settings.seed),
            steps=refine_steps,
            solve=solve,
        )

    def _plant(self, time_s: float, peak_bytes: float) -> None:
        """Make a tree that holds only the root, with the price of the root."""
        trace = self.recorder.trace
        for code in range(self.n_codes):
            action = self.space.action(*divmod(code, len(self.space.mesh.axes)))
            trace.word(self.space.text(action))
        shapes = tr.tree_shapes(
            nodes=1024,
            choices=1024,
            slots=4096,
            prices=4096,
            actions=self.n_codes,
            depth=self.settings.depth,
        )
        tree = self.tree = zeros(tr.Tree, shapes)
        tree["reward"][:] = np.nan
        tree["choices"][:] = -1
        tree["elite_reward"][:] = -np.inf
        tree["number"][[tr.NODES, tr.ELITES]] = 1
        reward = rollout.reward_of(self.pricing, self.settings, time_s, peak_bytes, 0)
        tree["reward"][0] = tree["elite_reward"][0] = reward
        node = trace.node.array
        node["score"][0] = node["best_score"][0] = rollout.score_of(
            self.pricing, time_s, peak_bytes
        )
        position = tr.slot(
            tree["slot_key"], np.uint64(1)
        )  # stands for the root's key 0, which marks a free slot
        tree["slot_key"][position] = 1
        position = tr.slot(tree["price_key"], np.uint64(1))
        tree["price_key"][position], tree["price"][position] = 1, (time_s, peak_bytes)

    @property
    def closed(self) -> bool:
        """Has every state been priced?"""
        return bool(self.tree["closed"][0])

    def batch(self) -> None:
        """Make one batch of trajectories."""
        self._make_room()
        recorder, trace = self.recorder, self.recorder.trace
        counters = self.tree["number"]
        counters[tr.SIMULATIONS] = trace.row.n
        counters[tr.WORDS] = trace.action.n
        counters[tr.PASSED] = trace.passed.n
        tree = self._tree()
        moves, pricing, settings, jobs = self.space.moves, self.pricing, self.settings, self.jobs
        selection.select(tree, moves, settings, jobs)
        worker_count = (
            min(self.improvement.free_threads, BATCH) if self.took_s >= WORTH_SHARING_S else 1
        )
        began = time.perf_counter()
        share_out(
            self.pool,
            self.workers[:worker_count],
            BATCH,
            functools.partial(rollout.evaluate, tree, moves, pricing, settings, jobs),
        )
        self.took_s = (time.perf_counter() - began) * worker_count
        first_row, best = trace.row.n, int(counters[tr.BEST])
        backup.back_up(tree, pricing, settings, self._rows(), jobs, self.round)
        trace.row.n, trace.action.n, trace.passed.n = (
            int(counters[counter]) for counter in (tr.SIMULATIONS, tr.WORDS, tr.PASSED)
        )
        trace.node.n = int(counters[tr.NODES])
        trace.row.array["elapsed_s"][first_row : trace.row.n] = recorder.elapsed_s
        self._count()
        if counters[tr.BEST] != best:
            self._take_best(int(counters[tr.BEST]))
        self.in_round += BATCH
        recorder.report()

    def _take_best(self, row: int) -> None:
        trace, state, actions = self.recorder.trace, State(self.space), []
        simulation = trace.simulation(row)
        for code in map(trace.word, simulation.actions):
            actions.append(self.space.action(*divmod(code, len(self.space.mesh.axes))))
            state.apply(actions[-1])
        self.recorder.take_best(price_of(simulation), row, state, actions)

    def end_round(self, patience: int) -> None:
        """Begin the next round; after ``patience`` rounds without improvement, end the start."""
        best_reward = float(self.tree["elite_reward"][0])
        self.stale = 0 if best_reward > self.before else self.stale + 1
        self.before, self.in_round, self.round = best_reward, 0, self.round + 1
        self.recorder.round = self.round
        if self.stale < patience:
            return
        self.stale = 0
        tree = self.tree
        elites = [
            tree["elite"][elite, : tree["elite_length"][elite]]
            for elite in range(int(tree["number"][tr.ELITES]))
        ]
        self.recorder.limits.prepare("refine")
        self.improvement.begin(elites, int(tree["number"][tr.START]))
        if not self.improvement.under_way:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Start again at the root: note whether the last start was fruitless, forget its plans."""
        tree, best = self.tree, self.recorder.best_rank[:2]
        self.fruitless = 0 if best < self.best_before else self.fruitless + 1
        self.best_before = best
        tree["number"][tr.START] += 1
        tree["number"][tr.ELITES], tree["elite_length"][0], tree["elite_key"][0] = 1, 0, 0
        self.before = tree["elite_reward"][0] = tree["reward"][0]
        tree["seen"][:] = 0.0

    def solve_whole(self) -> None:
        """Solve the whole program with integer programs, if that takes only seconds."""
        tree = self.tree
        self.recorder.limits.prepare("refine")
        try:
            self.improvement.solve_whole(tree["elite"][0, : tree["elite_length"][0]])
        finally:
            self._catch_up()

    def look_beside(self) -> None:
        """Take over the plans of the integer programs that are solved beside the search."""
        if not self.improvement.is_solving_beside:
            return
        try:
            self.improvement.look_beside()
        finally:
            self._catch_up()

    def improve(self) -> None:
        """Do one step of refinement or of integer programs; start again when they are over."""
        try:
            self.improvement.go_on()
        finally:
            self._catch_up()
        if not self.improvement.under_way:
            self._begin_anew()

    def _catch_up(self) -> None:
        """Count the states that improvement priced, and take over its best simulation."""
        self._count()
        self.tree["number"][tr.BEST] = self.recorder.trace.row["best"][-1]

    def _count(self) -> None:
        """Report the number of states priced by the tree and by improvement."""
        priced = int(self.tree["number"][tr.PRICED]) + self.improvement.priced
        self.recorder.ledger.priced_by_method = priced

    # -- arrays -----------------------------------------------------------------------------------
    def _make_room(self) -> None:
        """Grow the arrays so that they can hold one more batch."""
        trace, tree, counters = self.recorder.trace, self.tree, self.tree["number"]
        trace.row.reserve(2 * BATCH)
        trace.action.reserve(2 * BATCH * self.settings.depth)
        trace.passed.reserve(2 * BATCH * (self.settings.depth + 1))
        trace.node.reserve(BATCH)
        _grow(tree, tr.PER_NODE, int(counters[tr.NODES]) + BATCH)
        _grow(tree, tr.PER_CHOICE, int(counters[tr.CHOICES]) + BATCH * self.n_codes * 2)
        for keys, rows, counter in (
            ("slot_key", "slot_node", tr.NODES),
            ("price_key", "price", tr.PRICED),
        ):
            if 2 * (int(counters[counter]) + 2 * BATCH) > len(tree[keys]):
                tree[keys], tree[rows] = _table(tree[keys], tree[rows], 4 * len(tree[keys]))

    def _tree(self) -> tr.Tree:
        node = self.recorder.trace.node.array
        columns = {
            name: node[name]
            for name in ("parent", "word", "depth", "key", "visits", "value", "best_score", "score")
        }
        return tr.Tree(**columns, **self.tree)

    def _rows(self) -> tr.Rows:
        trace = self.recorder.trace
        columns = {name: trace.row.array[name] for name in tr.Rows._fields[:8]}
        return tr.Rows(**columns, word=trace.action.array["word"], node=trace.passed.array["node"])


def _table(keys: np.ndarray, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A copy with ``size`` slots of a hash table with open addressing, given as keys and rows."""
    new_keys, new_slots = np.zeros(size, np.uint64), np.empty(len(keys), np.int64)
    tr.rehash(keys, new_keys, new_slots)
    new_rows = np.zeros((size, *rows.shape[1:]), rows.dtype)
    new_rows[new_slots[new_slots >= 0]] = rows[new_slots >= 0]
    return new_keys, new_rows


def _grow(arrays: dict[str, np.ndarray], names: tuple[str, ...], length: int) -> None:
    for name in names:
        old_values = arrays[name]
        if len(old_values) < length:
            arrays[name] = np.zeros(max(length, 2 * len(old_values)), old_values.dtype)
            arrays[name][: len(old_values)] = old_values


def _jobs(count: int, root: State, depth: int) -> tr.Jobs:
    per_job, prices, per_action = (count,), (count, 2), (count, depth)
    shapes = {
        "ops": (count, *root.ops.shape),
        "values": (count, *root.values.shape),
        "key": (count, 1),
        "random": (count, 1),
        "varies": per_job,
        "length": per_job,
        "path_nodes": (count, depth + 1),
        "path_choices": per_action,
        "actions": per_action,
        "node_is_new": per_job,
        "node_price": prices,
        "node_price_is_new": per_job,
        "end_length": per_job,
        "end_price": prices,
        "end_price_is_new": per_job,
    }
    return tr.Jobs(**zeros(tr.Jobs, shapes))

"""How analysis, pricing and search scale with the number of layers.

The target of the analysis is a ratio that holds on any machine: it costs no more than tracing the
model. Pricing and search have to reach a number of plans a second on one core. Seconds are CPU
seconds of this process, which runs on one thread, so that other work on the machine hardly
matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import toast_lab as tl
from toast_lab.cost.problem import Pricer, Problem
from toast_lab.frontends import load
from toast_lab.isolate import n_cores
from toast_lab.sharding.state import State, legal_rows
from toast_lab.written.propagation import WrittenPropagation

LAYERS = (2, 4, 8, 18)
SIZES = {
    "d_model": 2048,
    "hidden": 16384,
    "key_size": 256,
    "vocab": 256128,
    "batch": 16,
    "sequence": 2048,
}
PRICED_LAYERS = (2, 18, 72)
EVALUATIONS = 3000
BUDGET = tl.Budget(seconds=None, evaluations=EVALUATIONS)
PLANS_PER_S = 2000  #: target at 18 layers, for the pricer and for the search
WALKS, LONGEST_WALK = 500, 8

Walk = list[tuple[int, int]]


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Seconds per call, the shortest of three timings of ``repeats`` calls."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for _ in range(repeats):
            work()
        best = min(best, (time.process_time() - began) / repeats)
    return best


def run() -> list[str]:
    """Print the tables; gives the missed targets."""
    return [*analysis(), *pricing(), *propagating()]


def analysis() -> list[str]:
    """Compare the times of tracing and of the analysis; gives the missed targets."""
    missed = []
    print("\nTransformer training step (Gemma sizes)")
    print(f"{'layers':>6} {'ops':>6} {'trace s':>8} {'analyse s':>9}")
    for layers in LAYERS:
        trace_s = seconds(lambda n=layers: load("transformer", layers=n, **SIZES))
        model = load("transformer", layers=layers, **SIZES)
        analyse_s = seconds(lambda m=model: tl.analyse(m))
        print(f"{layers:>6} {model.program.n_ops:>6} {trace_s:>8.2f} {analyse_s:>9.2f}")
        if analyse_s > trace_s:
            missed.append(
                f"{layers} layers: the analysis takes {analyse_s / trace_s:.2f} times as long as "
                "tracing (target 1)"
            )
    return missed


def propagating() -> list[str]:
    """Propagate the shardings of a fully sharded plan's arguments; gives the missed targets."""
    problem = Problem(tl.analyse(load("t2b")), {"a": 4, "b": 4})
    plan = tl.Plan.from_actions(problem, tl.usual_plans(problem)["fully sharded + tensor parallel"])
    propagation = WrittenPropagation(problem.analysis, problem.mesh)
    arguments = {a: plan.value_dim[a] for a in range(problem.analysis.program.n_arguments)}
    propagation.run(arguments)
    run_s = seconds(lambda: propagation.run(arguments), repeats=10)
    print(f"\npropagating argument shardings through t2b: {1e3 * run_s:.1f} ms")
    return [f"propagation takes {1e3 * run_s:.1f} ms (target 20)"] if run_s > 0.02 else []


def pricing() -> list[str]:
    """Plans priced a second: op by op, folded, changes only, and in a search."""
    missed, per_plan = [], {}
    print(
        "\nt2b training step, layers unrolled, mesh 4x4; microseconds a plan; a search of "
        f"{EVALUATIONS} evaluations"
    )
    print(
        f"{'layers':>6} {'ops':>6} {'classes':>7} {'whole':>7} {'folded':>7} {'changed':>8} "
        f"{'of them':>8} "
        f"{'plans/s':>8} {'search plans/s':>15} {'priced':>7} {'pricing':>8}"
    )
    for layers in PRICED_LAYERS:
        problem = tl.Problem(tl.analyse(load("t2b", mode="train", layers=layers)), "4x4")
        pricer = problem.pricer()
        walks = random_walks(problem)
        n = sum(map(len, walks))
        changed_s = seconds(lambda p=pricer, w=walks: walk(p, w, fresh=False)) / n
        folded_s = seconds(lambda p=pricer, w=walks: walk(p, w, fresh=True)) / n
        state = states_of(problem, walks[0])[-1]
        arrays = state.op_factor, state.value_dim
        whole_s = seconds(lambda p=pricer, a=arrays: p.totals(*a), 20)
        searched = {}

        def search(problem: Problem = problem, searched: dict = searched) -> None:
            searched["result"] = tl.search(problem, seed=0, budget=BUDGET)

        search_s = seconds(search)
        evaluations = searched["result"].evaluations
        rate, search_rate = 1 / changed_s, evaluations / search_s
        per_plan[layers] = search_s / evaluations
        print(
            f"{layers:>6} {problem.analysis.program.n_ops:>6} {len(problem.folded.times):>7} "
            f"{whole_s * 1e6:>7.0f} "
            f"{folded_s * 1e6:>7.0f} {changed_s * 1e6:>8.0f} "
            f"{share_changed(pricer, walks):>8.0%} {rate:>8.0f} "
            f"{search_rate:>15.0f} {evaluations:>7} {evaluations * changed_s / search_s:>8.0%}"
        )
        if layers == 18:
            alone_s = seconds(lambda p=problem: tl.search(p, seed=0, threads=1, budget=BUDGET))
            print(
                f"{'':>6} one thread takes {alone_s / search_s:.2f} times as long as "
                f"{n_cores()} for the same search"
            )
            for worker, found_rate in (("the pricer", rate), ("the search", search_rate)):
                if found_rate < PLANS_PER_S:
                    missed.append(
                        f"{layers} layers: {worker} does {found_rate:.0f} plans a second "
                        f"(target {PLANS_PER_S})"
                    )
    for layers in PRICED_LAYERS[1:]:
        growth, ratio = per_plan[layers] / per_plan[PRICED_LAYERS[0]], layers / PRICED_LAYERS[0]
        print(
            f"a plan of the search at {layers} layers over {PRICED_LAYERS[0]} layers ({ratio:.0f} "
            f"times): {growth:.2f}"
        )
        if growth > ratio:
            missed.append(
                f"a plan takes {growth:.2f} times as long with {ratio:.0f} times the layers"
            )
    return missed


def random_walks(problem: Problem) -> list[Walk]:
    """Sequences of up to LONGEST_WALK legal actions from the unsharded state."""
    rng, walks = np.random.default_rng(0), []
    for _ in range(WALKS):
        state, taken = State(problem.space), []
        for _ in range(rng.integers(1, LONGEST_WALK + 1)):
            rows = legal_rows(state)
            if not len(rows):
                break
            move, axis = rows[rng.integers(len(rows))].tolist()
            state.apply_row(move, axis)
            taken.append((move, axis))
        walks.append(taken)
    return walks


def states_of(problem: Problem, taken: Walk) -> list[State]:
    """The states along a walk."""
    states = [State(problem.space)]
    for move, axis in taken:
        states.append(states[-1].copy())
        states[-1].apply_row(move, axis)
    return states[1:]


def walk(pricer: Pricer, walks: list[Walk], *, fresh: bool) -> None:
    """Take and price every action of the walks, without earlier prices if ``fresh``."""
    root = State(pricer.problem.space)
    pricer.quick(root)
    for taken in walks:
        state = root.copy()
        for move, axis in taken:
            state.apply_row(move, axis)
            if fresh:
                state.priced = None
            pricer.quick(state)


def share_changed(pricer: Pricer, walks: list[Walk]) -> float:
    """Mean share of the classes that the pricer has to price again after an action."""
    problem, repricer = pricer.problem, pricer.repricer
    n_ops = len(problem.folded.times) - problem.folded.tables.n_arguments
    shares = []
    for taken in walks:
        before = None
        for state in [State(problem.space), *states_of(problem, taken)]:
            _, _, priced, after = repricer.price(state.ops, state.values, before)
            if before is not None:
                shares.append(priced / n_ops)
            before = after
    return float(np.mean(shares))

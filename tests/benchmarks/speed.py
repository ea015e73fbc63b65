"""How the analysis, pricing and search scale with the number of layers.

Targets are ratios, so that they hold on any machine: pricing is linear in ops, the analysis costs no more than tracing
the model does, and a search spends most of its time pricing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import toast_lab as tl
from toast_lab.frontends import load

LAYERS = (2, 4, 8, 18)
SIZES = {"d_model": 2048, "hidden": 16384, "key_size": 256, "vocab": 256128, "batch": 16, "sequence": 2048}
PLAN = [("batch", "d"), ("d_model", "d"), ("hidden", "m"), ("heads", "m"), ("vocab", "m"), ("sequence", "m", 1)]


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Shortest of three timings of ``repeats`` calls, per call."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (time.perf_counter() - began) / repeats)
    return best


def run() -> list[str]:
    """Print the table; gives the missed targets."""
    missed = []
    per_op = {}
    print("\nTransformer training step (Gemma sizes), mesh d=4,m=4")
    print(
        f"{'layers':>6} {'ops':>6} {'trace s':>8} {'analyse s':>9} {'price ms':>9} {'plans/s':>8} "
        f"{'search s':>8} {'pricing':>8}"
    )
    for layers in LAYERS:
        trace_s = seconds(lambda n=layers: load("transformer", layers=n, **SIZES))
        model = load("transformer", layers=layers, **SIZES)
        analyse_s = seconds(lambda m=model: tl.analyse(m))
        problem = tl.Problem(tl.analyse(model), {"d": 4, "m": 4})
        plan = tl.Plan.from_actions(problem, PLAN)
        pricer = problem.pricer()
        pricer.totals(plan.op_axis, plan.value_axis)
        price_s = seconds(lambda r=pricer, p=plan: r.totals(p.op_axis, p.value_axis), 20)
        began = time.perf_counter()
        result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=1000))
        search_s = time.perf_counter() - began
        share = result.evaluations * price_s / search_s
        n_ops = model.program.n_ops
        per_op[layers] = price_s / n_ops
        print(
            f"{layers:>6} {n_ops:>6} {trace_s:>8.2f} {analyse_s:>9.2f} {price_s * 1e3:>9.3f} {1 / price_s:>8.0f} "
            f"{search_s:>8.2f} {share:>8.0%}"
        )
        if analyse_s > trace_s:
            missed.append(
                f"{layers} layers: the analysis takes {analyse_s / trace_s:.2f} times as long as tracing (target 1)"
            )
        if share < 0.4:
            missed.append(f"{layers} layers: pricing is {share:.0%} of the search (target at least 40%)")
    growth = per_op[LAYERS[-1]] / per_op[LAYERS[0]]
    print(f"price per op at {LAYERS[-1]} layers over {LAYERS[0]} layers: {growth:.2f}")
    if growth > 2:
        missed.append(f"price per op grows {growth:.2f} times from {LAYERS[0]} to {LAYERS[-1]} layers (target 2)")
    return missed

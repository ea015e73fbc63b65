"""Measure ``why`` on every collective of a plan that a search found.

Run it as ``python -m evaluation benchmarks why``.
"""

from __future__ import annotations

import argparse
import time

import toast_lab as tl
from toast_lab.search.contract import Budget


def main(arguments: list[str]) -> int:
    """Search, ask about every collective, and count the answers with a cause and with a remedy."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation benchmarks why",
        description="why for every collective of T2B's best plan",
    )
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the search (%(default)s)")
    args = parser.parse_args(arguments)
    model = tl.load("t2b", layers=args.layers)
    problem = tl.Problem(tl.analyse(model), {"data": 4, "model": 4}, "tpu-v3")
    result = tl.search(problem, seed=0, budget=Budget(seconds=args.seconds))
    count = len(result.cost.collectives)
    began = time.monotonic()
    reasons = tl.why(problem, result.plan, range(count))
    spent = time.monotonic() - began
    removed = sum(reason.cheapest is not None for reason in reasons)
    caused = sum(bool(reason.causes and reason.because) for reason in reasons)
    print(f"{model}; {result.plan.mesh}; actions: {', '.join(result.plan.actions)}")
    print(
        f"{caused} of {count} collectives have a cause, {removed} a change that removes them; "
        f"{spent:.0f} s"
    )
    return 0

"""``python -m toast_lab.warm [METHOD ...]``: compile the numba kernels once, ahead of the first click or command.

Without methods, those of all searches.

Numba keeps what it compiled on disk; this only has to touch every kernel with the types that it meets later.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence


def main(methods: Sequence[str] = ()) -> None:
    """Analyse, price and search the paper's small examples; prints one line."""
    started = time.monotonic()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from toast_lab.conflicts.analysis import analyse_program
    from toast_lab.cost.problem import Problem, price
    from toast_lab.frontends import load
    from toast_lab.lowering.listing import listing
    from toast_lab.search.contract import Budget, search
    from toast_lab.search.methods import METHODS
    from toast_lab.sharding.plan import ShardingPlan

    for name, actions in (("mlp", ["B->data", "U->model"]), ("attention", ["S@1->data"])):
        model = load(name)  # the attention's boxes call for has_path, the mlp's actions for apply_move
        problem = Problem(analyse_program(model.program, model.dim_names), "4x2")
        plan = ShardingPlan.from_actions(problem, actions)
        price(problem, plan)
        listing(problem, plan)
        tight = Problem(problem.analysis, "4x2", memory_limit_bytes=1.0)  # what is over the limit calls for more
        for method in methods or METHODS:
            search(problem, method, budget=Budget(seconds=20, evaluations=100))
            search(tight, method, budget=Budget(seconds=20, evaluations=100))
        if not methods or "mcts" in methods:  # as far as its refinement
            search(problem, trajectories=32, restarts=0, budget=Budget(seconds=20))
    print(f"kernels compiled in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])

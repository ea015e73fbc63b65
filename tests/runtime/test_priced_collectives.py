"""Compiled random plans have the collectives that they are priced with.

``evaluation/certification`` shows that they compute what the unsharded program computes.
"""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.certification.draw import random_plan
from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.runtime.run import run_many


@pytest.mark.parametrize("name", ["mlp", "attention", "xxt"])
def test_compiled_collectives_are_those_that_the_plan_is_priced_with(name: str) -> None:
    """On one mesh axis, gathers and transposes are the same byte for byte, and reductions in sum.

    XLA's CPU compiler turns a reduce_scatter into all_reduce and slice, and merges neighbouring
    all_reduces, so only the bytes of all reductions together are compared. On two axes it also
    replaces some permutes by gathers, so that no such equality holds.
    """
    model = frontends.load(name)
    analysis = analyse(model)
    problem, rng = Problem(analysis, {"d": 8}, "cpu"), np.random.default_rng(7)
    plans = [random_plan(problem, rng) for _ in range(20)]
    runs = run_many(model, plans, "cpu:8", repeats=1, warmup=0, reference=False)
    seen: set[str] = set()
    for plan, run in zip(plans, runs, strict=True):
        priced = [(c.kind, int(c.local_bytes)) for c in price(problem, plan).collectives]
        compiled = [(c.kind.removeprefix("collective_"), c.bytes) for c in run.collectives]
        for kind in ("all_gather", "all_to_all", "permute"):
            assert sorted(c for c in priced if c[0] == kind) == sorted(
                c for c in compiled if c[0] == kind
            ), plan.actions
        assert _reduced_bytes(priced) == _reduced_bytes(compiled), plan.actions
        seen |= {kind for kind, _ in compiled}
    assert "all_gather" in seen
    # x times x transposed does not sum over a split dim.
    assert ("all_reduce" in seen) == (name != "xxt")


def _reduced_bytes(collectives: list[tuple[str, int]]) -> int:
    return sum(size for kind, size in collectives if kind in ("all_reduce", "reduce_scatter"))

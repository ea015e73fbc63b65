"""Random plans compute what the unsharded program computes.

Thirty random plans of each model, half on a mesh of two axes and half on one axis, are compiled for
eight virtual CPU devices and executed in float32; every output must agree with the program as it
was read to 1e-5 of that output's largest element.
"""

from __future__ import annotations

import numpy as np
import pytest

from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.run import run_many
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.state import State, legal_actions

TOLERANCE = 1e-5
PLANS_PER_MESH = 15
MESHES = ({"d": 2, "m": 4}, {"d": 8})

MODELS: dict[str, dict[str, object]] = {
    "mlp": {},
    "attention": {},
    "transformer": {
        "layers": 2,
        "d_model": 64,
        "hidden": 128,
        "heads": 4,
        "key_size": 16,
        "vocab": 128,
        "batch": 8,
        "sequence": 32,
        "mode": "train",
    },
}


def random_plan(problem: Problem, rng: np.random.Generator, longest: int = 8) -> ShardingPlan:
    state, taken = State(problem.space), []
    for _ in range(rng.integers(1, longest, endpoint=True)):
        actions = legal_actions(state)
        if not actions:
            break
        taken.append(actions[rng.integers(len(actions))])
        state.apply(taken[-1])
    return Plan.from_state(state, taken)


def random_plans(model: Model, seed: int = 0) -> list[ShardingPlan]:
    analysis = analyse(model)
    plans = []
    for mesh in MESHES:
        problem, rng = Problem(analysis, mesh, "cpu"), np.random.default_rng(seed)
        plans += [random_plan(problem, rng) for _ in range(PLANS_PER_MESH)]
    return plans


def usable_inputs(name: str, model: Model) -> list[np.ndarray] | None:
    """Positive numbers for the attention, which divides by a plain sum; made-up ones otherwise.

    With signs that sum comes near zero and rounding alone moves the quotient by more than the
    tolerance.
    """
    if name != "attention":
        return None
    rng = np.random.default_rng(0)
    shapes = [model.program.dims(a) for a in range(model.program.n_arguments)]
    return [rng.uniform(0.1, 1.0, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", list(MODELS))
def test_random_plans_agree_with_the_unsharded_program(name: str) -> None:
    model = frontends.load(name, **MODELS[name])
    plans = random_plans(model)
    assert len({plan.key for plan in plans}) > 5
    runs = run_many(
        model,
        plans,
        "cpu:8",
        repeats=1,
        warmup=0,
        inputs=usable_inputs(name, model),
        time_limit_s=550,
    )
    wrong = [
        f"{', '.join(plan.actions)} on {plan.mesh}: {run.max_relative_error} {run.errors}"
        for plan, run in zip(plans, runs, strict=True)
        if not (run.max_relative_error is not None and run.max_relative_error < TOLERANCE)
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(bool(run.collectives) for run in runs) > len(runs) // 2


@pytest.mark.parametrize("name", ["mlp", "attention", "xxt"])
def test_compiled_collectives_are_those_that_the_plan_is_priced_with(name: str) -> None:
    """On one mesh axis: the same gathers and transposes byte for byte, and as many bytes reduced.

    XLA's CPU compiler keeps a reduce_scatter as all_reduce and slice and merges neighbouring
    all_reduces, so reductions are compared in sum.  On two axes it also replaces some permutes by
    gathers, so that no such equality holds.
    """
    model = frontends.load(name)
    analysis = analyse(model)
    problem, rng = Problem(analysis, {"d": 8}, "cpu"), np.random.default_rng(7)
    plans = [random_plan(problem, rng) for _ in range(20)]
    runs = run_many(model, plans, "cpu:8", repeats=1, warmup=0, reference=False)
    for plan, run in zip(plans, runs, strict=True):
        priced = [(c.kind, int(c.local_bytes)) for c in price(problem, plan).collectives]
        compiled = [(c.kind.removeprefix("collective_"), c.bytes) for c in run.collectives]
        for kind in ("all_gather", "all_to_all", "permute"):
            assert sorted(c for c in priced if c[0] == kind) == sorted(
                c for c in compiled if c[0] == kind
            ), plan.actions
        assert _reduced_bytes(priced) == _reduced_bytes(compiled), plan.actions


def _reduced_bytes(collectives: list[tuple[str, int]]) -> int:
    return sum(size for kind, size in collectives if kind in ("all_reduce", "reduce_scatter"))

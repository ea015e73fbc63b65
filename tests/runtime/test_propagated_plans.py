"""Plans that propagate random shardings of arguments compute what the unsharded program computes.

They are plans that no sequence of colour actions gives: ops in conflict are computed whole.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.ir.model import Model
from toast_lab.lowering.listing import listing
from toast_lab.runtime.run import run_many
from toast_lab.search.automap import argument_moves
from toast_lab.search.contract import Budget, Recorder
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding

TOLERANCE = 1e-5
# The last one compiles for seconds a plan
PLANS_PER_MESH = {"mlp": 6, "attention": 6, "scan": 6, "transformer": 2}
MESHES = ({"d": 2, "m": 4}, {"d": 8})


def scanned() -> Model:
    def stack(x, ws):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w) + h, jnp.sum(h, axis=1)), x, ws)

    return frontends.from_jax(
        stack,
        jax.ShapeDtypeStruct((16, 32), jnp.float32),
        jax.ShapeDtypeStruct((3, 32, 32), jnp.float32),
    )


MODELS = {
    "mlp": lambda: frontends.load("mlp"),
    "attention": lambda: frontends.load("attention"),
    "transformer": lambda: frontends.load(
        "transformer",
        layers=1,
        d_model=64,
        hidden=128,
        heads=4,
        key_size=16,
        vocab=128,
        batch=8,
        sequence=32,
        mode="train",
    ),
    "scan": scanned,
}


def random_plans(model: Model, count: int) -> list[ShardingPlan]:
    analysis = analyse(model)
    plans = []
    for mesh in MESHES:
        problem, rng = Problem(analysis, mesh, "cpu"), np.random.default_rng(0)
        moves = argument_moves(Recorder(problem, Budget()))
        for _ in range(count):
            state, taken = moves.propagation.unsharded(), []
            for _ in range(rng.integers(1, 6)):
                legal = moves.legal(state)
                if not len(legal):
                    break
                taken.append(int(rng.choice(legal)))
                moves.take(state, taken[-1])
            made = ShardingPlan(
                model.program,
                problem.mesh,
                Sharding(state.op_factor, state.value_dim),
                tuple(moves.text[m] for m in taken),
                analysis=analysis,
            )
            made.check()
            assert price(problem, made).time_s > 0
            assert str(listing(problem, made))
            plans.append(made)
    return plans


@pytest.mark.parametrize("name", list(MODELS))
def test_propagated_plans_agree_with_the_unsharded_program(name: str) -> None:
    model = MODELS[name]()
    plans = random_plans(model, PLANS_PER_MESH[name])
    inputs = None
    if name == "attention":  # divides by a plain sum, which comes near zero if numbers have signs
        rng = np.random.default_rng(0)
        shapes = [model.program.dims(a) for a in range(model.program.n_arguments)]
        inputs = [rng.uniform(0.1, 1.0, shape).astype(np.float32) for shape in shapes]
    runs = run_many(model, plans, "cpu:8", repeats=1, warmup=0, inputs=inputs, time_limit_s=550)
    wrong = [
        f"{'; '.join(plan.actions)} on {plan.mesh}: {run.max_relative_error} {run.errors}"
        for plan, run in zip(plans, runs, strict=True)
        if not (run.max_relative_error is not None and run.max_relative_error < TOLERANCE)
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(bool(run.collectives) for run in runs) > len(runs) // 3

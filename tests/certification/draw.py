"""Random plans: random sequences of legal actions, as every search may take them."""

from __future__ import annotations

import zlib

import numpy as np

from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.state import State, legal_actions

MESHES: dict[str, dict[str, int]] = {
    "8": {"d": 8},
    "2x4": {"d": 2, "m": 4},
    "2x2x2": {"a": 2, "b": 2, "c": 2},
}
LONGEST = 8  # actions; on these meshes hardly a plan has room for more


def problems(model: Model) -> dict[str, Problem]:
    """The model on every mesh, analysed once."""
    analysis = analyse(model)
    return {name: Problem(analysis, mesh) for name, mesh in MESHES.items()}


def random_plan(problem: Problem, rng: np.random.Generator) -> ShardingPlan:
    """One random plan of 1 to ``LONGEST`` actions, fewer where no more are legal."""
    state, taken = State(problem.space), []
    for _ in range(rng.integers(1, LONGEST, endpoint=True)):
        actions = legal_actions(state)
        if not actions:
            break
        taken.append(actions[rng.integers(len(actions))])
        state.apply(taken[-1])
    return Plan.from_state(state, taken)


def random_plans(problem: Problem, mesh: str, count: int, seed: int = 0) -> list[ShardingPlan]:
    """``count`` different random plans, the same for the same seed.

    There are fewer where a program has not so many.

    Different means by state key, since two orders of actions may end in one sharding.
    """
    rng = np.random.default_rng([seed, zlib.crc32(mesh.encode())])
    found: dict[int, ShardingPlan] = {}
    for _ in range(20 * count):
        if len(found) == count:
            break
        plan = random_plan(problem, rng)
        found.setdefault(plan.key, plan)
    return list(found.values())

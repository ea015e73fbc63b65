"""Sources of the plans that are certified.

* ``colours``: random sequences of legal actions, such as any search may take;
* ``propagated``: random shardings of arguments, propagated. No sequence of colour actions gives
  these plans, since ops in conflict are computed whole;
* ``refined``: the best plan of a search, refined op by op or with an integer program;
* ``searched``: the plans that every kind of search returns, on machines that make sharding pay.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model
from toast_lab.machines.catalogue import machine as find_machine
from toast_lab.machines.machine_model import Machine
from toast_lab.plan_verbs import Plan
from toast_lab.search.automap import argument_moves
from toast_lab.search.contract import Budget, search
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.sharding.state import State, legal_actions

MESHES: dict[str, dict[str, int]] = {
    "8": {"d": 8},
    "2x4": {"d": 2, "m": 4},
    "2x2x2": {"a": 2, "b": 2, "c": 2},
}
LONGEST = 8  # actions of a plan; on these meshes hardly any plan has room for more
LONGEST_PROPAGATED = 5


class Drawn(NamedTuple):
    """A plan with its mesh, its number and the source that drew it."""

    mesh: str
    number: int
    source: str
    plan: ShardingPlan


Source = Callable[[Model, int], list[Drawn]]
"""Draws the plans of a model with a seed."""


def problems(model: Model) -> dict[str, Problem]:
    """Problems of a model on each of ``MESHES``, by name; the model is analysed once."""
    analysis = analyse(model)
    return {name: Problem(analysis, mesh) for name, mesh in MESHES.items()}


def colours(*counts: int) -> Source:
    """A source of ``counts`` different plans of random colour actions on each of ``MESHES``."""
    return mixed(counts, ())


def propagated(*counts: int) -> Source:
    """A source of ``counts`` different propagated plans on each of ``MESHES``."""
    return mixed((), counts)


def mixed(colour_counts: Sequence[int], propagated_counts: Sequence[int]) -> Source:
    """A source of plans of colour actions, then propagated ones; counts are by ``MESHES``."""

    def plans(model: Model, seed: int) -> list[Drawn]:
        by_mesh = problems(model)
        drawn = []
        for source, counts, draw in (
            ("colours", colour_counts, random_plans),
            ("propagated", propagated_counts, propagated_plans),
        ):
            for (mesh, problem), count in zip(by_mesh.items(), counts, strict=False):
                plans_there = draw(problem, mesh, count, seed)
                drawn += [Drawn(mesh, i, source, plan) for i, plan in enumerate(plans_there)]
        return drawn

    return plans


def refined(evaluations: int, *, solve: bool) -> Source:
    """A source of the best plan of a search that ends with refinement, on a 4x2 mesh.

    Args:
        evaluations: budget of the search, large enough for it to reach refinement.
        solve: whether integer programs take part.
    """

    def plans(model: Model, seed: int) -> list[Drawn]:
        analysis = analyse(model)
        problem = Problem(analysis, "4x2", "tpu-v3")
        budget = Budget(seconds=None, evaluations=evaluations)
        # A short refinement leaves integer programs something to find.
        steps = {"refine": 1} if solve else {"solve": False}
        result = search(problem, seed=seed, restarts=0, budget=budget, actions_within=0.0, **steps)
        return [Drawn("4x2", 0, "solved" if solve else "refined", result.plan)]

    return plans


class Wanted(NamedTuple):
    """A search: its method, its machine, and its memory limit over the unsharded program's peak."""

    method: str
    machine: str
    memory: float | None = None


SEARCHES = (
    Wanted("mcts", "tpu-v5e"),
    Wanted("mcts", "h100", 0.5),
    Wanted("mcts", "tpu-v3", 0.25),
    Wanted("alpa", "tpu-v5e"),
    Wanted("alpa", "h100", 0.25),
    Wanted("automap", "tpu-v3"),
    Wanted("automap", "h100", 0.25),
    Wanted("beam", "tpu-v5e", 0.5),
    Wanted("random", "h100", 0.25),
)


def searched(evaluations: int, most: int) -> Source:
    """A source of plans that searches return, up to ``most`` different ones on each of ``MESHES``.

    The programs are small, so the machines have no latencies and no cost of starting an op:
    sharding then pays, and searches choose what they would choose at real sizes.
    """

    def plans(model: Model, seed: int) -> list[Drawn]:
        analysis = analyse(model)
        drawn = []
        for name, mesh in MESHES.items():
            returned = {}
            for wanted, further in itertools.product(SEARCHES, range(3)):
                if len(returned) == most:
                    break
                plan = _returned(analysis, mesh, wanted, seed + further, evaluations)
                if (plan.op_factor >= 0).any():  # even then sharding may not pay
                    returned.setdefault(plan.sharding.key(), (wanted.method, plan))
            drawn += [Drawn(name, i, *which) for i, which in enumerate(returned.values())]
        return drawn

    return plans


def _returned(
    analysis: Analysis, mesh: dict[str, int], wanted: Wanted, seed: int, evaluations: int
) -> ShardingPlan:
    machine = without_latencies(find_machine(wanted.machine))
    problem = Problem(analysis, mesh, machine)
    if wanted.memory is not None:
        # A program of constants alone takes no memory
        limit = max(1.0, wanted.memory * problem.baseline[1])
        problem = Problem(analysis, mesh, machine, memory_limit_bytes=limit)
    budget = Budget(seconds=None, evaluations=evaluations)
    return search(problem, wanted.method, seed, budget, actions_within=0.0).plan


def without_latencies(machine: Machine) -> Machine:
    """Return ``machine`` with no latencies and no cost of starting an op.

    Sharding then pays for small programs, too.
    """
    links = tuple(dataclasses.replace(link, latency_s=0.0) for link in machine.links)
    return dataclasses.replace(machine, op_overhead_s=0.0, links=links)


def random_plan(problem: Problem, rng: np.random.Generator) -> ShardingPlan:
    """One random plan of 1 to ``LONGEST`` actions, or fewer if no further action is legal."""
    state, taken = State(problem.space), []
    for _ in range(rng.integers(1, LONGEST, endpoint=True)):
        actions = legal_actions(state)
        if not actions:
            break
        taken.append(actions[rng.integers(len(actions))])
        state.apply(taken[-1])
    return Plan.from_state(state, taken)


def random_plans(problem: Problem, mesh: str, count: int, seed: int = 0) -> list[ShardingPlan]:
    """``count`` different random plans, or as many as the program has; the seed determines them.

    Plans differ if their shardings do, since two orders of actions may lead to one sharding.
    """
    rng = np.random.default_rng([seed, zlib.crc32(mesh.encode())])
    return _different(lambda: random_plan(problem, rng), count)


def propagated_plans(problem: Problem, mesh: str, count: int, seed: int = 0) -> list[ShardingPlan]:
    """``count`` different plans that propagate random shardings of arguments.

    There are fewer, or none, if the program does not have that many.
    """
    if not count:
        return []
    rng = np.random.default_rng([seed, zlib.crc32(mesh.encode())])
    moves = argument_moves(Recorder(problem, Budget()))

    def draw() -> ShardingPlan:
        state, taken = moves.propagation.unsharded(), []
        for _ in range(rng.integers(1, LONGEST_PROPAGATED, endpoint=True)):
            legal = moves.legal(state)
            if not len(legal):
                break
            taken.append(int(rng.choice(legal)))
            moves.take(state, taken[-1])
        words = tuple(moves.text[move] for move in taken)
        return make_plan(problem.analysis, problem.mesh, state, words)

    return [plan for plan in _different(draw, count) if plan.actions]


def _different(draw: Callable[[], ShardingPlan], count: int) -> list[ShardingPlan]:
    """Draw until there are ``count`` different plans, at most 20 times for each of them."""
    plans: dict[tuple[bytes, bytes], ShardingPlan] = {}
    for _ in range(20 * count):
        if len(plans) == count:
            break
        plan = draw()
        plans.setdefault((plan.op_factor.tobytes(), plan.value_dim.tobytes()), plan)
    return list(plans.values())

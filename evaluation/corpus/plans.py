"""The plans of a program on a target: experts' plans, random plans and plans of searches.

Every run draws the same plans: searches have budgets of evaluations, random plans fixed seeds.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from evaluation.accuracy.cases import worthwhile
from evaluation.corpus.autosharding import autosharded, is_available
from toast_lab import pipeline
from toast_lab.cost.problem import Problem
from toast_lab.errors import RunFailed, ToastError
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget
from toast_lab.search.usual_plans import data_parallel, usual_plans
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State

#: Search methods whose plans are judged, with their budgets of evaluations.
SEARCHES = {"mcts": 30_000, "automap": 3_000, "alpa": 3_000, "beam": 10_000}
OURS = "mcts"  # the method whose regret is reported
#: Experts' plans: data parallelism on the first axis, on both, and usual plans by their names.
EXPERTS = (
    "data",
    "data both",
    "fully sharded",
    "data + tensor parallel",
    "fully sharded + tensor parallel",
)
#: Plans of before usual plans knew roles: rows have them, and no new ones are made. They cut the
#: batch and the one colour that is on most bytes of weights: on the first axis, on both, or the
#: batch on the first and the weights on the second.
HEAVIEST = ("fsdp", "fsdp both", "tensor")
RANDOM = {"random 1": 1, "random 2": 2, "random 4": 4, "random 6": 6}  # number of actions by plan
#: Further random plans, for programs for which experts and searches find too few plans.
SPARE = {"random 3": 3, "random 5": 5, "random 7": 7, "random 8": 8, "random 9": 9}
ENOUGH = 12  # number of plans that suffice for a program on a target
EARLIER = "earlier search"  #: followed by a number: a plan of a search with earlier prices

RIVAL = "autosharding"  # XLA's pass, on TPUs, if its environment is installed


class Draft(NamedTuple):
    """A plan to compile."""

    name: str
    plan: ShardingPlan
    same_as: str = ""  # name of an earlier draft with the same sharding


def names(topology: str) -> tuple[str, ...]:
    """Names of all plans that this machine can make for a target."""
    every = (*EXPERTS, *SEARCHES, *RANDOM, *SPARE)
    return (*every, RIVAL) if topology.startswith("tpu") and is_available() else every


def drafts(
    model: Model,
    problem: Problem,
    topology: str,
    names: Collection[str],
    known: Mapping[str, ShardingPlan],
) -> Iterator[Draft]:
    """Make the named plans that are not known; ``SPARE`` ones only until there are ``ENOUGH``."""
    # The key of the sharding, since a plan's own key also depends on its actions
    name_of = {plan.sharding.key(): name for name, plan in known.items()}
    for name in (*EXPERTS, *SEARCHES, *RANDOM, RIVAL, *SPARE):
        if name in known or name not in names:
            continue
        if name in SPARE and len(name_of) >= ENOUGH:
            return
        try:
            if name == RIVAL:
                plan = autosharded(model, problem, topology)
            else:
                plan = _plan(problem, name)
        except RunFailed as error:
            print(f"{name}: {error}", flush=True)
            continue
        except ToastError:
            continue  # no batch, no dim that divides, or a space that the method cannot search
        key = plan.sharding.key()
        if name in SPARE and key in name_of:
            continue
        yield Draft(name, plan, same_as=name_of.get(key, ""))
        name_of.setdefault(key, name)


def _plan(problem: Problem, name: str) -> ShardingPlan:
    if name in SEARCHES:
        budget = Budget(seconds=None, evaluations=SEARCHES[name])
        return pipeline.search(problem, name, 0, budget, actions_within=0.0).plan
    if name in RANDOM or name in SPARE:
        return _random(problem, {**RANDOM, **SPARE}[name])
    if name == "data both":
        return Plan.from_actions(problem, data_parallel(problem))
    if name == "data":
        first = [action for action in data_parallel(problem) if action.axis == 0]
        return Plan.from_actions(problem, first)
    return Plan.from_actions(problem, usual_plans(problem).actions(name))


def _random(problem: Problem, depth: int) -> ShardingPlan:
    text = f"{problem.analysis.program.name} {problem.mesh} {depth}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    rng, state, taken = np.random.default_rng(seed), State(problem.space), list[Action]()
    for _ in range(depth):
        actions = worthwhile(state)
        if not actions:
            break
        taken.append(actions[int(rng.integers(len(actions)))])
        state.apply(taken[-1])
    return Plan.from_state(state, taken)


def encoded(plan: ShardingPlan) -> str:
    """A plan as text for a row: its two arrays, packed. Only its own program can decode them."""
    first = plan.program.factor_ptr[:-1, None]
    own = np.where(plan.op_factor >= 0, plan.op_factor - first, -1)
    arrays = np.concatenate([own.ravel(), plan.value_dim.ravel()])
    packed = arrays.astype(np.int8)
    assert (packed == arrays).all(), "an op of more than 127 factors"
    return base64.b85encode(zlib.compress(packed.tobytes(), 9)).decode()


def sharding_id(text: str) -> str:
    """A short name of an ``encoded`` plan that stays valid if a search finds another plan."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def decoded(problem: Problem, text: str) -> ShardingPlan:
    """Decode a plan of this problem that was ``encoded``."""
    arrays = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.int8)
    program, n_axes = problem.analysis.program, len(problem.mesh.axes)
    own = arrays[: program.n_ops * n_axes].reshape(-1, n_axes).astype(np.int32)
    op_factor = np.where(own >= 0, own + program.factor_ptr[:-1, None], -1).astype(np.int32)
    value_dim = arrays[own.size :].reshape(-1, n_axes).copy()
    sharding = Sharding(op_factor, value_dim)
    return make_plan(problem.analysis, problem.mesh, sharding, key=sharding.key())

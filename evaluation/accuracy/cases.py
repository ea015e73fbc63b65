"""Models, sizes, slices and plans of the accuracy run.

Models have few layers, so that one compile takes seconds. Their tensors are as large as in practice
(thousands of positions, channels or edges), since efficiency depends on local shapes and not on
depth. Plans are those of experts, a few that leave most of the program whole (large memory), and
random action sequences; no two have the same sharding.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from evaluation.compiled_rows import program_digest
from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.ir.model import Model
from toast_lab.models import registry
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State, legal_actions


class Case(NamedTuple):
    """A model at some sizes."""

    name: str  #: name of the case
    model: str
    sizes: dict[str, Any]
    most: int = 100  #: largest number of plans of each kind


class Slice(NamedTuple):
    """A slice of TPUs to compile for, with our mesh and machine."""

    topology: str
    mesh: dict[str, int]
    machine: str


class Draft(NamedTuple):
    """A plan to compile."""

    name: str
    kind: str  #: "expert", "memory" or "random"
    plan: ShardingPlan


CASES = (
    Case("mlp", "mlp", {"batch": 16384, "inputs": 8192, "hidden": 32768, "outputs": 8192}),
    Case(
        "attention", "attention", {"sequence": 16384, "d_model": 4096, "key": 1024, "value": 2048}
    ),
    Case(
        "transformer",
        "transformer",
        {
            "layers": 1,
            "d_model": 2048,
            "hidden": 8192,
            "heads": 8,
            "key_size": 256,
            "vocab": 16384,
            "batch": 64,
            "sequence": 1024,
            "mode": "gradient",
        },
    ),
    Case(
        "gns",
        "gns",
        {"steps": 1, "nodes": 16384, "edges": 262144, "hidden_layers": 1, "mode": "forward"},
    ),
    Case(
        "itx",
        "itx",
        {
            "layers": 1,
            "batch": 64,
            "prompt": 1024,
            "sequence": 2048,
            "key_size": 256,
            "vocab": 16384,
            "mode": "prefill",
        },
    ),
    # These are so large that many plans do not fit, and test which plans are refused, and by how
    # much. They have too few plans to be ranked.
    Case(
        "itx-large",
        "itx",
        {
            "layers": 1,
            "batch": 128,
            "prompt": 1024,
            "sequence": 2048,
            "key_size": 256,
            "vocab": 16384,
            "mode": "prefill",
        },
        3,
    ),
    Case(
        "transformer-large",
        "transformer",
        {
            "layers": 1,
            "d_model": 2048,
            "hidden": 8192,
            "heads": 8,
            "key_size": 256,
            "vocab": 16384,
            "batch": 128,
            "sequence": 1024,
            "mode": "gradient",
        },
        2,
    ),
)
SLICES = (
    Slice("tpu:v5e:4x4", {"d": 4, "m": 4}, "tpu-v5e"),
    Slice("tpu:v3:4x4", {"d": 8, "m": 4}, "tpu-v3"),
)
ROLES = {"data": "d", "model": "m", "seq": "m"}
N_MEMORY, N_RANDOM = 3, 14  # numbers of plans beside the expert plans
LONGEST = 6  # actions of a random plan


def case(name: str) -> Case:
    """The case with a name."""
    return next(c for c in CASES if c.name == name)


def slice_of(topology: str) -> Slice:
    """The slice with a topology."""
    return next(s for s in SLICES if s.topology == topology)


@functools.cache
def model_of(name: str) -> Model:
    """The model of a case, traced."""
    here = case(name)
    return frontends.load(here.model, **here.sizes)


@functools.cache
def digest(name: str) -> str:
    """The digest of a case's program."""
    return program_digest(model_of(name))


@functools.cache
def problem_of(name: str, topology: str) -> Problem:
    """The problem of a case on a slice."""
    model, where = model_of(name), slice_of(topology)
    return Problem(
        analyse(model),
        where.mesh,
        where.machine,
    )


def drafts(name: str, topology: str) -> list[Draft]:
    """The plans of a case: the same in every run, no two with the same sharding."""
    problem = problem_of(name, topology)
    found: dict[int, Draft] = {}
    for draft in (*_expert(name, problem), *_memory(name, problem), *_random(name, problem, found)):
        if sum(known.kind == draft.kind for known in found.values()) < case(name).most:
            found.setdefault(draft.plan.key, draft)
    return list(found.values())


def _expert(name: str, problem: Problem) -> Iterator[Draft]:
    here = case(name)
    for title, actions in registry.make(here.model, **here.sizes).expert_plans.items():
        if {"model", "seq"} <= {role for _, role, *_ in actions}:
            continue  # the plan needs a third mesh axis
        try:
            plan = Plan.from_actions(problem, registry.on_axes(actions, ROLES))
        except ToastError:
            continue  # no mesh axis divides a dim of these sizes
        yield Draft(title, "expert", plan)


def _rng(name: str, problem: Problem, kind: str) -> np.random.Generator:
    seed = hashlib.sha256(f"{name} {problem.mesh} {kind}".encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:8], "little"))


def _memory(name: str, problem: Problem) -> Iterator[Draft]:
    """Plans of a single action on one axis, which leave most of the program whole."""
    rng = _rng(name, problem, "memory")
    actions = worthwhile(State(problem.space))
    for i, which in enumerate(rng.permutation(len(actions))[:N_MEMORY]):
        yield Draft(f"memory {i}", "memory", _plan(problem, [actions[which]]))


def _random(name: str, problem: Problem, found: dict[int, Draft]) -> Iterator[Draft]:
    rng = _rng(name, problem, "random")
    made, tries = set(found), 0
    count = 0
    while count < N_RANDOM and tries < 50 * N_RANDOM:
        tries += 1
        state, taken = State(problem.space), []
        for _ in range(int(rng.integers(1, LONGEST + 1))):
            actions = worthwhile(state)
            if not actions:
                break
            action = actions[int(rng.integers(len(actions)))]
            state.apply(action)
            taken.append(action)
        plan = Plan.from_state(state, taken)
        if plan.key not in made:
            made.add(plan.key)
            yield Draft(f"random {count}", "random", plan)
            count += 1


def worthwhile(state: State) -> list[Action]:
    """Legal actions on at least 10 names, as the search requires (TOAST section 4.2).

    In tiny programs, all legal actions are given.

    Smaller actions hardly change a price, and plans with equal prices cannot be ranked.
    """
    return legal_actions(state, 10) or legal_actions(state)


def _plan(problem: Problem, actions: list[Action]) -> ShardingPlan:
    state = State(problem.space)
    for action in actions:
        state.apply(action)
    return Plan.from_state(state, actions)

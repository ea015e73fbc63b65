"""What is said to be in memory at the peak is the peak."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.certification.programs import programs
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost import peak
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.state import State, legal_actions

MESH = {"d": 2, "m": 2}


def plans(problem: Problem, n: int) -> list[ShardingPlan]:
    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        state, taken = State(problem.space), []
        for _ in range(int(rng.integers(0, 5))):
            actions = legal_actions(state)
            if actions:
                taken.append(actions[int(rng.integers(len(actions)))])
                state.apply(taken[-1])
        found.append(Plan.from_state(state, taken))
    return found


@functools.cache
def analysed(name: str) -> Analysis:
    (case,) = [c for c in programs() if c.name == name]
    loaded = case.model()
    return analyse(loaded)


@pytest.mark.parametrize("machine", ["tpu-v5e", "a100", "cpu"])
@pytest.mark.parametrize(
    "name",
    [
        "transformer_train",
        "transformer_scan_remat",
        "gns_train",
        "itx_prefill",
        "unet_forward",
        "kv_cache",
    ],
)
def test_what_is_held_adds_up_to_the_peak(name: str, machine: str) -> None:
    problem = Problem(analysed(name), MESH, machine)
    kinds = set()
    for plan in plans(problem, 10):
        cost = price(problem, plan)
        held = cost.at_peak
        assert sum(h.bytes for h in held) == pytest.approx(cost.peak_bytes)
        assert [h.bytes for h in held] == sorted((h.bytes for h in held), reverse=True)
        assert all(h.where == problem.analysis.program.where(h.op) for h in held)
        kinds |= {h.kind for h in held}
    assert {peak.ARGUMENT, peak.TENSOR} <= kinds


@pytest.mark.parametrize("machine", ["tpu-v5e", "cpu"])
@pytest.mark.parametrize("name", ["transformer_train", "scan_gradient", "conv_net_step"])
def test_what_is_held_adds_up_at_every_op(name: str, machine: str) -> None:
    """Also where a result takes the place of an operand, inside loops and at the end."""
    problem = Problem(analysed(name), MESH, machine)
    program, memory = problem.analysis.program, problem.prices.inputs.memory
    for plan in plans(problem, 4):
        totals = problem.pricer().totals(plan.op_factor, plan.value_dim)
        for op in range(program.n_ops + 1):
            held = peak.held_at(program, memory, totals.prices, totals.lives, op)
            assert sum(h.bytes for h in held) == pytest.approx(totals.lives.live[op]), op

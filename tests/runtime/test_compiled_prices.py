"""A compiler's times become prices with the same sums; results that do not belong are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import small_transformer
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_prices import compiled_prices
from toast_lab.runtime.schedule import Schedule
from toast_lab.sharding.plan import ShardingPlan

CLOCK_HZ = 1e9


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(small_transformer(layers=3), {"a": 2, "b": 4}, "tpu-v5e")


def plan_of(problem: Problem, *actions: str) -> ShardingPlan:
    return tl.Plan.from_actions(problem, [tuple(action.split("->")) for action in actions])


def compiled_of(
    problem: Problem,
    plan: ShardingPlan,
    factor: float,
    seed: int = 0,
    exposed_s: float | None = None,
) -> Compiled:
    """A made-up result of a compiler, which puts some times at other ops and some at none."""
    rng, cost = np.random.default_rng(seed), tl.price(problem, plan)
    last = problem.analysis.program.n_ops - 1
    cycles: dict[int, float] = {-1: 0.05 * factor * cost.compute_s * CLOCK_HZ}
    for row in cost.ops:
        place = row.op if rng.random() < 0.8 else min(row.op + 1, last)
        cycles[place] = cycles.get(place, 0.0) + 0.95 * factor * row.time_s * CLOCK_HZ
    schedule = None
    if exposed_s is not None:
        ops = sorted({row.op for row in cost.collectives})
        by_op = dict.fromkeys([*ops[: len(ops) // 2], -1], exposed_s / (len(ops) // 2 + 1))
        schedule = Schedule((), (), 0.0, 0.0, exposed_s, exposed_s, by_op)
    fields: dict[str, object] = {field.name: None for field in dataclasses.fields(Compiled)}
    return Compiled(
        **{
            **fields,
            "plan_key": plan.key,
            "topology": "tpu:v5e:2x4",
            "device_kind": "TPU v5e",
            "machine": "tpu-v5e",
            "cycles_by_op": cycles,
            "clock_hz": CLOCK_HZ,
            "schedule": schedule,
        }
    )


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_judged_plan_takes_what_the_compiler_says(problem, factor):
    plan = plan_of(problem, "batch->a", "hidden->b")
    compiled = compiled_of(problem, plan, factor, exposed_s=1e-4)
    listed = problem.with_prices(compiled_prices(problem, [(plan, compiled)]))
    cost = tl.price(listed, plan)
    assert cost.compute_s == pytest.approx(compiled.compute_s, rel=1e-6)
    assert cost.comm_s == pytest.approx(1e-4, rel=1e-6)
    assert {row.source for row in (*cost.ops, *cost.collectives)} == {"compiled"}
    assert cost.peak_bytes == tl.price(problem, plan).peak_bytes


def test_a_plan_that_was_not_judged_shares_what_it_has_in_common(problem):
    judged, other = plan_of(problem, "batch->a"), plan_of(problem, "batch->a", "hidden->b")
    compiled = compiled_of(problem, judged, 2.0)
    listed = problem.with_prices(compiled_prices(problem, [(judged, compiled)]))
    cost, by_rule = tl.price(listed, other), tl.price(problem, other)
    sources = {row.source for row in cost.ops}
    assert sources == {"compiled", "fitted"}
    assert 1.5 * by_rule.compute_s < cost.compute_s < 2.5 * by_rule.compute_s
    # Without a schedule, the compiler tells nothing about communication.
    assert cost.comm_s == pytest.approx(by_rule.comm_s)


def test_the_list_does_not_depend_on_the_one_before(problem):
    plans = [plan_of(problem, "batch->a"), plan_of(problem, "hidden->b")]
    judged = [(plan, compiled_of(problem, plan, 2.0, seed)) for seed, plan in enumerate(plans)]
    first = compiled_prices(problem, judged[:1])
    assert compiled_prices(problem.with_prices(first), judged) == compiled_prices(problem, judged)


def test_what_is_not_of_the_plan_is_refused(problem):
    plan, other = plan_of(problem, "batch->a"), plan_of(problem, "hidden->b")
    compiled = compiled_of(problem, plan, 1.0)
    with pytest.raises(InvalidPlan, match="but the plan given is"):
        compiled_prices(problem, [(other, compiled)])
    with pytest.raises(InvalidPlan, match="gave no times"):
        compiled_prices(problem, [(plan, dataclasses.replace(compiled, cycles_by_op={}))])
    elsewhere = dataclasses.replace(compiled, topology="tpu:v4:2x2x2", machine="tpu-v4")
    with pytest.raises(InvalidProblem, match="priced on the machine tpu-v5e"):
        compiled_prices(problem, [(plan, elsewhere)])

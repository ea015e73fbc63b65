"""The relaxed price of a plan never exceeds the evaluator's price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evaluation.certification import draw
from evaluation.certification.programs import programs
from tests.helpers import analysed, small_transformer
from tests.search.gap.states import (
    CLOSE,
    Arrays,
    choice_of,
    random_states,
    relaxed_s,
    swept_s,
)
from tests.search.listed_steps import priced_steps
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.price_list import PriceList
from toast_lab.cost.problem import Problem
from toast_lab.search.contract import Budget, search
from toast_lab.search.gap.dual_ascent import Ascent
from toast_lab.search.gap.relaxed_terms import relax

#: One or two programs of each family; the slow test runs all of them.
QUICK = ("attention", "transformer_train", "scan_gradient", "cond_and_switch", "kv_cache", "sorts")


def check_validity(problem: Problem, mesh: str, count: int, sweeps: int = 10) -> float:
    """Check that no plan is below its relaxed price or the bound; return least price / bound."""
    relaxation = relax(problem)
    ascent = Ascent(relaxation)
    for _ in range(sweeps):
        ascent.sweep()
    bound_s, least_s = ascent.stated_anew(), np.inf
    assert bound_s == pytest.approx(ascent.bound_s, rel=1e-9)
    plans: list[Arrays] = [
        *random_states(problem, relaxation, count),
        *(tuple(plan.sharding) for plan in draw.random_plans(problem, mesh, count // 3)),
    ]
    for plan in plans:
        time_s = problem.prices.totals(*plan).time_s
        choice = choice_of(problem, relaxation, plan)
        assert choice is not None
        assert relaxed_s(relaxation, choice) <= time_s * CLOSE
        # Also with the prices that uses sharing copies have in the end
        assert swept_s(ascent, choice) <= time_s * CLOSE
        least_s = min(least_s, time_s)
    assert bound_s <= least_s * CLOSE
    return least_s / bound_s if bound_s > 0 else np.inf


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100", "cpu"])
@pytest.mark.parametrize("name", QUICK)
def test_no_plan_is_below_its_relaxed_price(name: str, machine: str) -> None:
    case = next(case for case in programs() if case.name == name)
    check_validity(Problem(analyse(case.model()), mesh="2x4", machine=machine), "2x4", 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in programs()])
def test_no_plan_of_any_program_is_below_its_relaxed_price(name: str) -> None:
    """All programs of the certification, on one axis, two and three."""
    analysis = analyse(next(case for case in programs() if case.name == name).model())
    for mesh, machine in (("4", "cpu"), ("2x4", "tpu-v5e"), ("2x4", "h100"), ("2x2x2", "cpu")):
        check_validity(Problem(analysis, mesh=mesh, machine=machine), mesh, 90)


def _listed(
    problem: Problem, plans: list[Arrays], seed: int, share: float, factors: tuple[float, float]
) -> PriceList:
    """List a share of the plans' steps, each at its price times a factor from a range."""
    rng = np.random.default_rng(seed)
    entries = []
    for plan in plans:
        steps = [*priced_steps(problem, plan)]
        for row in np.flatnonzero(rng.random(len(steps)) < share).tolist():
            entries.append(steps[row].entry(rng.uniform(*factors)))
    return PriceList(tuple(entries), compute_scale=1.3, moving_scale=0.7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("machine", ["tpu-v5e"])
@pytest.mark.parametrize(("share", "factors"), [(0.5, (0.3, 3.0)), (1.0, (0.2, 0.3))])
def test_no_plan_is_below_its_relaxed_price_with_a_price_list(
    machine: str, mode: str, share: float, factors: tuple[float, float]
) -> None:
    """Listing every step of a few plans far below its price makes those plans the fastest."""
    problem = Problem(small_transformer(mode=mode), mesh="2x2", machine=machine)
    plans = [
        *random_states(problem, relax(problem), 6, seed=1),
        *(tuple(plan.sharding) for plan in draw.random_plans(problem, "2x2", 12)),
    ]
    listed = problem.with_prices(_listed(problem, plans, 1, share, factors))
    relaxation = relax(listed)
    ascent = Ascent(relaxation)
    for _ in range(10):
        ascent.sweep()
    for plan in plans:
        choice = choice_of(problem, relaxation, plan)
        assert choice is not None
        time_s = listed.prices.totals(*plan).time_s
        assert relaxed_s(relaxation, choice) <= time_s * CLOSE
        assert ascent.stated_anew() <= time_s * CLOSE
    check_validity(listed, "2x2", 45)


def test_pins_and_what_is_forbidden_narrow_the_space() -> None:
    problem = Problem(small_transformer(), mesh="2x4", machine="a100")
    pinned = problem.pin("batch->data").forbid("hidden->data")
    check_validity(pinned, "2x4", 45)
    relaxation = relax(pinned)
    unsharded = next(random_states(problem, relax(problem), 10**6))  # all rows stay whole
    assert choice_of(pinned, relaxation, unsharded) is None


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("mcts", {}),
    ("beam", {}),
    ("random", {}),
    ("exhaustive", {}),
    ("alpa", {}),
]


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_plans_of_every_method_of_the_space_are_in_it(method: str, options: dict[str, Any]) -> None:
    problem = Problem(analysed("transformer", layers=2, sequence=64), mesh="2x2", machine="a100")
    result = search(
        problem, method, seed=0, budget=Budget(seconds=None, evaluations=3000), **options
    )
    relaxation = relax(problem)
    choice = choice_of(problem, relaxation, tuple(result.plan.sharding))
    assert choice is not None
    assert relaxed_s(relaxation, choice) <= result.cost.time_s * CLOSE


def test_a_plan_that_treats_layers_apart_is_not_in_the_space() -> None:
    problem = Problem(analysed("transformer", layers=2, sequence=64), mesh="2x2", machine="a100")
    relaxation = relax(problem)
    plan = draw.random_plan(problem, np.random.default_rng(0))
    assert choice_of(problem, relaxation, tuple(plan.sharding)) is not None
    op_factor = plan.op_factor.copy()
    row = next(
        members
        for members in map(
            np.flatnonzero, np.equal.outer(np.arange(1000), relaxation.alike.ops.label)
        )
        if len(members) > 1
        and members[0] >= problem.analysis.program.n_arguments
        and (op_factor[members[0]] >= 0).any()
    )
    op_factor[row[1]] = -1
    assert choice_of(problem, relaxation, (op_factor, plan.value_dim)) is None

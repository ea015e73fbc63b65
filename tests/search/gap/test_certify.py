"""The bound is below every plan, close to the optimum, and sound whenever it is stopped."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import toast_lab as tl
from evaluation.certification import draw
from tests.helpers import SMALL, analysed, small_transformer
from tests.search.gap.states import CLOSE, choice_of, random_states
from toast_lab.errors import InvalidProblem
from toast_lab.search.gap.certify import BoundPoint, lower_bound
from toast_lab.search.gap.memory_terms import MemoryTerms
from toast_lab.search.gap.relaxed_terms import relax

OPTIMA: list[tuple[str, dict[str, Any], str]] = [
    ("mlp", {}, "2x2"),
    ("attention", {}, "2x2"),
    ("transformer", {**SMALL, "mode": "forward"}, "2x2"),
]


@pytest.mark.parametrize("machine", ["tpu-v5e", "a100"])
@pytest.mark.parametrize(("name", "sizes", "mesh"), OPTIMA)
def test_the_bound_is_at_most_the_best_plan_and_not_far_below(
    name: str, sizes: dict[str, Any], mesh: str, machine: str
) -> None:
    problem = tl.Problem(analysed(name, **sizes), mesh=mesh, machine=machine)
    optimum = tl.search(problem, method="exhaustive", budget=tl.Budget(seconds=120))
    assert optimum.status is tl.Status.COMPLETE
    best = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=20_000))
    bound = tl.bound(problem, seconds=60)
    assert bound.settled
    assert bound.score <= min(optimum.cost.score, best.cost.score) * CLOSE
    gap = bound.gap(best.cost)
    assert gap is not None
    assert gap < 0.05


def test_the_bound_is_below_thousands_of_plans() -> None:
    problem = tl.Problem(small_transformer(), mesh="2x4", machine="a100")
    bound = tl.bound(problem, seconds=20)
    pricer, relaxation = problem.pricer(), relax(problem)
    plans = [
        *random_states(problem, relaxation, 1000),
        *(plan.sharding for plan in draw.random_plans(problem, "2x4", 1000)),
    ]
    assert len(plans) > 1500
    scores = []
    for plan in plans:
        totals = pricer.totals(*plan)
        scores.append(pricer.score(totals.time_s, totals.peak_bytes)[0])
    assert bound.score <= min(scores) * CLOSE
    assert bound.score > 0.5 * min(scores)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_with_a_memory_limit_plans_that_fit_and_all_plans_are_above_their_bounds(
    share: float,
) -> None:
    """The limit lies between the smallest peak of any plan and that of the unsharded program."""
    free = tl.Problem(small_transformer(), mesh="2x4", machine="a100")
    problem = tl.Problem(
        small_transformer(),
        mesh="2x4",
        machine="a100",
        memory_limit_bytes=share * free.baseline[1],
    )
    best = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=8000))
    assert best.cost.fits
    fitting, general = tl.bound(problem, seconds=3, cost=best.cost), tl.bound(problem, seconds=3)
    assert fitting.fitting
    assert not general.fitting
    pricer, relaxation = problem.pricer(), relax(problem)
    memory = MemoryTerms(problem, relaxation)
    fitting_count = 0
    for plan in [
        best.plan.sharding,
        *random_states(problem, relaxation, 300),
        *(plan.sharding for plan in draw.random_plans(problem, "2x4", 300)),
    ]:
        totals = pricer.totals(*plan)
        quick = pricer.judged(totals.time_s, totals.peak_bytes)
        choice = choice_of(problem, relaxation, tuple(plan))
        assert choice is not None
        live = memory.live(choice)
        assert (live <= totals.lives.live[: len(live)] * CLOSE + 1.0).all()
        assert general.score <= quick.score * CLOSE
        if quick.fits:
            fitting_count += 1
            assert fitting.score <= quick.score * CLOSE
    assert fitting_count > 5


def test_a_limit_raises_the_bound_of_plans_that_fit() -> None:
    """Where the fastest plan does not fit, the bound is higher than without the limit."""
    analysis = small_transformer()
    free = tl.Problem(analysis, mesh="2x4", machine="a100", memory_limit_bytes=np.inf)
    quickest = tl.search(free, budget=tl.Budget(seconds=None, evaluations=8000))
    tight = tl.Problem(
        analysis, mesh="2x4", machine="a100", memory_limit_bytes=0.55 * quickest.cost.peak_bytes
    )
    best = tl.search(tight, budget=tl.Budget(seconds=None, evaluations=8000))
    assert best.cost.fits
    assert best.cost.time_s > quickest.cost.time_s
    loose, bound = tl.bound(free, seconds=8), tl.bound(tight, seconds=8, cost=best.cost)
    assert loose.score < bound.score <= best.cost.score * CLOSE


def test_it_can_be_stopped_at_any_time_and_holds_then() -> None:
    problem = tl.Problem(small_transformer(), mesh="2x4", machine="a100")
    points: list[BoundPoint] = []
    stopped = lower_bound(problem, 60.0, on_progress=points.append, cancel=lambda: len(points) > 0)
    finished = lower_bound(problem, 60.0)
    assert points
    assert not stopped.settled
    assert finished.settled
    assert 0.0 < stopped.score <= finished.score
    scores = [point.score for point in finished.curve]
    assert scores == sorted(scores)
    assert scores[-1] == finished.score
    nothing = lower_bound(problem, 0.0)
    assert nothing.score == 0.0
    assert nothing.gap(1.0) is None
    assert not nothing.settled


def test_time_is_kept() -> None:
    problem = tl.Problem(small_transformer(layers=2), mesh="2x2x2", machine="a100")
    lower_bound(problem, 0.0)  # compile the kernels first
    start_s = time.monotonic()
    bound = lower_bound(problem, 1.0)
    # Far less than settling takes, however busy the machine
    assert time.monotonic() - start_s < 30.0
    assert not bound.settled


def test_a_gap_is_of_the_plans_that_the_bound_is_of() -> None:
    problem = tl.Problem(small_transformer(), mesh="2x4", machine="a100")
    best = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=3000))
    bound = tl.bound(problem, seconds=20, cost=best.cost)
    assert bound.gap(best.cost) == pytest.approx(
        max(0.0, best.cost.score / bound.score - 1.0), abs=1e-12
    )
    over = tl.Problem(
        problem.analysis, mesh="2x4", machine="a100", memory_limit_bytes=best.cost.peak_bytes / 64
    )
    assert bound.gap(tl.price(over, best.plan)) is None
    assert "no plan that fits has a C(s) below" in str(bound)


def test_a_wrong_time_is_refused() -> None:
    problem = tl.Problem(analysed("mlp"), mesh="2x2", machine="a100")
    with pytest.raises(InvalidProblem, match="seconds"):
        tl.bound(problem, seconds=-1.0)


def test_a_program_of_nothing_has_no_gap() -> None:
    """On one device no action changes the program, so the bound is the unsharded score, 1."""
    problem = tl.Problem(analysed("mlp"), mesh="1", machine="a100")
    bound = tl.bound(problem, seconds=10)
    assert bound.score == pytest.approx(1.0, rel=1e-6)


def test_a_result_takes_the_bound_over() -> None:
    problem = tl.Problem(small_transformer(), mesh="2x4", machine="a100")
    result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=3000))
    assert result.gap is None
    certified = result.certified(seconds=20)
    assert certified.plan is result.plan
    assert result.bound is None
    assert certified.gap is not None
    assert certified.gap < 0.2
    assert certified.bound == pytest.approx(certified.cost.score / (1.0 + certified.gap))

"""Random plans of every program compute what the unsharded program computes.

This is the short, seeded form of the certification: four plans of a program, one of random colour
actions on each mesh and a propagated one; of the programs of the day, or of all (``sampling``).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evaluation.certification import draw, plans
from evaluation.certification.case import Case
from evaluation.certification.programs import programs
from tests import sampling
from toast_lab import frontends
from toast_lab.cost.problem import price
from toast_lab.ir.model import Model
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.listing import listing
from toast_lab.sharding.plan import ShardingPlan

# One fixture executes four plans of every program, for all tests of this file.
pytestmark = pytest.mark.timeout(1800)
CASES = {c.name: c for c in programs()}
TODAY = sampling.drawn(list(CASES), 24, "certified plans")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[plans.Row]]:
    """Rows of all programs, executed at once: one child process runs twelve programs."""
    found: dict[str, list[plans.Row]] = {name: [] for name in TODAY}
    for row in plans.certify([CASES[name] for name in TODAY], draw.mixed(*plans.SHORT)):
        found[row.program].append(row)
    return found


def failures(rows: list[plans.Row]) -> list[str]:
    return [
        f"{r.program} on {r.mesh}, {r.source} plan {r.actions}: {r.failure}"
        for r in rows
        if r.failure and not plans.known_bug(r)
    ]


@pytest.mark.parametrize("name", TODAY)
def test_sharded_equals_unsharded(name: str, rows: dict[str, list[plans.Row]]) -> None:
    own = rows[name]
    assert len(own) >= 3
    assert failures(own) == []


def test_most_plans_communicate(rows: dict[str, list[plans.Row]]) -> None:
    every = [r for own in rows.values() for r in own]
    for source, share in (("colours", 0.6), ("propagated", 0.3)):
        of_source = [r for r in every if r.source == source]
        assert len(of_source) >= len(rows)
        assert sum(r.collectives > 0 for r in of_source) > share * len(of_source)


REFINED = {
    "layers": 1,
    "batch": 4,
    "sequence": 1024,
    "d_model": 64,
    "hidden": 128,
    "vocab": 512,
    "heads": 4,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("solve", "by"), [(False, ", op by op"), (True, ", by integer programs")])
def test_a_refined_training_step_is_the_unsharded_one(solve: bool, by: str) -> None:
    step = Case("refined", lambda: frontends.load("transformer", **REFINED), (), {}, "")
    source = draw.refined(20_000, solve=solve)
    drawn: list[draw.Drawn] = []

    def keep(model: Model, seed: int) -> list[draw.Drawn]:
        drawn[:] = source(model, seed)
        return drawn

    (row,) = plans.certify([step], keep, seed=1)
    assert drawn[0].plan.refinements[-1].endswith(by)
    assert failures([row]) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["attention", "scan_gradient"])
def test_what_searches_return_is_the_unsharded_program(name: str) -> None:
    drawn: list[draw.Drawn] = []

    def keep(model: Model, seed: int) -> list[draw.Drawn]:
        drawn[:] = draw.searched(300, 2)(model, seed)
        return drawn

    rows = plans.certify([CASES[name]], keep)
    assert {one.mesh for one in drawn} == set(draw.MESHES)
    assert len({(one.mesh, one.plan.key) for one in drawn}) == len(drawn) == len(rows) >= 5
    assert all((one.plan.op_factor >= 0).any() for one in drawn), "a plan that cuts nothing"
    assert failures(rows) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "attention", "transformer_train", "scan_gradient"])
def test_many_plans_of_both_kinds_compute_the_same(name: str) -> None:
    rows = plans.certify([CASES[name]], draw.mixed((15, 15, 0), (6, 6, 0)))
    assert len(rows) > 20
    assert failures(rows) == []


def test_propagated_plans_are_priced_and_listed() -> None:
    for name in ("mlp", "attention", "transformer_train", "scan_gradient"):
        problem = draw.problems(CASES[name].model())["2x4"]
        drawn = draw.propagated_plans(problem, "2x4", 3)
        assert len(drawn) == 3
        for plan in drawn:
            plan.check()
            assert price(problem, plan).time_s > 0
            assert str(listing(problem, plan))


def test_a_plan_that_computes_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself works: without one multiplication, every plan must fail."""
    monkeypatch.setattr(
        plans, "annotate", lambda model, plan: annotate(model, plan).replace(".maximum", ".minimum")
    )
    rows = plans.certify([CASES["mlp"]], draw.colours(1, 1, 0))
    assert len(rows) == 2
    assert all(r.failure.startswith("differs: result") for r in rows)


def test_a_plan_at_which_the_compiler_dies_is_blamed_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ruined: list[ShardingPlan] = []

    def annotate_one_badly(model: object, plan: ShardingPlan) -> str:
        ruined.append(plan)
        return "no module" if len(ruined) == 2 else annotate(model, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(plans, "annotate", annotate_one_badly)
    rows = plans.certify([CASES["mlp"], CASES["xxt"]], draw.colours(3, 0, 0))
    assert [bool(r.failure) for r in rows] == [False, True, False, False, False, False]


def test_senseless_inputs_are_noticed() -> None:
    case = dataclasses.replace(
        CASES["attention"],
        inputs={"wk": lambda rng, shape: np.zeros(shape)},
        why_inputs="0 divided by 0",
    )
    (row,) = plans.certify([case], draw.colours(1, 0, 0))
    assert "infinities or NaN" in row.failure


def test_tolerances_follow_the_coarsest_type_on_the_way() -> None:
    half = plans.tolerances(CASES["half"].model().program)
    assert half == {"result[0]": 4 * 2**-10, "result[1]": 4 * 2**-7}
    assert set(plans.tolerances(CASES["random_bits"].model().program).values()) == {0.0}
    assert plans.tolerances(CASES["mlp"].model().program, slack=2) == {"result": 2 * 64 * 2**-23}


def test_random_plans_are_different_and_the_same_for_the_same_seed() -> None:
    problem = draw.problems(CASES["mlp"].model())["2x4"]
    first, again = (draw.random_plans(problem, "2x4", 10, seed=1) for _ in range(2))
    assert [p.key for p in first] == [p.key for p in again]
    assert len({p.key for p in first}) == 10
    assert [p.key for p in draw.random_plans(problem, "2x4", 10, seed=2)] != [p.key for p in first]


def test_a_case_without_a_reason_for_its_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="need their reason"):
        Case("x", CASES["mlp"].model, (), {"x": lambda rng, shape: np.ones(shape)}, "")
    with pytest.raises(ValueError, match="no argument is called y"):
        dataclasses.replace(
            CASES["mlp"], inputs={"y": lambda rng, shape: np.ones(shape)}, why_inputs="a test"
        ).arrays(CASES["mlp"].model())

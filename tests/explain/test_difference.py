"""The differences between two plans: rows of tensors, collectives and computing."""

import json

import pytest

import toast_lab as tl
from tests.helpers import analysed, plan, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.explain.difference import difference

MESH = {"d": 2, "m": 4}


@pytest.fixture(scope="module")
def problem():
    return Problem(small_transformer(layers=4), MESH, "tpu-v3")


def test_rows_add_up_to_what_the_costs_differ_by(problem):
    before = plan(problem, ("batch", "d"))
    after = plan(problem, ("batch", "d"), ("hidden", "m"), ("heads", "m"))
    differences = difference(problem, before, after)
    a, b = price(problem, before), price(problem, after)
    assert (differences.before.time_s, differences.after.time_s) == (a.time_s, b.time_s)
    assert sum(r.time_s for r in differences.collectives) == pytest.approx(
        b.comm_s - a.comm_s, rel=1e-9
    )
    assert sum(y - x for _, x, y in differences.compute) == pytest.approx(
        b.compute_s - a.compute_s, rel=1e-6
    )
    assert sum(r.after - r.before for r in differences.collectives) == len(b.collectives) - len(
        a.collectives
    )


def test_tensors_are_those_whose_shardings_differ_layers_together(problem):
    before, after = plan(problem, ("batch", "d")), plan(problem, ("batch", "d"), ("hidden", "m"))
    differences = difference(problem, before, after)
    rows = {r.value: r for r in differences.tensors}
    row = rows["params['layers'][*]['w_up']"]
    assert (row.places, row.before, row.after) == (4, ((), ()), ((), ("m",)))
    assert row.before_bytes == 4 * row.after_bytes > 0
    program = problem.analysis.program
    different = [
        v
        for v, (x, y) in enumerate(zip(before.value_specs(), after.value_specs(), strict=True))
        if x != y and not program.value_is_constant[v]
    ]
    assert sum(r.places for r in differences.tensors) == len(different)
    assert not any("batch" in r.value for r in differences.tensors)


def test_the_same_plan_differs_in_nothing(problem):
    one = plan(problem, ("batch", "d"))
    differences = difference(problem, one, one)
    assert (differences.tensors, differences.collectives, differences.compute) == ((), (), ())
    assert "The plans are the same." in str(differences)


def test_the_report_and_its_data(problem):
    differences = tl.diff(problem, tl.replicated(problem), plan(problem, ("batch", "d")))
    text = str(differences)
    assert "all_reduce {d}" in text
    assert "0 -> " in text
    assert "whole" in text
    data = json.loads(json.dumps(differences.to_json()))
    assert data["time_s"] == [differences.before.time_s, differences.after.time_s]
    assert len(data["tensors"]) == len(differences.tensors)


def test_plans_of_other_problems_are_refused(problem):
    other = Problem(analysed("mlp"), MESH)
    with pytest.raises(InvalidPlan, match="this plan is for the program mlp"):
        difference(problem, tl.replicated(problem), tl.replicated(other))

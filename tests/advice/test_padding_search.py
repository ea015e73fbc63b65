"""A search of what to pad, by price."""

from __future__ import annotations

from typing import Any

import pytest

import toast_lab as tl
from tests import gpt2_model
from toast_lab.advice.padding_search import candidates, with_padding
from toast_lab.advice.why_not import why_not
from toast_lab.errors import InvalidProblem

SIZES = {"layers": 1, "batch": 2, "positions": 32, "heads": 5, "key": 64, "vocabulary": 50257}
BUDGET = tl.Budget(seconds=None, evaluations=600)


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    fn, arguments, options = gpt2_model.training(**SIZES)
    model = tl.from_jax(fn, *arguments, **options)
    return tl.Problem(tl.analyse(model), {"data": 2, "model": 4}, machine="tpu-v5e")


def test_what_the_mesh_does_not_divide_is_tried(problem: tl.Problem) -> None:
    rows = candidates(problem)
    (vocabulary,) = {name for sizes in rows for name in sizes if name.startswith("vocab")}
    assert [sizes[vocabulary] for sizes in rows if vocabulary in sizes] == [50258, 50260, 50264]
    for sizes in rows:
        ((colour, size),) = sizes.items()
        below = {row.size for row in problem.divisibility().dims if row.colour == colour}
        assert any(size // 1.5 <= old < size for old in below)


def test_a_search_pads_what_pays_and_says_so(problem: tl.Problem) -> None:
    plain = tl.search(problem, budget=BUDGET)
    result = tl.search(problem, budget=tl.Budget(None, 6000), padding=True)
    assert result.cost.time_s < 0.9 * plain.cost.time_s
    best = result.choices[0]
    assert best.sizes
    assert best.name in result.message
    assert (best.time_s, best.peak_bytes) == (result.cost.time_s, result.cost.peak_bytes)
    assert [row.name for row in result.choices if not row.sizes] == ["as written"]
    assert [row.time_s for row in result.choices] == sorted(row.time_s for row in result.choices)
    assert result.problem is not None
    padding = result.problem.analysis.model.padding
    assert padding is not None
    assert best.name in str(padding)
    # Fixed sizes give the same program
    again = tl.search(problem, budget=BUDGET, padding=best.sizes)
    assert again.problem is not None
    assert again.problem.analysis.program.digest() == result.problem.analysis.program.digest()


def test_what_does_not_pay_is_left_as_it_is() -> None:
    problem = tl.Problem(tl.analyse(tl.load("mlp", batch=64)), {"data": 2})
    assert candidates(problem) == []
    result = tl.search(problem, budget=tl.Budget(None, 60), padding=True)
    assert [row.name for row in result.choices] == ["as written"]
    assert result.problem is not None
    assert result.problem.analysis.model.padding is None


def test_a_single_padding_makes_room(problem: tl.Problem) -> None:
    variants = list(with_padding(problem, ["batch->data"]))
    assert any(text.startswith("vocab") for _, text, _, _ in variants)
    plan = tl.Plan.from_actions(problem, ["batch->data"])
    needed = tl.price(problem, plan).peak_bytes
    tight = tl.Problem(
        problem.analysis, problem.mesh, problem.machine, memory_limit_bytes=0.9 * needed
    )
    changes = [row for row in why_not(tight, plan, recompute=False).changes]
    (first, *_) = [row for row in changes if row.kind == "padding" and row.fits]
    assert first.peak_bytes < 0.9 * needed
    assert first.problem.analysis.model.padding is not None


def test_each_padding_of_the_report_has_its_price_with_a_plan(problem: tl.Problem) -> None:
    plan = tl.Plan.from_actions(problem, ["batch->data"])
    rows = tl.padding_prices(problem, plan)
    assert [row.time_s for row in rows if row.fits] == sorted(
        row.time_s for row in rows if row.fits
    )
    padded = {name for row in rows for name in row.sizes}
    assert padded == {name for sizes in candidates(problem) for name in sizes}
    best = rows[0]
    assert best.time_s < 0.9 * tl.price(problem, plan).time_s
    own = tl.padded(problem, best.sizes)
    further = best.name.rpartition(", ")[2]
    cost = tl.price(own, tl.Plan.from_actions(own, ["batch->data", further]))
    assert (cost.time_s, cost.peak_bytes) == pytest.approx((best.time_s, best.peak_bytes))


def test_bad_input_is_said(problem: tl.Problem) -> None:
    def search(**options: Any) -> None:
        tl.search(problem, budget=BUDGET, **options)

    with pytest.raises(InvalidProblem, match="no colour is called 'words'"):
        search(padding={"words": 64})
    with pytest.raises(InvalidProblem, match="neither resumes nor chooses what to recompute"):
        search(padding=True, recompute=True)
    with pytest.raises(InvalidProblem, match="a judge cannot choose what to recompute or to pad"):
        search(padding=True, judge="cpu:8")

"""A written plan on one screen of forty lines and eighty columns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.plan import Spec
from toast_lab.written.screen import LINES, PathStep, spec_code, written_text
from toast_lab.written.sharding_rules import rules_of
from toast_lab.written.sites import Site
from toast_lab.written.written_plan import SiteConstraint, WrittenPlan

SPEC: Spec = (("a",), (), ("b",))


def site(number: int) -> Site:
    return Site(
        file=f"/home/somebody/models/{'long_' * 12}model.py",
        line=30 + number,
        end_line=31 + number,
        name="" if number == 0 else f"hidden_{number}",
        function="Block.forward",
        text="hidden = f(x)",
        rank=3,
        values=(),
        cotangents=(),
    )


def written_plan(sites: int) -> WrittenPlan:
    problem = Problem(analysed("transformer", layers=2), {"a": 4, "b": 4})
    plan = Plan.from_actions(problem, list(usual_plans(problem).values())[-1])
    program = plan.program
    return WrittenPlan(
        problem=problem,
        rules=rules_of(program, plan.lowered.kept[: program.n_arguments]),
        constraints=tuple(SiteConstraint(site(number), SPEC) for number in range(sites)),
        plan=plan,
        cost=price(problem, plan),
    )


@pytest.mark.parametrize("sites", [0, 5, 60])
@pytest.mark.parametrize("shuffled", [False, True])
def test_one_screen_whatever_the_plan(sites: int, shuffled: bool) -> None:
    written = written_plan(sites)
    if shuffled:  # as many rules as there are arguments
        generator = np.random.default_rng(0)
        specs = [((), SPEC[:1], SPEC[2:])[int(i)] for i in generator.integers(0, 3, 63)]
        written = WrittenPlan(
            written.problem,
            rules_of(written.problem.analysis.program, specs),
            written.constraints,
            plan=written.plan,
            cost=written.cost,
        )
    path = [PathStep(f"colour_{'x' * number}@1->a", 1e-3, 2.0**30) for number in range(sites)]
    without = {site(number): (1e-3 * number, 2.0**30 + number) for number in range(sites)}
    for text, width in (
        (written_text(written), 80),
        (written_text(written, 60, without=without, path=path), 60),
        (written_text(written, without=without, path=path, refinements=path), 80),
    ):
        lines = text.split("\n")
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= width
        assert str(written.size) in lines[0]
    if sites == 60:
        assert "more: plan.constraints has all" in text
        assert "more: plan.actions has all" in text


def test_the_order_of_what_is_told() -> None:
    written = written_plan(2)
    cost = written.cost
    path = [PathStep("batch->a", 4e-3, 2.0**30), PathStep("heads->b", 2e-3, 2.0**30)]
    text = written_text(
        written,
        without={site(1): (cost.time_s + 1e-3, cost.peak_bytes - 2**20)},
        path=path,
        refinements=[PathStep("dot on b", 1.5e-3, 2.0**30), PathStep("dot on a", 1e-3, 2.0**30)],
    )
    parts = (
        "constraints\n",
        "unsharded ",
        "data parallel ",
        "Data parallel over a; fully sharded",
        "first match decides; optimizer states follow; rest whole",
        "w_gate, w_up, wq",
        "P('a', 'b')",
        "constraints, by line and variable, and the time and memory that each saves",
        "model.py:30 return",
        "model.py:31 hidden_1",
        "-1 ms",
        "+1 MiB",
        "found by these actions, with the price after each",
        "batch->a",
        "4 ms",
        "heads->b",
        "then single ops (2 changes, 50.0% less time)",
    )
    places = [text.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)
    bare = written_text(written)
    assert "saves" not in bare
    assert "found by" not in bare


def test_the_least_important_rows_are_counted() -> None:
    written = written_plan(60)
    cost = written.cost
    without = {site(number): (cost.time_s * 1.001, cost.peak_bytes) for number in range(60)}
    without[site(41)] = (cost.time_s * 2, cost.peak_bytes)
    text = written_text(written, without=without)
    assert "hidden_41" in text
    assert "hidden_59" not in text


def test_specs_are_shown_as_they_are_written() -> None:
    assert spec_code(()) == "P()"
    assert spec_code(((), ("a", "b"), ())) == "P(None, ('a', 'b'))"

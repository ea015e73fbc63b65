"""A written plan on one screen of forty lines and eighty columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Problem, Quick, price
from toast_lab.ir.sites import Site
from toast_lab.plan_verbs import Plan
from toast_lab.search.action_path import PathStep
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.plan import Spec
from toast_lab.written.screen import LINES, spec_code, written_text
from toast_lab.written.sharding_rules import rules_of
from toast_lab.written.written_plan import SiteConstraint, WrittenPlan

SPEC: Spec = (("a",), (), ("b",))


def site(number: int) -> Site:
    return Site(
        file=f"/srv/models/{'long_' * 12}model.py",
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


def quick(time_s: float, peak_bytes: float) -> Quick:
    return Quick(1.0, time_s, peak_bytes, fits=True)


def step(action: str, time_s: float) -> PathStep:
    return PathStep(action, time_s, 2.0**30, 1.0, fits=True)


@pytest.mark.parametrize("sites", [0, 5, 60])
@pytest.mark.parametrize("shuffled", [False, True])
def test_one_screen_whatever_the_plan(sites: int, shuffled: bool) -> None:
    written = written_plan(sites)
    if shuffled:  # as many rules as there are arguments
        generator = np.random.default_rng(0)
        specs = [((), SPEC[:1], SPEC[2:])[int(i)] for i in generator.integers(0, 3, 63)]
        rules = rules_of(written.problem.analysis.program, specs)
        written = dataclasses.replace(written, rules=rules)
    full = dataclasses.replace(
        written,
        without={
            constraint: quick(1e-3 * number, 2.0**30)
            for number, constraint in enumerate(written.constraints)
        },
        path=tuple(step(f"colour_{'x' * number}@1->a", 1e-3) for number in range(sites)),
    )
    for text, width in ((written_text(written), 80), (written_text(full, 60), 60)):
        lines = text.split("\n")
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= width
        assert str(written.size) in lines[0]
    text = written_text(full)
    assert len(text.split("\n")) <= LINES
    assert max(map(len, text.split("\n"))) <= 80
    if sites == 60:
        assert "more: plan.constraints has all" in text
        assert "more: result.path has all" in text


def test_the_order_of_what_is_told() -> None:
    written = written_plan(2)
    cost = written.cost
    written = dataclasses.replace(
        written,
        without={written.constraints[1]: quick(cost.time_s + 1e-3, cost.peak_bytes - 2**20)},
        path=(
            step("", 8e-3),
            step("batch->a", 4e-3),
            step("heads->b", 2e-3),
            step("descent", 1e-3),
        ),
    )
    text = written_text(written)
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
        " 1 ms",
        "-1 MiB",
        "written for the plan of these actions, with its price after each",
        "unsharded  ",
        "batch->a",
        "4 ms",
        "heads->b",
        "then single ops (descent), 50.0% less time",
    )
    begin = 0
    for part in parts:
        begin = text.find(part, begin)
        assert begin >= 0, part
    bare = written_text(written_plan(2))
    assert "saves" not in bare
    assert "actions" not in bare


def test_the_least_important_rows_are_counted() -> None:
    written = written_plan(60)
    cost = written.cost
    without = dict.fromkeys(written.constraints, quick(cost.time_s * 1.001, cost.peak_bytes))
    without[written.constraints[41]] = quick(cost.time_s * 2, cost.peak_bytes)
    text = written_text(dataclasses.replace(written, without=without))
    assert "hidden_41" in text
    assert "hidden_59" not in text


def test_specs_are_shown_as_they_are_written() -> None:
    assert spec_code(()) == "P()"
    assert spec_code(((), ("a", "b"), ())) == "P(None, ('a', 'b'))"

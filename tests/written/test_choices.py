"""What each choice of a plan saves is the price of the plan without it, less its own."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable

import pytest

import toast_lab as tl
from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidInput, InvalidPlan, InvalidProblem
from toast_lab.frontends.site_finding import sites_of
from toast_lab.plan_verbs import Plan, Written
from toast_lab.search.contract import Budget
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.plan import ShardingPlan, make_plan, unsharded_plan
from toast_lab.written.agreed import Shardy
from toast_lab.written.choices import WIDTH, Choices, PricedChoice
from toast_lab.written.drafts import Draft, Drafts


def check(row: PricedChoice, problem: Problem, plan: ShardingPlan, without: ShardingPlan) -> None:
    """Is the row the difference of the prices of these plans?"""
    cost, other = price(problem, plan), price(problem, without)
    assert row.time_s == pytest.approx(other.time_s - cost.time_s, abs=1e-15)
    assert row.peak_bytes == other.peak_bytes - cost.peak_bytes
    assert row.share == pytest.approx(1 - cost.score / other.score)
    assert row.fits == other.fits


def check_text(ranked: Choices) -> None:
    shares = [row.share for row in ranked]
    assert shares == sorted(shares, reverse=True)
    assert max(map(len, str(ranked).splitlines())) <= WIDTH
    assert "<pre" in ranked._repr_html_()
    assert len(json.loads(json.dumps(ranked.to_json()))) == len(ranked)


@pytest.mark.parametrize(
    ("make", "actions"),
    [
        (lambda: Problem(analysed("mlp", batch=64), {"a": 2, "b": 2}), ["B->a", "U->b"]),
        (
            lambda: Problem(small_transformer(layers=2, batch=16), {"a": 2, "b": 4}, "tpu-v3"),
            ["batch->a", "sequence@1->b", "hidden->b"],
        ),
        # Does not fit without most of its actions
        (
            lambda: Problem(small_transformer(), {"a": 2, "b": 2}, memory_limit_bytes=300_000),
            ["batch->a", "vocab->b", "hidden->a"],
        ),
    ],
    ids=["mlp", "transformer", "little memory"],
)
def test_an_action_saves_what_the_plan_of_the_others_costs_more(
    make: Callable[[], Problem], actions: list[str]
) -> None:
    problem = make()
    plan = Plan.from_actions(problem, actions)
    ranked = tl.choices(plan, problem)
    rows = {row.text: row for row in ranked if row.kind == "action"}
    assert set(rows) == set(plan.actions)
    for action in plan.actions:
        others = [other for other in plan.actions if other != action]
        check(rows[action], problem, plan, Plan.from_actions(problem, others))
    check_text(ranked)


def test_a_side_saves_what_the_other_side_costs_more() -> None:
    problem = Problem(small_transformer(layers=2, batch=16), {"a": 2, "b": 4}, "tpu-v3")
    plan = Plan.from_actions(problem, ["batch->a", "sequence@1->b"])
    (side,) = [row for row in tl.choices(plan, problem) if row.kind == "side"]
    check(side, problem, plan, Plan.from_actions(problem, ["batch->a", "sequence@0->b"]))
    tensors = tl.conflicts(problem).disputes[0].tensors
    tensor = next(tensor for tensor in tensors if tensor.value == "scores")
    assert side.where == tensor.where
    assert side.text.endswith(f": dim {tensor.dims[1]} on b, not {tensor.dims[0]}")


def test_a_later_action_may_cut_what_the_one_left_out_had_cut() -> None:
    problem = Problem(analysed("mlp", batch=64), {"a": 2})
    plan = Plan.from_actions(problem, ["X->a", "U->a"])
    rows = {row.text: row for row in tl.choices(plan, problem)}
    assert len(price(problem, plan).ops) > 0
    check(rows["X->a"], problem, plan, Plan.from_actions(problem, ["U->a"]))


def test_pinned_actions_are_choices_too() -> None:
    free = Problem(analysed("mlp", batch=64), {"a": 2, "b": 2})
    pinned = free.pin(("B", "a"))
    actions = ["B->a", "U->b"]
    expected = tl.choices(Plan.from_actions(free, actions), free)
    assert tl.choices(Plan.from_actions(pinned, actions), pinned).rows == expected.rows


def test_what_came_after_the_actions_is_one_more_row() -> None:
    problem = Problem(analysed("mlp", batch=64), {"a": 2, "b": 2})
    plan = Plan.from_actions(problem, ["B->a", "U->b"])
    sharding = plan.sharding.copy()
    sharding.op_factor[-1] = sharding.value_dim[-1] = -1
    refined = dataclasses.replace(
        make_plan(problem.analysis, problem.mesh, sharding, (*plan.actions, "refined in 1 place"))
    )
    ranked = tl.choices(refined, problem)
    (row,) = [row for row in ranked if row.kind == "refinement"]
    assert row.text == "refined in 1 place"
    check(row, problem, refined, plan)
    of_actions = [row for row in ranked if row.kind != "refinement"]
    assert of_actions == list(tl.choices(plan, problem))


# -- written plans ---------------------------------------------------------------------------------
@functools.cache
def written() -> Written:
    # Its sizes are real, since in a tiny one nothing is worth cutting
    problem = Problem(analysed("transformer"), {"a": 4, "b": 4})
    plan = Plan.from_actions(
        problem, usual_plans(problem)["fully sharded + tensor + sequence parallel"]
    )
    front = plan.written_front(problem, budget=Budget(None, 1500))
    return next(row for row in front if row.rules and row.constraints)


def test_a_rule_saves_what_shardy_makes_of_the_plan_without_it() -> None:
    """The same with the constraints, which are priced as Shardy is imitated: within 1%."""
    problem = written().problem
    analysis = problem.analysis
    drafts = Drafts(problem, sites_of(analysis.program, analysis.model))
    specs = written().argument_specs()
    roles = [problem.mesh.cut_dims(specs[members[0]]) for members in drafts.members]
    constraints = {
        (drafts.sites.index(site), problem.mesh.cut_dims(spec))
        for site, spec in written().constraints
    }
    whole = problem.mesh.cut_dims(())
    fewer = [
        Draft(
            tuple(
                whole if set(drafts.members[role]) & set(rule.arguments) else layout
                for role, layout in enumerate(roles)
            ),
            frozenset(constraints),
        )
        for rule in written().rules
    ]
    fewer += [
        Draft(tuple(roles), frozenset(constraints - {(drafts.sites.index(site), cut)}))
        for site, spec in written().constraints
        for cut in [problem.mesh.cut_dims(spec)]
    ]
    shardings = Shardy(problem, analysis.model, drafts).propagated(fewer)
    ranked = tl.choices(written())
    assert [row.kind for row in ranked].count("rule") == len(written().rules)
    assert [row.kind for row in ranked].count("constraint") == len(written().constraints)
    by_share = sorted(ranked, key=lambda row: row.time_s)
    expected = []
    for sharding in shardings:
        assert sharding is not None
        expected.append(drafts.price_of(sharding).time_s - written().cost.time_s)
    assert [row.time_s for row in by_share] == pytest.approx(
        sorted(expected), abs=0.01 * written().cost.time_s
    )
    check_text(ranked)
    for row in ranked:
        assert bool(row.where) == (row.kind == "constraint")


# -- bad input -------------------------------------------------------------------------------------
def test_a_plan_without_actions_says_so() -> None:
    problem = Problem(analysed("mlp", batch=64), {"a": 2})
    with pytest.raises(InvalidPlan, match="no actions to leave out; once it is written"):
        tl.choices(unsharded_plan(problem.analysis, problem.mesh), problem)
    result = tl.search(problem, method="alpa", budget=Budget(None, 50))
    plan = dataclasses.replace(result.plan, actions=(), refinements=("roles: all",))
    with pytest.raises(InvalidPlan, match=r"no actions to leave out \(it was roles: all\)"):
        tl.choices(plan, problem)
    bare = dataclasses.replace(written(), rules=(), constraints=(), without={})
    with pytest.raises(InvalidPlan, match="nothing is written"):
        tl.choices(bare)


def test_plans_of_other_problems_and_other_things_are_refused() -> None:
    problem = Problem(analysed("mlp", batch=64), {"a": 2})
    plan = Plan.from_actions(problem, ["B->a"])
    assert [row.text for row in tl.choices(plan)] == ["B->a"]
    with pytest.raises(InvalidPlan, match="for the mesh"):
        tl.choices(plan, Problem(analysed("mlp", batch=64), {"a": 4}))
    with pytest.raises(InvalidInput, match="not of a Problem"):
        tl.choices(problem)  # type: ignore[arg-type]
    with pytest.raises(InvalidProblem, match="give problem="):
        tl.choices(dataclasses.replace(plan, analysis=None))

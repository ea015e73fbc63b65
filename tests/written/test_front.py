"""Written plans are found, mean what Shardy makes of them, and no smaller one is better."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.frontends.site_finding import sites_of
from toast_lab.frontends.tracing import from_jax
from toast_lab.plan_verbs import Plan, Written
from toast_lab.search.limits import Budget
from toast_lab.search.terms.menus import unpacked_layouts
from toast_lab.search.usual_plans import usual_plans
from toast_lab.written.agreed import Shardy
from toast_lab.written.drafts import Draft, Drafts
from toast_lab.written.written_front import WrittenFront

MESH = {"a": 4, "b": 4}


@functools.cache
def small() -> Problem:
    # Its sizes are real, since in a tiny one nothing is worth cutting
    return Problem(analysed("transformer"), MESH)


@functools.cache
def drafts() -> Drafts:
    analysis = small().analysis
    return Drafts(small(), sites_of(analysis.program, analysis.model))


def plan_named(name: str) -> Plan:
    return Plan.from_actions(small(), usual_plans(small())[name])


@functools.cache
def front() -> WrittenFront[Written]:
    plan = plan_named("fully sharded + tensor + sequence parallel")
    return plan.written_front(small(), budget=Budget(None, 1500))


def test_each_row_is_larger_and_better_than_the_one_before() -> None:
    sizes = [row.size.total for row in front()]
    scores = [row.cost.score for row in front()]
    assert len(front()) > 1
    assert sizes == sorted(set(sizes))
    assert scores == sorted(scores, reverse=True)


def test_a_row_costs_what_its_plan_costs_and_the_plan_can_be_carried_out() -> None:
    for row in front():
        row.plan.check()
        assert row.cost.time_s == small().pricer().full(row.plan).time_s


def test_rules_decide_the_arguments_as_the_plan_keeps_them() -> None:
    program = small().analysis.program
    for row in front():
        for argument in range(program.n_arguments):
            path = program.value_name[argument]
            rule = next((rule for rule in row.rules if re.search(rule.pattern, path)), None)
            assert (rule is None) == (argument not in {a for r in row.rules for a in r.arguments})
            spec = row.plan.lowered.kept[argument]
            cut = max((dim + 1 for dim, axes in enumerate(spec) if axes), default=0)
            assert spec[:cut] == (() if rule is None else rule.spec)


def test_the_nearest_is_within_the_loss_or_the_best_there_is() -> None:
    assert front().within(100.0) is front()[0]
    nearest = front().within(0.0).cost.score
    assert nearest <= front().unlimited.score or nearest == min(row.cost.score for row in front())


def test_a_size_that_nothing_has_is_refused_with_the_smallest() -> None:
    smallest = front()[0].size.total
    assert front().of_size(smallest) is front()[0]
    with pytest.raises(InvalidProblem, match=f"the smallest has .*, {smallest} together"):
        front().of_size(smallest - 1)


def test_rules_and_constraints_say_what_they_gain() -> None:
    row = next(row for row in front() if row.constraints)
    assert list(row.without) == [*row.rules, *row.constraints]
    assert all(quick.score > row.cost.score for quick in row.without.values())


@pytest.mark.parametrize("seed", range(3))
def test_a_draft_is_priced_as_shardy_propagates_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    plans = [plan_named(name) for name in ("data + tensor parallel", "fully sharded")]
    options = list(dict.fromkeys(option for plan in plans for option in drafts().options(plan)))
    draft = Draft(drafts().role_layouts(plans[seed % 2]), frozenset())
    for index in random.choice(len(options), 3, replace=False):
        draft = draft.with_site(*options[index])
    shardy = Shardy(small(), small().analysis.model, drafts())
    (sharding,) = shardy.propagated([draft])
    assert sharding is not None
    assert drafts().price_of(sharding).time_s == pytest.approx(
        drafts().price(draft).time_s, rel=0.01
    )


def test_results_that_follow_an_argument_are_sharded_as_it_is() -> None:
    program = small().analysis.program
    followed = {program.output_paths[number] for number in drafts().results}
    parameters = {path for path in program.output_paths if path.startswith("result[0]")}
    assert parameters <= followed
    assert not any("loss" in path for path in followed)


def test_fully_sharded_weights_need_one_constraint() -> None:
    # Without it, propagation cuts activations as the weights are stored
    plan = plan_named("fully sharded")
    written = plan.written(0.05, problem=small())
    assert written.cost.score <= small().pricer().full(plan).score * 1.05
    assert written.size.total <= 12


def test_megatron_in_an_mlp_needs_no_constraint_and_three_rules() -> None:
    analysis = analysed("mlp", batch=2048, inputs=512, hidden=16384, outputs=512)
    problem = Problem(analysis, {"data": 2, "model": 2})
    plan = Plan.from_actions(problem, ["B->data", "U->model"])
    of_mlp = Drafts(problem, sites_of(analysis.program, analysis.model))
    draft = Draft(of_mlp.role_layouts(plan), frozenset())
    assert of_mlp.price(draft).time_s == problem.pricer().full(plan).time_s
    assert {rule.words: rule.spec for rule in of_mlp.rules(draft)} == {
        "x": (("data",),),
        "w1": ((), ("model",)),
        "w2": (("model",),),
    }
    written = plan.written(0.0)
    assert written.problem.machine.name == problem.machine.name
    assert written.cost.score <= problem.pricer().full(plan).score


def test_a_cancelled_search_gives_what_it_has() -> None:
    polls = iter(range(100))
    plan = plan_named("fully sharded")
    rows = plan.written_front(
        small(), budget=Budget(None, 4000), cancel=lambda: next(polls, None) is None
    )
    assert len(rows) >= 1
    assert next(polls, None) is None


def test_a_search_without_any_time_gives_the_arguments_alone() -> None:
    (row,) = plan_named("data parallel").written_front(small(), cancel=lambda: True)
    assert not row.constraints
    assert row.rules


def test_a_plan_that_does_not_pay_is_written_all_the_same() -> None:
    problem = Problem(analysed("mlp", batch=16, inputs=16, hidden=16, outputs=16), MESH)
    plan = Plan.from_actions(problem, usual_plans(problem)["fully sharded"])
    assert problem.pricer().full(plan).score > 1
    for written in plan.written_front(problem):
        assert written.size.rules > 0
        assert written.plan.lowered.kept[0] == plan.lowered.kept[0]


def test_a_plan_suggests_a_layout_wherever_it_has_the_same_dims() -> None:
    program, plan = drafts().program, plan_named("fully sharded + tensor + sequence parallel")
    layouts = unpacked_layouts(plan.lowered.layouts, len(MESH))
    options = drafts().options(plan)
    sites = {site for site, _ in options}
    for site in sites:
        dims = program.dims(drafts().sites[site].values[0])
        alike = [value for value in range(program.n_values) if program.dims(value) == dims]
        assert {(site, tuple(layouts[value].tolist())) for value in alike} <= set(options)
    assert len(options) > 2 * len(sites)


def test_gradients_follow_the_rule_of_their_parameter() -> None:
    def loss(weights: dict[str, jax.Array], rows: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(rows @ weights["up"]) @ weights["down"])

    weights = {"up": jnp.zeros((8, 16)), "down": jnp.zeros((16, 4))}
    analysis = analyse(from_jax(jax.value_and_grad(loss), weights, jnp.zeros((32, 8))))
    of_step = Drafts(Problem(analysis, MESH), sites_of(analysis.program, analysis.model))
    program = analysis.program
    assert {
        program.output_paths[number]: program.value_name[int(of_step.members[role][0])]
        for number, role in of_step.results.items()
    } == {"result[1]['down']": "weights['down']", "result[1]['up']": "weights['up']"}


def test_fully_sharded_weights_scatter_their_gradients() -> None:
    plan = plan_named("fully sharded")
    options = drafts().options(plan)
    full = Draft(drafts().role_layouts(plan), frozenset(dict(reversed(options)).items()))
    assert drafts().price(full).score < 1.05 * small().pricer().full(plan).score

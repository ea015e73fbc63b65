"""Expert plans are tried with every assignment of mesh axes to their roles."""

import itertools

import pytest

from tests.helpers import analysed, model
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import ToastError
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget, Status
from toast_lab.search.manual import assignments

PLANS = {
    "data": [("batch", "data")],
    "fsdp": [("batch", "data"), ("d_model", "data")],
    "megatron": [("hidden", "model"), ("heads", "model")],
    "fsdp+megatron": [
        ("batch", "data"),
        ("d_model", "data"),
        ("hidden", "model"),
        ("heads", "model"),
    ],
}
ANY = Budget(seconds=60)


def labels(result):
    return {result.trace.nodes[s.nodes[-1]].action for s in result.trace.simulations[1:]}


def test_every_axis_goes_to_one_role_or_none_in_every_order():
    all_assignments = list(assignments(("data", "model"), ("x", "y", "z")))
    brute = {
        (d, m)
        for i in range(1, 3)
        for j in range(1, 4 - i)
        for d in itertools.permutations("xyz", i)
        for m in itertools.permutations("xyz", j)
        if not set(d) & set(m)
    }
    assert {(f["data"], f["model"]) for f in all_assignments} == brute
    assert len(all_assignments) == len(brute)


def test_keeps_the_best_of_all_plans_on_all_axes():
    analysis = analysed("transformer", layers=1, mode="train")
    problem = Problem(analysis, {"x": 4, "y": 2})
    result = search(problem, "manual", plans=PLANS, budget=ANY)
    assert result.status is Status.DONE
    by_hand = {}
    for d, m in (("x", "y"), ("y", "x")):
        actions = [(c, {"data": d, "model": m}[role]) for c, role in PLANS["fsdp+megatron"]]
        plan = Plan.from_actions(problem, actions)
        by_hand[f"fsdp+megatron (data={d}, model={m})"] = price(problem, plan).score
    scores = {result.trace.nodes[s.nodes[-1]].action: s.score for s in result.trace.simulations[1:]}
    assert {k: scores[k] for k in by_hand} == pytest.approx(by_hand, rel=1e-12)
    assert result.cost.score == pytest.approx(min(1.0, *scores.values()), rel=1e-12)
    assert {"data (data=x)", "data (data=y)", "data (data=x+y)"} <= labels(result)


def test_an_action_without_effect_is_left_out_and_said():
    problem = Problem(analysed("transformer", layers=1, mode="train", heads=2), {"x": 4, "y": 2})
    result = search(problem, "manual", plans={"megatron": PLANS["megatron"]}, budget=ANY)
    assert "megatron (model=x) without heads->x" in labels(result)
    assert "megatron (model=y)" in labels(result)
    assert any("megatron (model=x+y) without heads->x" == x for x in labels(result))


def test_the_axes_of_a_role_are_taken_in_the_order_that_the_label_says():
    """Four heads can be cut by either axis but not by both, so the first axis gets them."""
    problem = Problem(analysed("transformer", layers=1, mode="train", heads=4), {"x": 4, "y": 2})
    result = search(problem, "manual", plans={"heads": [("heads", "model")]}, budget=ANY)
    at = {result.trace.nodes[s.nodes[-1]].action: s.actions for s in result.trace.simulations[1:]}
    assert at == {
        "heads (model=x+y) without heads->y": ("heads->x",),
        "heads (model=y+x) without heads->x": ("heads->y",),
    }


def test_plans_that_come_to_the_same_sharding_are_tried_once():
    problem = Problem(analysed("mlp"), {"x": 4})
    twice = {
        "data": [("B", "data")],
        "rows": [("B", "rows")],
        "data first": [("B", "data"), ("B", "data")],
    }
    result = search(problem, "manual", plans=twice, budget=ANY)
    assert labels(result) == {"data (data=x)"}
    assert len(result.trace.simulations) == 2


def test_one_plan_that_applies_is_enough():
    problem = Problem(analysed("mlp"), {"x": 32})
    result = search(
        problem, "manual", plans={"data": [("B", "data")], "outputs": [("W", "data")]}, budget=ANY
    )
    assert result.status is Status.DONE
    assert labels(result) == {"data (data=x)"}


def test_a_plan_of_which_nothing_applies_is_left_out():
    problem = Problem(analysed("mlp"), {"x": 7})
    result = search(problem, "manual", plans={"data": [("B", "data")]}, budget=ANY)
    assert result.status is Status.NO_ACTIONS
    assert labels(result) == set()
    assert result.plan.actions == ()


def test_a_plan_with_more_roles_than_axes_is_left_out():
    problem = Problem(analysed("mlp"), {"x": 4, "one": 1})
    result = search(
        problem,
        "manual",
        plans={"two": [("B", "data"), ("U", "model")], "data": [("B", "data")]},
        budget=ANY,
    )
    assert labels(result) == {"data (data=x)"}


@pytest.mark.parametrize("name", ["itx", "gns"])
def test_the_models_expert_plans_can_be_tried(name):
    sizes = {
        "gns": {
            "steps": 1,
            "nodes": 512,
            "edges": 8192,
            "latent": 128,
            "hidden": 128,
            "hidden_layers": 2,
        },
        "itx": {
            "layers": 1,
            "d_model": 64,
            "hidden": 128,
            "heads": 4,
            "key_size": 16,
            "vocab": 256,
            "batch": 8,
        },
    }[name]
    plans = model(name, **sizes).expert_plans
    result = search(Problem(analysed(name, **sizes), "2x2"), "manual", plans=plans, budget=ANY)
    assert result.status is Status.DONE
    assert {x.split(" (")[0] for x in labels(result)} == set(plans)
    assert result.cost.score < 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plans": {"p": [("batsch", "data")]}}, 'did you mean "batch"'),
        ({"plans": {"p": ["batch->data"]}}, r"plan 'p': give its actions as"),
        ({"plans": {"p": [("batch", "data", 1)]}}, "bits"),
        ({"plans": PLANS, "actions": ["batch->x"]}, "not both"),
    ],
)
def test_bad_plans_are_refused(options, message):
    problem = Problem(analysed("transformer", layers=1, mode="train"), {"x": 2})
    with pytest.raises(ToastError, match=message):
        search(problem, "manual", budget=ANY, **options)

"""Model <- Analysis <- Problem <- Plan: each holds the one before, and pickles stay small."""

from __future__ import annotations

import pickle

import pytest

import toast_lab as tl
from tests.helpers import analysed, model
from toast_lab.errors import InvalidPlan
from toast_lab.jobs.load_job import LoadedModel
from toast_lab.search.contract import search as stage
from toast_lab.search.search_child import search_in_child
from toast_lab.sharding.plan import ShardingPlan, model_of, plan_of_actions

FEW = tl.Budget(seconds=None, evaluations=8)


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    return tl.Problem(tl.analyse(model("mlp")), {"d": 2})


def test_whoever_gives_a_user_a_plan_gives_its_verbs_and_its_lineage(problem, tmp_path):
    by_hand = tl.Plan.from_actions(problem, [("B", "d")])
    by_hand.save(tmp_path / "plan.json")
    searched = tl.search(problem, budget=FEW)
    plans = [
        by_hand,
        tl.replicated(problem),
        searched.plan,
        tl.race(problem, ["random"], FEW).plan,
        tl.Plan.load(tmp_path / "plan.json", problem),
        tl.Plan.load(tmp_path / "plan.json", problem.analysis),
        tl.Plan.from_json(by_hand.to_json(), problem),
    ]
    for plan in plans:
        assert isinstance(plan, tl.Plan)
        assert plan.analysis is problem.analysis
        assert plan.analysis.model is model("mlp")
        assert model_of(plan) is model("mlp")
        arguments, _ = plan.partition_specs()
        assert len(arguments) == len(model("mlp").trees[0].children())
    # a stage inside the package gives a plan without verbs
    assert type(stage(problem, budget=FEW).plan) is ShardingPlan


def test_a_plan_in_another_process_has_no_analysis_and_one_that_comes_back_has(problem):
    plan = plan_of_actions(problem.space, [])
    _ = plan.lowered
    data = pickle.dumps(plan)
    alone = pickle.loads(data)
    assert alone.analysis is None
    assert "lowered" not in vars(alone)
    assert alone.sharding.same_as(plan.sharding)
    assert len(data) < 1.1 * len(pickle.dumps((plan.program, plan.sharding)))
    with pytest.raises(InvalidPlan, match="give model="):
        model_of(alone)
    assert model_of(alone, model("mlp")) is model("mlp")
    outcome = search_in_child(problem, "random", budget=FEW)
    assert outcome.plan.analysis is problem.analysis


def test_an_analysis_travels_without_text_and_finds_its_model_again():
    analysis = analysed("transformer")
    alone = pickle.loads(pickle.dumps(analysis))
    assert (alone.model.stablehlo, alone.model.trees, alone.model.function) == ("", None, None)
    loaded = pickle.loads(pickle.dumps(LoadedModel(analysis.model, analysis)))
    assert loaded.analysis.model is loaded.model
    assert loaded.model.stablehlo == analysis.model.stablehlo
    assert loaded.model.program is loaded.analysis.names.program
    assert loaded.model.trees == analysis.model.trees


def test_one_sentence_says_that_a_plan_is_of_another_program(problem):
    plan, other = tl.replicated(problem), tl.Problem(analysed("attention"), {"d": 2})
    sentence = "this plan is for the program mlp .* not for attn"
    for ask in (
        lambda: tl.price(other, plan),
        lambda: tl.listing(other, plan),
        lambda: tl.annotate(other.analysis.model, plan),
        lambda: other.divisibility(plan),
        lambda: tl.compile(other.analysis.model, plan, "cpu:2"),
        lambda: model_of(plan, other.analysis.model),
    ):
        with pytest.raises(InvalidPlan, match=sentence):
            ask()

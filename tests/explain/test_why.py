"""Why a collective is there, what undoing its causes costs, and what removes it."""

import json
from pathlib import Path

import jax
import pytest

import toast_lab as tl
from tests.helpers import analysed, plan, small_transformer
from toast_lab.cost import peak
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.explain import why as explained
from toast_lab.explain.why import REFINEMENT_CAUSE, why
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget

MESH = {"data": 2, "model": 4}


@pytest.fixture(scope="module")
def problem():
    return Problem(small_transformer(layers=2, batch=16), MESH, "tpu-v3")


def check(problem, asked, reasons):
    """Check the properties that every answer must have."""
    cost = price(problem, asked)
    for reason in reasons:
        assert reason.causes
        assert set(reason.causes) <= {*asked.actions, REFINEMENT_CAUSE}
        for change in (*reason.undoing, *([reason.cheapest] if reason.cheapest else [])):
            changed_cost = price(problem, change.plan)
            assert change.time_s == changed_cost.time_s
            assert change.more_time_s == pytest.approx(changed_cost.time_s - cost.time_s, abs=1e-12)
            assert change.more_peak_bytes == changed_cost.peak_bytes - cost.peak_bytes
            row = reason.collective
            remaining = [
                c
                for c in changed_cost.collectives
                if (c.op, c.value) == (row.op, row.value) and {*c.axes} & {*row.axes}
            ]
            assert change.removes == (not remaining)
        if reason.cheapest:
            assert reason.cheapest.removes
        str(reason)


def test_every_collective_of_a_plan_of_actions_has_an_answer(problem):
    asked = plan(problem, ("batch", "data"), ("sequence", "model", 1), ("hidden", "model"))
    reasons = [
        r for i in range(len(price(problem, asked).collectives)) for r in why(problem, asked, i)
    ]
    assert len(reasons) == len(price(problem, asked).collectives) > 20
    check(problem, asked, reasons)
    assert all(r.undoing for r in reasons)
    assert sum(r.cheapest is not None for r in reasons) > 0.9 * len(reasons)
    assert REFINEMENT_CAUSE not in {c for r in reasons for c in r.causes}


def test_partial_sums_come_from_the_action_that_split_what_is_summed(problem):
    asked = plan(problem, ("batch", "data"), ("hidden", "model"))
    reasons = why(problem, asked, "dot_general")
    assert {r.collective.axes for r in reasons} == {("data",), ("model",)}
    for reason in reasons:
        row = reason.collective
        assert row.kind == "all_reduce"
        expected = "hidden->model" if row.axes == ("model",) else "batch->data"
        assert reason.causes == (expected,)
        assert f"over {row.axes[0]}" in reason.because
        (undo,) = reason.undoing
        assert undo.removes
        others = [a for a in asked.actions if a != expected]
        same = Plan.from_actions(problem, others)
        assert (undo.plan.op_factor == same.op_factor).all()
        assert (undo.plan.value_dim == same.value_dim).all()


def test_a_conflict_that_decided_is_named_and_the_other_side_tried():
    attention = Problem(analysed("attention"), {"d": 2}, "tpu-v3")
    asked = plan(attention, ("S", "d", 1))
    (gather,) = why(attention, asked, "all_gather")
    assert "have one colour; S@1->d shards S#" in gather.conflict
    assert gather.causes == ("S@1->d",)
    other = plan(attention, ("S", "d", 0))
    settled = list(
        explained._Asker(attention, asked, price(attention, asked))._settle(0, gather.collective)
    )
    (change,) = settled
    assert change.text == "S@0->d instead of S@1->d"
    assert (change.plan.op_factor == other.op_factor).all()
    assert change.time_s == price(attention, other).time_s


def test_every_collective_of_a_refined_plan_has_an_answer():
    sizes = {"layers": 2, "batch": 16, "vocab": 4096, "sequence": 1024}
    problem = Problem(analysed("transformer", **sizes), {"data": 8, "model": 2}, "tpu-v3")
    asked = search(
        problem,
        seed=1,
        budget=Budget(seconds=None, evaluations=20_000),
        restarts=0,
        solve=False,
        actions_within=0.0,
    ).plan
    assert asked.refinements[-1].startswith("refined in ")
    rows = price(problem, asked).collectives
    assert rows
    reasons = [r for row in rows[:: len(rows) // 12] for r in why(problem, asked, row)]
    check(problem, asked, reasons)
    assert any(REFINEMENT_CAUSE in r.causes for r in reasons)


def test_a_plan_that_no_actions_made(problem):
    result = search(problem, "alpa", budget=Budget(seconds=None, evaluations=40)).plan
    reasons = [r for row in price(problem, result).collectives for r in why(problem, result, row)]
    assert {c for r in reasons for c in r.causes} == {REFINEMENT_CAUSE}
    assert all(r.undoing == () for r in reasons)


def test_questions(problem):
    asked = plan(problem, ("batch", "data"), ("hidden", "model"))
    rows = price(problem, asked).collectives
    assert [r.collective for r in why(problem, asked, rows[3])] == [rows[3]]
    assert [r.collective for r in why(problem, asked, 3)] == [rows[3]]
    assert [r.collective for r in why(problem, asked, rows[3].value)] == [
        r for r in rows if r.value == rows[3].value
    ]
    line = rows[3].where.rpartition("/")[2]
    assert {r.collective.where for r in why(problem, asked, line)} == {rows[3].where}
    with pytest.raises(
        ToastError, match=rf"this plan has {len(rows)} collectives, so there is no number 999"
    ):
        why(problem, asked, 999)
    with pytest.raises(ToastError, match=r"did you mean.*all_reduce"):
        why(problem, asked, "all_reduc")
    with pytest.raises(ToastError, match="no such collective"):
        why(problem, asked, rows[0]._replace(op=1))
    with pytest.raises(InvalidPlan):
        why(problem, tl.replicated(Problem(analysed("mlp"), MESH)), 0)
    data = json.loads(json.dumps(explained.to_json(tl.why(problem, asked, 3))))
    assert data[0]["causes"] == list(why(problem, asked, 3)[0].causes)


def _product(x, w):
    return x @ w


def _calls_a_library(x, w):
    return _product(x, w)


def test_a_line_that_calls_a_library_is_known_and_texts_name_files_without_their_folders():
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 32), (32, 16)))
    problem = Problem(tl.analyse(tl.from_jax(_calls_a_library, x, w)), {"data": 2}, "tpu-v3")
    asked = Plan.from_specs(problem, {"x": (None, "data"), "w": ("data", None)})
    inner, outer = (f.__code__.co_firstlineno + 1 for f in (_product, _calls_a_library))
    (reason,) = why(problem, asked, f"test_why.py:{outer}")
    assert reason.collective == why(problem, asked, f"test_why.py:{inner}")[0].collective
    assert reason.place.startswith(f"test_why.py:{inner} < test_why.py:{outer}")
    assert f"dot_general, test_why.py:{inner} < test_why.py:{outer}" in str(reason)
    assert Path(reason.collective.where).is_absolute()
    nothing = tl.replicated(problem)
    folder = str(Path(__file__).parent)
    for printed in (reason, tl.diff(problem, asked, nothing)):
        assert "test_why.py" in str(printed)
        assert folder not in str(printed)
    with pytest.raises(ToastError, match=rf"all_reduce at test_why.py:{inner}") as caught:
        why(problem, asked, "nowhere.py:1")
    assert folder not in str(caught.value)


def test_a_plan_that_sends_nothing_is_told_so():
    nothing_sent = Problem(analysed("mlp"), {"data": 2})
    with pytest.raises(ToastError, match="has no collectives, so there is none"):
        why(nothing_sent, plan(nothing_sent, ("B", "data")), "all_gather")


def test_collectives_of_what_is_computed_again_say_so() -> None:
    sizes = {"layers": 2, "d_model": 64, "hidden": 256, "heads": 4, "vocab": 128, "remat": True}
    problem = tl.Problem(tl.analyse(tl.load("transformer", **sizes)), {"data": 2, "model": 2})
    plan = tl.Plan.from_actions(problem, ["batch->data", "heads->model", "hidden->model"])
    program = problem.analysis.program
    reasons = tl.why(problem, plan, range(len(tl.price(problem, plan).collectives)))
    said = {reason.collective.op: "computes again" in reason.because for reason in reasons}
    assert said == {op: program.is_computed_again(op) for op in said}
    assert 0 < sum(said.values()) < len(said)
    assert any("again (jax.checkpoint is around it)" in reason.because for reason in reasons)
    kinds = {held.kind for held in tl.price(problem, plan).at_peak}
    assert peak.COMPUTED_AGAIN in kinds

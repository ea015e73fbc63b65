from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pickle
import signal
import time
from typing import Any

import jax
import numpy as np
import pytest

from tests.compare import own_models
from toast_lab import frontends, isolate
from toast_lab.compare import compare as module
from toast_lab.compare import contender, measure
from toast_lab.compare.compare import compare
from toast_lab.compare.result import Comparison
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.child import RunProgress, relative_error
from toast_lab.sharding.plan import ShardingPlan

MESH = {"d": 2, "m": 2}
_, SCORES, OPTIONS = own_models.make_scores()


def problem_of(model: Model, mesh: dict[str, int]) -> Problem:
    return Problem(analyse(model), mesh)


def plan_of(model: Model, mesh: dict[str, int], *actions: object) -> ShardingPlan:
    return Plan.from_actions(problem_of(model, mesh), actions)


def scores() -> Model:
    return frontends.from_jax(own_models.scores, *SCORES, **OPTIONS)


def plans_of(model: Model) -> dict[str, ShardingPlan]:
    return {
        "data": plan_of(model, MESH, ("batch", "d")),
        "both": plan_of(model, MESH, ("batch", "d"), ("hidden", "m")),
    }


@pytest.fixture(scope="module")
def done() -> Comparison:
    model = scores()
    # A problem stands for its model, and prices the plans
    return compare(problem_of(model, MESH), plans_of(model), repeats=7, rounds=3)


def test_rows_hold_times_memory_collectives_and_prices(done: Comparison) -> None:
    assert [(row.name, row.status, row.message) for row in done.rows] == [
        ("data", "ok", ""),
        ("both", "ok", ""),
    ]
    data, both = done.rows
    assert [len(b) for b in data.batches_s] == [3, 2, 2]
    assert data.collective_counts == {}
    assert both.collective_counts == {"all_reduce": 1}
    # Whole, x and w have 2048, 8192 and 2048 bytes; batch halves the first, hidden the others.
    assert data.argument_bytes == 1024 + 8192 + 2048
    assert both.argument_bytes == 1024 + 4096 + 1024
    for row in (*done.rows, done.reference):
        assert row is not None
        assert row.median_s is not None
        assert min(row.step_times_s) <= row.median_s <= max(row.step_times_s)
        assert row.spread_s is not None
        assert 0 <= row.spread_s <= max(row.step_times_s)
        assert row.compile_s
    model = scores()
    cost = price(problem_of(model, MESH), plans_of(model)["both"])
    assert both.predicted is not None
    assert (both.predicted.time_s, both.predicted.peak_bytes) == (cost.time_s, cost.peak_bytes)
    assert both.predicted.collective_counts == {"all_reduce": 1}
    assert done.fastest in done.rows
    assert done.order.startswith("3 rounds of 2 or 3 steps")


def test_the_certificate_holds_outputs_loss_gradients_and_a_step(done: Comparison) -> None:
    certificate = done["both"].certificate
    assert certificate is not None
    assert set(certificate.outputs or {}) == {"result"}
    parts = ["w['in']", "w['out']", "x"]
    assert set(certificate.gradients or {}) == {
        "loss",
        *(f"gradient of {p}" for p in parts),
        *(f"{p} after a step" for p in parts),
    }
    assert certificate.passed
    assert certificate.tolerance == pytest.approx(2**-11.5)
    assert certificate.not_checked == ()
    assert "mean of squares" in certificate.checked[1]
    assert done.reference is not None
    assert done.reference.certificate is None


def test_the_gradients_are_those_of_the_function() -> None:
    """They are compared with jax.grad, since both sides of the certificate could be wrong alike."""
    model = scores()
    prepared = module.gradients.prepare(model, [plans_of(model)["both"]])
    arrays = module.made_up.draw(model.program, 0)
    assert prepared.reference is not None
    executable = contender.Executable(
        prepared.reference, prepared.shapes, [False] * 3, jax.devices()[:1]
    )
    executable.put(arrays)
    results = dict(zip(prepared.names, executable.results(executable.step()[1]), strict=True))
    weights = {"in": arrays[0], "out": arrays[1]}
    value, gradient = jax.value_and_grad(own_models.loss)(weights, arrays[2])
    assert relative_error(np.asarray(results["loss"]), np.asarray(value)) < 1e-6
    assert (
        relative_error(np.asarray(results["gradient of w['in']"]), np.asarray(gradient["in"]))
        < 1e-5
    )
    after = weights["out"] - module.gradients.RATE * gradient["out"]
    assert relative_error(np.asarray(results["w['out'] after a step"]), np.asarray(after)) < 1e-6


def test_a_wrong_program_fails_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan's program computes something else than the function.

    Its row says so, and it is never the fastest plan, however quick it is.
    """

    def other(model: Model, plan: ShardingPlan, platform: str) -> Any:
        job = module.run_job(model, plan, platform)
        return dataclasses.replace(job, text=job.text.replace("stablehlo.tanh", "stablehlo.sine"))

    monkeypatch.setattr(module, "run_job", module.job_of, raising=False)
    monkeypatch.setattr(module, "job_of", other)
    model = scores()
    comparison = compare(model, [plans_of(model)["data"]], repeats=1, gradients=False)
    for row in comparison.rows:
        assert row.certificate is not None
        assert row.certificate.passed is False
        assert "DIFFERS" in str(row.certificate)
        assert row.certificate.not_checked == ("gradients: gradients were not asked for",)
    assert comparison.fastest is None


def test_a_training_step_needs_no_gradients() -> None:
    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((32, 64), (32, 64), (16, 32))]
    names = {"w": ("inner", "outer"), "moment": ("inner", "outer"), "x": ("batch", "inner")}
    model = frontends.from_jax(own_models.step, *shapes, donate_argnums=(0,), dim_names=names)
    comparison = compare(model, [plan_of(model, MESH, ("outer", "m"))], repeats=2)
    certificate = comparison["plan 1"].certificate
    assert certificate is not None
    assert certificate.passed
    assert len(certificate.outputs or {}) == 2
    assert "the outputs include the update" in certificate.not_checked[0]


def test_gradients_of_files_and_of_modules() -> None:
    model = scores()
    plans = plans_of(model)
    from_file = frontends.from_stablehlo(model.stablehlo)
    assert "has no function" in module.gradients.prepare(from_file, list(plans.values())).why_not
    own_model = frontends.load("tests.compare.own_models:make_scores", batch=16)
    prepared = module.gradients.prepare(own_model, [plan_of(own_model, MESH, ("batch", "d"))])
    assert prepared.why_not == ""
    assert prepared.notes == ("",)
    assert prepared.planned[0] is not None
    assert "sdy.sharding" in prepared.planned[0].text
    assert model.function is not None
    changing = dataclasses.replace(
        model, function=dataclasses.replace(model.function, changes=True)
    )
    assert "changes modules" in module.gradients.prepare(changing, []).why_not
    assert pickle.loads(pickle.dumps(model)).function is None
    keyed = frontends.from_jax(
        lambda k, x: x + jax.random.normal(k, (8,)), jax.random.key(0), np.ones(8, np.float32)
    )
    assert "typed random keys" in module.gradients.prepare(keyed, []).why_not
    integers = frontends.from_jax(lambda n: n + 1, jax.ShapeDtypeStruct((8,), "int32"))
    assert "no argument" in module.gradients.prepare(integers, []).why_not


class Faulty(contender.Contender):
    """A contender that fails in the way its name says; it runs in the child process."""

    def batch(self, steps: int) -> tuple[float, ...]:
        if self.request.name == "crash" and (
            self.request.process is None or self.request.process.number == 1
        ):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.request.name == "hang":
            signal.pause()
        if self.request.name == "memory":
            raise MemoryError("RESOURCE_EXHAUSTED: 1 TiB")
        return super().batch(steps)


def serve_faulty(request: contender.ContenderRequest) -> None:
    contender.Contender = Faulty  # type: ignore[misc]
    contender.serve(request)


def test_a_crash_a_hang_and_a_full_memory_cost_one_row_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "SERVE_FUNCTION", "tests.compare.test_compare:serve_faulty")
    model = scores()
    plan = plans_of(model)["data"]
    names = ("fine", "crash", "hang", "memory", "fine too")
    comparison = compare(
        model,
        {n: plan for n in names},
        repeats=4,
        warmup=1,
        gradients=False,
        plan_time_limit_s=10,
        reference=False,
    )
    assert [row.status for row in comparison.rows] == [
        "ok",
        "crashed",
        "timeout",
        "out of memory",
        "ok",
    ]
    assert "SIGSEGV" in comparison["crash"].message
    assert "'batch'" in comparison["hang"].message
    assert len(comparison["fine too"].step_times_s) == 4
    assert comparison["crash"].median_s is None
    assert comparison["crash"].compile_s is not None
    assert "crash: crashed: crash: its process crashed (SIGSEGV)" in str(comparison)


def test_plans_take_turns_in_a_changing_order_and_a_cancel_keeps_what_was_measured() -> None:
    model = scores()
    events: list[RunProgress] = []
    comparison = compare(
        model,
        plans_of(model),
        repeats=1000,
        rounds=1000,
        gradients=False,
        on_event=events.append,
        cancel=lambda: len(events) > 3 + 3 * 8,
    )
    assert {row.status for row in comparison.rows} == {"cancelled"}
    assert all(8 <= len(row.step_times_s) < 1000 for row in comparison.rows)
    assert all(row.certificate is not None and row.certificate.outputs for row in comparison.rows)
    assert events[0].stage == "compiling (unsharded)"
    fractions = [e.fraction for e in events]
    assert fractions == sorted(fractions)
    rounds = [tuple(e.stage for e in events[i : i + 3]) for i in range(3, 3 + 3 * 8, 3)]
    for number, messages in enumerate(rounds):
        assert {s.split(",")[0] for s in messages} == {
            "running data",
            "running both",
            "running (unsharded)",
        }
        assert all(s.endswith(f"round {number + 1}/1000") for s in messages)
    assert len({messages[0].split(",")[0] for messages in rounds}) > 1, "one plan always went first"


def test_the_time_limit_ends_it_with_rows() -> None:
    model = scores()
    started = time.monotonic()
    comparison = compare(
        model,
        plans_of(model),
        repeats=10**6,
        rounds=10**6,
        gradients=False,
        time_limit_s=6,
        plan_time_limit_s=60,
    )
    assert time.monotonic() - started < 30
    assert {row.status for row in comparison.rows} == {"timeout"}
    assert "limit of all plans together" in comparison.rows[0].message


def test_apart_there_is_one_child_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators are measured like this; the test does it on the CPU."""
    alive: list[str] = []
    most = []

    class Watched(measure.Children):
        def __init__(self, request: contender.ContenderRequest, *args: Any) -> None:
            alive.append(request.name)
            most.append(len(alive))
            super().__init__(request, *args)

        def stop(self) -> None:
            super().stop()
            alive.pop()

    monkeypatch.setattr(measure, "Children", Watched)
    model = scores()
    comparison = compare(model, plans_of(model), repeats=4, rounds=2, apart=True)
    assert most == [1] * 6
    assert [row.status for row in comparison.rows] == ["ok", "ok"]
    assert [row.certificate.passed for row in comparison.rows if row.certificate] == [True, True]
    assert all(
        len(row.certificate.gradients or {}) == 7 for row in comparison.rows if row.certificate
    )
    assert [len(b) for b in comparison["both"].batches_s] == [2, 2]
    assert "one after the other" in comparison.order


def test_a_result_is_plain_data_a_table_and_csv(done: Comparison, tmp_path: Any) -> None:
    data = json.loads(json.dumps(done.to_json(), allow_nan=False))
    assert [row["name"] for row in data["rows"]] == ["data", "both"]
    assert data["rows"][1]["certificate"]["passed"] is True
    assert data["rows"][1]["plan"]["mesh"] == MESH
    text = done.to_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[1]["collectives"] == "all_reduce=1"
    assert float(rows[0]["median_s"]) == done["data"].median_s
    assert "agrees" in str(done)
    with pytest.raises(KeyError, match="there are data, both"):
        done["neither"]


def test_wrong_requests() -> None:
    model = scores()
    plans = plans_of(model)
    with pytest.raises(InvalidProblem, match="no plan to compare"):
        compare(model, [])
    other = frontends.load("mlp")
    with pytest.raises(
        InvalidPlan, match=r"(?s)plans of another program.*\n  a: shards mlp.*\n  b: shards mlp"
    ):
        compare(model, {"a": plan_of(other, MESH), "b": plan_of(other, MESH), "c": plans["data"]})
    with pytest.raises(InvalidProblem, match="the mesh needs 4 devices"):
        compare(model, plans, "cpu:2")
    with pytest.raises(
        InvalidProblem, match=r"repeats must be at least 1.*warmup must not be.*rounds must be"
    ):
        compare(model, plans, repeats=0, warmup=-1, rounds=0)
    with pytest.raises(InvalidProblem, match="data: 4 devices cannot be divided"):
        compare(model, plans, processes=3)
    with pytest.raises(InvalidProblem, match="processes=2 divides virtual CPU devices"):
        compare(model, plans, "gpu", processes=2)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_shards_are_compared_where_they_are(bad: float) -> None:
    array = jax.device_put(np.asarray([[1.0, 2.0], [3.0, 5.0]], np.float32))
    assert contender.shards_error(array, np.asarray([[1.0, 2.0], [3.0, 4.0]], np.float32)) == 0.25
    assert contender.shards_error(array, np.asarray([[1.0, 2.0], [3.0, bad]], np.float32)) == np.inf
    assert contender.shards_error(jax.device_put(np.zeros((0,))), np.zeros((0,))) == 0.0
    assert isolate.next_command() is None
